"""One optimizer, emptied for each client, trains exactly as one made for each client."""

from __future__ import annotations

import pytest
import torch

from fedvlp.training.schedules import ExponentialDecay
from tests.helpers.toy_federation import Linear, Points, federation

MAKERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "groups": lambda p: torch.optim.SGD([{"params": p, "lr": 0.3}], lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),  # remembers from the beginning
}


class Trained(Linear):
    def __init__(self, make):
        super().__init__()
        self.made = 0
        self.make_optimizer = lambda parameters: self.counted(make(parameters))

    def counted(self, optimizer):
        self.made += 1
        return optimizer


class Afresh(Trained):
    """The plain path: one optimizer a client, since who overrides this may do anything."""

    def configure_optimizers(self):
        return super().configure_optimizers()


@pytest.mark.parametrize("name", MAKERS)
def test_emptied_equals_fresh(tmp_path, name):
    options = {"rounds": 2, "schedule": ExponentialDecay(0.5), "default_callbacks": False}
    modules = [kind(MAKERS[name]) for kind in (Trained, Afresh)]
    states = [federation(tmp_path, **options).fit(module, Points()).shared for module in modules]
    assert torch.equal(states[0]["weight"], states[1]["weight"])
    made = [module.made - 2 for module in modules]  # one is checked, one tells the description its settings
    assert made == [6 if name == "Adagrad" else 2, 6]


def test_optimizer_of_somebody_else_is_made_for_each_client(tmp_path):
    class Own(torch.optim.SGD):
        pass

    module = Trained(lambda parameters: Own(parameters, lr=0.1))
    federation(tmp_path, rounds=1, default_callbacks=False).fit(module, Points())
    assert module.made - 2 == 3

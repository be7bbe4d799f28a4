"""A method that breaks the contract is told so, check by check; own ones keep to it (tests/methods/test_contract.py).

One run of PromptFL is made, and what is known of it is then changed as a method that breaks a check would change it.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fedvlp.testing
from fedvlp import PromptFL
from fedvlp.testing import ContractError, check_method
from fedvlp.testing import method as checks
from fedvlp.testing.contract import difference
from fedvlp.testing.runs import whole_run
from tests.helpers.runs import make_run
from tests.helpers.shapes import unchecked

SHORT = ("--trainer.baselines=[]", "--trainer.evaluate_every=2", "--trainer.local.steps=1")


@pytest.fixture(autouse=True)
def stand_ins():
    """Lets objects stand for others of which checks look at a few attributes."""
    with unchecked():
        yield


@pytest.fixture(scope="module")
def whole(image_root, tmp_path_factory):
    """A run of PromptFL."""
    return whole_run(partial(make_run, image_root, tmp_path_factory.mktemp("promptfl"), "promptfl", *SHORT))


def model_with(whole, **attributes):
    """Returns the run with a model that gives other values for some attributes."""
    model = whole.run.model
    kind = type("PromptFL", (), {"__getattr__": lambda self, name: getattr(model, name), **attributes})
    return SimpleNamespace(model=kind(), datamodule=whole.run.datamodule, trainer=whole.run.trainer)


def shifted(tensors):
    return {name: value + 0.25 for name, value in tensors.items()}


def test_what_is_trained_is_told(whole):
    check = checks.trains_its_tensors_and_nothing_of_clip
    after = {name.split("/")[-1]: value for name, value in whole.tensors.items()}
    cases = {
        "changes CLIP, which must stay frozen": {"fingerprint": "another"},
        "it did not move": {"before": after},
        "its run keeps": {"tensors": {}},
        "neither server nor client has": {"tensors": {"shared/odd": torch.ones(1)}},
        r"saves tensors of CLIP \(\['clip.odd'\]\)": {"run": model_with(whole, state_dict=lambda self: ["clip.odd"])},
    }
    for message, facts in cases.items():
        with pytest.raises(ContractError, match=message):
            check(replace(whole, **facts))


@pytest.mark.parametrize(
    "check", [checks.a_resumed_run_equals_an_unbroken_one, checks.order_of_clients_and_global_generator_do_not_matter]
)
def test_runs_that_differ_are_told(whole, check):
    with pytest.raises(ContractError, match=r"but .* differs by up to 0\.25\. Keep all that training changes"):
        check(replace(whole, tensors=shifted(whole.tensors)))


def test_what_is_sent_is_told(whole):
    check = checks.only_what_a_phase_uploads_is_sent
    sent = whole.sent
    odd = {where: {**state, "odd": torch.ones(1)} for where, state in sent.items()}
    name = next(iter(next(iter(sent.values()))))
    cases = {
        "0 uploads came": {"sent": {}},
        r"\['odd'\] is sent, which its upload": {"sent": odd},
        r"is to be sent; \[\] was": {"sent": {where: {} for where in sent}},
        "though it is personal": {"run": model_with(whole, personal=(name,))},
    }
    for message, facts in cases.items():
        with pytest.raises(ContractError, match=message):
            check(replace(whole, **facts))


def test_what_is_counted_is_told(whole):
    check = checks.communication_is_what_was_sent_and_what_cost_says
    sent = whole.sent
    more = {where: {**state, "odd": torch.ones(1)} for where, state in sent.items()}
    with pytest.raises(ContractError, match=r"says upload_parameters 1024 a round, and round 1 had 1025 in what was"):
        check(replace(whole, sent=more))
    (first, *_) = whole.run.trainer.run_state.history
    history = [{**first, "download_bytes": 3}]
    trainer = SimpleNamespace(run_state=SimpleNamespace(history=history))
    run = SimpleNamespace(model=whole.run.model, datamodule=whole.run.datamodule, trainer=trainer)
    with pytest.raises(ContractError, match="says download_bytes 4096 a round, and round 1 had 3"):
        check(replace(whole, run=run))
    history[:] = [first]
    with pytest.raises(ContractError, match=r"bytes in all; \d+ were sent"):
        check(replace(whole, run=run))


def test_what_is_prepared_is_told(whole):
    check = checks.precomputed_tensors_give_the_same_as_images
    model = whole.run.model
    cases = {
        "same bits for images and for what precompute": lambda self, images: shifted(model.precompute(images)),
        "has a gradient": lambda self, images: {**model.precompute(images), "odd": torch.ones(5, requires_grad=True)},
        "of 3 images for 5": lambda self, images: {**model.precompute(images), "odd": torch.ones(3)},
    }
    for message, prepare in cases.items():
        run = model_with(whole, precompute=prepare, __call__=lambda self, inputs: model(inputs))
        with pytest.raises(ContractError, match=message):
            check(replace(whole, run=run))
    others = SimpleNamespace(precompute=lambda images: shifted(model.precompute(images)))
    changes = {"for_classes": lambda self, names: others, "__call__": lambda self, inputs: model(inputs)}
    with pytest.raises(ContractError, match="depends on the class names"):
        check(replace(whole, run=model_with(whole, **changes)))


def test_a_description_is_told(whole):
    check = checks.it_describes_itself_in_json
    described = whole.run.model.describe()
    cases = {"what JSON can hold": {**described, "odd": {3}}, "give it to set_backbone": {**described, "clip": None}}
    for message, value in cases.items():
        run = model_with(whole, describe=lambda self, value=value: value)
        with pytest.raises(ContractError, match=message):
            check(replace(whole, run=run))


class Scores(PromptFL):
    """Leaves the bias of some scores out of its optimizer, which moves all of them alike under a softmax alone."""

    is_softmax = True

    def __init__(self, class_names, clip):
        super().__init__(class_names, clip)
        self.score = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        scores = self.score(torch.eye(3))
        return super().training_step(batch, batch_idx) + (scores.softmax(0)[0] if self.is_softmax else scores).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.prompt, self.score.weight], lr=0.1)


def test_what_an_optimizer_leaves_out_is_told_unless_no_loss_sees_it(whole, monkeypatch):
    def build():
        run = whole.build()
        return SimpleNamespace(model=Scores(run.datamodule.class_names, run.model.clip), datamodule=run.datamodule)

    checks.a_plain_trainer_trains_it(replace(whole, build=build))
    monkeypatch.setattr(Scores, "is_softmax", False)
    with pytest.raises(ContractError, match=r"train all of .* \['score.bias'\] did not move"):
        checks.a_plain_trainer_trains_it(replace(whole, build=build))


class Forgetful(PromptFL):
    """Counts its steps where no checkpoint sees it, logs no loss and takes its options without saying which."""

    steps = 0

    def training_step(self, batch, batch_idx):
        Forgetful.steps += 1
        loss = super().training_step(batch, batch_idx) * (1 + Forgetful.steps)
        self._logged.clear()
        return loss

    def forward(self, inputs):
        return super().forward(inputs) + 0.0 * Forgetful.steps


def test_all_that_a_method_breaks_is_told_at_once():
    with pytest.raises(ContractError) as told:
        check_method(Forgetful, arguments=["--model.prompt_length=2", *SHORT])
    message = str(told.value)
    assert "Forgetful: a run that resumes after round 1 must end as an unbroken one, but" in message
    assert "Forgetful: neither the order of clients nor what was drawn before a run may change it" in message
    assert "Let training_step call self.log('loss', loss)" in message
    assert len(message.splitlines()) == 3


def test_what_can_not_be_tried_is_told(monkeypatch):
    with pytest.raises(ContractError, match="Expected a config of Forgetful; it is of fedvlp"):
        check_method(Forgetful, config="promptfl")
    with pytest.raises(ContractError, match=r"can't be made as .*: PromptFL has no such option"):
        check_method(PromptFL, arguments=["--model.odd=3"])
    with pytest.raises(ContractError, match="Expected a FederatedModule, got 3"):
        check_method(3)


def test_differences_are_described():
    one = {"p": torch.tensor([1.0, 2.0])}
    assert difference(one, {"p": torch.tensor([1.0, 2.0])}) == ""
    assert difference(one, {"p": torch.tensor([1.0, 2.25])}, 0.25) == ""
    assert "up to 0.25" in difference(one, {"p": torch.tensor([1.0, 2.25])}, 0.2)
    assert "nan" in difference(one, {"p": torch.tensor([1.0, torch.nan])}, 9.0)
    assert difference(one, {}) == "['p'] are in one of them only"
    assert "float64 [2] in the other" in difference(one, {"p": torch.ones(2, dtype=torch.float64)})


def test_no_test_runner_is_needed():
    files = sorted(Path(fedvlp.testing.__file__).parent.rglob("*.py"))
    assert len(files) == 6
    assert not [path for path in files if "import pytest" in path.read_text(encoding="utf-8")]

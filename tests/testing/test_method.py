"""Methods that break the contract are rejected by each check. tests/methods/test_contract.py tests fedvlp's methods.

The tests train PromptFL once, and then change the recorded run like a method that breaks a check.
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
from fedvlp.testing.runs import train_reference
from tests.helpers.runs import make_run
from tests.helpers.shapes import unchecked

SHORT = ("--trainer.baselines=[]", "--trainer.evaluate_every=2", "--trainer.local.steps=1")


@pytest.fixture(autouse=True)
def stand_ins():
    """Disable type checks, so that fake objects need only a few attributes."""
    with unchecked():
        yield


@pytest.fixture(scope="module")
def reference(image_root, tmp_path_factory):
    return train_reference(partial(make_run, image_root, tmp_path_factory.mktemp("promptfl"), "promptfl", *SHORT))


def model_with(reference, **attributes):
    """Copy the run, with other values for some attributes of its model."""
    model = reference.run.model
    kind = type("PromptFL", (), {"__getattr__": lambda self, name: getattr(model, name), **attributes})
    return SimpleNamespace(model=kind(), datamodule=reference.run.datamodule, trainer=reference.run.trainer)


def assert_rejected(check, reference, cases):
    """Assert that a check rejects the run with changed facts, for each message."""
    for message, facts in cases.items():
        with pytest.raises(ContractError, match=message):
            check(replace(reference, **facts))


def shift(tensors):
    return {name: value + 0.25 for name, value in tensors.items()}


def test_wrongly_trained_or_saved_tensors_are_rejected(reference):
    after = {name.split("/")[-1]: value for name, value in reference.tensors.items()}
    cases = {
        "changes CLIP, which must stay frozen": {"fingerprint": "another"},
        "the tensor did not change": {"before": after},
        "its run stores": {"tensors": {}},
        "neither server nor client stores": {"tensors": {"shared/odd": torch.ones(1)}},
        r"saves tensors of CLIP \(\['clip.odd'\]\)": {"run": model_with(reference, state_dict=lambda _: ["clip.odd"])},
    }
    assert_rejected(checks.check_trained_tensors, reference, cases)


@pytest.mark.parametrize("check", [checks.check_resumed_run, checks.check_determinism])
def test_runs_that_differ_are_rejected(reference, check):
    with pytest.raises(ContractError, match=r"but .* differs by up to 0\.25\. Store everything that training changes"):
        check(replace(reference, tensors=shift(reference.tensors)))


def test_wrong_uploads_are_rejected(reference):
    sent = reference.uploads
    odd = {where: {**state, "odd": torch.ones(1)} for where, state in sent.items()}
    name = next(iter(next(iter(sent.values()))))
    cases = {
        "clients sent 0 uploads": {"uploads": {}},
        r"send .*'odd'\], which the phase's upload": {"uploads": odd},
        r"but send \[\]": {"uploads": {where: {} for where in sent}},
        "send the personal": {"run": model_with(reference, personal=(name,))},
    }
    assert_rejected(checks.check_uploads, reference, cases)


def test_wrong_communication_counts_are_rejected(reference):
    more = {where: {**state, "odd": torch.ones(1)} for where, state in reference.uploads.items()}
    (first, *_) = reference.run.trainer.run_state.history

    def run_with(row):
        trainer = SimpleNamespace(run_state=SimpleNamespace(history=[row]))
        return SimpleNamespace(model=reference.run.model, datamodule=reference.run.datamodule, trainer=trainer)

    cases = {
        "predicts upload_parameters 1024 per round, but round 1 sent 1025": {"uploads": more},
        "predicts download_bytes 4096 per round, but round 1 logs 3": {"run": run_with({**first, "download_bytes": 3})},
        r"bytes in all, but \d+ were sent": {"run": run_with(first)},
    }
    assert_rejected(checks.check_communication, reference, cases)


def test_wrong_precomputation_is_rejected(reference):
    model = reference.run.model
    cases = {
        "same bits for images and for their precomputed constants": lambda self, images: shift(
            model.precompute(images)
        ),
        "has a gradient": lambda self, images: {**model.precompute(images), "odd": torch.ones(5, requires_grad=True)},
        "has 3 rows for 5 images": lambda self, images: {**model.precompute(images), "odd": torch.ones(3)},
    }
    others = SimpleNamespace(precompute=lambda images: shift(model.precompute(images)))
    changes = {message: {"precompute": prepare} for message, prepare in cases.items()}
    changes["depends on the class names"] = {"for_classes": lambda self, names: others}
    for message, attributes in changes.items():
        run = model_with(reference, **attributes, __call__=lambda self, inputs: model(inputs))
        assert_rejected(checks.check_precompute, reference, {message: {"run": run}})


def test_wrong_descriptions_are_rejected(reference):
    described = reference.run.model.describe()
    cases = {
        "must return JSON values": {**described, "odd": {3}},
        "Pass the CLIP to set_backbone": {**described, "clip": None},
    }
    for message, value in cases.items():
        run = model_with(reference, describe=lambda self, value=value: value)
        assert_rejected(checks.check_description, reference, {message: {"run": run}})


class Scores(PromptFL):
    """Does not optimize the bias of its scores, which has no effect under a softmax."""

    is_softmax = True

    def __init__(self, class_names, clip):
        super().__init__(class_names, clip)
        self.score = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        scores = self.score(torch.eye(3))
        return super().training_step(batch, batch_idx) + (scores.softmax(0)[0] if self.is_softmax else scores).sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.prompt, self.score.weight], lr=0.1)


def test_untrained_parameters_are_rejected_unless_they_do_not_affect_the_loss(reference, monkeypatch):
    def build():
        run = reference.build()
        return SimpleNamespace(model=Scores(run.datamodule.class_names, run.model.clip), datamodule=run.datamodule)

    checks.check_lightning_trainer(replace(reference, build=build))
    monkeypatch.setattr(Scores, "is_softmax", False)
    with pytest.raises(ContractError, match=r"train all of .* \['score.bias'\] did not change"):
        checks.check_lightning_trainer(replace(reference, build=build))


class Forgetful(PromptFL):
    """Counts its steps outside checkpoints, and logs no loss."""

    steps = 0

    def training_step(self, batch, batch_idx):
        Forgetful.steps += 1
        loss = super().training_step(batch, batch_idx) * (1 + Forgetful.steps)
        self._logged.clear()
        return loss

    def forward(self, inputs):
        return super().forward(inputs) + 0.0 * Forgetful.steps


def test_all_problems_of_a_method_are_reported_at_once(monkeypatch):
    chosen = (checks.check_resumed_run, checks.check_determinism, checks.check_partial_participation)
    monkeypatch.setattr(checks, "METHOD_CHECKS", chosen)
    with pytest.raises(ContractError) as raised:
        check_method(Forgetful, arguments=["--model.prompt_length=2", *SHORT])
    message = str(raised.value)
    assert "Forgetful: a run that resumes after round 1 must equal an uninterrupted run, but" in message
    assert "Forgetful: neither the order of clients nor earlier random numbers may change a run" in message
    assert "Let training_step call self.log('loss', loss)" in message
    assert len(message.splitlines()) == 3


def test_methods_that_cannot_be_created_are_rejected(monkeypatch):
    with pytest.raises(ContractError, match="Expected a config of Forgetful, got one of fedvlp"):
        check_method(Forgetful, config="promptfl", arguments=SHORT)
    with pytest.raises(ContractError, match=r"can't create PromptFL: --model.odd: PromptFL has no such option"):
        check_method(PromptFL, arguments=["--model.odd=3"])
    with pytest.raises(ContractError, match="Expected a FederatedModule, got 3"):
        check_method(3)


def test_differences_are_described():
    one = {"p": torch.tensor([1.0, 2.0])}
    assert difference(one, {"p": torch.tensor([1.0, 2.0])}) == ""
    assert difference(one, {"p": torch.tensor([1.0, 2.25])}, 0.25) == ""
    assert "up to 0.25" in difference(one, {"p": torch.tensor([1.0, 2.25])}, 0.2)
    assert "nan" in difference(one, {"p": torch.tensor([1.0, torch.nan])}, 9.0)
    assert difference(one, {}) == "['p'] are in only one of the two"
    assert "float64 [2] in the other" in difference(one, {"p": torch.ones(2, dtype=torch.float64)})


def test_no_test_runner_is_needed():
    files = sorted(Path(fedvlp.testing.__file__).parent.rglob("*.py"))
    assert len(files) == 6
    assert not [path for path in files if "import pytest" in path.read_text(encoding="utf-8")]

"""Clients that fail or upload unusable tensors are skipped, and nothing else changes."""

import csv
import math
import weakref
from dataclasses import replace

import pytest
import torch

from fedvlp.callbacks import Checkpoints
from fedvlp.core.aggregation.robust import CoordinateMedian, TrimmedMean
from fedvlp.core.slots import Slots
from fedvlp.core.state import Client, ClientUpdate, State, tensor_specs, update_error, upload_error
from fedvlp.runs.checkpoint import load_checkpoint
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked
from tests.helpers.toy_federation import Linear, PersonalBias, Points, federation, file_callbacks, make_callback

GOOD = {"weight": torch.tensor([[1.0, -3.0, 2.0]]), "bias": torch.tensor([0.5])}


class WithoutFirst(Points):
    """The same clients, except the first."""

    def __init__(self, clients=3):
        super().__init__(clients)
        self.clients = self.clients[1:]


class Failing(Linear):
    """Fails on the first client in some rounds, in the middle of its training."""

    rounds = (1,)
    error = RuntimeError("the disk is gone\nand more")
    times = 1_000

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.context.client.id == 0 and self.context.round in self.rounds and batch_idx == 1 and self.times:
            self.times -= 1
            loss.backward(retain_graph=True)  # this gradient must not reach the next client
            raise self.error
        return loss


class FailingPersonal(PersonalBias):
    """Fails on the first client in the second phase of the second round."""

    def training_step(self, batch, batch_idx):
        if (self.context.client.id, self.context.phase.name, self.context.round) == (0, "weight", 1):
            raise RuntimeError("the disk is gone")
        return super().training_step(batch, batch_idx)


class Uploads(Linear):
    """Replaces the first client's upload."""

    def upload_state(self):
        state = super().upload_state()
        is_first = self.training and self._logged and self.context.client.id == 0
        return self.instead(state) if is_first else state


def fit_shared(tmp_path, module, data=None, **options):
    return federation(tmp_path, name="run", **{**file_callbacks(), **options}).fit(module, data or Points()).shared


def rows(tmp_path):
    (path,) = tmp_path.glob("run/*/metrics.csv")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_a_client_that_raises_is_skipped_and_the_others_continue(tmp_path, capsys):
    failing = Failing()
    failing.rounds = range(5)
    options = {"rounds": 2}
    found = fit_shared(tmp_path / "failing", failing, **options)
    expected = fit_shared(tmp_path / "without", Linear(), WithoutFirst(), **options)
    torch.testing.assert_close(found["weight"], expected["weight"], rtol=0, atol=0)
    assert [row["clients/failed"] for row in rows(tmp_path / "failing")] == ["1", "1"]
    printed = capsys.readouterr().out
    assert "round 1: client 'client0' is skipped: it raised RuntimeError: the disk is gone (traceback in" in printed
    (first, second) = sorted((tmp_path / "failing").glob("run/*/failures/*.txt"))
    assert first.name == "round-00001-train-client-000000.txt"
    assert "raise self.error" in second.read_text(encoding="utf-8")


def test_a_retry_gives_the_same_result_and_is_reported(tmp_path, capsys):
    failing = Failing()
    failing.times = 1
    found = fit_shared(tmp_path / "failing", failing, on_failure="retry")
    assert [row["clients/retried"] for row in rows(tmp_path / "failing")] == ["", "1", ""]
    message = "round 2: client 'client0' succeeded on retry; at first it raised RuntimeError: the disk is gone\n"
    assert message in capsys.readouterr().out
    assert torch.equal(found["weight"], fit_shared(tmp_path / "whole", Linear())["weight"])
    failing = Failing()
    failing.times = 2
    fit_shared(tmp_path / "twice", failing, on_failure="retry")
    assert rows(tmp_path / "twice")[1]["clients/failed"] == "1"


LACKING = r"Round 2, phase 'train': TrimmedMean needs uploads of 3 clients, got 2\. This round changes nothing"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_failure": "fail"}, RuntimeError, "the disk is gone"),
        (
            {"min_clients": 3},
            UserError,
            "Round 2, phase 'train': the updates of 2 of 3 clients are usable, and 3 are needed",
        ),
        ({"aggregation": TrimmedMean(share=0.4)}, UserError, LACKING),
    ],
)
def test_a_failure_that_ends_the_run_keeps_the_last_checkpoint(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        fit_shared(tmp_path, Failing(), **options)
    (path,) = tmp_path.glob("run/*/checkpoints/*")
    assert load_checkpoint(path)[0].server.round == 1


class InTwoDomains(Points):
    """Three clients in each domain."""

    def __init__(self):
        super().__init__(6)
        self.clients = [replace(client, domain=client.id // 3) for client in self.clients]


class BySlots(Failing):
    """Has one weight per domain."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3, 4))

    def forward(self, inputs):
        return self.precomputed(inputs)["features"] @ self.weight[self.context.client.domain if self.context else 0].mT

    def upload_state(self):
        return {"weight": self.weight[self.context.client.domain]}

    def configure_phases(self):
        return [replace(phase, strategy=Slots("domain")) for phase in super().configure_phases()]


def test_a_domain_with_too_few_uploads_stays_unchanged_and_is_reported(tmp_path, capsys):
    options = {"rounds": 2, "aggregation": CoordinateMedian(), **file_callbacks(), "callbacks": [Checkpoints(keep=5)]}
    federation(tmp_path, name="run", **options).fit(BySlots(), InTwoDomains())
    first, second = (load_checkpoint(path)[0].server.shared for path in sorted(tmp_path.glob("run/*/checkpoints/*")))
    moved = (first["weight"] != second["weight"]).flatten(1).any(1)
    assert moved.tolist() == [False, True]
    assert first["weight"].flatten(1).any(1).tolist() == [True, True]
    message = "Round 2, phase 'train', domain 0: CoordinateMedian needs uploads of 3 clients, got 2"
    assert f"{message}. Its tensors are unchanged." in capsys.readouterr().out


def test_a_failing_client_keeps_its_state_from_before_the_round(tmp_path):
    for disk in (False, True):
        folder = tmp_path / str(disk)
        options = {**file_callbacks(), "callbacks": [Checkpoints(keep=5)], "reset_optimizer": False}
        federation(folder, rounds=2, name="run", personal_on_disk=disk, **options).fit(FailingPersonal(), Points())
        first, second = (load_checkpoint(path)[0] for path in sorted(folder.glob("run/*/checkpoints/*")))
        assert torch.equal(first.personal[0]["bias"], second.personal[0]["bias"])
        assert not torch.equal(first.personal[1]["bias"], second.personal[1]["bias"])
        before = first.optimizer_states[0]
        after = second.optimizer_states[0]
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_if_every_client_fails_the_original_error_is_raised(tmp_path):
    failing = Failing()
    failing.rounds = (0,)
    with pytest.raises(RuntimeError, match="the disk is gone"):
        fit_shared(tmp_path, failing, Points(clients=1))


def test_an_error_of_a_callback_ends_the_run(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit_shared(tmp_path, Linear(), callbacks=[make_callback(on_train_batch_end=lambda *_: 1 / 0)])


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (lambda state: None, "uploads a NoneType, not a dict of tensors by name"),
        (lambda state: {"weight": state["weight"] + 1e30}, "more than max_update_norm of 50"),
    ],
)
def test_an_unusable_upload_is_skipped(tmp_path, capsys, instead, reason):
    options = {"rounds": 2, "max_update_norm": 50.0}
    module = Uploads()
    module.instead = instead
    with unchecked():
        found = fit_shared(tmp_path / "found", module, **options)
    expected = fit_shared(tmp_path / "expected", Linear(), WithoutFirst(), **options)
    assert torch.equal(found["weight"], expected["weight"])
    printed = capsys.readouterr().out
    assert "round 1: client 'client0' is skipped: it " in printed
    assert reason in printed
    row = rows(tmp_path / "found")[1]
    assert [row[name] for name in ("clients/failed", "clients/rejected") if name in row] == ["1"]


def find_error(update: ClientUpdate, shared: State = GOOD, max_norm: float | None = None) -> str:
    return update_error(update, tensor_specs(GOOD), shared, max_norm)


WEIGHT = GOOD["weight"]


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        ([WEIGHT], "uploads a list, not a dict"),
        ({"weight": [0.0]}, "uploads 'weight' as a list, not a tensor"),
        ({"weight": WEIGHT.to_sparse()}, "sparse or meta tensor"),
        ({"weight": WEIGHT.to("meta")}, "sparse or meta tensor"),
        ({}, "uploads no 'weight'"),
        ({**GOOD, "other": WEIGHT}, "uploads 'other', which the phase does not send"),
        ({**GOOD, "weight": WEIGHT[:, :1]}, "uploads 'weight' as [1, 1] of float32, not [1, 3]"),
        ({**GOOD, "weight": WEIGHT.long()}, "as [1, 3] of int64"),
        ({**GOOD, "weight": WEIGHT * math.inf}, "uploads NaN or infinity"),
    ],
)
def test_malformed_uploads_are_explained(upload, reason):
    with unchecked():
        found = upload_error(upload) or find_error(ClientUpdate(Client(0, 0, 5), upload, 5))
    assert reason in found


@pytest.mark.parametrize("weight", [0, -10, math.nan, math.inf, True])
def test_num_examples_must_be_a_positive_number(weight):
    update = ClientUpdate(Client(0, 0, 5), GOOD, 5)
    assert find_error(update) == ""
    with unchecked():
        wrong = replace(update, num_examples=weight)
    assert "training images" in find_error(wrong)


def test_the_norm_covers_the_change_of_all_tensors():
    moved: State = {"weight": GOOD["weight"] + torch.tensor([[0.0, 3.0, 0.0]]), "bias": GOOD["bias"] - 4.0}
    update = ClientUpdate(Client(0, 0, 5), moved, 5)
    assert find_error(update, GOOD, 5.001) == ""
    error = find_error(update, GOOD, 4.999)
    assert error == "moved by 5, more than max_update_norm of 4.999"
    slots = {"weight": torch.zeros(6, 1, 3), "bias": GOOD["bias"]}
    error = find_error(update, slots, 4.5)
    assert error.startswith("moved by 4.583,"), "sqrt(1 + 0 + 4 from the weight and 16 from the bias's change)"


class WithoutMemory(Failing):
    """Runs out of memory on the first client, and records whether its tensors exist when the next client trains."""

    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more")

    def training_step(self, batch, batch_idx):
        made = batch[1].clone()
        if self.context.client.id == 0:
            self.first = weakref.ref(made)
        else:
            self.is_left = self.first() is not None
        return super().training_step(batch, batch_idx)


def test_out_of_memory_advises_a_smaller_batch_and_frees_memory(tmp_path, capsys):
    failing = WithoutMemory()
    fit_shared(tmp_path, failing, rounds=2)
    assert "Tried to allocate 2.00 GiB.; lower data.batch_size" in capsys.readouterr().out
    assert not failing.is_left


@pytest.mark.parametrize(
    "options", [{"min_clients": 0}, {"max_update_norm": 0.0}, {"max_update_norm": math.nan}, {"min_clients": 4}]
)
def test_invalid_options_are_rejected(tmp_path, options):
    (name,) = options
    with pytest.raises(UserError, match=name):
        federation(tmp_path, **options).fit(Linear(), Points())


class Diverging(PersonalBias):
    """Uploads NaN from the first client, and stores infinity on the others."""

    def upload_state(self):
        state = super().upload_state()
        return {"weight": state["weight"] * float("nan")} if self.trains_on(0) else state

    def personal_state(self):
        state = super().personal_state()
        return state if self.context is None or self.trains_on(0) else {"bias": state["bias"] + float("inf")}

    def trains_on(self, client):
        return self.context.client.id == client and bool(self._logged)


def test_if_all_clients_diverge_the_run_ends(tmp_path):
    found = []

    def note(federation, phase, client, reason, is_skipped):
        assert is_skipped
        found.append((phase.name, client.id, reason))

    callback = make_callback(on_client_problem=note)
    with pytest.raises(UserError, match=r"Round 1, phase 'both': NaN or infinity on 3 of 3 clients, so training div"):
        federation(tmp_path, callbacks=[callback]).fit(Diverging(), Points())
    others = [("both", client, "keeps NaN or infinity") for client in (1, 2)]
    assert found == [("both", 0, "uploads NaN or infinity"), *others]


def test_one_unusable_update_ends_the_run_with_on_failure_fail(tmp_path):
    class OneDiverges(Diverging):
        def personal_state(self):
            return PersonalBias.personal_state(self)

    with pytest.raises(UserError, match="NaN or infinity on 1 of 3 clients"):
        federation(tmp_path, rounds=1, on_failure="fail").fit(OneDiverges(), Points())

"""Checkpoints and prompts: what is damaged or forged is refused, and a run goes on from the checkpoint before."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil

import pytest
import torch

from fedvlp.runs.checkpoint import load_checkpoint, load_deployed
from fedvlp.runs.header import HEADERS
from fedvlp.runs.run_folder import load_trained
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import read_tensors
from tests.helpers.assertions import assert_same_run
from tests.helpers.files import flip, rewritten
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks

SECRET = "SECRET"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three rounds, as a folder and as a state."""
    made = federation(tmp_path_factory.mktemp("finished"), name="run", **file_callbacks())
    made.fit(PersonalBias(), Points())
    return made


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the run's folder."""
    return shutil.copytree(finished.folder, tmp_path / "run" / "copy")


@pytest.mark.parametrize("seed", range(25))
def test_one_flipped_bit_of_the_newest_checkpoint_falls_back_and_says_so(folder, finished, tmp_path, capsys, seed):
    newest = folder / "checkpoints" / "round-00003.safetensors"
    flip(newest, random.Random(seed).random())
    with pytest.raises(UserError, match="is damaged"):
        load_checkpoint(newest)
    again = federation(tmp_path, name="run", **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    said = capsys.readouterr().out
    assert "round-00003.safetensors is damaged" in said
    assert "Going back to the checkpoint before it" in said
    assert_same_run(again.run_state, finished.run_state)


def test_where_every_checkpoint_is_damaged_nothing_starts_anew(folder, tmp_path):
    for path in folder.glob("checkpoints/*"):
        flip(path, 0.5)
    with pytest.raises(UserError, match="is damaged"):
        federation(tmp_path, name="run", **file_callbacks()).fit(PersonalBias(), Points(), ckpt_path="last")


VALUES = [None, [], {}, SECRET, -1, 1.5, True, 10**300, [[SECRET]], {"0": SECRET + "/x"}, [1, 1], {SECRET: SECRET}]
RIGHT = {"round": (), "clients": ([],), "optimizers": ([],), "history": (), "description": (), "files": ({},)}
RIGHT |= {"model": ()}


@pytest.mark.parametrize("kind", ["checkpoint", "prompts"])
def test_values_of_another_sort_are_refused_by_the_name_of_the_field(folder, kind):
    paths = {
        "checkpoint": folder / "checkpoints" / "round-00003.safetensors",
        "prompts": folder / "prompts.safetensors",
    }
    original = paths[kind].read_bytes()
    for name in HEADERS[kind]:
        for value in VALUES:
            if value in RIGHT[name] and not isinstance(value, bool):
                continue
            paths[kind].write_bytes(original)
            rewritten(paths[kind], lambda tensors, header, name=name, value=value: header.update({name: value}))
            with pytest.raises(UserError, match=name) as caught:
                load_deployed(paths[kind])
            assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("class_path", "a b"),
        ("class_path", 3),
        ("init_args", [SECRET]),
        ("clip_fingerprint", None),
        ("init_args", {"clip": "/etc/passwd"}),
        ("init_args", {"clip": {"name": {"class_path": "x.y"}}}),
        ("init_args", {"class_names": SECRET}),
        ("init_args", {"class_names": ["a", "a"]}),
        ("init_args", {"num_clients": -3}),
    ],
)
def test_a_model_of_another_sort_is_refused(folder, field, value):
    path = rewritten(folder / "prompts.safetensors", lambda tensors, header: header["model"].update({field: value}))
    with pytest.raises(UserError, match=rf"model\.{field}") as caught:
        load_deployed(path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("missing", ["kind", "clients", "files", "model"])
def test_a_field_that_is_missing_is_named(folder, missing):
    path = rewritten(folder / "prompts.safetensors", lambda tensors, header: header.pop(missing))
    with pytest.raises(UserError, match=missing):
        load_deployed(path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", "C:x", "a\x1bb", "x" * 300]
)
def test_clients_files_are_plain_names(folder, name):
    def change(tensors, header):
        header["files"] = {str(client): name for client in header["clients"]}

    path = rewritten(folder / "prompts.safetensors", change)
    with pytest.raises(UserError, match="plain file names"):
        load_deployed(path)


def test_tensors_of_a_client_that_is_not_named(folder):
    def change(tensors, header):
        tensors["personal/77/bias"] = torch.zeros(3)

    with pytest.raises(UserError, match="personal/77/bias"):
        load_deployed(rewritten(folder / "prompts.safetensors", change))


def without(name):
    return lambda tensors, header: tensors.pop(name)


def with_tensor(name, value):
    return lambda tensors, header: tensors.update({name: value})


def without_tensors(tensors, header):
    tensors.clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_tensors, "lacks the tensor weight"),
        (without("weight"), "lacks the tensor weight"),
        (with_tensor("wait", torch.zeros(1)), "'wait', which the method doesn't take"),
        (with_tensor("bias", torch.zeros(3)), "'bias', which the method doesn't take"),
        (with_tensor("weight", torch.zeros(3, 4).double()), "'weight' of torch.float64; expected torch.float32"),
        (with_tensor("weight", torch.zeros(4, 3)), r"'weight' in shape \(4, 3\); expected \(3, 4\)"),
        (with_tensor("weight", torch.full((3, 4), float("nan"))), "'weight' with values that are not finite"),
        (with_tensor("weight", torch.full((3, 4), float("inf"))), "'weight' with values that are not finite"),
        (with_tensor("personal/1/bias", torch.full((3,), float("nan"))), "'personal/1/bias' with values"),
        (with_tensor("personal/1/other", torch.zeros(3)), "'personal/1/other', which"),
        (with_tensor("personal/1/bias", torch.zeros(4)), "'personal/1/bias' in shape"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(folder, change, message):
    path = rewritten(folder / "prompts.safetensors", change)
    with pytest.raises(UserError, match=message):
        load_trained(path, PersonalBias())


def test_trained_tensors_of_the_method_are_taken(folder, finished):
    for path in (folder, folder / "prompts.safetensors", folder / "checkpoints" / "round-00003.safetensors"):
        deployed, personal = load_trained(path, PersonalBias())
        assert torch.equal(deployed["weight"], finished.run_state.server.deployed["weight"])
        assert torch.equal(personal[2]["bias"], finished.run_state.personal[2]["bias"])


@pytest.mark.parametrize("place", ["", "gone", "gone.safetensors", "/dev/zero", "/dev/null"])
def test_only_last_may_start_anew(tmp_path, place):
    where = str(tmp_path / place) if place else ""
    with pytest.raises(UserError, match="last"):
        federation(tmp_path / "runs", **file_callbacks()).fit(PersonalBias(), Points(), ckpt_path=where)
    assert not (tmp_path / "runs").exists()
    made = federation(tmp_path / "runs", **file_callbacks())
    made.fit(PersonalBias(), Points(), ckpt_path="last")
    assert made.run_state.server.round == 3


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    """The disk is full from the second checkpoint on; the run goes on from the first once there is room."""
    made = federation(tmp_path, name="run", **file_callbacks())
    sync = os.fsync
    written = []

    def full_after_one_round(descriptor):
        written.append(descriptor)
        if len(written) > 3:  # prompts, best prompts, checkpoint
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_after_one_round)
        with pytest.raises(OSError, match="No space left") as caught:
            made.fit(PersonalBias(), Points())
    assert caught.value.filename == str(made.folder / "prompts.safetensors")
    assert load_checkpoint(made.folder / "checkpoints" / "round-00001.safetensors")[0].server.round == 1
    assert not list(made.folder.rglob(".*"))
    again = federation(tmp_path, name="run", **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    assert again.run_state.server.round == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            with_tensor("shared/weight", torch.full((3, 4), torch.nan)),
            "'shared/weight' with values that are not finite",
        ),
        (with_tensor("shared/weight", torch.zeros(4, 3)), r"'shared/weight' in shape \(4, 3\); expected \(3, 4\)"),
        (with_tensor("shared/weight", torch.zeros(3, 4, dtype=torch.float64)), "of torch.float64"),
        (with_tensor("shared/other", torch.zeros(3)), "'shared/other', which the method doesn't take"),
        (without("shared/weight"), "lacks the tensor shared/weight"),
        (with_tensor("deployed/weight", torch.full((3, 4), -torch.inf)), "'weight' with values that are not finite"),
        (with_tensor("personal/1/bias", torch.full((3,), torch.nan)), "'personal/1/bias' with values that are not"),
        (with_tensor("memory/0/0/m", torch.tensor([torch.nan])), "'memory/0/0/m' with values that are not finite"),
    ],
)
def test_a_forged_checkpoint_falls_back_however_right_its_checksum_is(
    folder, finished, tmp_path, capsys, change, named
):
    rewritten(folder / "checkpoints" / "round-00003.safetensors", change)
    again = federation(tmp_path, name="run", **file_callbacks())
    again.fit(PersonalBias(), Points(), ckpt_path="last")
    said = capsys.readouterr().out
    assert re.search(named, said)
    assert "Going back to the checkpoint before it" in said
    assert_same_run(again.run_state, finished.run_state)


def test_an_optimizer_with_numbers_that_are_none_is_refused(tmp_path):
    options = {"name": "run", "reset_optimizer": False, **file_callbacks()}
    federation(tmp_path, rounds=1, **options).fit(PersonalBias(), Points())
    (path,) = tmp_path.glob("run/*/checkpoints/*")
    name = next(name for name in read_tensors(path)[0] if name.startswith("optimizer/2/") and "exp_avg" in name)
    rewritten(path, lambda tensors, header: tensors[name].fill_(torch.inf))
    with pytest.raises(UserError, match=f"{name}' with values that are not finite"):
        federation(tmp_path, rounds=2, **options).fit(PersonalBias(), Points(), ckpt_path="last")

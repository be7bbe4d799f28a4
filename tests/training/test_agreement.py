"""Processes of one run that have other images, options, code or checkpoints do not begin to train."""

from __future__ import annotations

import os

import pytest
import torch

from fedvlp.core.run_state import RunState
from fedvlp.core.state import ServerState
from fedvlp.data import DomainFolders
from fedvlp.training.agreement import facts_of_run, source_digests
from tests.helpers.forks import exit_code, ranks
from tests.helpers.images import draw
from tests.helpers.toy_federation import Linear, Points, federation, file_callbacks

PROCESSES = {"devices": 2, "strategy": "ddp", "collective_timeout": 3600}


def rank():
    return int(os.environ["LOCAL_RANK"])


def train(folder, method=None, data=None, ckpt_path=None, **options):
    made = federation(folder / "runs", name="run", **PROCESSES, **file_callbacks(), **options)
    made.fit(method or Linear(), data or Points(), ckpt_path)


def other_data(folder):
    """What two machines with other images have: rank 1 has one client more."""
    train(folder, data=Points(clients=3 + rank()))


def other_config(folder):
    train(folder, method=Linear(learning_rate=0.5 - 0.25 * rank()), rounds=3 + rank())


def other_code(folder):
    def digests(parts):
        return {"fedvlp/core/state.py": "abc", "fedvlp/methods/prograd.py": f"{rank()}23"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedvlp.training.agreement.source_digests", digests)
        train(folder)


def other_checkpoint(folder):
    """Only rank 0's machine has the run's folder."""
    federation(folder / "runs0", name="run", rounds=1, **file_callbacks()).fit(Linear(), Points())
    made = federation(folder / f"runs{rank()}", name="run", **PROCESSES, **file_callbacks())
    made.fit(Linear(), Points(), "last")


def error_of_one(folder):
    train(folder, ckpt_path="last" if not rank() else "nowhere")


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (other_data, "other data (training images 56, not 36; clients 4, not 3; images by client "),
        (other_config, "optimizer.lr 0.25, not 0.5; rounds 4, not 3"),
        (other_code, "other code (fedvlp/methods/prograd.py 123, not 023)"),
        (other_checkpoint, "other checkpoint (finished rounds 0, not 1; "),
        (error_of_one, "No checkpoint at nowhere"),
    ],
)
def test_all_processes_stop_with_one_error_and_leave_nothing(tmp_path, task, expected):
    with ranks(lambda: task(tmp_path), tmp_path / "output") as started:
        assert [exit_code(process) for process in started] == [1, 1]
    for number in (0, 1):
        printed = (tmp_path / "output" / f"{number}.txt").read_text()
        assert printed.count("error: ") == 1
        assert expected in printed
    assert not list(tmp_path.glob("runs/*/*"))
    assert not (tmp_path / "runs1").exists()


def test_equal_processes_train_and_one_alone_asks_nobody(tmp_path, monkeypatch):
    with ranks(lambda: train(tmp_path), tmp_path) as started:
        assert [exit_code(process) for process in started] == [0, 0]
    monkeypatch.setattr("fedvlp.training.fit_loop.facts_of_run", None)
    federation(tmp_path / "alone").fit(Linear(), Points())


def folders(root, cache, **sizes):
    """A data set of two domains in which each image is a square of its own size."""
    for domain in ("ink", "photo"):
        for label, name in enumerate(("bell", "anchor", "cup")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for index in range(3):
                size = sizes.get(domain, 20) + index
                draw(0, label, index).resize((size, size)).save(folder / f"{index}.png")
    data = DomainFolders(str(root), held_out="photo", cache_dir=str(cache))
    data.setup("fit")
    return data


def test_images_of_the_same_names_but_another_size_are_others(tmp_path):
    first = folders(tmp_path / "a", tmp_path)
    for path in (tmp_path / "a").rglob("*.png"):
        os.utime(path, (1, 1))  # as a copy may have
    same = folders(tmp_path / "b", tmp_path)
    other = folders(tmp_path / "c", tmp_path, photo=31)
    assert first.image_identities() == same.image_identities()
    assert first.split_hash == other.split_hash
    differing = [name for name, text in other.image_identities().items() if text != first.image_identities()[name]]
    assert differing == ["photo"]


def test_code_is_that_of_the_package_and_of_the_users_own_classes():
    digests = source_digests([Linear(), torch.nn.Linear(1, 1), "text"])
    outside = [name for name in digests if not name.startswith("fedvlp/")]
    assert [name.split(".")[-2].split("(")[-1] for name in outside] == ["toy_federation"]
    assert {"fedvlp/federation.py", "fedvlp/core/state.py"} <= digests.keys()


def test_tensors_of_a_checkpoint_are_compared():
    def facts(value):
        description = {"model": {"init_args": {}}, "split": "x", "optimizer": {"lr": 0.1}}
        tensors = {"a": torch.tensor([value, 2.0], dtype=torch.bfloat16), "b": torch.tensor(3)}
        return facts_of_run(Points(), description, RunState(ServerState.start(tensors)), [], {"patience": None})

    assert facts(1.0) == facts(1.0)
    differing = [name for name, part in facts(1.0).items() if part != facts(1.5)[name]]
    assert differing == ["checkpoint"]

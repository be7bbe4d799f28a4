"""Full or read-only disks: a one-line message with the path, and a run that can resume."""

import errno
import os

import pytest

from fedvlp.commands.cli import user_hint
from fedvlp.training.callback import FederationCallback
from tests.helpers.assertions import assert_same_run
from tests.helpers.toy_federation import PersonalBias, Points, federation, file_callbacks


def train(folder, *more, ckpt_path=None, **options):
    files = file_callbacks()
    callbacks = [*more, *files.pop("callbacks")]
    made = federation(folder, name="run", reset_optimizer=False, callbacks=callbacks, **files, **options)
    made.fit(PersonalBias(), Points(), ckpt_path)
    return made.run_state


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return train(tmp_path_factory.mktemp("unbroken"))


class Disk(FederationCallback):
    """Fails to write files with ``kind`` in their path, from the third round on."""

    def __init__(self, patch, number, kind):
        self.patch = patch
        self.number = number
        self.kind = kind
        self.replace = os.replace

    def on_round_start(self, federation, phases, cohort):
        if federation.run_state.server.round == 2:
            self.patch.setattr("fedvlp.utils.files.os.replace", self.refuse)

    def refuse(self, source, target):
        if self.kind in str(target):
            raise OSError(self.number, os.strerror(self.number), str(source), None, str(target))
        self.replace(source, target)


@pytest.mark.parametrize(
    ("number", "kind", "on_disk"),
    [(errno.EROFS, "metrics.csv", False), (errno.EACCES, "checkpoints", False), (errno.ENOSPC, "clients", True)],
)
def test_a_failing_disk_ends_the_run_and_it_can_resume(tmp_path, monkeypatch, unbroken, number, kind, on_disk):
    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(number)) as raised:
        train(tmp_path, Disk(patch, number, kind), personal_on_disk=on_disk)
    line = user_hint(raised.value)
    assert "\n" not in line
    assert line.startswith(str(tmp_path / "run"))
    assert kind in line
    assert os.strerror(number) in line
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob(".*.lock"))
    resumed = train(tmp_path, ckpt_path="last", personal_on_disk=on_disk)
    assert_same_run(resumed, unbroken)


def test_an_error_without_a_path_is_one_line():
    assert user_hint(OSError(errno.ENOSPC, "No space left on device")).startswith("Reading or writing: No space")
    assert user_hint(OSError("odd")) is None

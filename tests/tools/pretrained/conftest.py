"""A run of one round on the tiny CLIP, which the tests of this folder share and leave as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlp.commands.lightning_cli import FederationCLI
from tests.helpers.runs import make_run


def finish(run: FederationCLI) -> Path:
    """Trains, and returns the run's folder, with all that a run leaves."""
    run.trainer.fit(run.model, run.datamodule)
    return run.trainer.folder


@pytest.fixture
def finished_fed_otp(build) -> Path:
    """The folder of a run whose clients keep tensors, without which its shared part can do."""
    return finish(build("fed_otp", "--trainer.rounds=1"))


@pytest.fixture(scope="package")
def finished_run(image_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of PromptFL, with its config."""
    made = make_run(image_root, tmp_path_factory.mktemp("pretrained"), "promptfl", "--trainer.rounds=1")
    folder = finish(made)
    (folder / "config.yaml").write_text(made.parser.dump(made.config, skip_unset=False), encoding="utf-8")
    return folder

"""A run of one round on the tiny CLIP, which the tests of this folder share and leave as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedvlp.callbacks import Plots
from tests.helpers.runs import make_run


@pytest.fixture(scope="package")
def finished_run(image_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of PromptFL, with all that a run leaves but figures."""
    made = make_run(image_root, tmp_path_factory.mktemp("pretrained"), "promptfl", "--trainer.rounds=1")
    made.trainer.callbacks[:] = [each for each in made.trainer.callbacks if not isinstance(each, Plots)]
    made.trainer.fit(made.model, made.datamodule)
    folder = made.trainer.folder
    (folder / "config.yaml").write_text(made.parser.dump(made.config, skip_unset=False), encoding="utf-8")
    return folder

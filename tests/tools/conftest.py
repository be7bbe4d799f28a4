"""A short run of PromptFL, shared by the tests of several commands, and data of clients."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folders(image_root, clip):
    """Make a function that creates a data module of two clients with the tiny CLIP's transform."""
    from fedvlp.data import DomainFolders

    def made(**options):
        data = DomainFolders(str(image_root), held_out="photo", cache_dir=None, **options)
        data.prepare_data()
        data.bind(clip.preprocess)
        return data

    return made


@pytest.fixture(scope="session")
def finished_run(image_root, tmp_path_factory):
    """Train for one round, save the config, and return the run folder."""
    from tests.helpers.runs import make_run

    made = make_run(image_root, tmp_path_factory.mktemp("finished"), "promptfl", "--trainer.rounds=1")
    made.trainer.fit(made.model, made.datamodule)
    config = made.parser.dump(made.config, skip_unset=False)
    (made.trainer.folder / "config.yaml").write_text(config, encoding="utf-8")
    return made.trainer.folder


@pytest.fixture
def copied_run(finished_run, tmp_path):
    """Copy the finished run, for tests that change it."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def short_run(image_root, tmp_path):
    """List the options of each run in a short sweep or search."""
    return [
        *(f"--data.root={image_root}", f"--data.cache_dir={tmp_path / 'cache'}", "--data.batch_size=4"),
        *("--model.clip.name=fedvlp-tiny", "--trainer.rounds=1", "--trainer.accelerator=cpu"),
    ]

"""A run of PromptFL that tests of several commands share, and images of clients."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folders(image_root, clip):
    """Returns a function to a data module of two clients, bound to the tiny CLIP's transform."""
    from fedvlp.data import DomainFolders

    def made(**options):
        data = DomainFolders(str(image_root), held_out="photo", cache_dir=None, **options)
        data.prepare_data()
        data.bind(clip.preprocess)
        return data

    return made


@pytest.fixture(scope="session")
def finished_run(image_root, tmp_path_factory):
    """The folder of a run of one round, with its config."""
    from tests.helpers.runs import make_run

    made = make_run(image_root, tmp_path_factory.mktemp("finished"), "promptfl", "--trainer.rounds=1")
    made.trainer.fit(made.model, made.datamodule)
    config = made.parser.dump(made.config, skip_unset=False)
    (made.trainer.folder / "config.yaml").write_text(config, encoding="utf-8")
    return made.trainer.folder


@pytest.fixture
def copied_run(finished_run, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def more(image_root, tmp_path):
    """What every run of a short sweep or search needs."""
    return [
        *(f"--data.root={image_root}", f"--data.cache_dir={tmp_path / 'cache'}", "--data.batch_size=4"),
        *("--model.clip.name=fedvlp-tiny", "--trainer.rounds=1", "--trainer.accelerator=cpu"),
    ]

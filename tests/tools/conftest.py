"""A run of TRIP that tests of several commands copy, and images of clients."""

from __future__ import annotations

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
def finished_trip(image_root, tmp_path_factory):
    """The folder of a run of one round, with its config."""
    from tests.helpers.runs import make_run
    from tests.tools.pretrained.conftest import finish

    made = make_run(image_root, tmp_path_factory.mktemp("finished"), "trip", "--trainer.rounds=1")
    folder = finish(made)
    (folder / "config.yaml").write_text(made.parser.dump(made.config, skip_unset=False), encoding="utf-8")
    return folder


@pytest.fixture
def trip_run(finished_trip, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(finished_trip, tmp_path / "run"))

"""Shared fixtures: folders of synthetic images, CLIP models, and runs in temporary folders.

Heavy imports are inside the fixtures, because the main process of pytest-xdist imports every ``conftest.py`` before it
starts the workers.
"""

from tests.helpers import shapes  # before any import of fedvlp
from tests.helpers.outside import Guard

# isort: split

import gc
import os
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Fail tests that write outside their temporary folders, and skip tests that need a missing extra."""
    root = Path(__file__).parents[1]
    config.pluginmanager.register(Guard(root, config))
    # Other failing imports must fail the run, and --doctest-ignore-import-errors would also hide test files.
    if find_spec("flwr") is None:
        config.option.ignore = [*(config.option.ignore or []), str(root / "fedvlp" / "sites" / "flower")]
    os.fsync = _sync
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _prepare()  # not in the main process of pytest-xdist, which would start its workers later


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, so that it runs often enough to free the models of tests.

    It runs when the number of objects has grown by a quarter, and imports create a million objects.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def pytest_runtest_setup() -> None:
    """Check the first calls of every function in each test."""
    shapes.begin_test()


def pytest_sessionfinish() -> None:
    """Unfreeze objects, because some packages warn at exit about objects that still exist."""
    gc.unfreeze()


def _sync(file: int | IO[bytes]) -> None:
    """Replace ``os.fsync``, which would cost minutes in total and protects only against power cuts."""
    os.fstat(file if isinstance(file, int) else file.fileno())  # raises for a closed file


def _prepare() -> None:
    """Import the packages that most tests need, and limit each process to one thread."""
    import torch

    from tests.helpers import clips, figures

    torch.set_num_threads(1)
    clips.cache_tiny_clip()
    clips.share_tokenizers()
    figures.skip_rendering()


@pytest.fixture(scope="session")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder of 3 domains of different sizes with 3 classes."""
    from fedvlp.testing.runs import write_images

    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def rendered_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render the figures of run folders."""
    from tests.helpers import figures

    monkeypatch.setattr(figures.files, "accuracy_figure", figures.DRAWN)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create one home folder for all tests that use the default cache, so that images are drawn once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "home"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def clip():
    """Load the bundled tiny CLIP."""
    from fedvlp.clip import load_clip

    return load_clip("fedvlp-tiny")


@pytest.fixture(scope="session")
def vit_b_16():
    """Load the shapes of CLIP ViT-B/16, without weights, for tests that count parameters or operations."""
    from fedvlp.clip import CLIPSpec, load_clip
    from fedvlp.clip.loading import shapes_only

    with shapes_only():
        return load_clip(CLIPSpec("ViT-B-16", "random"))


@pytest.fixture
def build(image_root: Path, tmp_path: Path):
    """Bind ``make_run`` to folders: a method's config and arguments give module, data and federation."""
    from tests.helpers.runs import make_run

    return partial(make_run, image_root, tmp_path)

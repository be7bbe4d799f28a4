"""What many tests need: folders of synthetic images, the tiny CLIP, and runs that leave nothing behind.

Fixtures import what is heavy themselves: the process that waits for those of pytest-xdist imports every ``conftest.py``
before it starts them.
"""

from tests.helpers import shapes  # before anything of fedvlp is imported
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
    """Makes tests fail that write outside their temporary folders, and leaves out what needs a missing extra."""
    root = Path(__file__).parents[1]
    config.pluginmanager.register(Guard(root, config))
    # An import that fails anywhere else must fail the run: --doctest-ignore-import-errors would hide test files, too.
    if find_spec("flwr") is None:
        config.option.ignore = [*(config.option.ignore or []), str(root / "fedvlp" / "sites" / "flower")]
    os.fsync = _sync
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _prepare()  # not in the process that waits for those of pytest-xdist: they start when it has imported all this


def pytest_collection_finish() -> None:
    """Lets the collector of garbage look at what tests make alone, and so often that their models do not pile up.

    It waits until objects have become more by a quarter, and what is imported, a million of them, would count as well.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def pytest_runtest_setup() -> None:
    """Lets the first calls of every function be checked in each test."""
    shapes.begin_test()


def pytest_sessionfinish() -> None:
    """Gives the collector back what it was not to look at: some packages warn at the end of what is still there."""
    gc.unfreeze()


def _sync(file: int | IO[bytes]) -> None:
    """Stands in for ``os.fsync``: no test cuts the power, and together they would wait minutes for the disk."""
    os.fstat(file if isinstance(file, int) else file.fileno())  # refuses a file that is closed, too


def _prepare() -> None:
    """Imports what most tests need, one thread for each process."""
    import torch

    from tests.helpers import clips, figures

    torch.set_num_threads(1)
    clips.make_once()
    figures.leave_unrendered()


@pytest.fixture(scope="session")
def image_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 3 domains, 3 classes and a few images of each; the domains differ in size."""
    from fedvlp.testing.runs import write_images

    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture
def rendered_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the figures of run folders have pixels."""
    from tests.helpers import figures

    monkeypatch.setattr(figures.files, "accuracy_figure", figures.DRAWN)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder for tests that use the usual cache, the same for all of them so that images are drawn once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "home"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def clip():
    """The bundled tiny CLIP."""
    from fedvlp.clip import load_clip

    return load_clip("fedvlp-tiny")


@pytest.fixture(scope="session")
def vit_b_16():
    """CLIP ViT-B/16 with zeros as weights: whoever counts looks at shapes alone."""
    from fedvlp.clip import CLIPSpec, load_clip
    from fedvlp.clip.loading import shapes_only

    with shapes_only():
        return load_clip(CLIPSpec("ViT-B-16", "random"))


@pytest.fixture
def build(image_root: Path, tmp_path: Path):
    """Returns a function from a method's config and more arguments to the module, data and federation of a run."""
    from tests.helpers.runs import make_run

    return partial(make_run, image_root, tmp_path)

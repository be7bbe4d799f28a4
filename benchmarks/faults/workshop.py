"""Resources shared by all rows: generated images, options of a short run, and undisturbed runs for comparison."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from benchmarks.faults.commands import Running
from benchmarks.faults.runs import newest_run
from benchmarks.synthetic import write_images

DOMAINS = 4
CLASSES = ("circle", "square", "star")
IMAGES = 18
ROUNDS = 3
FAULTY = ("--model", "benchmarks.faults.clients.FaultyPromptFL")
"""A method with clients that inject the faults of the environment; see ``clients``."""


class Workshop:
    """Maker of shared resources, each made only once.

    Args:
        folder: Empty folder for all files, readable by all users.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tried = 0
        self._uninterrupted: dict[tuple[str, ...], tuple[Path, float]] = {}

    @cached_property
    def images(self) -> Path:
        """A folder of small images of four domains and three classes."""
        root = self.folder / "images"
        write_images(root, DOMAINS, list(CLASSES), IMAGES, size=48)
        return root

    def fit_options(self, method: str = "promptfl") -> list[str]:
        """List the options of a short run of a method: its config, the tiny CLIP, and the images."""
        options = {
            "config": f"methods/{method}",
            "data": "DomainFolders",
            "data.root": self.images,
            "data.held_out": f"domain {DOMAINS - 1}",
            "data.batch_size": 4,
            "data.cache_dir": self.folder / "cache",
            "model.clip.name": "fedvlp-tiny",
            "trainer.rounds": ROUNDS,
            "trainer.accelerator": "cpu",
            "trainer.runtime.num_threads": 1,
            "trainer.enable_progress_bar": "false",
            "trainer.default_root_dir": "runs",
            "trainer.name": "run",
        }
        return ["fit", *(f"--{name}={value}" for name, value in options.items())]

    def uninterrupted(self, method: str = "promptfl", *arguments: str) -> tuple[Path, float]:
        """Make an undisturbed run with these options; return its folder and its duration in seconds.

        Raises:
            RuntimeError: If it fails without a fault.
        """
        key = (method, *arguments)
        if key not in self._uninterrupted:
            self._tried += 1
            folder = self.folder / "uninterrupted" / str(self._tried)
            folder.mkdir(parents=True)
            finished = Running([*self.fit_options(method), *arguments], folder, folder / "log.txt").wait()
            if finished.code != 0:
                raise RuntimeError(f"A run without a fault failed:\n{finished.output[-3000:]}")
            self._uninterrupted[key] = (newest_run(folder / "runs" / "run"), finished.seconds)
        return self._uninterrupted[key]

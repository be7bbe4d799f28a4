"""Runs of the study: what is trained, where its folder is, and what it scored."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """One training: a method with one style held out and one seed.

    Attributes:
        config: name of the method's config.
        style: the held-out style.
        seed: seed of prompts and batches; data and keys are the same for all.
        rate: learning rate of AdamW; None for the config's own optimizer.
        output: folder below which all runs of the study are.
        overrides: further arguments of ``fedvlp``, for an ablation.
    """

    config: str
    style: str
    seed: int
    rate: float | None
    output: Path
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The run's name, which is its folder below ``output``."""
        changed = "".join(f"-{argument.removeprefix('--model.').replace('=', '_')}" for argument in self.overrides)
        return f"{self.config}-{'paper' if self.rate is None else self.rate}{changed}/{self.style}-{self.seed}"

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``fedvlp`` that make it."""
        optimizer = [] if self.rate is None else ["--model.optimizer=AdamW", f"--model.optimizer.lr={self.rate}"]
        return [
            "fit",
            f"--config=methods/{self.config}",
            "--config=data/styled_shapes",
            f"--data.held_out={self.style}",
            f"--seed_everything={self.seed}",
            "--model.clip.name=fedvlp-tiny",
            *optimizer,
            "--trainer.accelerator=cpu",
            f"--trainer.default_root_dir={self.output}",
            f"--trainer.name={self.name}",
            "--trainer.enable_progress_bar=false",
            "--ckpt_path=last",
            *self.overrides,
        ]

    def accuracy(self, row: str, column: str) -> float:
        """Returns an accuracy in percent from the run's final table.

        Args:
            row: how the row's title begins; zero-shot CLIP's own runs have one row for all.
            column: ``validation`` or ``held_out``, the mean of the role.
        """
        folder = sorted((self.output / self.name).glob("*/summary.json"))[-1]
        rows: dict[str, dict[str, float]] = json.loads(folder.read_text(encoding="utf-8"))["accuracy"]
        title = next(title for title in rows if title.startswith(row) or len(rows) == 1)
        return rows[title][column]

    def is_done(self) -> bool:
        """Whether the run has ended."""
        return any((self.output / self.name).glob("*/summary.json"))


def run_job(job: Job) -> None:
    """Trains, quietly, on one core."""
    import torch

    from fedvlp.cli import main

    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(job.arguments)
    if code:
        raise RuntimeError(f"fedvlp {' '.join(job.arguments)} ended with exit code {code}")


def run_all(jobs: Iterable[Job], workers: int) -> None:
    """Makes the runs that are missing, several at a time; stopped and called again, it goes on with what is left."""
    os.environ["OMP_NUM_THREADS"] = "1"
    missing = [job for job in jobs if not job.is_done()]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, _ in enumerate(pool.map(run_job, missing), 1):
            sys.stderr.write(f"{number}/{len(missing)}: {missing[number - 1].name}\n")

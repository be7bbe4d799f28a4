"""Runs of the studies: each is one call of the command line, in a folder that is named after its arguments.

A run that has ended is not made again, whichever study asks for it, and one that was stopped goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from fedvlp.config_files import find_config
from fedvlp.data import DomainFolders, StyledShapes


@dataclass(frozen=True)
class Setting:
    """What all runs of a study have in common.

    Attributes:
        data: ``styled_shapes``, or a folder of domains with folders of classes.
        clip: the frozen CLIP's name.
        output: folder below which all runs are.
        more: further arguments of ``fedvlp``.
    """

    data: str = "styled_shapes"
    clip: str = "fedvlp-tiny"
    output: Path = Path("runs/studies")
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Data and CLIP, safe as a folder's name."""
        return re.sub(r"[^\w.-]+", "_", f"{Path(self.data).name}-{self.clip}")

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``fedvlp`` that choose them."""
        data = ["--config=data/styled_shapes"]
        if self.data != "styled_shapes":
            data = ["--config=data/folders", f"--data.root={Path(self.data).expanduser().resolve()}"]
        return [*data, f"--model.clip.name={self.clip}", *self.more]

    def domains(self) -> list[str]:
        """Returns the names of all domains."""
        return list((StyledShapes() if self.data == "styled_shapes" else DomainFolders(self.data)).domains)


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        config: name of the method's config.
        held_out: the held-out domain; none if every domain has clients.
        seed: seed of prompts and batches; data and keys are the same for all.
        setting: data, CLIP and where the run is.
        overrides: arguments of ``fedvlp`` that make it a variant of the config.
    """

    config: str
    held_out: str | None
    seed: int
    setting: Setting = Setting()
    overrides: tuple[str, ...] = ()

    @property
    def _choices(self) -> list[str]:
        """The arguments that runs of other seeds and held-out domains share."""
        return [f"--config=methods/{self.config}", *self.setting.arguments, *self.overrides]

    @property
    def name(self) -> str:
        """The run's folder below ``output``: data, method, changes, a digest of configs and arguments, and domain."""
        changes = "".join("-" + re.sub(r"^[^=]*\.", "", argument) for argument in self.overrides[:3])
        digest = hashlib.sha256(json.dumps([_settings(argument) for argument in self._choices]).encode())
        kind = re.sub(r"[^\w.-]+", "_", f"{self.config}{changes}")[:80]
        return f"{self.setting.name}/{kind}-{digest.hexdigest()[:8]}/{self.held_out or 'all_seen'}-{self.seed}"

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``fedvlp`` that make it."""
        return [
            "fit",
            *self._choices,
            f"--data.held_out={self.held_out or 'null'}",
            f"--seed_everything={self.seed}",
            f"--trainer.default_root_dir={self.setting.output}",
            f"--trainer.name={self.name}",
            "--trainer.num_threads=1",
            "--trainer.enable_progress_bar=false",
            "--ckpt_path=last",
        ]

    @property
    def is_done(self) -> bool:
        """Whether the run has ended."""
        return any((self.setting.output / self.name).glob("*/summary.json"))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the run wrote at its end."""
        path = sorted((self.setting.output / self.name).glob("*/summary.json"))[-1]
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary

    def accuracy(self, role: str, row: str = "last round") -> float:
        """Returns an accuracy in percent from the run's final table.

        Args:
            role: ``validation``, ``test`` or ``held_out``, the mean over the role's domains.
            row: how the row's title begins; zero-shot CLIP's own runs have one row for all.
        """
        rows: dict[str, dict[str, float]] = self.summary["accuracy"]
        return next(scores for title, scores in rows.items() if title.startswith(row) or len(rows) == 1)[role]


def _settings(argument: str) -> Any:
    """Returns an argument, or what stands in the config that it names, so that a config's comments do not count."""
    name, _, value = argument.partition("=")
    return yaml.safe_load(Path(find_config(value)).read_text(encoding="utf-8")) if name == "--config" else argument


def make_run(run: Run) -> str:
    """Trains, quietly, on one core, and returns what went wrong, if anything."""
    import torch

    from fedvlp.cli import main

    torch.set_num_threads(1)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(run.arguments)
    return f"fedvlp {' '.join(run.arguments)} ended with exit code {code}:\n{said.getvalue()}" if code else ""


def make_runs(runs: Iterable[Run], workers: int) -> None:
    """Makes the runs that are missing, several at a time; stopped and called again, it goes on with what is left.

    Raises:
        RuntimeError: at the end, if runs failed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    missing = [run for run in dict.fromkeys(runs) if not run.is_done]
    failed = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, problem in enumerate(pool.map(make_run, missing), 1):
            sys.stderr.write(f"{number}/{len(missing)}: {missing[number - 1].name}\n{problem}")
            sys.stderr.flush()
            failed += [missing[number - 1].name] if problem else []
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(missing)} runs failed: {', '.join(failed)}. See above.")


def adamw(rate: float | None) -> tuple[str, ...]:
    """Returns the arguments that put AdamW of this learning rate, if there is one, in place of a config's optimizer."""
    return () if rate is None else ("--model.optimizer=AdamW", f"--model.optimizer.lr={rate:g}")


def every_run(
    config: str, overrides: Sequence[str], setting: Setting, held_out: Sequence[str | None], seeds: Sequence[int]
) -> list[list[Run]]:
    """Returns the runs of one row of a table: for each seed, one for each held-out domain."""
    return [[Run(config, domain, seed, setting, tuple(overrides)) for domain in held_out] for seed in seeds]

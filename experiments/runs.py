"""Runs of the studies: each is one call of the command line, in a folder named after its arguments.

Studies share finished runs, and stopped runs resume.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from experiments.tiny_clip.shapes import STYLES
from fedvlp.data import DomainFolders, IconDomains
from fedvlp.results import Record, load_record
from fedvlp.results.record import LAST_ROW, ZERO_SHOT_ROW
from fedvlp.tools.sweep.jobs import Job, Status, run_jobs
from fedvlp.tools.sweep.plan import TOGETHER, fit_arguments, run_name

CONFIGS = {
    "icon_domains": "data/icon_domains",
    "styled_shapes": str(Path(__file__).parent / "tiny_clip" / "styled_shapes.yaml"),
}
"""Configs of data sets without a folder: the bundled icons, and the drawings of ``experiments.tiny_clip``."""


@dataclass(frozen=True)
class Setting:
    """Common settings of all runs of a study.

    Attributes:
        data: A name in ``CONFIGS``, or a folder of domains with folders of classes.
        clip: Name of the frozen CLIP.
        output: Folder of all runs.
        more: Further arguments of ``fedvlp``.
    """

    data: str = "styled_shapes"
    clip: str = "fedvlp-tiny"
    output: Path = Path("runs/studies")
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Data and CLIP, usable as a folder name."""
        return re.sub(r"[^\w.-]+", "_", f"{Path(self.data).name}-{self.clip}")

    @property
    def arguments(self) -> list[str]:
        """Arguments of ``fedvlp`` for data and CLIP."""
        if self.data in CONFIGS:
            data = [f"--config={CONFIGS[self.data]}"]
        else:
            data = ["--config=data/folders", f"--data.root={Path(self.data).expanduser().resolve()}"]
        return [*data, f"--model.clip.name={self.clip}", *self.more]

    def domains(self) -> list[str]:
        """List the names of all domains."""
        return domains_of(self.data)


@cache
def domains_of(data: str) -> list[str]:
    """List the domains of ``Setting.data``."""
    if data == "styled_shapes":
        return sorted(STYLES)  # without drawing images
    return list((IconDomains() if data == "icon_domains" else DomainFolders(data)).domains)


@dataclass(frozen=True)
class StudyRun:
    """One training, named and run like a run of a sweep.

    Attributes:
        config: Name of the method's config.
        held_out: The held-out domain, or several, a+b; None to train on all domains.
        seed: Seed of prompts and batches; data and keys are equal for all seeds.
        setting: Data, CLIP and folder of the run.
        overrides: Arguments of ``fedvlp`` that define a variant of the config.
    """

    config: str
    held_out: str | None
    seed: int
    setting: Setting = Setting()
    overrides: tuple[str, ...] = ()

    @property
    def _choices(self) -> list[str]:
        """Arguments shared with runs of other seeds and held-out domains."""
        return [f"--config=methods/{self.config}", *self.setting.arguments, *self.overrides]

    @property
    def held_out_domains(self) -> list[str]:
        """Names of the held-out domains."""
        return self.held_out.split(TOGETHER) if self.held_out else []

    @property
    def name(self) -> str:
        """Folder of the run below ``output``: data, method, changes, a digest of configs and arguments, and domain."""
        changes = "".join("-" + re.sub(r"^[^=]*\.", "", argument) for argument in self.overrides[:3])
        label = f"{self.config}{changes}"
        return f"{self.setting.name}/{run_name(label, self._choices, self.held_out, self.seed)}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of ``fedvlp`` for the run."""
        choices = (*self._choices, "--trainer.runtime.num_threads=1", "--trainer.enable_progress_bar=false")
        return fit_arguments(choices, self.held_out, self.seed, self.setting.output, self.name)

    @property
    def job(self) -> Job:
        """The run as a job of a sweep."""
        return Job(self.name, self.arguments, self.setting.output / self.name)

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return self.job.is_done

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary of the finished run."""
        path = sorted(self.job.folder.glob("*/summary.json"))[-1]
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary

    @cached_property
    def record(self) -> Record:
        """The run's record for tables."""
        return load_record(sorted(self.job.folder.glob("*/summary.json"))[-1].parent)

    def accuracy(self, role: str, row: str = "last round") -> float:
        """Look up an accuracy in percent in the run's final table.

        Args:
            role: ``validation``, ``test`` or ``held_out``, the mean over the role's domains.
            row: Start of the row's title; zero-shot CLIP's own runs have no rounds, so they use its row.
        """
        rows: dict[str, dict[str, float]] = self.summary["accuracy"]
        if not any(title.startswith(LAST_ROW) for title in rows):
            row = ZERO_SHOT_ROW
        return next(scores for title, scores in rows.items() if title.startswith(row))[role]


SeededRuns = Sequence[Sequence[StudyRun]]
"""The runs of one row of a table, by seed: one per held-out domain."""


def make_runs(runs: Iterable[StudyRun], workers: int) -> None:
    """Make the missing runs, several at a time. A repeated call resumes.

    Raises:
        RuntimeError: At the end, if runs failed.
    """
    missing = [run.job for run in dict.fromkeys(runs) if not run.is_done]
    ended: dict[str, Status] = {}

    def report(job: Job, status: Status) -> None:
        if status.state in ("done", "failed"):
            ended[job.name] = status
            error = f"{status.error}\nIts output: {job.log}\n" if status.error else ""
            sys.stderr.write(f"{len(ended)}/{len(missing)}: {job.name}\n{error}")
            sys.stderr.flush()

    run_jobs(missing, workers, report)
    failed = [name for name, status in ended.items() if status.state == "failed"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(missing)} runs failed: {', '.join(failed)}. See above.")


def adamw(rate: float) -> tuple[str, ...]:
    """Make the arguments that replace a config's optimizer with AdamW of this learning rate."""
    return ("--model.optimizer=AdamW", f"--model.optimizer.lr={rate:g}")


def every_run(
    config: str, overrides: Sequence[str], setting: Setting, held_out: Sequence[str | None], seeds: Sequence[int]
) -> list[list[StudyRun]]:
    """List the runs of one row of a table, by seed: one per held-out domain."""
    runs = []
    for seed in seeds:
        runs.append([StudyRun(config, domain, seed, setting, tuple(overrides)) for domain in held_out])
    return runs


def seed_by_seed(rows: Iterable[SeededRuns]) -> list[StudyRun]:
    """List the runs of several rows in the best order, with the first seed of all rows first."""
    runs: list[StudyRun] = []
    for rows_of_seed in zip(*rows, strict=True):
        runs += chain.from_iterable(rows_of_seed)
    return runs

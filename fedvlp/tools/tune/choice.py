"""The choice among the trials of a method, based only on source validation, and its gain."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from fedvlp.core.roles import SELECTION_METRICS
from fedvlp.results.record import load_record
from fedvlp.tools.compare.grouping import find_protocol
from fedvlp.tools.sweep.jobs import Job
from fedvlp.tools.tune.search import Trial
from fedvlp.utils.files import read_json, write_json
from fedvlp.utils.text_table import text_table

TUNE_FILE = "tune.json"


def find_summary(job: Job) -> Path:
    """Find the summary of the latest attempt of a job."""
    return sorted(job.folder.glob("*/summary.json"))[-1]


@dataclass(frozen=True)
class Choice:
    """The trials of a method with one held-out domain, in the order of the draws.

    Attributes:
        label: Label of the method.
        held_out: The held-out domain; None if all domains have clients.
        trials: Arguments of each trial.
        validation: Scores in percent on source validation, after the last round.
        compared: Accuracies in percent on the images that methods are compared on. They are not used for the choice.
        select: Metric of ``validation``.
    """

    label: str
    held_out: str | None
    trials: Sequence[Trial]
    validation: Sequence[float]
    compared: Sequence[float]
    select: str = "accuracy"

    @classmethod
    def from_jobs(cls, label: str, held_out: str | None, trials: Sequence[Trial], jobs: Sequence[Job]) -> Choice:
        """Read the results of the trials, which must all have finished."""
        records = [load_record(find_summary(job).parent) for job in jobs]
        role = find_protocol(records[0]).role
        validation = [record.selection_score for record in records]
        return cls(label, held_out, trials, validation, [record.last[role] for record in records], records[0].select)

    @property
    def chosen(self) -> int:
        """Index of the first trial with the highest score on source validation."""
        return max(range(len(self.trials)), key=lambda trial: self.validation[trial])

    def gain(self, accuracies: Sequence[float]) -> float:
        """Compute the lead of the chosen trial over the median, in points."""
        return accuracies[self.chosen] - statistics.median(accuracies)


def read_choices(path: Path) -> list[Choice]:
    """Read a file written by ``write_choices``."""
    names = [field.name for field in fields(Choice)]
    return [Choice(**{name: entry[name] for name in names if name in entry}) for entry in read_json(path)["choices"]]


def copy_chosen(trial: Job, target: Job) -> None:
    """Copy the run of the chosen trial atomically to the folder of another job."""
    if not target.is_done:
        copy = target.folder.with_name(f"{target.folder.name}.copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(target.folder, ignore_errors=True)
        shutil.copytree(trial.folder, copy)
        copy.rename(target.folder)


def record_choice(job: Job, choice: Choice, shared: str, search: Sequence[str]) -> None:
    """Add the choice of a run's options to its summary.

    ``shared`` is a digest of the arguments shared by all trials, and ``search`` lists the method's spaces.
    """
    path = find_summary(job)
    chosen = list(choice.trials[choice.chosen])
    tuning = {"of": shared, "search": list(search), "trials": len(choice.trials), "chosen": chosen}
    write_json(path, {**read_json(path), "tuning": tuning})


def choices_text(choices: Sequence[Choice]) -> str:
    """Format a table of the choices, with the accuracies of an oracle's choice."""
    head = ["method", "held out", "trials", "chosen", "source validation", "gain over median"]
    rows = [[*head, "compared", "gain over median", "oracle, not allowed"]]
    for choice in choices:
        options = " ".join(argument.removeprefix("--") for argument in choice.trials[choice.chosen])
        row = [choice.label, choice.held_out or "none", str(len(choice.trials)), options or "unchanged"]
        for accuracies in (choice.validation, choice.compared):
            row += [f"{accuracies[choice.chosen]:.1f}", f"{choice.gain(accuracies):+.1f}"]
        row[4] += "" if choice.select == "accuracy" else f" ({SELECTION_METRICS[choice.select]})"
        rows.append([*row, f"{max(choice.compared):.1f}"])
    return text_table(rows)


def write_choices(path: Path, choices: Sequence[Choice], search: Sequence[str], seed: int) -> None:
    """Write all trials and choices."""
    entries = [{**asdict(choice), "chosen": choice.chosen} for choice in choices]
    write_json(path, {"search": list(search), "seed": seed, "choices": entries})

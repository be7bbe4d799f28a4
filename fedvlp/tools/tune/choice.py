"""The choice among the trials of a method, which rests on source validation alone, and what it gained."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedvlp.results.record import load_record
from fedvlp.tools.compare.grouping import find_protocol
from fedvlp.tools.sweep.jobs import Job
from fedvlp.tools.tune.search import Trial
from fedvlp.utils.files import read_json, write_json
from fedvlp.utils.text_table import text_table

TUNE_FILE = "tune.json"


def summary_of(job: Job) -> Path:
    """Find the summary of a job's run."""
    return sorted(job.folder.glob("*/summary.json"))[-1]


@dataclass(frozen=True)
class Choice:
    """The trials of a method with a held-out domain, in the order of their draws.

    Attributes:
        label: Label of the method.
        held_out: The held-out domain; None if all domains have clients.
        trials: Arguments of each trial.
        validation: Accuracies in percent on source validation, after the last round.
        compared: Accuracies in percent on the images that methods are compared on. They choose nothing.
    """

    label: str
    held_out: str | None
    trials: Sequence[Trial]
    validation: Sequence[float]
    compared: Sequence[float]

    @classmethod
    def of(cls, label: str, held_out: str | None, trials: Sequence[Trial], jobs: Sequence[Job]) -> Choice:
        """Read the runs of the trials, which have all ended."""
        records = [load_record(summary_of(job).parent) for job in jobs]
        role = find_protocol(records[0]).role
        validation = [record.last["validation"] for record in records]
        return cls(label, held_out, trials, validation, [record.last[role] for record in records])

    @property
    def chosen(self) -> int:
        """The first trial of the highest accuracy on source validation."""
        return max(range(len(self.trials)), key=lambda trial: self.validation[trial])

    def gain(self, accuracies: Sequence[float]) -> float:
        """The lead of the chosen trial over the median, in points."""
        return accuracies[self.chosen] - statistics.median(accuracies)

    def summary(self, of: str, search: Sequence[str]) -> dict[str, Any]:
        """The entry in the summary of a chosen run.

        ``of`` is a digest of the arguments that all trials share, and ``search`` lists the method's spaces.
        """
        return {
            "of": of,
            "search": list(search),
            "trials": len(self.trials),
            "chosen": list(self.trials[self.chosen]),
        }


def read_choices(path: Path) -> list[Choice]:
    """Read the file that ``write_choices`` wrote."""
    names = [field.name for field in fields(Choice)]
    return [Choice(*(entry[name] for name in names)) for entry in read_json(path)["choices"]]


def keep_chosen(trial: Job, kept: Job) -> None:
    """Copy the chosen trial's run to the runs of the choice, whole or not at all."""
    if not kept.is_done:
        copy = kept.folder.with_name(f"{kept.folder.name}.copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(kept.folder, ignore_errors=True)
        shutil.copytree(trial.folder, copy)
        copy.rename(kept.folder)


def mark(job: Job, tuning: Mapping[str, Any]) -> None:
    """Add the choice of a run's options to its summary."""
    path = summary_of(job)
    write_json(path, {**read_json(path), "tuning": tuning})


def choices_text(choices: Sequence[Choice]) -> str:
    """Format a table of the choices, with the accuracies of the forbidden choice."""
    head = ["method", "held out", "trials", "chosen", "source validation", "over the median"]
    rows = [[*head, "compared", "over the median", "oracle, not allowed"]]
    for choice in choices:
        given = " ".join(argument.removeprefix("--") for argument in choice.trials[choice.chosen])
        row = [choice.label, choice.held_out or "none", str(len(choice.trials)), given or "its config"]
        for accuracies in (choice.validation, choice.compared):
            row += [f"{accuracies[choice.chosen]:.1f}", f"{choice.gain(accuracies):+.1f}"]
        rows.append([*row, f"{max(choice.compared):.1f}"])
    return text_table(rows)


def write_choices(path: Path, choices: Sequence[Choice], search: Sequence[str], seed: int) -> None:
    """Write all trials and choices."""
    entries = [{**asdict(choice), "chosen": choice.chosen} for choice in choices]
    write_json(path, {"search": list(search), "seed": seed, "choices": entries})

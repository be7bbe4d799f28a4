"""The choice among the trials of a method, which rests on source validation alone, and what it gained."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedvlp.results.record import Record, load_record
from fedvlp.tools.compare.grouping import protocol_of
from fedvlp.tools.sweep.jobs import Job
from fedvlp.tools.tune.search import Trial
from fedvlp.utils.files import read_json, write_json
from fedvlp.utils.text_table import text_table

TUNE_FILE = "tune.json"
CHOSEN_BY = "validation"


def run_of(job: Job) -> Record:
    """Returns what a job's run wrote at its end."""
    return load_record(sorted(job.folder.glob("*/summary.json"))[-1].parent)


@dataclass(frozen=True)
class Choice:
    """The trials of a method with a held-out domain, in the order in which they were drawn.

    Attributes:
        label: the method's.
        held_out: the held-out domain; None if all domains have clients.
        trials: arguments of each trial.
        validation: accuracy of each in percent on source validation, after the last round.
        compared: accuracy of each on the images that methods are compared on. Nothing is chosen by it.
    """

    label: str
    held_out: str | None
    trials: Sequence[Trial]
    validation: Sequence[float]
    compared: Sequence[float]

    @classmethod
    def of(cls, label: str, held_out: str | None, trials: Sequence[Trial], jobs: Sequence[Job]) -> Choice:
        """Reads the runs of the trials, all of which have ended."""
        records = [run_of(job) for job in jobs]
        role = protocol_of(records[0]).role
        validation = [record.last[CHOSEN_BY] for record in records]
        return cls(label, held_out, trials, validation, [record.last[role] for record in records])

    @property
    def chosen(self) -> int:
        """The first trial of the highest accuracy on source validation."""
        return max(range(len(self.trials)), key=lambda trial: self.validation[trial])

    def gain(self, accuracies: Sequence[float]) -> float:
        """Returns by how many points the chosen trial is above the median one."""
        return accuracies[self.chosen] - statistics.median(accuracies)

    def describe(self) -> dict[str, Any]:
        """Returns what ``tune.json`` says of it."""
        rows = zip(self.trials, self.validation, self.compared, strict=True)
        trials = [{"arguments": list(given), CHOSEN_BY: own, "compared": other} for given, own, other in rows]
        return {"method": self.label, "held_out": self.held_out, "chosen": self.chosen, "trials": trials}

    def summary(self, of: str, search: Sequence[str]) -> dict[str, Any]:
        """Returns what the summary of a chosen run says of the search.

        Args:
            of: digest of the arguments that all trials share.
            search: texts of the method's spaces, where the command line may have said no more than auto.
        """
        return {
            "of": of,
            "search": list(search),
            "trials": len(self.trials),
            "chosen": list(self.trials[self.chosen]),
            CHOSEN_BY: {
                "chosen": self.validation[self.chosen],
                "lowest": min(self.validation),
                "median": statistics.median(self.validation),
            },
            "gain": {CHOSEN_BY: self.gain(self.validation), "compared": self.gain(self.compared)},
        }


def read_choices(path: Path) -> list[Choice]:
    """Read the file that ``write_choices`` wrote."""
    choices = []
    for entry in read_json(path)["choices"]:
        trials = entry["trials"]
        accuracies = [[trial[name] for trial in trials] for name in (CHOSEN_BY, "compared")]
        arguments = [tuple(trial["arguments"]) for trial in trials]
        choices.append(Choice(entry["method"], entry["held_out"], arguments, *accuracies))
    return choices


def keep_chosen(trial: Job, kept: Job) -> None:
    """Copies the chosen trial's run to the runs of the choice."""
    if not kept.is_done:
        # Whole or not at all, whenever the copy is stopped.
        copy = kept.folder.with_name(f"{kept.folder.name}.copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.rmtree(kept.folder, ignore_errors=True)
        shutil.copytree(trial.folder, copy)
        copy.rename(kept.folder)


def mark(job: Job, tuning: Mapping[str, Any]) -> None:
    """Adds to a run's summary how its options were chosen."""
    path = sorted(job.folder.glob("*/summary.json"))[-1]
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "tuning": tuning})


def choices_text(choices: Sequence[Choice]) -> str:
    """Returns a table of the choices, with what the forbidden one would have had beside it."""
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
    """Writes all trials and choices."""
    write_json(path, {"search": list(search), "seed": seed, "choices": [choice.describe() for choice in choices]})

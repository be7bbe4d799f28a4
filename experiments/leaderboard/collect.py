"""Makes the entries of finished runs: those of the first seed of ``experiments.oracle``.

``python -m experiments.leaderboard.collect`` writes what is missing into ``entries``; the runs are those that
``python -m experiments.oracle.run`` makes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml

from experiments.options import Choice, parse
from experiments.oracle.run import runs_of, study_parser
from fedvlp.tools.hub.push import without_folders
from fedvlp.utils.files import write_json, write_text

ENTRIES = Path(__file__).with_name("entries")
METHODS = ("promptfl", "diprompt", "trip", "plan", "fed_dpt", "adapt")


def collect(choice: Choice, folder: Path) -> list[Path]:
    """Writes an entry for each held-out domain of each method that has none, and returns them all."""
    entries = []
    for config in METHODS:
        for run in runs_of(config, choice)[0]:
            entry = folder / choice.setting.data / config / f"{run.held_out}-{run.seed}"
            entries.append(entry)
            if entry.exists():
                continue
            entry.mkdir(parents=True)
            shutil.copyfile(run.record.folder / "prompts.safetensors", entry / "prompts.safetensors")
            write_text(entry / "config.yaml", yaml.safe_dump(without_folders(run.record.config), sort_keys=False))
            write_json(entry / "summary.json", without_folders(run.summary))
    return entries


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the entries."""
    choice = parse(study_parser(__doc__), arguments)
    for entry in collect(choice, ENTRIES):
        print(entry.relative_to(ENTRIES.parent))


if __name__ == "__main__":
    main()

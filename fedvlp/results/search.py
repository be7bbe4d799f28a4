"""Finds finished runs below folders."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

from fedvlp.results.record import Record, load_record
from fedvlp.utils.errors import UserError

RUN_FILES = ("summary.json", "config.yaml")
"""What a run writes at its end, and at its beginning."""


def find_records(paths: Sequence[str | Path]) -> tuple[list[Record], list[str]]:
    """Returns the finished runs at or below some paths, and a line for each path or run folder that is none.

    Of runs that are equal in all but their folder, the one counts whose folder's name, a time, is the latest. A run
    that was stopped is not mentioned where a later one beside it ended.

    Args:
        paths: run folders, or folders of runs at any depth.

    Returns:
        The runs in the order of their paths, each once, and what is wrong with the other paths.
    """
    found: dict[Hashable, Record] = {}
    problems: list[str] = []
    for path in map(Path, paths):
        folders = _run_folders(path)
        if not folders:
            problem = "no run is here or below" if path.is_dir() else "there is no such folder"
            problems.append(f"{path}: {problem}.")
        for folder in folders:
            try:
                record = load_record(folder)
            except UserError as error:
                if not _was_repeated(folder, folders):
                    problems.append(str(error))
                continue
            # Folders are named after the time at which a run began, so the later one has the greater name.
            known = found.get(_identity(record))
            if known is None or known.folder.name < record.folder.name:
                found[_identity(record)] = record
    return list(found.values()), problems


def _identity(record: Record) -> Hashable:
    """Returns what is equal for two attempts at the same run."""
    return record.key, record.settings, record.seed, record.held_out, record.split


def _run_folders(path: Path) -> list[Path]:
    """Returns the folders of runs, ended or not, at or below a path, sorted."""
    if any((path / name).is_file() for name in RUN_FILES):
        return [path]
    folders: set[Path] = set()
    for name in RUN_FILES:
        folders.update(file.parent for file in path.rglob(name))
    return sorted(folders)


def _was_repeated(folder: Path, folders: Sequence[Path]) -> bool:
    """Whether a run did not end, but one beside it that began later did."""
    if (folder / "summary.json").is_file():
        return False
    later = [other for other in folders if other.parent == folder.parent and other.name > folder.name]
    return any((other / "summary.json").is_file() for other in later)

"""The folder of a trained model that is given to others: prompts, card, config and summary, without paths of here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import yaml

from fedvlp.pretrained.classifier import Classifier
from fedvlp.pretrained.loading import from_pretrained
from fedvlp.results.record import load_record
from fedvlp.runs.run_folder import run_of
from fedvlp.tools.hub.card import card_text
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json, write_text

PATHS = ("root", "cache_dir", "default_root_dir", "dirpath", "save_dir")
"""Options that are paths, also where they are relative."""


def write_folder(
    run: str | Path, folder: str | Path, repository: str, license: str = "unknown", allow: Sequence[str] = ()
) -> list[Path]:
    """Writes what is given to others of a finished run: what was learned, its card, config and summary.

    The model is loaded for it, so what is written can be loaded. What stays with clients is not written, and of the
    paths of this machine their last part alone.

    Args:
        run: the run's folder, or the folder of several, of which the newest.
        folder: new or empty.
        repository: where it will be, ``user/name``, for the card.
        license: identifier of the licence under which it is given, as hubs know them, such as ``apache-2.0``.
        allow: modules and paths of classes that the run may name, besides fedvlp's own.

    Returns:
        The files.

    Raises:
        UserError: if it is no finished run, its method has no one model for everybody, or the folder is not empty.
    """
    record = load_record(run_of(Path(run)))
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"Expected a new or empty folder; {target} is not. Name another.")
    classifier = from_pretrained(record.folder, allow=allow)
    prompts = _portable(classifier).save_pretrained(target)
    write_text(target / "README.md", card_text(classifier, record, repository, license))
    write_json(target / "summary.json", without_folders(_summary(record.folder)))
    files = [prompts, target / "README.md", target / "summary.json"]
    if (record.folder / "config.yaml").is_file():
        config = without_folders(read_yaml(record.folder / "config.yaml"))
        write_text(target / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        files.append(target / "config.yaml")
    return files


def without_folders(value: Any, key: str = "") -> Any:
    """Returns a config without the folders of this machine: of a path that is absolute its last part alone.

    >>> without_folders({"root": "data/ward 3/scans", "pretrained": "/mnt/clip/ViT-B-16.pt", "held_out": "a/b"})
    {'root': 'scans', 'pretrained': 'ViT-B-16.pt', 'held_out': 'a/b'}
    """
    if isinstance(value, Mapping):
        return {name: without_folders(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner, key) for inner in value]
    if isinstance(value, str) and (key in PATHS or _is_absolute(value)):
        return PureWindowsPath(value).name  # which knows both separators
    return value


def _is_absolute(text: str) -> bool:
    return text.startswith(("/", "~")) or bool(PureWindowsPath(text).drive)


def _summary(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def _portable(classifier: Classifier) -> Classifier:
    """Returns the classifier, whose CLIP is described without folders of this machine."""
    clip = classifier.method.hparams["clip"]
    classifier.method.hparams["clip"] = without_folders(clip)
    return classifier

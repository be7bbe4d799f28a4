"""A finished run's model for others: a folder with prompts, card, config and summary, or a repository on a hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from fedvlp.pretrained.loading import SIGN_IN, check_repository, from_pretrained, hub_problem
from fedvlp.results.record import load_record
from fedvlp.runs.run_folder import run_of
from fedvlp.tools.hub.card import card_text
from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_json, write_text

PATHS = ("root", "cache_dir", "default_root_dir", "dirpath", "save_dir")
"""Options that are paths, also where they are relative."""


def push_to_hub(
    run: str | Path, repository: str, *, private: bool = False, license: str = "unknown", allow: Sequence[str] = ()
) -> str:
    """Puts a finished run's model on the hub, with a card made of the run, and returns its address.

    Given are what was learned, the card, the run's config and its summary, in one commit; neither CLIP nor images.
    :func:`fedvlp.from_pretrained` loads it by ``hf://user/name``.

    Args:
        run: the run's folder, or the folder of several, of which the newest.
        repository: ``user/name``; made if it is not there.
        private: whether only its owner sees it.
        license: identifier of the licence under which it is given, as the hub knows them, such as ``apache-2.0``.
        allow: modules and paths of classes that the run may name, besides fedvlp's own.

    Raises:
        UserError: if it is no finished run, its method has no one model for everybody, or the hub can't be reached,
            has no token or refuses.
    """
    check_repository(repository)
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise UserError(f"The hub lets no one write without a token, and there is none on this machine. {SIGN_IN}")
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_folder(run, folder, repository, license, allow)
        try:
            return _upload(huggingface_hub.HfApi(), folder, repository, private)
        except UserError:
            raise
        except Exception as error:  # of many kinds, those of other packages included
            raise UserError(f"{repository} was not pushed: {hub_problem(error)}") from error


def _upload(api: Any, folder: Path, repository: str, private: bool) -> str:
    """Uploads a folder in one commit, and returns the repository's address."""
    address = str(api.create_repo(repository, private=private, exist_ok=True))
    if private and not api.model_info(repository).private:
        raise UserError(
            f"{repository} is there already and public, so nothing was pushed. Make it private on its page, or push to "
            "another."
        )
    api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Trained model and card")
    return address


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
    classifier.method.hparams["clip"] = without_folders(classifier.method.hparams["clip"])
    prompts = classifier.save_pretrained(target)
    write_text(target / "README.md", card_text(classifier, record, repository, license))
    write_json(
        target / "summary.json",
        without_folders(json.loads((record.folder / "summary.json").read_text(encoding="utf-8"))),
    )
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

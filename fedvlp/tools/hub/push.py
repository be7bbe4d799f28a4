"""Publication of a finished run's model: a folder with prompts, card, config and summary, or a repository on a hub."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedvlp.catalog.description import DESCRIPTIONS
from fedvlp.clip.loading import FOLDER_PREFIX
from fedvlp.results.record import Record, load_record
from fedvlp.results.rounds import accuracy_cells
from fedvlp.runs.run_folder import find_run_folder
from fedvlp.tools.compare.grouping import all_options, describe_records
from fedvlp.tools.pretrained import Classifier, from_pretrained, hub_problem
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import read_json, write_json, write_text
from fedvlp.utils.text_table import markdown_table, markdown_text

PATHS = ("root", "cache_dir", "default_root_dir", "dirpath", "save_dir")
"""Options with absolute or relative paths."""


def push_to_hub(
    run: str | Path, repository: str, *, private: bool = False, license: str = "unknown", allow: Sequence[str] = ()
) -> str:
    """Push a finished run's model to the hub in one commit, with card, config and summary, and return its address.

    Neither CLIP nor images are uploaded. ``fedvlp.from_pretrained("hf://user/name")`` loads the model.

    Args:
        run: Folder of a run, or of several runs (the newest).
        repository: ``user/name``; created if it does not exist.
        private: Whether the repository is visible only to its owner.
        license: The hub's identifier of the licence, such as ``apache-2.0``.
        allow: Modules and paths of classes that the run may name in addition to fedvlp's own.

    Raises:
        UserError: If the run is not finished, its method has no shared model, or the hub can't be reached, lacks a
            token or refuses.
    """
    import huggingface_hub

    api = huggingface_hub.HfApi()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_folder(run, folder, repository, license, allow)
        try:
            address = str(api.create_repo(repository, private=private, exist_ok=True))
            # An existing repository keeps its visibility.
            if not private or api.model_info(repository).private:
                api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Trained model and card")
                return address
        except Exception as error:  # the hub's client raises errors of many packages
            raise UserError(f"{repository} was not pushed: {hub_problem(error)}") from error
    raise UserError(
        f"{repository} exists and is public, so nothing was pushed. Make it private on its page, or choose another "
        "repository."
    )


def write_folder(
    run: str | Path, folder: str | Path, repository: str, license: str = "unknown", allow: Sequence[str] = ()
) -> list[Path]:
    """Write the files that :func:`push_to_hub` uploads into a new or empty folder, and return them.

    Personal tensors are not written, and local paths are reduced to their last part.

    Raises:
        UserError: If the run is not finished, its method has no shared model, or the folder is not empty.
    """
    record = load_record(find_run_folder(Path(run)))
    record = replace(record, clip=remove_folders(record.clip))
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"Expected a new or empty folder, got {target}. Choose another folder.")
    classifier = from_pretrained(record.folder, allow=allow)
    config = record.config
    # The header of prompts.safetensors contains the path of CLIP's weights.
    classifier.method.hparams["clip"] = remove_folders(classifier.method.hparams["clip"])
    files = [classifier.save_pretrained(target), target / "README.md", target / "summary.json"]
    write_text(target / "README.md", card_text(classifier, record, repository, license))
    write_json(target / "summary.json", remove_folders(read_json(record.folder / "summary.json")))
    if config:
        write_text(target / "config.yaml", yaml.safe_dump(remove_folders(config), sort_keys=False))
        files.append(target / "config.yaml")
    return files


def remove_folders(value: Any, key: str = "") -> Any:
    """Remove local folders from a config: keep only the last part of each path.

    >>> remove_folders({"root": "data/ward 3/scans", "pretrained": "/mnt/clip/ViT-B-16.pt", "held_out": "a/b"})
    {'root': 'scans', 'pretrained': 'ViT-B-16.pt', 'held_out': 'a/b'}
    >>> remove_folders({"name": "local-dir:/mnt/clips/biomedclip"})
    {'name': 'local-dir:biomedclip'}
    """
    if isinstance(value, Mapping):
        return {name: remove_folders(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [remove_folders(inner, key) for inner in value]
    if isinstance(value, str) and value.startswith(FOLDER_PREFIX):
        return FOLDER_PREFIX + PureWindowsPath(value.removeprefix(FOLDER_PREFIX)).name
    if isinstance(value, str):
        is_absolute = value.startswith(("/", "~")) or bool(PureWindowsPath(value).drive)
        # PureWindowsPath supports both separators.
        return PureWindowsPath(value).name if key in PATHS or is_absolute else value
    return value


def card_text(classifier: Classifier, record: Record, repository: str, license: str) -> str:
    """Render the card of a run's model as Markdown."""
    metadata = {
        "library_name": "fedvlp",
        "license": license,
        "pipeline_tag": "image-classification",
        "tags": ["fedvlp", "clip", "prompt-learning", "federated-learning", "domain-generalization"],
        "metrics": ["mAP" if classifier.method.has_several_labels else "accuracy"],
    }
    # Names of classes and data come from folders, so each is escaped for Markdown.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, autoescape=False
    )
    return environment.get_template("card.md.jinja").render(
        metadata=yaml.safe_dump(metadata, sort_keys=False),
        title=markdown_text(f"{record.method} on {_data_name(record)}"),
        class_names=[markdown_text(name) for name in classifier.class_names],
        method=markdown_text(record.method),
        clip=markdown_text(record.clip),
        is_centralised=record.is_centralised,
        paper=markdown_text(find_paper(type(classifier.method))),
        repository=repository,
        accuracy=_accuracy(record),
        thresholds=classifier.method.thresholds if classifier.method.has_several_labels else [],
        facts=_facts(record),
        license=license,
        data_licence=markdown_text(data_licence(_data_name(record))),
    )


def find_paper(method: type) -> str:
    """Find the paper in the docstring of a method's module; empty if there is none."""
    for paragraph in (inspect.getdoc(inspect.getmodule(method)) or "").split("\n\n"):
        kind, _, text = paragraph.partition(":")
        if kind in ("Paper", "Papers"):
            return " ".join(text.split())
    return ""


def _accuracy(record: Record) -> str:
    cells = accuracy_cells(list(record.accuracy.items()), record.balance, record.name_accuracy("accuracy"))
    head, *body = [list(map(markdown_text, row)) for row in cells]
    return markdown_table(head, ["---", *["---:"] * (len(head) - 1)], body)


def _facts(record: Record) -> str:
    facts = {
        **describe_records([record]),
        "protocol": record.protocol,
        "domains": ", ".join(record.data.get("domains", [])),
        "held out": ", ".join(record.held_out) or "none",
        "split, digest": record.split,
        "CLIP, digest": record.clip_fingerprint,
        "options": ", ".join(f"{name} {value}" for name, value in sorted(all_options(record).items())),
        "seed": str(record.seed),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(record.versions.items())),
    }
    if record.communication:
        facts["sent by a client each round"] = f"{record.communication['upload_parameters']:,} parameters"
    body = [[name, markdown_text(value)] for name, value in facts.items() if value]
    return markdown_table(["", ""], ["---", "---"], body)


def data_licence(name: str) -> str:
    """Describe the licence of the images, as far as it is known."""
    if name == "IconDomains":
        return "The icons of IconDomains have the licences of their icon sets; no icons are included."
    for description in DESCRIPTIONS:
        if description.name == name:
            licence = f" (licence, as far as known: {description.licence})" if description.licence else ""
            source = f"{name} is published by {description.source}{licence}"
            return f"{source}; its terms apply to the images, and no images are included."
    return "the licence of their owner; no images are included."


def _data_name(record: Record) -> str:
    return str(record.data.get("name") or "custom images")

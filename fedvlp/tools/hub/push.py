"""A finished run's model for others: a folder with prompts, card, config and summary, or a repository on a hub."""

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
from fedvlp.runs.run_folder import run_of
from fedvlp.tools.compare.grouping import describe_records, settings_of
from fedvlp.tools.pretrained.classifier import Classifier
from fedvlp.tools.pretrained.loading import from_pretrained, hub_problem
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import read_json, write_json, write_text
from fedvlp.utils.text_table import markdown_table, markdown_text

PATHS = ("root", "cache_dir", "default_root_dir", "dirpath", "save_dir")
"""Options that are paths, even if they are relative."""


def push_to_hub(
    run: str | Path, repository: str, *, private: bool = False, license: str = "unknown", allow: Sequence[str] = ()
) -> str:
    """Put a finished run's model on the hub in one commit, with card, config and summary, and return its address.

    Neither CLIP nor images are uploaded. :func:`fedvlp.from_pretrained` loads it by ``hf://user/name``.

    Args:
        run: The run's folder, or the folder of several, of which the newest.
        repository: ``user/name``; made if it does not exist.
        private: Whether only its owner sees it.
        license: The hub's identifier of its licence, such as ``apache-2.0``.
        allow: Modules and paths of classes that the run may name, besides fedvlp's own.

    Raises:
        UserError: If it is no finished run, its method has no shared model, or the hub can't be reached, has no token
            or refuses.
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
        f"{repository} is there already and public, so nothing was pushed. Make it private on its page, or push to "
        "another."
    )


def write_folder(
    run: str | Path, folder: str | Path, repository: str, license: str = "unknown", allow: Sequence[str] = ()
) -> list[Path]:
    """Write the files that :func:`push_to_hub` uploads into a new or empty folder, and return them.

    Personal tensors are left out, and paths of this machine are reduced to their last part.

    Raises:
        UserError: If it is no finished run, its method has no shared model, or the folder is not empty.
    """
    record = load_record(run_of(Path(run)))
    record = replace(record, clip=without_folders(record.clip))
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"Expected a new or empty folder; {target} is not. Name another.")
    classifier = from_pretrained(record.folder, allow=allow)
    config = record.config
    # The header of the prompts has the path of CLIP's weights.
    classifier.method.hparams["clip"] = without_folders(classifier.method.hparams["clip"])
    files = [classifier.save_pretrained(target), target / "README.md", target / "summary.json"]
    write_text(target / "README.md", card_text(classifier, record, repository, license))
    write_json(target / "summary.json", without_folders(read_json(record.folder / "summary.json")))
    if config:
        write_text(target / "config.yaml", yaml.safe_dump(without_folders(config), sort_keys=False))
        files.append(target / "config.yaml")
    return files


def without_folders(value: Any, key: str = "") -> Any:
    """Remove the folders of this machine from a config: of an absolute path only its last part remains.

    >>> without_folders({"root": "data/ward 3/scans", "pretrained": "/mnt/clip/ViT-B-16.pt", "held_out": "a/b"})
    {'root': 'scans', 'pretrained': 'ViT-B-16.pt', 'held_out': 'a/b'}
    >>> without_folders({"name": "local-dir:/mnt/clips/biomedclip"})
    {'name': 'local-dir:biomedclip'}
    """
    if isinstance(value, Mapping):
        return {name: without_folders(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner, key) for inner in value]
    if isinstance(value, str) and value.startswith(FOLDER_PREFIX):
        return FOLDER_PREFIX + PureWindowsPath(value.removeprefix(FOLDER_PREFIX)).name
    if isinstance(value, str):
        is_absolute = value.startswith(("/", "~")) or bool(PureWindowsPath(value).drive)
        return PureWindowsPath(value).name if key in PATHS or is_absolute else value  # which knows both separators
    return value


def card_text(classifier: Classifier, record: Record, repository: str, license: str) -> str:
    """Make the card of a run's model, a Markdown page."""
    metadata = {
        "library_name": "fedvlp",
        "license": license,
        "pipeline_tag": "image-classification",
        "tags": ["fedvlp", "clip", "prompt-learning", "federated-learning", "domain-generalization"],
        "metrics": ["accuracy"],
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
        paper=markdown_text(paper_of(type(classifier.method))),
        repository=repository,
        accuracy=_accuracy(record),
        facts=_facts(record),
        license=license,
        data_licence=markdown_text(data_licence(_data_name(record))),
    )


def paper_of(method: type) -> str:
    """The paper in the docstring of a method's module; empty if there is none."""
    for paragraph in (inspect.getdoc(inspect.getmodule(method)) or "").split("\n\n"):
        kind, _, text = paragraph.partition(":")
        if kind in ("Paper", "Papers"):
            return " ".join(text.split())
    return ""


def _accuracy(record: Record) -> str:
    cells = accuracy_cells(list(record.accuracy.items()), record.balance)
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
        "options": ", ".join(f"{name} {value}" for name, value in sorted(settings_of(record).items())),
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
        return "The icons of IconDomains have the licences of their sets; none of them is here."
    for each in DESCRIPTIONS:
        if each.name == name:
            licence = f" (licence, as far as known: {each.licence})" if each.licence else ""
            return (
                f"{name} is published by {each.source}{licence}; its terms apply to the images, and none of them is "
                "here."
            )
    return "those of whoever trained it; none of them is here."


def _data_name(record: Record) -> str:
    return str(record.data.get("name") or "custom images")

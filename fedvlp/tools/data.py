"""The command ``fedvlp data``: lists and downloads published data sets, checks local images, and writes their table."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fedvlp.catalog.description import DESCRIPTIONS, Description, SplitName, normalise_name, prompt_names
from fedvlp.utils.config_files import find_config, read_yaml
from fedvlp.utils.errors import UserError, did_you_mean_or_choose, escape_control_chars, shorten
from fedvlp.utils.files import size_in_words
from fedvlp.utils.text_table import text_table

if TYPE_CHECKING:
    from fedvlp.data.benchmarks.manifest import Manifest


def run_data(arguments: Sequence[str]) -> int:
    """Run a subcommand; return 0, or 1 if ``check`` finds problems."""
    options = _parser().parse_args(arguments)
    if options.command == "list":
        _print(_format_data_sets())
        return 0
    if options.command == "check":
        return _check(options)
    if options.command == "table":
        _write_table(options)
        return 0
    try:
        _download(options.name, options.root)
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; run the same command again to resume or restart\n")
        return 130
    return 0


def _print(text: str) -> None:
    # Names of folders may contain control characters.
    sys.stdout.write(escape_control_chars(text) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedvlp data", description="Published data sets.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    add_command = partial(commands.add_parser, allow_abbrev=False)
    add_command("list", help="list the supported data sets")
    download = add_command(
        "download",
        help="download a data set from the Hugging Face hub or, with torchvision, from its publisher",
        description="Download a data set from the Hugging Face hub into folders domain/class/image or, with "
        "torchvision, from its publisher. The command prints the source, the owners' terms and the size, checks the "
        "free disk space, downloads, and checks digests and the published counts. After an interruption, the same "
        "command resumes, or restarts for torchvision. It does nothing once the data set is complete.",
        epilog="Set HF_ENDPOINT to use a mirror of the hub, and HF_TOKEN for data sets that need a login.",
    )
    names = [description.short_name for description in DESCRIPTIONS if description.download_source]
    download.add_argument("name", help=", ".join(names))
    download.add_argument("--root", type=Path, help="new folder; by default datasets/NAME, as in the config")
    help = "compare local images with the published counts, read all images, and find duplicates"
    check = add_command("check", help=help)
    table = add_command(
        "table",
        help="write a table with a row per image: path, label, domain, and the official split",
        description="Write a table of the images as CSV, to inspect it, change it or publish the split. Train on it "
        "with --config data/table --data.table FILE --data.root FOLDER.",
    )
    for command in (check, table):
        help = "data set of `fedvlp data list`; folders, class_folders or a table's file for your own images"
        command.add_argument("name", help=help)
        command.add_argument("--root", type=Path, help="folder of the images; by default the folder of a table")
        command.add_argument("--several_labels", action="store_true", help="read dog|tree in a table as two labels")
        help = "columns of a table, such as label=dx"
        command.add_argument("--columns", nargs="+", default=[], metavar="NAME=COLUMN", help=help)
    table.add_argument("--output", type=Path, required=True, help="the file to write, such as images.csv")
    return parser


def _format_data_sets() -> str:
    rows = [["data set", "domains", "classes", "images", "split", "download", "config"]]
    for data_set in DESCRIPTIONS:
        images = "-" if data_set.images is None else f"{data_set.images:,}"
        size = size_in_words(data_set.download_source.download_bytes) if data_set.download_source else "-"
        sizes = [str(len(data_set.domains)), str(len(data_set.class_names)), images]
        rows.append([data_set.name, *sizes, data_set.official_parts or "drawn", size, data_set.config])
    # Pad the names of configs to align them left.
    width = max(len(row[-1]) for row in rows)
    table = text_table([[*row[:-1], row[-1].ljust(width)] for row in rows])
    return f"""{table}

Data sets without an official split are split at random by split_seed.
Your own images: data/folders for domain/class/image, data/class_folders for class/image,
    or data/table for a CSV, TSV or Parquet table.
Download a data set that has a download size: fedvlp data download pacs
Compare local images with a data set: fedvlp data check pacs --root FOLDER
Train on a data set: fedvlp fit --config methods/promptfl --config data/pacs --data.root FOLDER"""


def _find_description(name: str) -> Description | None:
    normalised = normalise_name(name.removeprefix("data/"))
    if normalised in ("folders", "domainfolders", "classfolders"):
        return None
    for description in DESCRIPTIONS:
        if normalised == normalise_name(description.name):
            return description
    names = [*(description.short_name for description in DESCRIPTIONS), "folders"]
    raise UserError(f"Expected the name of a data set, got {name!r}. {did_you_mean_or_choose(name, names)}")


def _download(name: str, root: Path | None) -> None:
    from fedvlp.data.benchmarks.download import download, find_source

    description = _find_description(name)
    if description is None:
        raise UserError("Expected a data set of `fedvlp data list`; your own images need no download.")
    find_source(description)
    config = read_yaml(Path(find_config(description.config)))
    folder = Path(config["data"]["init_args"]["root"]) if root is None else root.expanduser()
    download(description, folder, _print)
    option = "" if root is None else f" --data.root {shlex.quote(str(root))}"
    _print(f"Train on it: fedvlp fit --config methods/trip --config {description.config}{option}")


def _read(options: argparse.Namespace) -> tuple[Manifest, Description | None]:
    """List the images of a published data set, folders or a table; the description is None for the user's own."""
    from fedvlp.data.benchmarks.manifest import Manifest, read_manifest
    from fedvlp.data.domain_folders import ClassFolders, DomainFolders
    from fedvlp.data.rows import name_roles
    from fedvlp.data.table import ImageTable

    name, root = options.name, options.root
    if Path(name).suffix or "/" in name.removeprefix("data/"):
        columns = {column: title for column, _, title in (entry.partition("=") for entry in options.columns)}
        module = ImageTable(name, None if root is None else str(root), columns, several_labels=options.several_labels)
        files = module.scan()
        return Manifest(module.root, files, name_roles(files), several_labels=options.several_labels), None
    description = _find_description(name)
    if options.several_labels or options.columns:
        raise UserError(f"Only tables support --several_labels and --columns; {name} is not a table. Remove them.")
    if root is None:
        raise UserError(f"Expected the folder of the images of {name}. Add --root FOLDER.")
    root = root.expanduser()
    if description is None:
        kind = ClassFolders if normalise_name(name).endswith("classfolders") else DomainFolders
        return Manifest(root, kind(str(root)).scan()), None
    try:
        return read_manifest(root, description), description
    except UserError as error:
        raise UserError(f"{error}\n{description.name} is available from {description.source}.") from error


def _write_table(options: argparse.Namespace) -> None:
    from fedvlp.data.table import write_table

    manifest, _ = _read(options)
    file = options.output.expanduser()
    count = write_table(file, manifest.files, manifest.folder)
    _print(f"{count:,} images -> {file}")
    paths = f"--data.table {shlex.quote(str(file))} --data.root {shlex.quote(str(manifest.folder))}"
    method, labels = ("promptfl", " --data.several_labels true") if manifest.several_labels else ("fed_ncm", "")
    _print(f"Train on it: fedvlp fit --config methods/{method} --config data/table {paths}{labels}")


def _check(options: argparse.Namespace) -> int:
    from fedvlp.data.benchmarks.comparison import compare

    manifest, description = _read(options)
    findings = compare(manifest, description)
    title = f"{description.name if description else 'images'} in {manifest.folder}"
    lines = [title, "", *_counts(manifest, description), ""]
    lines += _label_counts(manifest) if manifest.several_labels else []
    if description is None:
        last = "Fix these problems before training." if findings.problems else "These images can be used."
    else:
        lines.append(_class_names(manifest, description))
        if description.licence:
            lines.append(f"licence, as far as known: {description.licence}")
        last = f"This is {description.name} as it was published."
        if findings.problems:
            last = f"This is not {description.name} as it was published. It is available from {description.source}."
    lines += [f"note: {note}" for note in findings.notes]
    lines += [f"problem: {problem}" for problem in findings.problems]
    _print("\n".join([*lines, "", last]))
    return 1 if findings.problems else 0


def _counts(manifest: Manifest, description: Description | None) -> list[str]:
    by_domain = {domain: manifest.role_counts(domain) for domain in manifest.files}
    totals = sum(by_domain.values(), Counter())
    roles: list[SplitName] = [role for role in ("train", "validation", "test") if totals[role]]
    rows = [["domain", "images", "published", "labels" if manifest.several_labels else "classes", *roles]]
    # The published number depends on the layout: CoOp's SUN397 contains only a part of the images.
    published = description.counts_in(manifest.layout) if description else {}
    for domain, files in manifest.files.items():
        classes = manifest.classes(domain)
        numbers = [len(files), published.get(domain), len(classes), *(by_domain[domain][role] for role in roles)]
        rows.append([domain, *("-" if number is None else f"{number:,}" for number in numbers)])
    split = f"official {manifest.split} split" if manifest.split else "no official split found; a random split is used"
    return [*text_table(rows).splitlines(), split]


def _label_counts(manifest: Manifest) -> list[str]:
    """Count each label's images, and the images where it is unknown."""
    import numpy as np

    from fedvlp.data.rows import label_targets

    names, targets = label_targets([image.class_name for image in chain.from_iterable(manifest.files.values())])
    rows = [["label", "images", "unknown"]]
    for name, column in zip([*names, "(no label)"], [*targets.T, (targets == 0).all(1)], strict=True):
        rows.append([name, f"{(column == 1).sum():,}", f"{np.isnan(column).sum():,}"])
    return [*text_table(rows).splitlines(), ""]


def _class_names(manifest: Manifest, description: Description) -> str:
    from fedvlp.data.rows import collect_classes

    present = set().union(*collect_classes(manifest.files).values())
    renamed = []
    for name in [name for name in description.class_names if name in present]:
        clip_name = description.clip_names.get(name, "")
        if clip_name and [clip_name] != prompt_names(description.name, [name], "plain"):
            renamed.append(f"{name} -> {clip_name}")
    exceptions = f"; {shorten(renamed)}, unless data.class_names=plain" if renamed else ""
    return f"class names in prompts: spaces for _{exceptions}"

"""The command ``fedvlp data``: lists the published data sets, downloads them, and compares images on disk with them."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedvlp.data.catalog import DESCRIPTIONS, Description, SplitName, normalise_name, prompt_names
from fedvlp.utils.config_files import find_config, read_yaml
from fedvlp.utils.errors import UserError, did_you_mean_or_choose, escape_control_chars
from fedvlp.utils.files import size_in_words
from fedvlp.utils.text_table import text_table

if TYPE_CHECKING:
    from fedvlp.data.benchmarks.comparison import Findings
    from fedvlp.data.benchmarks.on_disk import OnDisk

ROLES: tuple[SplitName, ...] = ("train", "validation", "test")


def run_data(arguments: Sequence[str]) -> int:
    """Runs ``list``, ``download`` or ``check``; returns 0, or 1 if the images are not those that were published."""
    given = _parser().parse_args(arguments)
    if given.command == "list":
        sys.stdout.write(list_of_data_sets() + "\n")
        return 0
    if given.command == "download":
        return _run_download(given.name, given.root)
    text, matches = checked(given.name, Path(given.root).expanduser())
    sys.stdout.write(escape_control_chars(text) + "\n")
    return 0 if matches else 1


def _run_download(name: str, root: Path | None) -> int:
    """Downloads a data set and returns the exit code: 130 if it was stopped."""
    try:
        download_data_set(name, root)
    except KeyboardInterrupt:
        sys.stderr.write("fedvlp: stopped; the same command resumes where it stopped, or begins again\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="fedvlp data", description="The field's data sets.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the published data sets that fedvlp knows", allow_abbrev=False)
    download = commands.add_parser(
        "download",
        help="download a data set from the Hugging Face hub, or by torchvision from its publisher",
        description="Downloads a data set: from the Hugging Face hub, written out as folders domain/class/image, or by "
        "torchvision from its publisher. Says the source, the owners' terms and the size first, checks the room on the "
        "disk, then digests and the published counts. The same command resumes after an interruption, or begins again "
        "where torchvision downloads, and does nothing once it is done.",
        epilog="HF_ENDPOINT names a mirror of the hub, HF_TOKEN a token for what needs a login.",
        allow_abbrev=False,
    )
    names = [_short_name(each) for each in DESCRIPTIONS if each.download_source]
    download.add_argument("name", help=", ".join(names))
    download.add_argument("--root", type=Path, help="folder to make; datasets/NAME, as the config says, if not given")
    check = commands.add_parser(
        "check",
        help="compare images on disk with the published counts, read all of them, and find duplicates",
        allow_abbrev=False,
    )
    check.add_argument("name", help="data set of `fedvlp data list`, or folders for images of your own")
    check.add_argument("--root", required=True, help="folder of the images")
    return parser


def list_of_data_sets() -> str:
    """Returns the published data sets as a table."""
    rows = [["data set", "domains", "classes", "images", "split", "download", "config"]]
    for each in DESCRIPTIONS:
        images = "-" if each.images is None else f"{each.images:,}"
        sizes = [str(len(each.domains)), str(len(each.class_names)), images]
        source = each.download_source
        size = size_in_words(source.download_bytes) if source else "-"
        rows.append([each.name, *sizes, each.official_parts or "drawn", size, each.config])
    width = max(len(row[-1]) for row in rows)
    table = text_table([[*row[:-1], row[-1].ljust(width)] for row in rows])
    return "\n".join([
        *(line.rstrip() for line in table.splitlines()),
        "",
        "Where an official split is not found, one is drawn by split_seed. Images of your own: data/folders.",
        "Download one that has a size: fedvlp data download pacs",
        "Compare images with a data set: fedvlp data check pacs --root FOLDER",
        "Train on them: fedvlp fit --config methods/promptfl --config data/pacs --data.root FOLDER",
    ])  # fmt: skip


def download_data_set(name: str, root: Path | None) -> None:
    """Downloads a data set, and says what is going on.

    Args:
        name: of the data set.
        root: the folder to make; the one of the data set's config if not given.

    Raises:
        UserError: if there is no such data set, it can't be downloaded, or it is not what was published.
    """
    from fedvlp.data.benchmarks.download import download, source_of

    description = _described(name)
    if description is None:
        raise UserError("Images of your own are on your disk already. Name a data set of `fedvlp data list`.")
    source_of(description)
    folder = _root_of_config(description) if root is None else root.expanduser()
    download(description, folder, _say)
    given = "" if root is None else f" --data.root {shlex.quote(str(root))}"
    _say(f"Train on them: fedvlp fit --config methods/trip --config {description.config}{given}")


def _root_of_config(description: Description) -> Path:
    """Returns the folder that the config of a data set names."""
    content = read_yaml(Path(find_config(description.config)))
    return Path(content["data"]["init_args"]["root"])


def _say(line: str) -> None:
    sys.stdout.write(escape_control_chars(line) + "\n")
    sys.stdout.flush()


def checked(name: str, root: Path) -> tuple[str, bool]:
    """Returns what is to be said of a data set on disk, and whether it is as it was published.

    Raises:
        UserError: if there is no data set of that name, or its layout or lists are wrong.
    """
    from fedvlp.data.benchmarks.comparison import compare
    from fedvlp.data.benchmarks.on_disk import OnDisk, read_on_disk
    from fedvlp.data.files.folders import scan

    description = _described(name)
    if description is None:
        on_disk = OnDisk(root, scan(root), {}, "", {})
    else:
        try:
            on_disk = read_on_disk(root, description)
        except UserError as error:
            raise UserError(f"{error}\n{description.name} can be had from {description.source}.") from error
    findings = compare(on_disk, description)
    published = None if description is None else description.in_layout(on_disk.layout, on_disk.files)
    return _page(on_disk, published, findings), not findings.problems


def _described(name: str) -> Description | None:
    """Returns the description of a data set by its name or config; None for folders."""
    wanted = normalise_name(name.removeprefix("data/"))
    if wanted in ("folders", "domainfolders"):
        return None
    for each in DESCRIPTIONS:
        if wanted == normalise_name(each.name):
            return each
    names = [*map(_short_name, DESCRIPTIONS), "folders"]
    raise UserError(f"Expected the name of a data set; got {name!r}. {did_you_mean_or_choose(name, names)}")


def _short_name(description: Description) -> str:
    return description.config.removeprefix("data/")


def _page(on_disk: OnDisk, description: Description | None, findings: Findings) -> str:
    """Returns counts, names, notes and problems, in one screen."""
    lines = [
        f"{description.name if description else 'images'} in {on_disk.folder}",
        "",
        *_counts(on_disk, description),
        "",
    ]
    lines += _class_names(on_disk, description)
    if description is not None and description.licence:
        lines.append(f"licence, as far as known: {description.licence}")
    lines += [f"note: {note}" for note in findings.notes]
    lines += [f"problem: {problem}" for problem in findings.problems]
    if description is None:
        last = "These images can be used." if not findings.problems else "Mend these problems before you train."
    elif findings.problems:
        last = f"This is not {description.name} as it was published. It can be had from {description.source}."
    else:
        last = f"This is {description.name} as it was published."
    return "\n".join([*lines, "", last])


def _counts(on_disk: OnDisk, description: Description | None) -> list[str]:
    """Returns the table of domains, with the official split if there is one."""
    from fedvlp.data.benchmarks.comparison import role_counts

    by_domain = {domain: role_counts(on_disk, domain) for domain in on_disk.files}
    totals = sum((Counter(counts) for counts in by_domain.values()), Counter())
    roles = [role for role in ROLES if totals[role]]
    rows = [["domain", "images", "published", "classes", *roles]]
    for domain, files in on_disk.files.items():
        published = description.domain_counts[domain] if description else None
        classes = {image.class_name for image in files}
        numbers = [len(files), published, len(classes), *(by_domain[domain][role] for role in roles)]
        rows.append([domain, *("-" if number is None else f"{number:,}" for number in numbers)])
    split = f"official {on_disk.split} split" if on_disk.roles else "no official split here: one is drawn"
    return [*text_table(rows).splitlines(), split]


def _class_names(on_disk: OnDisk, description: Description | None) -> list[str]:
    """Returns how prompts call the classes, where that is not just the name of the folder."""
    if description is None:
        return []
    from fedvlp.data.benchmarks.layouts import some

    here: set[str] = set()
    for files in on_disk.files.values():
        here.update(image.class_name for image in files)
    names = [name for name in description.class_names if name in here]
    clip_names = prompt_names(description.name, names, "clip")
    plain_names = prompt_names(description.name, names, "plain")
    renamed = [
        f"{name} -> {clip_name}"
        for name, plain_name, clip_name in zip(names, plain_names, clip_names, strict=True)
        if plain_name != clip_name
    ]
    exceptions = f"; {some(renamed)}, unless data.class_names=plain" if renamed else ""
    return [f"class names in prompts: spaces for _ and -{exceptions}"]

"""Packages that are installed by being written down: their files and their metadata, in a folder on the path."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedvlp.utils import plugins


def install(
    site: Path, package: str, version: str, groups: Mapping[str, Mapping[str, str]], files: Mapping[str, str]
) -> None:
    """Writes a package as an installer does, so that the interpreter finds it and its entry points.

    Args:
        site: A folder on the path.
        package: The name under which it is installed.
        version: Its version.
        groups: The entry points of each group, by name.
        files: Its files by their paths.
    """
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    metadata = site / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    plugins.registered_classes.cache_clear()


@contextmanager
def on_the_path(site: Path) -> Iterator[Path]:
    """Lets packages be imported from a folder in the block, and forgets modules that are single files after it.

    Other packages stay imported, and need a name of their own in each test: the parser looks through all subclasses
    that there are, and imports the packages that they lie in.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        plugins.registered_classes.cache_clear()
        yield site
        for file in site.glob("*.py"):
            sys.modules.pop(file.stem, None)
    plugins.registered_classes.cache_clear()

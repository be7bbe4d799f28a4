"""Packages that tests install by writing their files and metadata into a folder on the path."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedvlp.utils import plugins


def install(
    site: Path, package: str, version: str, groups: Mapping[str, Mapping[str, str]], files: Mapping[str, str]
) -> None:
    """Write a package like an installer, so that Python finds it and its entry points.

    Args:
        site: Folder on the path.
        package: Name of the package.
        version: Version of the package.
        groups: Entry points by group and name.
        files: Contents of the files by path.
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
    """Make a folder importable within the block, and forget its single-file modules afterwards.

    Packages with folders stay imported and need a different name in each test: the parser searches all existing
    subclasses and imports their packages.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        plugins.registered_classes.cache_clear()
        yield site
        for file in site.glob("*.py"):
            sys.modules.pop(file.stem, None)
    plugins.registered_classes.cache_clear()

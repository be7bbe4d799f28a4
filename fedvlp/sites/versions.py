"""The versions of what numbers depend on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedvlp.version import __version__

LIBRARIES = ("torch", "torchvision", "open_clip_torch")


def versions_here() -> dict[str, str]:
    """Returns the version of fedvlp and of the libraries it computes with, by their names on the package index."""
    found = {"fedvlp": __version__}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

"""The key under which it is cached what a method prepares of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedvlp.core.protocols import Backbone
from fedvlp.utils.digests import code_digest, digest
from fedvlp.version import __version__

PACKAGES = ("fedvlp.clip", "fedvlp.methods")
"""Whose source decides what is prepared, as far as the function refers to it."""


def prepare_key(
    function: Callable[..., Any], classes: Iterable[type], clip: Backbone, options: Mapping[str, Any]
) -> str:
    """Returns a digest of all that prepared constants depend on besides the image.

    Args:
        function: What prepares.
        classes: Where methods may be defined that the function calls.
        clip: The frozen CLIP.
        options: Plain values of the hyperparameters that matter.
    """
    homes = [kind.__module__ for kind in (*classes, type(clip))]
    return digest([code_digest(function, PACKAGES, homes), __version__, clip.fingerprint(), options])

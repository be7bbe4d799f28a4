"""Licences of open_clip's published weights, as stated in model cards."""

from __future__ import annotations

import open_clip

APPLE = "Apple AMLR, research only"
NON_COMMERCIAL = "CC BY-NC 4.0, not commercial"
LICENCES = {  # by prefix of open_clip's tag; the first match counts
    "metaclip": NON_COMMERCIAL,
    "dfn": APPLE,
    "datacompdr": APPLE,
    "v1": NON_COMMERCIAL,
    "mrl": NON_COMMERCIAL,
    "webli": "Apache 2.0",
    "meta": "Apache 2.0",
    "datacomp1b": "Apache 2.0",
    "": "MIT",
}


def licences(architecture: str) -> str:
    """List the licences of an architecture's published weights, with the tags of non-free weights."""
    tags: dict[str, list[str]] = {}
    for tag in open_clip.list_pretrained_tags_by_model(architecture):
        tags.setdefault(licence(architecture, tag), []).append(tag)
    parts = []
    for name, under in sorted(tags.items()):
        restricted = name in (APPLE, NON_COMMERCIAL)
        parts.append(f"{name} ({', '.join(under)})" if restricted else name)
    return "; ".join(parts) or "none published"


def licence(architecture: str, tag: str) -> str:
    """Look up the licence of the weights that open_clip publishes under a tag."""
    if architecture.startswith("ViTamin"):  # under a tag that CLIPA also has
        return "MIT"
    if "CLIPA" in architecture:
        return "Apache 2.0"
    return next(name for start, name in LICENCES.items() if tag.startswith(start))

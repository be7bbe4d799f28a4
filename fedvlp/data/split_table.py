"""A split written down: the names of its images, and a digest of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fedvlp.data.files.images import Images
from fedvlp.data.splits import Share


def split_hash(shares: Sequence[Share], images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with any image's role, domain, client, name or class.

    They do not change with the order of shares. A client that is all of a domain is not named, for it says no more.
    """
    lines = [
        "\0".join((
            share.role,
            domain,
            images[domain].names[row],
            class_names[images[domain].labels[row]],
            *(client.name for client in share.clients if share.role == "train" and client.name != domain),
        ))
        for share in shares
        for domain, rows in share.parts
        for row in rows
    ]  # fmt: skip
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def image_hash(images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with the name or class of any image of any domain.

    Unlike ``split_hash`` they are the same whatever is held out, and however images are dealt out.
    """
    lines = [
        f"{domain}\0{name}\0{class_names[label]}"
        for domain, members in images.items()
        for name, label in zip(members.names, members.labels, strict=True)
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def split_table(shares: Sequence[Share], images: Mapping[str, Images]) -> list[dict[str, Any]]:
    """Returns the names of the images for each role, domain and client, made to be written as JSON."""
    return [
        {
            "role": share.role,
            "domain": domain,
            "client": share.clients[0].id if len(share.clients) == 1 else None,
            "images": [images[domain].names[row] for row in rows],
        }
        for share in shares
        for domain, rows in share.parts
    ]

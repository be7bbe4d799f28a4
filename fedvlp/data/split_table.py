"""A split written down: the names of its images, and a digest of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedvlp.data.files.images import Images
from fedvlp.data.splits import SplitPart


def split_hash(parts: Sequence[SplitPart], images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with any image's role, domain, client, name or class.

    They do not change with the order of parts. A client that is all of a domain is not named, for it says no more; nor
    is a pool of all of them, which is so the same split, of the same images, as that of a client a domain.
    """
    lines: list[str] = []
    for part in parts:
        for domain, rows in part.rows_by_domain.items():
            clients = part.clients if part.is_of_client else ()
            named = [client.name for client in clients if client.name != domain and not client.is_pool]
            known = images[domain]
            for row in rows:
                lines.append("\0".join([part.role, domain, known.names[row], class_names[known.labels[row]], *named]))
    return hash_lines(lines)


def image_hash(images: Mapping[str, Images], class_names: Sequence[str]) -> str:
    """Returns 16 hexadecimal digits that change with the name or class of any image of any domain.

    Unlike ``split_hash`` they are the same whatever is held out, and however images are divided among clients.
    """
    lines: list[str] = []
    for domain, known in images.items():
        for name, label in zip(known.names, known.labels, strict=True):
            lines.append(f"{domain}\0{name}\0{class_names[label]}")
    return hash_lines(lines)


def hash_lines(lines: Iterable[str]) -> str:
    """Returns 16 hexadecimal digits that do not change with the order of the lines."""
    # File names may hold bytes that are not UTF-8; Python keeps them as surrogates.
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def split_table(parts: Sequence[SplitPart], images: Mapping[str, Images]) -> list[dict[str, Any]]:
    """Returns the names of the images for each role, domain and client, made to be written as JSON."""
    table: list[dict[str, Any]] = []
    for part in parts:
        client = part.clients[0].id if len(part.clients) == 1 else None
        for domain, rows in part.rows_by_domain.items():
            names = [images[domain].names[row] for row in rows]
            table.append({"role": part.role, "domain": domain, "client": client, "images": names})
    return table

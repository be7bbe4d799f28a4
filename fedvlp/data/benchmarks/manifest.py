"""A published data set as it is on disk: images with class, domain and role, whatever the layout."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvlp.catalog.description import Description, DomainTree, Layout
from fedvlp.core.roles import ImageRole
from fedvlp.data.benchmarks.layouts import DEPTH, domains_in, find_layout, nearest_first, read_layout, read_tree, some
from fedvlp.data.domain_folders import ImageFile
from fedvlp.data.files.images import folders_in
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Manifest:
    """The images of a data set on disk.

    Attributes:
        folder: The folder in which they were found.
        files: The images of each domain, sorted, with their official roles if there is a split.
        split: The parts of the official split, such as "train/crossval"; empty without one.
        left_out: Names of images on disk that do not count, by the reason.
        layout: Their layout; None for the user's own folders.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    split: str = ""
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    layout: Layout | None = None

    @property
    def notes(self) -> list[str]:
        """The images that do not count, in one line for each reason."""
        return [f"left out {len(names)} {reason}: {some(names, most=3)}" for reason, names in self.left_out.items()]

    def role_counts(self, domain: str) -> Counter[ImageRole | None]:
        """Count the images of a domain by official role."""
        return Counter(image.role for image in self.files[domain])


def read_manifest(root: Path, description: Description) -> Manifest:
    """List the images of a data set with the official split; open no image file.

    Raises:
        UserError: If the data set is not at or below the root, or its files or lists are not as they must be.
    """
    match = find_layout(root, description)
    if match is None:
        raise UserError(_missing(root, description))
    folder, layout = match
    if isinstance(layout.parts[0], DomainTree):
        images, title, left_out = read_tree(root, folder, layout.parts[0], description)
        domains = description.domains
    else:
        images = read_layout(folder, layout, description)
        _check_once(images, folder)
        domains = tuple(sorted({image.domain for image in images}))
        title = layout.title if any(image.role for image in images) else ""
        left_out = {}
    files: dict[str, list[ImageFile]] = {domain: [] for domain in domains}
    classes = frozenset(description.class_names)
    for image in images:
        # Some layouts have folders of clutter, or of a class that was published twice.
        if image.class_name in classes:
            files[image.domain].append(image)
        else:
            left_out.setdefault("images of folders that are no class", []).append(image.name)
    return Manifest(folder, files, title, left_out, layout)


def _missing(root: Path, description: Description) -> str:
    """Describe what was expected of a data set at or below a root, and what was found instead."""
    hint = "Check data.root"
    if description.download_source is not None:
        command = f"fedvlp data download {description.short_name} --root {shlex.quote(str(root))}"
        hint = f"Check data.root, or get it: {command}, or --data.download true"
    if not root.is_dir():
        return f"Expected {description.name} in the folder {root}; there is no such folder. {hint}."
    where = f"in {root}, or up to {DEPTH} folders below it,"
    there = some(folders_in(root)) or "no folder"
    if not any(isinstance(part, DomainTree) for layout in description.layouts for part in layout.parts):
        layouts = "; ".join(f"{layout.pattern} ({layout.of})" for layout in description.layouts)
        return f"Expected {description.name} {where} as one of: {layouts}. Found {there} there. {hint}."
    folder = max(nearest_first(root), key=lambda folder: len(domains_in(folder, description)))
    names = domains_in(folder, description)
    found = f"{', '.join(names.values())} in {folder}" if names else f"{there} there"
    lacking = [domain for domain in description.domains if domain not in names]
    return (
        f"Expected a folder for each domain of {description.name} ({', '.join(description.domains)}) {where} with "
        f"images as domain/class/image; found {found}, so {', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} "
        f"missing. Add them. {hint}."
    )


def _check_once(images: Sequence[ImageFile], folder: Path) -> None:
    """Raise UserError if an image has two roles, or is named twice."""
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((image.path, "" if image.role else image.class_name) for image in images)
    repeated = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(repeated):,} are named more than "
            f"once: {some(repeated)}. A split that leaks measures nothing: get its files again, or take them away."
        )

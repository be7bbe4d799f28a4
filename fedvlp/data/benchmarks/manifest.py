"""Read a published data set from disk, as images with class, domain and role, in any layout."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedvlp.catalog.description import Description, DomainTree, Layout
from fedvlp.core.roles import ImageRole
from fedvlp.data.benchmarks.layouts import DEPTH, domains_in, find_layout, read_layout, read_tree, shorten, walk_folders
from fedvlp.data.files.images import folders_in
from fedvlp.data.listed import ImageFile
from fedvlp.utils.errors import UserError


@dataclass(frozen=True)
class Manifest:
    """The images of a data set on disk.

    Attributes:
        folder: The folder of the images.
        files: The images of each domain, sorted, with their official roles if there is a split.
        split: The parts of the official split, such as "train/crossval"; empty if there is none.
        skipped: Names of skipped images on disk, by reason.
        layout: Their layout; None for the user's own folders.
    """

    folder: Path
    files: Mapping[str, list[ImageFile]]
    split: str = ""
    skipped: Mapping[str, list[str]] = field(default_factory=dict)
    layout: Layout | None = None

    @property
    def notes(self) -> list[str]:
        """The skipped images, in one line for each reason."""
        return [f"skipped {len(names)} {reason}: {shorten(names, most=3)}" for reason, names in self.skipped.items()]

    def role_counts(self, domain: str) -> Counter[ImageRole | None]:
        """Count the images of a domain by official role."""
        return Counter(image.role for image in self.files[domain])


def read_manifest(root: Path, description: Description) -> Manifest:
    """List the images of a data set with the official split, without opening any image file.

    Raises:
        UserError: If the data set is not at or below the root, or its files or lists are wrong.
    """
    match = find_layout(root, description)
    if match is None:
        raise UserError(_missing(root, description))
    folder, layout = match
    if isinstance(layout.parts[0], DomainTree):
        images, title, skipped = read_tree(root, folder, layout.parts[0], description)
        domains = description.domains
    else:
        images = read_layout(folder, layout, description)
        _check_once(images, folder)
        domains = tuple(sorted({image.domain for image in images}))
        title = layout.title if any(image.role for image in images) else ""
        skipped = {}
    files: dict[str, list[ImageFile]] = {domain: [] for domain in domains}
    classes = frozenset(description.class_names)
    for image in images:
        # Some layouts have folders of clutter, or a class that was published twice.
        if image.class_name in classes:
            files[image.domain].append(image)
        else:
            skipped.setdefault("images in folders that are not classes", []).append(image.name)
    return Manifest(folder, files, title, skipped, layout)


def _missing(root: Path, description: Description) -> str:
    hint = "Check data.root"
    if description.download_source is not None:
        command = f"fedvlp data download {description.short_name} --root {shlex.quote(str(root))}"
        hint = f"Check data.root, or download the data set with {command} or --data.download true"
    if not root.is_dir():
        return f"Expected {description.name} in the folder {root}; there is no such folder. {hint}."
    location = f"in {root}, or up to {DEPTH} folders below it,"
    present = shorten(folders_in(root)) or "no folder"
    if not any(isinstance(part, DomainTree) for layout in description.layouts for part in layout.parts):
        layouts = "; ".join(f"{layout.pattern} ({layout.of})" for layout in description.layouts)
        return f"Expected {description.name} {location} as one of: {layouts}. Found {present} there. {hint}."
    folder = max(walk_folders(root), key=lambda folder: len(domains_in(folder, description)))
    names = domains_in(folder, description)
    found = f"{', '.join(names.values())} in {folder}" if names else f"{present} there"
    missing = [domain for domain in description.domains if domain not in names]
    return (
        f"Expected a folder for each domain of {description.name} ({', '.join(description.domains)}) {location} with "
        f"images as domain/class/image; found {found}, so {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
        f"missing. Add them. {hint}."
    )


def _check_once(images: Sequence[ImageFile], folder: Path) -> None:
    # Without roles an image may have two classes: nine of ImageCLEF-DA show a bottle and a person, or a bus and a car.
    counts = Counter((image.path, "" if image.role else image.class_name) for image in images)
    repeated = sorted(os.path.relpath(path, folder) for (path, _), count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"Expected each image of {folder} once and in one part of the split; {len(repeated):,} are listed more "
            f"than once: {shorten(repeated)}. Download the files of the split again, or remove them."
        )

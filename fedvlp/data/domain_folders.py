"""Real images in folders: ``root/domain/class/image``."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedvlp.data.files.folders import ImageFile, check_utf8, scan
from fedvlp.data.files.images import FolderImages, Images, bad_images_message, unreadable
from fedvlp.data.module import FederatedDataModule
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_cache_file

log = logging.getLogger(__name__)


class DomainFolders(FederatedDataModule):
    """Images in folders: root/domain/class/image, the image at any depth below its class.

    PNG, JPEG, WebP, BMP, GIF, TIFF and PPM files count, whatever the case of their ending; hidden files do not.

    Args:
        root: Folder with a folder for each domain, each with a folder for each class.
        on_bad_image: What to do if images can't be read: "error" lists them and stops, "skip" leaves them out.
        allow_missing_classes: Whether a domain may lack a class that another has.
        allow_single_domain: Whether there may be one domain only, as where its images are dealt out by their labels or
            are a target of cross_dataset.
        **options: The arguments of FederatedDataModule.
    """

    def __init__(
        self,
        root: str,
        on_bad_image: Literal["error", "skip"] = "error",
        allow_missing_classes: bool = False,
        allow_single_domain: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.root = Path(root).expanduser()
        self.name = f"{type(self).__name__} {self.root.resolve().name}"
        self.on_bad_image = on_bad_image
        self.allow_missing_classes = allow_missing_classes
        self.allow_single_domain = allow_single_domain

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Returns the files of each domain and the names of the class folders; opens none of them."""
        return self._files

    @cached_property
    def _files(self) -> tuple[dict[str, Images], list[str]]:
        """The files of each domain and the names of the class folders.

        Raises:
            UserError: if the tree is not laid out as it must be, a name is no UTF-8, or a domain lacks a class.
        """
        domains = scan(self.root, self.allow_single_domain)
        classes = classes_of(domains)
        class_names = sorted(set().union(*classes.values()))
        check_utf8([*domains, *class_names])
        self._check_classes(classes)
        return {domain: labelled_images(files, class_names) for domain, files in domains.items()}, class_names

    def verified_domains(self) -> Mapping[str, Images]:
        """Returns the domains after every file was decoded once, without those that could not be.

        Raises:
            UserError: if images can't be read and ``on_bad_image`` is "error", or skipping them leaves a gap.
        """
        domains, class_names = self._files
        bad = {domain: self._bad_images(domain, images) for domain, images in domains.items()}
        listed: list[tuple[str, str]] = []
        for domain, reasons in bad.items():
            listed += [(domains[domain].names[row], reason) for row, reason in reasons.items()]
        if not listed:
            return domains
        total = sum(len(images) for images in domains.values())
        if self.on_bad_image == "error":
            remedy = "Mend or remove them, or leave them out with data.on_bad_image=skip."
            raise UserError(bad_images_message(listed, total, remedy))
        log.warning("%s", bad_images_message(listed, total, "They are left out."))
        good = {domain: _without(images, list(bad[domain])) for domain, images in domains.items()}
        classes = {}
        for domain, images in good.items():
            classes[domain] = {class_names[label] for label in np.unique(images.labels)}
        self._check_classes(classes)
        return good

    def _check_classes(self, classes: dict[str, set[str]]) -> None:
        """Raises if a domain has no images, or lacks a class and none may be lacking."""
        empty = [domain for domain, names in classes.items() if not names]
        if empty:
            raise UserError(
                f"Expected images in every domain; found none in {', '.join(map(repr, empty))} of {self.root}. "
                "Add some, remove those folders, or check that data.root is the folder of the domains."
            )
        every = set().union(*classes.values())
        lacking = {domain: sorted(every - names) for domain, names in classes.items() if every - names}
        if not lacking or self.allow_missing_classes:
            return
        listed = "; ".join(f"{domain!r} has no {', '.join(map(repr, names))}" for domain, names in lacking.items())
        hint = "Add images, or allow it with data.allow_missing_classes=true."
        # As many names as there are classes in all domains together: no two domains share one.
        if len(every) == sum(map(len, classes.values())):
            hint = "The domains share no class at all, so data.root may point one level too high or too low."
        raise UserError(f"Expected every domain of {self.root} to have every class: {listed}. {hint}")

    def _bad_images(self, domain: str, images: Images) -> dict[int, str]:
        """Returns why which images of a domain can't be read; the cache knows which until a file changes."""
        if not isinstance(images, FolderImages):
            return {}  # their pixels are here already
        if self.cache_dir is None:
            return unreadable(images.paths, f"checking {domain}")
        folder = hashlib.sha256(str(self.root.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        path = self.cache_dir / "verified" / f"{folder}-{images.fingerprint(range(len(images)))}.json"
        # Decoding a data set takes minutes, so the rows that can't be read are kept until a file changes.
        bad_rows = _read_rows(path, len(images))
        if bad_rows is None:
            bad = unreadable(images.paths, f"checking {domain}")
            write_cache_file(path, lambda temporary: _write_rows(temporary, sorted(bad)))
            return bad
        # A right to read that was given since then changes neither size nor time of the file.
        again = unreadable([images.paths[row] for row in bad_rows], f"checking {domain}")
        return {bad_rows[position]: reason for position, reason in again.items()}


def classes_of(domains: Mapping[str, Sequence[ImageFile]]) -> dict[str, set[str]]:
    """Returns the names of the classes that each domain has images of."""
    classes = {}
    for domain, files in domains.items():
        classes[domain] = {file.class_name for file in files}
    return classes


def labelled_images(files: Sequence[ImageFile], class_names: Sequence[str]) -> FolderImages:
    """Returns the files of one domain as labelled images."""
    labels = {name: label for label, name in enumerate(class_names)}
    paths = [file.path for file in files]
    names = [file.name for file in files]
    return FolderImages(paths, names, [labels[file.class_name] for file in files])


def _without(images: Images, rows: Sequence[int]) -> Images:
    """Returns images but those in some rows, where they are files."""
    return images.without(rows) if isinstance(images, FolderImages) else images


def _read_rows(path: Path, count: int) -> list[int] | None:
    """Reads which images were bad; None if that is not known or the file is damaged."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["bad"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(rows, list):
        return None
    return rows if all(isinstance(row, int) and 0 <= row < count for row in rows) else None


def _write_rows(path: Path, rows: list[int]) -> None:
    path.write_text(json.dumps({"bad": rows}), encoding="utf-8")

"""Images of other things than the classes, of which a method should be less sure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.data.checks import check_utf8
from fedvlp.data.files.images import FolderImages, bad_images_message, identity, image_paths, unreadable
from fedvlp.data.loading.batch_source import BatchSource, EvaluationSplit
from fedvlp.data.loading.module_binding import ModuleBinding
from fedvlp.data.splits import SplitPart
from fedvlp.utils.errors import UserError

NO_CLASS = -1
"""The label of all of them."""


@dataclass(frozen=True)
class OutOfDistribution:
    """The images of a folder, at any depth.

    Attributes:
        folder: where they are.
    """

    folder: str

    @property
    def name(self) -> str:
        """The folder's own name."""
        return Path(self.folder).expanduser().resolve().name

    @cached_property
    def images(self) -> FolderImages:
        """The images, each of which was opened once.

        Raises:
            UserError: if there is no such folder, no image in it, or one that can't be read.
        """
        root = Path(self.folder).expanduser()
        if not root.is_dir():
            raise UserError(f"Expected a folder of images at {root}; there is none. Check data.out_of_distribution.")
        paths = image_paths([self.folder])
        names = [path.relative_to(root).as_posix() for path in paths]
        check_utf8([self.name])
        if bad := unreadable(paths, f"checking {self.name}"):
            raise UserError(bad_images_message([(names[row], reason) for row, reason in bad.items()], len(paths)))
        return FolderImages(paths, names, [NO_CLASS] * len(paths))

    def describe(self) -> dict[str, str]:
        """Returns what results must have in common to be compared, made to be written as JSON."""
        return {"name": self.name, "images": identity(self.images)}

    def source(self, binding: ModuleBinding) -> BatchSource:
        """Returns what makes batches of the images in the form that a module wants."""
        # No domain has such a name, so nothing that was prepared of one is mistaken for these.
        name = f"{OUT_OF_DISTRIBUTION}/{self.name}"
        part = SplitPart("held_out", {name: np.arange(len(self.images))})
        return BatchSource({name: self.images}, [part], binding, is_augmented=False)

    def splits(self, binding: ModuleBinding, batch_size: int) -> list[EvaluationSplit]:
        """Returns the images as one split, which nobody trains on."""
        found = self.source(binding).evaluation_splits(batch_size)
        return [replace(split, name=split.domain, domain=self.name) for split in found]

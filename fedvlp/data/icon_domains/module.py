"""Icons in six styles: real images without a download."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedvlp.data.files.images import Images
from fedvlp.data.listed import ImageFile, labelled_images
from fedvlp.data.module import FederatedDataModule
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveInt

FOLDER = Path(__file__).parent


class IconDomains(FederatedDataModule):
    """Icons of 109 things, 64 x 64 pixels, in six styles, which are the domains; included in the package.

    Each domain has three to twelve icon sets that no other domain uses, and one to six images of each class.
    ``LICENCES.md`` next to this file lists the sets, their authors and licences.

    Args:
        num_classes: Number of classes in alphabetical order, for short runs. The benchmark uses all 109.
        **options: The arguments of FederatedDataModule.

    >>> data = IconDomains(num_classes=3, held_out="pixel")
    >>> data.class_names, data.source_domains
    (['airplane', 'alarm clock', 'anchor'], ['colour', 'duotone', 'emoji', 'line', 'solid'])
    """

    def __init__(self, num_classes: PositiveInt | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.num_classes = num_classes

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Load the icons of each domain, named ``domain/class/set:icon``, and the class names."""
        rows = manifest()
        class_names = sorted({row["class"] for row in rows})
        if self.num_classes is not None:
            if not 2 <= self.num_classes <= len(class_names):
                raise UserError(f"Expected num_classes from 2 to {len(class_names)}; got {self.num_classes}.")
            class_names = class_names[: self.num_classes]
        images: dict[str, Images] = {}
        for domain in sorted({row["domain"] for row in rows}):
            with Image.open(FOLDER / f"{domain}.png") as column:
                pixels = np.asarray(column.convert("RGB")).reshape(-1, column.width, column.width, 3)
            domain_rows = [row for row in rows if row["domain"] == domain]
            files = []
            for row, icon in zip(domain_rows, pixels, strict=True):
                if row["class"] in class_names:
                    name = "{domain}/{class}/{set}:{icon}".format_map(row)
                    files.append(ImageFile(domain, row["class"], name, "", pixels=icon))
            images[domain] = labelled_images(files, class_names)
        return images, class_names


def manifest() -> list[dict[str, str]]:
    """Read domain, class, set, icon and sha256 of the pixels of each image, in the order of its domain's file."""
    with (FOLDER / "manifest.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

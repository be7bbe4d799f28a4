"""Icons in six styles: real images without a download."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image

from fedvlp.core.several_labels import SEPARATOR
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.rows import ImageFile
from fedvlp.data.splits import generator_for
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import PositiveInt, Seed

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

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the icons of each domain, named ``domain/class/set:icon``."""
        rows = manifest()
        class_names = sorted({row["class"] for row in rows})
        if self.num_classes is not None:
            if not 2 <= self.num_classes <= len(class_names):
                raise UserError(f"Expected num_classes from 2 to {len(class_names)}; got {self.num_classes}.")
            class_names = class_names[: self.num_classes]
        icons: dict[str, list[ImageFile]] = {}
        for domain in sorted({row["domain"] for row in rows}):
            with Image.open(FOLDER / f"{domain}.png") as column:
                pixels = np.asarray(column.convert("RGB")).reshape(-1, column.width, column.width, 3)
            icons[domain] = []
            for row, icon in zip([row for row in rows if row["domain"] == domain], pixels, strict=True):
                if row["class"] in class_names:
                    name = "{domain}/{class}/{set}:{icon}".format_map(row)
                    icons[domain].append(ImageFile(domain, row["class"], name, "", pixels=icon))
        return icons


class IconScenes(IconDomains):
    """Scenes of two to four icons of IconDomains in a 2 x 2 grid, labelled by the names of their icons.

    The icons of a scene have one style and different classes. A style's icons are divided into groups of twelve, and a
    scene's icons are from one group, so that no icon is on two sides of a split.

    Args:
        num_classes: Number of classes in alphabetical order.
        scenes_seed: Seed of groups and scenes.
        **options: The arguments of FederatedDataModule.
    """

    several_labels = True

    def __init__(self, num_classes: PositiveInt | None = None, scenes_seed: Seed = 0, **options: Any) -> None:
        super().__init__(num_classes, **options)
        self.scenes_seed = scenes_seed

    def scan(self) -> dict[str, list[ImageFile]]:
        """Compose the scenes of each domain, named ``domain/group/scene``."""
        return {domain: self._compose(domain, icons) for domain, icons in super().scan().items()}

    def _compose(self, domain: str, icons: Sequence[ImageFile], group_size: int = 12) -> list[ImageFile]:
        generator = generator_for(self.scenes_seed, f"scenes/{domain}")
        order = generator.permutation(len(icons))
        scenes: list[ImageFile] = []
        for start in range(0, len(order), group_size):
            group = f"{domain}/{start // group_size:03d}"
            by_class = {icons[index].class_name: icons[index] for index in order[start : start + group_size]}
            for number in range(len(by_class) if len(by_class) > 1 else 0):
                count = min(int(generator.integers(2, 5)), len(by_class))
                names = sorted(generator.choice(sorted(by_class), count, replace=False).tolist())
                scene = arrange([by_class[name].pixels for name in names], generator)
                name = f"{group}/{number:02d}"
                scenes.append(ImageFile(domain, SEPARATOR.join(names), name, "", group=group, pixels=scene))
        return sorted(scenes)


def arrange(icons: Sequence[UInt8[np.ndarray, "H W 3"]], generator: np.random.Generator) -> UInt8[np.ndarray, "_ _ 3"]:
    """Put up to four icons into random places of a white 2 x 2 grid."""
    height, width, _ = icons[0].shape
    scene: NDArray[np.uint8] = np.full((2, 2, height, width, 3), 255, np.uint8)
    for place, icon in zip(generator.permutation(4), icons, strict=False):
        scene[place // 2, place % 2] = icon
    scene = scene.swapaxes(1, 2).reshape(2 * height, 2 * width, 3)
    return scene


def manifest() -> list[dict[str, str]]:
    """Read domain, class, set, icon and sha256 of the pixels of each image, in the order of its domain's file."""
    with (FOLDER / "manifest.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

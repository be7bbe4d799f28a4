"""Images of six classes in three domains, enough to hold out classes and domains."""

from collections.abc import Mapping

import numpy as np

from fedvlp.data import ArrayImages, FederatedDataModule, Images

CLASSES = ["anchor", "boat", "cup", "dog", "egg", "fan"]
COUNTS = {"ink": (10, 8, 12, 6, 10, 9), "paint": (5, 9, 7, 10, 8, 6), "photo": (8, 8, 6, 7, 9, 11)}


class SixClasses(FederatedDataModule):
    """Bars under noise: their height encodes the class, and their colour the domain."""

    class_list = CLASSES

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        domains: dict[str, Images] = {}
        for channel, (name, counts) in enumerate(COUNTS.items()):
            labels = np.repeat(np.arange(len(counts)), counts)
            pixels = np.random.default_rng(channel).integers(0, 120, (len(labels), 24, 24, 3), dtype=np.uint8)
            for row, label in enumerate(labels):
                pixels[row, 4 * label : 4 * label + 4, :, channel] = 250
            domains[name] = ArrayImages(pixels, labels, [f"{name}/{i}" for i in range(len(labels))])
        return domains, self.class_list


class OtherNames(SixClasses):
    """Another data set with the same images, but different class names."""

    class_list = [f"big {name}" for name in CLASSES]  # noqa: RUF012

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.name = "Other"

"""Which data sets torchvision downloads from their publishers; nothing is looked up here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TorchvisionSource:
    """A data set that a class of torchvision downloads.

    Attributes:
        reader: name of the class in ``torchvision.datasets``.
        download_bytes: how much is downloaded, about.
        is_pickled: whether torchvision unpickles what it downloaded when it opens it.
    """

    reader: str
    download_bytes: int
    is_pickled: bool = False


TORCHVISION_SOURCES = {
    "Caltech101": TorchvisionSource("Caltech101", 137_400_000),
    "OxfordPets": TorchvisionSource("OxfordIIITPet", 811_000_000),
    "Flowers102": TorchvisionSource("Flowers102", 345_000_000),
    "Food101": TorchvisionSource("Food101", 4_996_000_000),
    "FGVCAircraft": TorchvisionSource("FGVCAircraft", 2_753_000_000),
    "SUN397": TorchvisionSource("SUN397", 39_000_000_000),
    "DTD": TorchvisionSource("DTD", 625_000_000),
    "EuroSAT": TorchvisionSource("EuroSAT", 94_000_000),
    "CIFAR10": TorchvisionSource("CIFAR10", 170_000_000, is_pickled=True),
    "CIFAR100": TorchvisionSource("CIFAR100", 169_000_000, is_pickled=True),
}
"""By the name of the data set."""

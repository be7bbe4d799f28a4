"""Classes without images, for prediction."""

from __future__ import annotations

import lightning as L

from fedvlp.data.images import Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.errors import UserError


class ClassNames(FederatedDataModule):
    """Knows the names of the classes and nothing else; what ``predict`` needs of a data set.

    Args:
        class_names: The classes, in the order of the labels.
    """

    def __init__(self, class_names: list[str]) -> None:
        L.LightningDataModule.__init__(self)
        self._names = class_names

    @property
    def class_names(self) -> list[str]:
        """The classes, in the order of the labels."""
        return self._names

    def load_domains(self) -> tuple[dict[str, Images], list[str]]:
        """Has no images to give."""
        raise UserError("There are only class names here, and no images. Pass --data to fit, validate or test.")

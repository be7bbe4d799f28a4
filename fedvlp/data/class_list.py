"""Classes without images, for prediction."""

from __future__ import annotations

import lightning as L

from fedvlp.data.files.images import Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.utils.errors import UserError


class ClassNames(FederatedDataModule):
    """Knows what a method was told of its data and nothing else; what ``predict`` needs of a data set.

    Args:
        class_names: The classes, in the order of the labels.
        source_domains: The domains that trained.
        num_clients: How many clients trained.
    """

    def __init__(
        self, class_names: list[str], source_domains: list[str] | None = None, num_clients: int | None = None
    ) -> None:
        L.LightningDataModule.__init__(self)
        self._names, self._sources = class_names, list(source_domains or [])
        self._num_clients = len(self._sources) if num_clients is None else num_clients

    @property
    def class_names(self) -> list[str]:
        """The classes, in the order of the labels."""
        return self._names

    @property
    def source_domains(self) -> list[str]:
        """The domains that trained."""
        return self._sources

    @property
    def num_clients(self) -> int:
        """How many clients trained."""
        return self._num_clients

    def load_domains(self) -> tuple[dict[str, Images], list[str]]:
        """Has no images to give."""
        raise UserError("There are only class names here, and no images. Pass --data to fit, validate or test.")

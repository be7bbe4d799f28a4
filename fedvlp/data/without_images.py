"""Data module without images, for predictions and for ``fedvlp cost``."""

from typing import Any

from fedvlp.core.state import Client
from fedvlp.data.files.images import Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import Pooled
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveInt


class PlaceholderData(FederatedDataModule):
    """Classes, domains and clients without images; the defaults match PACS with one held-out domain.

    Args:
        classes: Number of classes, or their names in the order of the labels.
        domains: Number of source domains, or their names.
        num_clients: Number of clients, assigned to the domains in turn; one per domain if not given.
        **options: The arguments of FederatedDataModule, which have no effect.
    """

    def __init__(
        self,
        classes: PositiveInt | Names = 7,
        domains: PositiveInt | Names = 3,
        num_clients: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._class_names, self._source_domains = (
            [f"{kind} {index + 1}" for index in range(names)] if isinstance(names, int) else names
            for kind, names in (("class", classes), ("domain", domains))
        )
        self._num_clients = len(self._source_domains) if num_clients is None else num_clients

    @property
    def all_class_names(self) -> list[str]:
        """The classes, in the order of the labels."""
        return self._class_names

    @property
    def source_domains(self) -> list[str]:
        """The domains that trained."""
        return self._source_domains

    @property
    def clients(self) -> list[Client]:
        """Clients with one image each, or the pool of all images."""
        if isinstance(self.partition, Pooled):
            return [Client(0, -1, 1, "pool", is_pool=True)]
        domains = max(1, len(self._source_domains))
        return [Client(i, i % domains, 1, f"client {i + 1}") for i in range(self._num_clients)]

    def load_domains(self) -> tuple[dict[str, Images], list[str]]:
        """Raise UserError, since there are no images."""
        raise UserError("This data set has only names and numbers, no images. Pass --data to fit, validate or test.")

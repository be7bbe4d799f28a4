"""Data modules without images, for predictions and for ``fedvlp cost``."""

from typing import Any

from fedvlp.core.state import Client
from fedvlp.data.files.images import Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import Pooled
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveInt


class PredictionData(FederatedDataModule):
    """Classes, domains and clients of a trained method, for ``fedvlp predict``.

    Args:
        class_names: The classes, in the order of the labels.
        source_domains: The domains that trained.
        num_clients: Number of clients; one per domain if not given.
        **options: The arguments of FederatedDataModule, which have no effect.
    """

    def __init__(
        self,
        class_names: Names,
        source_domains: list[str] | None = None,
        num_clients: PositiveInt | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._class_names = class_names
        self._source_domains = list(source_domains or [])
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


class PlaceholderData(PredictionData):
    """Numbers of classes, domains and clients for ``fedvlp cost``; the defaults match PACS with one held-out domain.

    Args:
        classes: Number of classes.
        domains: Number of source domains.
        num_clients: Number of clients, assigned to the domains in turn; one per domain if not given.
        **options: The arguments of FederatedDataModule, which have no effect.
    """

    def __init__(
        self, classes: PositiveInt = 7, domains: PositiveInt = 3, num_clients: PositiveInt | None = None, **options: Any
    ) -> None:
        class_names = [f"class {index + 1}" for index in range(classes)]
        super().__init__(class_names, [f"domain {index + 1}" for index in range(domains)], num_clients, **options)

"""A data set's outline: how many classes, domains and clients there are, and no images."""

from __future__ import annotations

from typing import Any

from fedvlp.core.state import Client
from fedvlp.data.files.images import Images
from fedvlp.data.module import FederatedDataModule
from fedvlp.utils.errors import UserError


class Outline(FederatedDataModule):
    """Numbers in place of images: all that ``fedvlp cost`` needs to know. The defaults are PACS's, one domain held out.

    Args:
        classes: Number of classes.
        domains: Number of source domains.
        num_clients: Number of clients, dealt out to the domains in turn; one a domain if not given.
        **options: The arguments of FederatedDataModule, which change nothing here.
    """

    def __init__(self, classes: int = 7, domains: int = 3, num_clients: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        count = domains if num_clients is None else num_clients
        if min(classes, domains, count) < 1:
            raise UserError(f"Expected at least one class, domain and client; got {classes}, {domains} and {count}.")
        self._classes, self._domains, self._num_clients = classes, domains, count

    @property
    def class_names(self) -> list[str]:
        """Made-up names."""
        return [f"class {index + 1}" for index in range(self._classes)]

    @property
    def source_domains(self) -> list[str]:
        """Made-up names."""
        return [f"domain {index + 1}" for index in range(self._domains)]

    @property
    def clients(self) -> list[Client]:
        """Clients with one image each."""
        return [Client(i, i % self._domains, 1, f"client {i + 1}") for i in range(self._num_clients)]

    def load_domains(self) -> tuple[dict[str, Images], list[str]]:
        """Has no images to give."""
        raise UserError("There are only numbers here, and no images. Pass --data to train on something.")

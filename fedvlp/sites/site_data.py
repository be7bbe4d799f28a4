"""The images of one site: a folder of class folders, split as the server says and known by the site's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from fedvlp.core.state import Client
from fedvlp.data.binding import BatchLoader, EvaluationSplit
from fedvlp.data.domain_folders import DomainFolders, ImageFile, labelled_images, scan_domain
from fedvlp.data.files.images import Images, check_utf8
from fedvlp.data.loaders import ImageLoader


class SiteFolder(DomainFolders):
    """The images of one client, in folders of classes: the same client as that of this domain in a simulation.

    Args:
        root: Folder with a folder for each class.
        domain: The site's name, which is that of its domain.
        classes: Names of the class folders of all sites, in the order of the labels.
        place: The client's id and the position of its domain, as the server has them.
        **options: The arguments of DomainFolders.
    """

    def __init__(
        self, root: str, domain: str, classes: Sequence[str], place: tuple[int, int] = (0, 0), **options: Any
    ) -> None:
        super().__init__(root=root, **options)
        self.domain = domain
        self.classes = list(classes)
        self.place = place

    @cached_property
    def found_classes(self) -> list[str]:
        """The class folders that have images, sorted."""
        names = sorted({file.class_name for file in self._found})
        check_utf8(names)
        return names

    @property
    def clients(self) -> list[Client]:
        """The one client, under the id that the server gave it."""
        own = super().clients[0]
        return [Client(self.place[0], self.place[1], own.num_examples, self.domain)]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> BatchLoader | ImageLoader:
        """Returns the shuffled batches of the one client, whatever its id."""
        return super().train_dataloader(None if client is None else super().clients[0], seed)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """Returns the site's validation and test splits, whose one client has the id that the server gave it."""
        return [replace(split, clients=tuple(self.clients)) for split in super().evaluation_splits()]

    @cached_property
    def _files(self) -> tuple[dict[str, Images], list[str]]:
        """The images of the server's classes; others are left for the server to refuse."""
        files = [file for file in self._found if file.class_name in self.classes]
        return {self.domain: labelled_images(files, self.classes)}, self.classes

    @cached_property
    def _found(self) -> list[ImageFile]:
        return scan_domain(self.root, self.domain)

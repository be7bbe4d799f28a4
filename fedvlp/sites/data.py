"""The data of a federation of sites at both ends: the server's, of which it knows numbers, and one site's images."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from fedvlp.core.protocols import EvaluationSplit, Loader
from fedvlp.core.state import Client
from fedvlp.data.domain_folders import DomainFolders, ImageFile, labelled_images, scan_domain
from fedvlp.data.files.images import Images
from fedvlp.data.loaders import ImageLoader
from fedvlp.data.module import FederatedDataModule, check_class_names, mapped_names
from fedvlp.data.partition import ByDomain
from fedvlp.data.splits import SplitPart
from fedvlp.sites.wire import SiteFacts
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveFloat

SPLIT_OPTIONS = frozenset({"classes", "class_names_map", "validation_fraction", "test_fraction", "shots", "split_seed"})
LOADER_OPTIONS = frozenset({"batch_size", "eval_batch_size", "augmentation", "cache_images"})
"""What a server may set of a site's data; where the images are is the site's own decision."""
MEASURED: tuple[Literal["validation", "test"], ...] = ("validation", "test")


class SplitAtSite(EvaluationSplit):
    """A validation or test split on which a site measures; none of its batches are here."""


class SitesData(FederatedDataModule):
    """Sites with a domain each, known by name; what each has it says when it is connected.

    Args:
        sites: Names of the sites. Their sorted order gives each its client id, whoever arrives first.
        class_names: Names of the class folders, the same at all sites; their sorted order is that of the labels.
        nodes: Under which name the transport must reach a site, by the site's own name, so that no other takes its
            place; with Flower its node's id, which belongs to a key. Any for sites that are not named here.
        root: Folder of the held-out domains, held_out/class/image, on the server; null if no domain is held out.
        allow_missing_classes: Whether a site may lack a class that another has.
        arrival_seconds: How long to wait for more sites once min_clients are there, which are waited for without end.
        reply_seconds: How long to wait for the sites' replies in a phase; who is later is left out of the round.
        **options: The arguments of FederatedDataModule; what they say of splits and batches is sent to the sites.
    """

    def __init__(
        self,
        sites: Names,
        class_names: Names,
        nodes: dict[str, str | int] | None = None,
        root: str | None = None,
        allow_missing_classes: bool = False,
        arrival_seconds: PositiveFloat = 600,
        reply_seconds: PositiveFloat = 1800,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(self.partition, ByDomain):
            raise UserError("Each site is one client with a domain of its own. Leave out data.partition.")
        if self.out_of_distribution is not None:
            raise UserError(
                "Sites do not send the confidence of single images. Leave out data.out_of_distribution, and give it "
                "to fedvlp test with the run's prompts and images of your own."
            )
        if self.protocol_option not in ("leave_domains_out", "all_seen"):
            raise UserError(
                f"Sites measure all classes, each on its own images: the protocol {self.protocol_option} is for "
                "simulations. Leave out data.protocol."
            )
        check_class_names(class_names)
        if len(set(sites)) < len(sites):
            raise UserError(f"Expected sites with each name once, got {', '.join(sites)}.")
        if overlap := sorted(set(sites) & set(self.held_out)):
            raise UserError(f"Expected held_out to name no site, but {overlap[0]!r} is one. Leave one of them out.")
        if self.held_out and root is None:
            raise UserError("Expected root, a folder of the held-out domains on the server. Give it, or hold out none.")
        # YAML reads the ids of Flower's nodes as integers, and transports have strings.
        self.nodes = {name: str(node) for name, node in (nodes or {}).items()}
        if unknown := sorted(self.nodes.keys() - set(sites)):
            raise UserError(f"data.nodes names {unknown[0]!r}, which data.sites does not list. Add it there.")
        # Sorted, so that client ids and labels depend neither on who arrives first nor on the order in the config.
        self.sites = sorted(sites)
        self.class_folders = sorted(class_names)
        self.root = None if root is None else Path(root).expanduser()
        self.allow_missing_classes = allow_missing_classes
        self.arrival_seconds = arrival_seconds
        self.reply_seconds = reply_seconds
        self.facts: dict[str, SiteFacts] = {}

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """The held-out domains' images, which are the server's own."""
        images: dict[str, Images] = {}
        for domain in self.held_out if self.root is not None else ():
            files = scan_domain(Path(str(self.root)) / domain, domain)
            if unknown := sorted({file.class_name for file in files} - set(self.class_folders)):
                raise UserError(f"data.class_names lacks the class folder {unknown[0]!r} of {domain!r}. Add it.")
            images[domain] = labelled_images(files, self.class_folders)
        return images, self.class_folders

    @property
    def all_class_names(self) -> list[str]:
        """Names of the classes, in the order of the labels, as prompts shall call them."""
        return mapped_names(self.class_folders, self.class_names_map)

    @property
    def domains(self) -> list[str]:
        """Names of all domains, sorted."""
        return sorted([*self.sites, *self.held_out])

    @property
    def source_domains(self) -> list[str]:
        """The sites' names, sorted."""
        return self.sites

    @property
    def clients(self) -> list[Client]:
        """One client a site; a site that was not there yet has no images."""
        return [Client(place, place, self._count(name, "train"), name) for place, name in enumerate(self.sites)]

    @cached_property
    def split_parts(self) -> list[SplitPart]:
        """The parts of the split whose images are here: the held-out domains."""
        return [
            SplitPart("held_out", {domain: np.arange(len(self.images[domain]))}) for domain in self.held_out_domains
        ]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> NoReturn:
        """Raises a UserError: no training image is here."""
        raise UserError("The training images are at the sites, so `fedvlp fit` can't train on them. Serve the run.")

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """The sites' validation and test splits, then the held-out domains; none is empty."""
        at_sites: list[EvaluationSplit] = []
        clients = self.clients
        for role in MEASURED:
            for client in clients:
                count = self._count(client.name, role)
                # All that is certain of a site that has not connected yet is that it will validate.
                if count or (role == "validation" and client.name not in self.facts):
                    at_sites.append(SplitAtSite(f"{role}/{client.name}", role, client.name, (client,), (), count))
        return [*at_sites, *super().evaluation_splits()]

    def describe(self) -> dict[str, Any]:
        """What results must have in common to be in one table, made to be written as JSON."""
        # With the sites' digests, so that runs on other images are never in one table.
        described = super().describe()
        digests = [described["images"], *(f"{name}: {facts.images}" for name, facts in sorted(self.facts.items()))]
        return {**described, "images": _digest(digests)}

    @property
    def split_hash(self) -> str:  # type: ignore[override]
        """16 hexadecimal digits that change with the rule of the split and the sites; the images are not known here."""
        rule = f"{self.rule} {self.held_out_domains} {self.class_folders}"
        return _digest([rule, *self.sites])

    def _count(self, site: str, role: str) -> int:
        return self.facts[site].counts.get(role, 0) if site in self.facts else 0


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
    def classes_with_images(self) -> list[str]:
        """The class folders that have images, sorted, also those that the server does not list."""
        return sorted({file.class_name for file in self._image_files})

    # The base class deals a single domain to client 0; the two overrides below translate to the server's ids and back.
    @property
    def clients(self) -> list[Client]:
        """The one client, under the id that the server gave it."""
        return [Client(self.place[0], self.place[1], super().clients[0].num_examples, self.domain)]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> Loader | ImageLoader:
        """The shuffled batches of the one client, whatever its id."""
        return super().train_dataloader(None if client is None else super().clients[0], seed)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """The site's validation and test splits, whose one client has the id that the server gave it."""
        return [replace(split, clients=tuple(self.clients)) for split in super().evaluation_splits()]

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """The images of the server's classes; the server refuses a site with others."""
        # In the order of the server's list, from which labels follow; a site may lack classes.
        files = [file for file in self._image_files if file.class_name in self.classes]
        return {self.domain: labelled_images(files, self.classes)}, self.classes

    @cached_property
    def _image_files(self) -> list[ImageFile]:
        return scan_domain(self.root, self.domain)


def options_for_sites(data: SitesData) -> dict[str, Any]:
    """What a site must know to read and split its images as a simulation would, made for JSON."""
    return {
        "classes": data.class_folders,
        "class_names_map": data.class_names_map,
        "validation_fraction": data.rule.validation_fraction,
        "test_fraction": data.rule.test_fraction,
        "shots": data.rule.shots,
        "split_seed": data.rule.seed,
        "batch_size": data.batch_size,
        "eval_batch_size": data.eval_batch_size,
        "augmentation": data.augmentation,
        "cache_images": data.cache_images,
    }


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

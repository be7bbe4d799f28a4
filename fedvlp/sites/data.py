"""The data of a federation of sites at both ends: numbers of images at the server, and images at each site."""

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
from fedvlp.data.module import FederatedDataModule, check_class_names, map_names
from fedvlp.data.partition import ByDomain
from fedvlp.data.splits import SplitPart
from fedvlp.sites.wire import SiteFacts
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveFloat

SPLIT_OPTIONS = frozenset({"classes", "class_names_map", "validation_fraction", "test_fraction", "shots", "split_seed"})
LOADER_OPTIONS = frozenset({"batch_size", "eval_batch_size", "augmentation", "cache_images"})
"""The server's options of a site's data; the site itself decides where its images are."""
MEASURED: tuple[Literal["validation", "test"], ...] = ("validation", "test")


class SplitAtSite(EvaluationSplit):
    """A validation or test split without batches, on which a site measures."""


class SitesData(FederatedDataModule):
    """Sites with a domain each, which describe their images when they connect.

    Args:
        sites: Names of the sites. Their sorted order gives each its client id, whoever arrives first.
        class_names: Names of the class folders, the same at all sites; their sorted order is that of the labels.
        nodes: The transport's name of each site, so that no other site takes its place; with Flower the id of its node,
            which belongs to a key. Any for sites that are not named here.
        root: Folder of the held-out domains, held_out/class/image, on the server; null if no domain is held out.
        allow_missing_classes: Whether a site may lack a class that another has.
        arrival_seconds: How long to wait for more sites once min_clients are there, which are waited for without end.
        reply_seconds: How long to wait for replies in a phase; a later site is left out of the round.
        **options: The arguments of FederatedDataModule; options of splits and batches are sent to the sites.
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
        # YAML reads the ids of Flower's nodes as integers.
        self.nodes = {name: str(node) for name, node in (nodes or {}).items()}
        if unknown := sorted(self.nodes.keys() - set(sites)):
            raise UserError(f"data.nodes names {unknown[0]!r}, which data.sites does not list. Add it there.")
        self.sites = sorted(sites)
        self.class_folders = sorted(class_names)
        self.root = None if root is None else Path(root).expanduser()
        self.allow_missing_classes = allow_missing_classes
        self.arrival_seconds = arrival_seconds
        self.reply_seconds = reply_seconds
        self.facts: dict[str, SiteFacts] = {}

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Find the images of the held-out domains, which are the server's own."""
        images: dict[str, Images] = {}
        for domain in self.held_out if self.root is not None else ():
            files = scan_domain(Path(str(self.root)) / domain, domain)
            if unknown := sorted({file.class_name for file in files} - set(self.class_folders)):
                raise UserError(f"data.class_names lacks the class folder {unknown[0]!r} of {domain!r}. Add it.")
            images[domain] = labelled_images(files, self.class_folders)
        return images, self.class_folders

    @property
    def all_class_names(self) -> list[str]:
        """Names of the classes in prompts, in the order of the labels."""
        return map_names(self.class_folders, self.class_names_map)

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
        """One client per site; a site that was not there yet has no images."""
        return [Client(place, place, self._count(name, "train"), name) for place, name in enumerate(self.sites)]

    @cached_property
    def split_parts(self) -> list[SplitPart]:
        """The parts of the split whose images are here: the held-out domains."""
        domains = self.held_out_domains
        return [SplitPart("held_out", {domain: np.arange(len(self.images[domain]))}) for domain in domains]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> NoReturn:
        """Raise a UserError, since the training images are at the sites."""
        raise UserError("The training images are at the sites, so `fedvlp fit` can't train on them. Serve the run.")

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """List the sites' validation and test splits, then the held-out domains; none is empty."""
        at_sites: list[EvaluationSplit] = []
        clients = self.clients
        for role in MEASURED:
            for client in clients:
                count = self._count(client.name, role)
                # A site that has not connected yet will at least validate.
                if count or (role == "validation" and client.name not in self.facts):
                    at_sites.append(SplitAtSite(f"{role}/{client.name}", role, client.name, (client,), (), count))
        return [*at_sites, *super().evaluation_splits()]

    def describe(self) -> dict[str, Any]:
        """Describe the data with the sites' digests, so that runs on different images are never in one table."""
        described = super().describe()
        digests = [described["images"], *(f"{name}: {facts.images}" for name, facts in sorted(self.facts.items()))]
        return {**described, "images": _digest(digests)}

    @property
    def split_hash(self) -> str:  # type: ignore[override]
        """16 hexadecimal digits that change with the rule of the split and the sites; the images are not known here."""
        return _digest([f"{self.rule} {self.held_out_domains} {self.class_folders}", *self.sites])

    def _count(self, site: str, role: str) -> int:
        return self.facts[site].counts.get(role, 0) if site in self.facts else 0


class SiteFolder(DomainFolders):
    """The images of one client, which equals the client of the same domain in a simulation.

    Args:
        root: Folder with a folder for each class.
        domain: The name of the site and of its domain.
        classes: Names of the class folders of all sites, in the order of the labels.
        place: The client's id and the position of its domain at the server.
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
        """The class folders that have images, sorted, including those that the server does not list."""
        return sorted({file.class_name for file in self._image_files})

    # The base class deals a single domain to client 0; the two overrides below translate to the server's ids and back.
    @property
    def clients(self) -> list[Client]:
        """The one client, under the id that the server gave it."""
        return [Client(self.place[0], self.place[1], super().clients[0].num_examples, self.domain)]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> Loader | ImageLoader:
        """Make the shuffled batches of the one client, whatever its id."""
        return super().train_dataloader(None if client is None else super().clients[0], seed)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """List the site's validation and test splits under the client's id at the server."""
        return [replace(split, clients=tuple(self.clients)) for split in super().evaluation_splits()]

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Find the images of the server's classes; the server refuses a site with others."""
        files = [file for file in self._image_files if file.class_name in self.classes]
        return {self.domain: labelled_images(files, self.classes)}, self.classes

    @cached_property
    def _image_files(self) -> list[ImageFile]:
        return scan_domain(self.root, self.domain)


def options_for_sites(data: SitesData) -> dict[str, Any]:
    """Describe, for JSON, how a site must read and split its images to equal a simulation."""
    classes = {"classes": data.class_folders, "class_names_map": data.class_names_map}
    rule = {name: getattr(data.rule, name) for name in ("validation_fraction", "test_fraction", "shots")}
    of_loaders = {name: getattr(data, name) for name in sorted(LOADER_OPTIONS)}
    return {**classes, **rule, "split_seed": data.rule.seed, **of_loaders}


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

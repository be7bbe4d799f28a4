"""Data of a federation of sites: the server has only numbers of images, each site has its own images."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from fedvlp.core.protocols import EvaluationSplit, Loader
from fedvlp.core.state import Client
from fedvlp.data.class_names import check_class_names, map_names
from fedvlp.data.domain_folders import scan_domain
from fedvlp.data.files.images import Images
from fedvlp.data.listed import ListedImages
from fedvlp.data.loaders import ImageLoader
from fedvlp.data.module import FederatedDataModule
from fedvlp.data.partition import ByDomain
from fedvlp.data.rows import ImageFile, labelled_images, split_labels
from fedvlp.data.splits import SplitPart
from fedvlp.data.table import ImageTable
from fedvlp.sites.wire import SiteFacts
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Names, PositiveFloat

SPLIT_OPTIONS = frozenset(
    {"classes", "class_names_map", "several_labels", "validation_fraction", "test_fraction", "shots", "split_seed"}
)
LOADER_OPTIONS = frozenset({"batch_size", "eval_batch_size", "augmentation", "balance_classes", "cache_images"})
"""Options of a site's data that the server chooses; the site chooses the folder of images."""
MEASURED: tuple[Literal["validation", "test"], ...] = ("validation", "test")


class SplitAtSite(EvaluationSplit):
    """A validation or test split that a site evaluates; it has no batches at the server."""


class SitesData(FederatedDataModule):
    """Sites with one domain each, which describe their images when they connect.

    Args:
        sites: Names of the sites. Client ids follow their sorted order, in whatever order the sites connect.
        class_names: Names of the class folders, or of several labels, the same at all sites; they are sorted.
        nodes: The transport's name of each site, so that no other node can use the site's name. With Flower this is the
            id of the node, which belongs to a key. Sites that are not listed may connect from any node.
        root: Folder of the held-out domains, held_out/class/image, on the server; null if no domain is held out.
        allow_missing_classes: Whether a site may lack images of a class; with several labels it always may.
        several_labels: Whether the sites' images have several labels, as ``site.yaml`` must also state.
        arrival_seconds: How long to wait for more sites once min_clients have connected. The server waits for
            min_clients without a limit.
        reply_seconds: How long to wait for replies in a phase. A site that replies later misses the round.
        **options: The arguments of FederatedDataModule; options of splits and batches are sent to the sites.
    """

    def __init__(
        self,
        sites: Names,
        class_names: Names,
        nodes: dict[str, str | int] | None = None,
        root: str | None = None,
        allow_missing_classes: bool = False,
        several_labels: bool = False,
        arrival_seconds: PositiveFloat = 600,
        reply_seconds: PositiveFloat = 1800,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(self.partition, ByDomain):
            raise UserError("Each site is one client with its own domain. Leave out data.partition.")
        if self.out_of_distribution is not None:
            raise UserError(
                "Sites do not send the confidence of single images. Leave out data.out_of_distribution, and pass it "
                "to fedvlp test with the run's prompts and your own images."
            )
        if self.protocol_option not in ("leave_domains_out", "all_seen"):
            raise UserError(
                f"The protocol {self.protocol_option} is only for simulations; each site evaluates all classes on its "
                "own images. Leave out data.protocol."
            )
        if several_labels and self.held_out:
            raise UserError("Only sites can have several labels per image. Leave out data.held_out.")
        check_class_names(class_names)
        if len(set(sites)) < len(sites):
            raise UserError(f"Expected distinct names of sites, got {', '.join(sites)}.")
        if overlap := sorted(set(sites) & set(self.held_out)):
            raise UserError(f"data.held_out names the site {overlap[0]!r}. Remove it from held_out or from data.sites.")
        if self.held_out and root is None:
            raise UserError("Expected data.root, the server's folder of held-out domains. Set it, or hold out none.")
        # YAML reads the ids of Flower's nodes as integers.
        self.nodes = {name: str(node) for name, node in (nodes or {}).items()}
        if unknown := sorted(self.nodes.keys() - set(sites)):
            raise UserError(f"data.nodes names {unknown[0]!r}, which data.sites does not list. Add it there.")
        self.sites = sorted(sites)
        self.class_folders = sorted(class_names)
        self.root = None if root is None else Path(root).expanduser()
        self.allow_missing_classes = allow_missing_classes
        self.several_labels = several_labels
        self.arrival_seconds = arrival_seconds
        self.reply_seconds = reply_seconds
        self.facts: dict[str, SiteFacts] = {}

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Find the images of the held-out domains, which are on the server."""
        images: dict[str, Images] = {}
        for domain in self.held_out if self.root is not None else ():
            files = scan_domain(Path(str(self.root)) / domain, domain)
            if unknown := sorted({file.class_name for file in files} - set(self.class_folders)):
                raise UserError(f"data.class_names lacks the class folder {unknown[0]!r} of {domain!r}. Add it.")
            images[domain] = labelled_images(files, self.class_folders)
        return images, self.class_folders

    @property
    def all_class_names(self) -> list[str]:
        """Class names as used in prompts, in the order of the labels."""
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
        """One client per site; a site that has not connected yet has no images."""
        return [Client(index, index, self._count(name, "train"), name) for index, name in enumerate(self.sites)]

    @cached_property
    def split_parts(self) -> list[SplitPart]:
        """The held-out domains, the only parts of the split with images on the server."""
        domains = self.held_out_domains
        return [SplitPart("held_out", {domain: np.arange(len(self.images[domain]))}) for domain in domains]

    def train_dataloader(self, client: Client | None = None, seed: int | None = None, once: bool = False) -> NoReturn:
        """Raise a UserError, since the training images are at the sites."""
        raise UserError("The training images are at the sites. Use `fedvlp deploy` instead of `fedvlp fit`.")

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """List the sites' validation and test splits, then the held-out domains; none is empty."""
        at_sites: list[EvaluationSplit] = []
        clients = self.clients
        for role in MEASURED:
            for client in clients:
                count = self._count(client.name, role)
                # A site that has not connected yet has at least a validation split.
                if count or (role == "validation" and client.name not in self.facts):
                    at_sites.append(SplitAtSite(f"{role}/{client.name}", role, client.name, (client,), (), count))
        return [*at_sites, *super().evaluation_splits()]

    def describe(self) -> dict[str, Any]:
        """Describe the data, including the sites' digests, so that runs on different images are never compared."""
        described = super().describe()
        digests = [described["images"], *(f"{name}: {facts.images}" for name, facts in sorted(self.facts.items()))]
        return {**described, "images": _digest(digests)}

    @property
    def split_hash(self) -> str:  # type: ignore[override]
        """Hash (16 hexadecimal digits) of the split's rule and the sites; the server does not know the images."""
        return _digest([f"{self.rule} {self.held_out_domains} {self.class_folders}", *self.sites])

    def _count(self, site: str, role: str) -> int:
        return self.facts[site].counts.get(role, 0) if site in self.facts else 0


class SiteImages(ListedImages):
    """The images of one site, split exactly like the same domain in a simulation.

    Args:
        root: Folder with a folder for each class, or the folder of the table's paths.
        domain: The name of the site and of its domain.
        classes: Names of the classes of all sites, in the order of the labels.
        ids: The client's id and the index of its domain at the server.
        table: Table of the images; None for class folders.
        several_labels: Whether the classes are labels, of which an image may have several or none.
        **options: The arguments of ListedImages.
    """

    def __init__(
        self,
        root: str | None,
        domain: str,
        classes: Sequence[str],
        ids: tuple[int, int] = (0, 0),
        table: str | None = None,
        several_labels: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(root=str(Path(table or "").parent) if root is None else root, **options)
        self.domain = domain
        self.classes = list(classes)
        self.ids = ids
        self.table = table
        self.several_labels = several_labels

    @cached_property
    def classes_with_images(self) -> list[str]:
        """The classes or labels with images, sorted, including names that the server does not list."""
        return sorted(set().union(*map(self._class_names_of, self._image_files)))

    def _class_names_of(self, file: ImageFile) -> set[str]:
        return set(split_labels(file.class_name)) if self.several_labels else {file.class_name}

    # The base class assigns a single domain to client 0; the next two overrides translate to and from the server's ids.
    @property
    def clients(self) -> list[Client]:
        """The single client, with the id that the server assigned."""
        return [Client(self.ids[0], self.ids[1], super().clients[0].num_examples, self.domain)]

    def train_dataloader(
        self, client: Client | None = None, seed: int | None = None, once: bool = False
    ) -> Loader | ImageLoader:
        """Build the loader of the single client's shuffled batches, whatever its id."""
        return super().train_dataloader(None if client is None else super().clients[0], seed, once)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """List the site's validation and test splits with the client id that the server assigned."""
        return [replace(split, clients=tuple(self.clients)) for split in super().evaluation_splits()]

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Find the images of the server's classes; the server refuses sites with additional classes."""
        files = [file for file in self._image_files if self._class_names_of(file) <= set(self.classes)]
        self.files = {self.domain: files}
        classes = self.classes
        if self.several_labels:
            # The server's labels are also sets, so that targets include labels without images.
            classes = sorted({*classes, *(file.class_name for file in files)})
        return {self.domain: labelled_images(files, classes)}, classes

    @cached_property
    def _image_files(self) -> list[ImageFile]:
        if self.table is None:
            return scan_domain(self.root, self.domain)
        cache = None if self.cache_dir is None else str(self.cache_dir)
        options: dict[str, Any] = {"several_labels": self.several_labels, "cache_dir": cache}
        domains = ImageTable(self.table, str(self.root), **options).scan()
        # The site is one domain, whatever the domains of its table.
        return sorted(replace(file, domain=self.domain) for file in chain.from_iterable(domains.values()))


def options_for_sites(data: SitesData) -> dict[str, Any]:
    """Collect the options, as JSON values, with which a site reads and splits its images as in a simulation."""
    classes: dict[str, Any] = {"classes": data.class_folders, "class_names_map": data.class_names_map}
    rule = {name: getattr(data.rule, name) for name in ("validation_fraction", "test_fraction", "shots")}
    loader_options = {name: getattr(data, name) for name in sorted(LOADER_OPTIONS)}
    if data.several_labels:
        classes["several_labels"] = True
    return {**classes, **rule, "split_seed": data.rule.seed, **loader_options}


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

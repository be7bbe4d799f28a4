"""Base class of every data set: domains in, clients with training batches and evaluation splits out."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch

from fedvlp.core.roles import OUT_OF_DISTRIBUTION
from fedvlp.core.state import Client
from fedvlp.data.binding import BatchLoader, EvaluationSplit, ModuleBinding
from fedvlp.data.bound_loaders import BoundLoaders, OutOfDistribution, Transfer, checked_target, transfer_table
from fedvlp.data.files.images import Images, Transform, identity
from fedvlp.data.loaders import ImageLoader, Prepare
from fedvlp.data.partition import ByDomain, Partitioner
from fedvlp.data.protocols import ClassSplit, Protocol, ProtocolPlan, chosen, describe_protocol, describe_split
from fedvlp.data.split_rule import OfficialSplit, SplitRule
from fedvlp.data.splits import SplitPart, image_hash, make_splits, split_hash, split_table
from fedvlp.utils.errors import UserError, did_you_mean_or_choose
from fedvlp.utils.ranges import FractionBelowOne, NonNegativeInt, OpenFraction, PositiveInt, Seed, check_range

NOT_BOUND = (
    "The data do not know how the module wants its images. Give it a `transform` (PIL image to tensor), "
    "or call bind(transform=...)."
)


class FederatedDataModule(L.LightningDataModule):
    """Images of several domains: source domains are dealt out to clients, held-out domains only test.

    A subclass says where the images are in ``load_domains``. Under a plain ``lightning.Trainer`` all source domains
    train together and batches are (images, labels).

    Args:
        held_out: Domain or domains that no client sees; all their images test. null lets clients see every domain.
        batch_size: Images in a training batch.
        eval_batch_size: Images in an evaluation batch.
        partition: Deals the training images to clients: ByDomain, where each source domain is one client (if not
            given), Dispersed, Dirichlet, Shards, FewClasses or QuantitySkew, or Pooled for centralised training;
            --data.partition.help NAME explains the arguments of each.
        shots: Training images of each class and source domain, such as 1, 2, 4, 8 or 16; all if not given. Those of
            fewer shots are among those of more. Validation and test images stay as many.
        validation_fraction: Share of each class of each source domain that validates, of the images that do not test,
            in (0, 1).
        test_fraction: Share of each class of each source domain that tests, in [0, 1).
        split_seed: Seed of the split into roles and of the partition.
        augmentation: "none", or "crop_flip" for random crops and flips of training images, which are then read and
            encoded again each time.
        class_names_map: Names for prompts in place of the data set's own, by its own, such as {"tv": "television"}.
        num_workers: Processes that read images; 0 reads them in the main process. Batches are the same for any number.
        cache_dir: Folder for computed features, and for images decoded or made up; null keeps nothing on disk.
        cache_images: Whether methods that read images in every round keep them there decoded (150 kB each at 224 px).
        out_of_distribution: Folder of images, at any depth, of other things than the classes. How well a method's
            probabilities tell them from images of the classes is measured; they neither train nor choose anything.
        protocol: What is trained on and measured; leave_domains_out if domains are held out and else all_seen, if not
            given. base_to_new and new_classes_and_domains train on the first half of the classes and measure both
            halves; cross_dataset measures the data sets of ``targets``; personal measures each client on test images of
            its own.
        class_split: Whether base_to_new measures base and new classes of the data set alone (data_set), or each client
            on the classes of its own, too (client).
        targets: Other data sets that cross_dataset measures, each with its own classes: their test splits, or all
            images of those that have none.
    """

    verifies_images: bool = True
    """Whether images are opened before the split; False where only their numbers matter, as for ``fedvlp cost``."""

    def __init__(  # noqa: PLR0913 (each argument is an option of the command line)
        self,
        held_out: str | list[str] | None = None,
        batch_size: PositiveInt = 16,
        eval_batch_size: PositiveInt = 64,
        partition: Partitioner | None = None,
        shots: PositiveInt | None = None,
        validation_fraction: OpenFraction = 0.2,
        test_fraction: FractionBelowOne = 0.0,
        split_seed: Seed = 0,
        augmentation: Literal["none", "crop_flip"] = "none",
        class_names_map: dict[str, str] | None = None,
        num_workers: NonNegativeInt = 0,
        cache_dir: str | None = "~/.cache/fedvlp",
        cache_images: bool = True,
        out_of_distribution: str | None = None,
        protocol: Protocol | None = None,
        class_split: ClassSplit = "data_set",
        targets: list[FederatedDataModule] | None = None,
    ) -> None:
        super().__init__()
        check_range("batch_size", batch_size, PositiveInt)
        check_range("eval_batch_size", eval_batch_size, PositiveInt)
        check_range("num_workers", num_workers, NonNegativeInt)
        self.name: str = type(self).__name__  # what a reader calls these images
        self.rule = SplitRule(validation_fraction, test_fraction, shots, split_seed)
        self.held_out = [held_out] if isinstance(held_out, str) else list(held_out or [])
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.partition = ByDomain() if partition is None else partition
        self.augmentation = augmentation
        self.num_workers = num_workers
        self.class_names_map = dict(class_names_map or {})
        self.cache_images = cache_images
        self.outside = None if out_of_distribution is None else OutOfDistribution(out_of_distribution)
        self.given_protocol = protocol
        self.class_split = class_split
        self.transfers = tuple(Transfer(checked_target(target)) for target in targets or ())
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))
        self._binding: ModuleBinding | None = None
        self._bound_to: L.LightningModule | None = None
        self._served: BoundLoaders | None = None

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Returns the images of each domain by name, in an order that never changes, and the class names.

        Called once. It should be cheap: ``verified_domains`` is the place to open every file.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement load_domains().")

    def verified_domains(self) -> Mapping[str, Images]:
        """Returns the domains once they were found to be readable; called once, before the split."""
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[Mapping[str, Images], list[str]]:
        return self.load_domains()

    @cached_property
    def _images(self) -> Mapping[str, Images]:
        return self.verified_domains() if self.verifies_images else self._loaded[0]

    @property
    def images(self) -> Mapping[str, Images]:
        """The images of each domain, once they were found to be readable."""
        return self._images

    @property
    def all_class_names(self) -> list[str]:
        """Names of all classes, in the order of the labels, as prompts shall call them."""
        return mapped_names(self._loaded[1], self.class_names_map)

    @property
    def class_names(self) -> list[str]:
        """The same of the classes that train; of all, unless the protocol keeps some as new ones."""
        names = self.all_class_names
        return names[: self.plan.num_base(len(names))]

    @property
    def plan(self) -> ProtocolPlan:
        """The protocol with its options."""
        held_out = tuple(self.held_out)
        return ProtocolPlan(chosen(self.given_protocol, held_out), held_out, self.class_split, self.transfers)

    @property
    def domains(self) -> list[str]:
        """Names of all domains, sorted."""
        return sorted(self._loaded[0])

    @property
    def held_out_domains(self) -> list[str]:
        """Names of the domains that no client sees, sorted."""
        return choose_held_out(self.held_out, self.domains)

    @property
    def source_domains(self) -> list[str]:
        """Names of the domains that train, sorted."""
        return [name for name in self.domains if name not in self.held_out_domains]

    @property
    def official(self) -> OfficialSplit | None:
        """The split that came with the images, if there is one and it is used; else ``split_seed`` draws one."""
        return None

    @cached_property
    def split_parts(self) -> list[SplitPart]:
        """Which images play which role: training by client, then validation, test and held-out by domain."""
        sources = self.source_domains  # before the images, so that a wrong name is found before files are read
        held_out = self.held_out_domains
        plan = self.plan
        plan.check(self.rule, self.official)
        count = len(self.all_class_names)
        base = plan.num_base(count)
        parts = make_splits(self._images, sources, held_out, self.rule, self.partition, self.official, base)
        return plan.parts(parts, self._images, count, self.rule.seed)

    @property
    def clients(self) -> list[Client]:
        """The clients, in the order of their ids."""
        return [part.clients[0] for part in self.split_parts if part.role == "train"]

    @property
    def num_clients(self) -> int:
        """The number of clients."""
        return len(self.clients)

    @property
    def protocol(self) -> str:
        """What is trained on, by whom, and what it is measured on, in one line."""
        # Results are compared only if this line is equal, so each option that changes them is in it.
        first = self.plan.text(self.all_class_names)
        return describe_protocol(self.held_out_domains, self.rule, self.partition, self.official, first)

    def describe(self) -> dict[str, Any]:
        """Returns what results must have in common to stand in one table, made to be written as JSON."""
        split = describe_split(self.held_out_domains, self.rule, self.partition, self.official)
        names = {"domains": self.domains, "classes": self.class_names}
        measured = self.plan.describe(self.all_class_names)
        if self.outside is not None:
            measured[OUT_OF_DISTRIBUTION] = self.outside.describe()
        return {"name": self.name, "images": image_hash(self._images, self._loaded[1]), **names, **split, **measured}

    def image_identities(self) -> dict[str, str]:
        """Returns a string for each domain that is equal on all machines with the same images."""
        own = {domain: identity(images) for domain, images in self._images.items()}
        return own | self.plan.image_identities()

    def prepare_data(self) -> None:
        """Reads or makes the images, so that every mistake is found before training."""
        self.split_parts  # noqa: B018 (computed here, kept for later)
        if self.outside is not None:
            self.outside.images  # noqa: B018 (as above)

    def setup(self, stage: str | None = None) -> None:
        """Splits the images; binds the data to the trainer's module unless they were bound without a trainer."""
        self.split_parts  # noqa: B018 (computed here, kept for later)
        module = getattr(self.trainer, "lightning_module", None)
        transform = getattr(module, "transform", None)
        if transform is not None and (self._binding is None or self._bound_to not in (None, module)):
            # All that a plain Trainer needs; a federation binds again, with what its method prepares.
            train_transform = getattr(module, "train_transform", None)
            with_domains = getattr(module, "needs_domains", False)
            self.bind(transform, train_transform=train_transform, with_domains=with_domains)

    def bind(
        self,
        transform: Transform,
        prepare: Prepare | None = None,
        key: str = "",
        device: torch.device | str = "cpu",
        train_transform: Transform | None = None,
        with_domains: bool = False,
    ) -> None:
        """Says what the module asks of the images; forgets what was computed for another.

        Args:
            transform: makes a tensor [3, V, V] of a PIL image.
            prepare: makes of images [B, 3, V, V] on ``device`` what its frozen parts compute, tensors [B, ...] by name.
                Batches then hold these in place of images; they are computed once for each image.
            key: everything but transform, images and device that ``prepare`` depends on: weights, options, precision.
            device: where batches are wanted.
            train_transform: ``transform`` with random crops and flips, for ``augmentation="crop_flip"``.
            with_domains: whether inputs of training batches are a dict with each image's ``domain`` [B] in it, its
                position among the source domains; images are then ``images``.
        """
        if self.augmentation == "crop_flip" and train_transform is None:
            raise UserError('augmentation="crop_flip" needs a module with a `train_transform`. Add it, or use "none".')
        # Loaders of the module before would serve its features, so they are made again.
        self._bound_to = getattr(self.trainer, "lightning_module", None)
        self._served = None
        domains = tuple(self.source_domains) if with_domains else ()
        options = (self.cache_dir, self.num_workers, self.cache_images, domains)
        self._binding = ModuleBinding(transform, train_transform, prepare, key, torch.device(device), *options)

    @property
    def binding(self) -> ModuleBinding:
        """What the module asks of the images."""
        if self._binding is None:
            raise UserError(NOT_BOUND)
        return self._binding

    @property
    def other_classes(self) -> list[tuple[str, ...]]:
        """The names of the classes of splits that are of others than those that train, each list once."""
        return self._batches.other_classes

    def bind_classes(self, class_names: Sequence[str], prepare: Prepare | None, key: str) -> None:
        """Says what the module asks of images whose classes are these, after :meth:`bind` and as it does."""
        self._batches.bind_classes(class_names, prepare, key)

    @property
    def _batches(self) -> BoundLoaders:
        """Makes the loaders for the bound module; made when first asked for, since it needs the images."""
        if self._served is None:
            names = self.all_class_names
            parts = self.split_parts
            options = (self.binding, self.augmentation == "crop_flip")
            self._served = BoundLoaders(self._images, parts, names, len(self.class_names), self.transfers, *options)
        return self._served

    def encode(self) -> None:
        """Computes, or reads from the cache, all that ``prepare`` gives; without it, keeps images decoded."""
        self._batches.encode()
        if self.outside is not None:
            self.outside.source(self.binding).encode()

    def train_dataloader(self, client: Client | None = None, seed: int | None = None) -> BatchLoader | ImageLoader:
        """Returns shuffled training batches of (inputs, labels); each pass over them has its own order.

        Args:
            client: whose images; None takes those of all clients, as a plain Trainer wants them.
            seed: of order and augmentation in all passes; None takes that of ``seed_everything``.
        """
        seed = torch.initial_seed() if seed is None else seed
        if client is None:
            # A plain Trainer knows no client: one loader of all training images.
            return self._batches.main_source.train_image_loader(self.batch_size, seed)
        return self._batches.main_source.train_loader(client.id, self.batch_size, seed)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """Returns the validation and test splits of each source domain, then the held-out domains; none is empty.

        Protocols have others as well: of new classes, of each client's own images, of other data sets.
        """
        return self._batches.evaluation_splits(self.eval_batch_size)

    def out_of_distribution_splits(self) -> list[EvaluationSplit]:
        """Returns the images of other things than the classes, if there are any."""
        return [] if self.outside is None else self.outside.splits(self.binding, self.eval_batch_size)

    def val_dataloader(self) -> list[ImageLoader]:
        """Returns a loader of images for each source domain's validation split."""
        return self._batches.main_source.image_loaders(self.eval_batch_size, "validation")

    def test_dataloader(self) -> list[ImageLoader]:
        """Returns a loader of images for each test split and held-out domain, or the validation loaders if none is."""
        return (
            self._batches.main_source.image_loaders(self.eval_batch_size, "test", "held_out") or self.val_dataloader()
        )

    @cached_property
    def split_hash(self) -> str:
        """16 hexadecimal digits that change with the role, domain, client, name or class of any image."""
        return self.plan.split_hash(split_hash(self.split_parts, self._images, self._loaded[1]))

    def split_table(self) -> list[dict[str, Any]]:
        """Returns the names of the images for each role, domain and client, made to be written as JSON."""
        return [*split_table(self.split_parts, self._images), *transfer_table(self.transfers)]


def choose_held_out(wanted: Sequence[str], domains: Sequence[str]) -> list[str]:
    """Returns the held-out domains, sorted and each once.

    Raises:
        UserError: if one does not exist, or none would be left to train.
    """
    # File systems and keyboards keep accents in different forms.
    composed = {unicodedata.normalize("NFC", name): name for name in domains}
    names = sorted({composed.get(unicodedata.normalize("NFC", name), name) for name in wanted})
    for name in names:
        if name not in domains:
            found = ", ".join(domains)
            hint = did_you_mean_or_choose(name, domains)
            raise UserError(f"Expected held_out to name one of the domains ({found}); got {name!r}. {hint}")
    if len(names) == len(domains):
        raise UserError(f"All {len(domains)} domains are held out, so none is left to train. Hold out fewer.")
    return names


def mapped_names(names: Sequence[str], replacements: dict[str, str]) -> list[str]:
    """Returns the class names with replacements.

    Raises:
        UserError: if a replacement is for a class that does not exist.
    """
    for name in replacements:
        if name not in names:
            hint = did_you_mean_or_choose(name, names)
            raise UserError(f"class_names_map renames {name!r}, but there is no such class. {hint}")
    return [replacements.get(name, name) for name in names]

"""Base class of every data set: domains in, clients with training batches and evaluation splits out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray

from fedvlp.core.protocols import EvaluationSplit, Loader, Precompute
from fedvlp.core.roles import OUT_OF_DISTRIBUTION, SERVED, ImageRole, ProtocolName
from fedvlp.core.several_labels import with_negative_class
from fedvlp.core.state import Client
from fedvlp.data.class_names import check_class_names, describe_ids, map_names, read_class_names_map
from fedvlp.data.files.images import FolderImages, Images, Indices, Transform, check_readable, identity, image_paths
from fedvlp.data.loaders import BoundLoaders, ImageLoader
from fedvlp.data.partition import ByDomain, LongTail, Partitioner
from fedvlp.data.protocols import ClassSplit, SplitPlan, choose_held_out, count_base
from fedvlp.data.rows import (
    GIVEN_ROLES,
    ImageFile,
    by_rarest_label,
    collect_classes,
    label_targets,
    labelled_images,
    name_roles,
)
from fedvlp.data.splits import (
    Names,
    OfficialSplit,
    SplitPart,
    SplitRule,
    hash_lines,
    image_hash,
    split_hash,
    split_table,
)
from fedvlp.utils.errors import UserError, check_range
from fedvlp.utils.ranges import FractionBelowOne, NonNegativeInt, OpenFraction, PositiveInt, Seed

log = logging.getLogger(__name__)
SEVERAL_LABELS: tuple[ProtocolName, ...] = ("leave_domains_out", "all_seen", "personal")
"""Protocols that support several labels per image."""


class FederatedDataModule(L.LightningDataModule):
    """Images of several domains: source domains are divided among clients, held-out domains only test.

    A subclass lists a row for each image in ``scan``, or makes the images in ``load_domains``. Under a plain
    ``lightning.Trainer`` all source domains train together and batches are (images, labels).

    Args:
        held_out: Domain or domains that no client sees. All their images test. null holds no domain out.
        batch_size: Images in a training batch.
        eval_batch_size: Images in an evaluation batch.
        partition: Divides the training images among clients: ByDomain (the default: each source domain is one client),
            Dispersed, Dirichlet, Shards, FewClasses, QuantitySkew or LongTail, or Pooled for centralised training.
            --data.partition.help NAME explains the arguments of each.
        shots: Training images per class and source domain, such as 1, 2, 4, 8 or 16; all if not given. Fewer shots are
            a subset of more shots. The number of validation and test images does not change.
        validation_fraction: Share of each class of each source domain that validates, excluding test images, in (0, 1).
        test_fraction: Share of each class of each source domain that tests, in [0, 1).
        split_seed: Seed of the split into roles and of the partition.
        augmentation: "none", or "crop_flip" for random crops and flips of training images. Images are then read and
            encoded again in each pass.
        balance_classes: Whether training draws images with replacement, so that all classes of a client are equally
            likely. The number of images in a pass stays the same.
        class_names_map: Names for prompts by the data set's own names, such as {"tv": "television"}, or the path of a
            YAML or JSON file with such a mapping.
        num_workers: Processes that read images; 0 reads them in the main process. Batches are the same for any number.
        cache_dir: Folder for computed features and decoded images; null stores nothing on disk.
        cache_images: Whether to cache decoded images (150 kB each at 224 px) for methods that read them in every round.
        out_of_distribution: Folder of images that belong to none of the classes (searched recursively). Results report
            how well a method's probabilities detect them; they neither train nor select anything.
        protocol: The training and measured images; by default leave_domains_out if domains are held out, otherwise
            all_seen. With base_to_new or new_classes_and_domains, the first half of the classes trains and both halves
            are measured. With cross_dataset, the data sets of ``targets`` are measured. With personal, each client is
            measured on its own test images.
        class_split: Whether base_to_new measures only base and new classes of the data set (data_set), or also each
            client on its own classes (client).
        targets: Other data sets that cross_dataset measures, each with its own classes: their test splits, or all
            their images if there is no test split.
        positive_class: The class whose recall is the sensitivity, if there are two classes; by default the second.
        negative_class: Name of the class that prompts compare each label with, if images have several labels, such as
            "no finding".
    """

    several_labels: bool = False
    """Whether classes are sets of labels; see :mod:`fedvlp.data.rows`."""

    verifies_images: bool = True
    """Whether images are opened before the split; False if only their number matters, as for ``fedvlp cost``."""

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
        balance_classes: bool = False,
        class_names_map: dict[Any, Any] | str | None = None,
        num_workers: NonNegativeInt = 0,
        cache_dir: str | None = "~/.cache/fedvlp",
        cache_images: bool = True,
        out_of_distribution: str | None = None,
        protocol: ProtocolName | None = None,
        class_split: ClassSplit = "data_set",
        targets: list[FederatedDataModule] | None = None,
        positive_class: str | None = None,
        negative_class: str = "image",
    ) -> None:
        super().__init__()
        check_range("batch_size", batch_size, PositiveInt)
        check_range("eval_batch_size", eval_batch_size, PositiveInt)
        check_range("num_workers", num_workers, NonNegativeInt)
        self.name: str = type(self).__name__  # in results
        self.files: Mapping[str, Sequence[ImageFile]] = {}  # rows by domain, in the order of the images
        self.rule = SplitRule(validation_fraction, test_fraction, shots, split_seed)
        self.held_out = [held_out] if isinstance(held_out, str) else list(held_out or [])
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.partition = ByDomain() if partition is None else partition
        self.augmentation = augmentation
        self.balance_classes = balance_classes
        self.num_workers = num_workers
        self.class_names_map = read_class_names_map(class_names_map)
        self.cache_images = cache_images
        self.out_of_distribution = out_of_distribution
        self.protocol_option: ProtocolName = protocol or ("leave_domains_out" if self.held_out else "all_seen")
        self.class_split = class_split
        self.targets = list(targets or ())
        self.positive_class = positive_class
        self.negative_class = negative_class
        for target in self.targets:
            if target.several_labels:
                raise UserError(f"{target.name} has several labels per image, which a target can't have. Remove it.")
            if target.protocol_option not in ("leave_domains_out", "all_seen"):
                raise UserError(f"{target.name} is a target, which is only measured. Remove its protocol.")
        self.cache_dir = None if cache_dir is None else Path(os.path.expanduser(cache_dir))
        self._make_loaders: Callable[..., BoundLoaders] | None = None
        self._bound_to: L.LightningModule | None = None

    def load_domains(self) -> tuple[Mapping[str, Images], list[str]]:
        """Load the images of each domain by name, in an order that never changes, and the class names.

        Called once. It should be fast and open no files; ``verified_domains`` opens them.
        """
        self.files = self.scan()
        class_names = sorted(set().union(*collect_classes(self.files).values()))
        return {domain: labelled_images(files, class_names) for domain, files in self.files.items()}, class_names

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the rows of each domain, sorted, without opening any file."""
        raise NotImplementedError(f"{type(self).__name__} must implement scan() or load_domains().")

    def verified_domains(self) -> Mapping[str, Images]:
        """Check that the images of all domains can be read; called once, before the split."""
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[Mapping[str, Images], list[str]]:
        images, class_names = self.load_domains()
        check_class_names(class_names, list(images))
        return images, class_names

    @cached_property
    def images(self) -> Mapping[str, Images]:
        """The images of each domain, all of them readable."""
        return self.verified_domains() if self.verifies_images else self._loaded[0]

    @cached_property
    def _out_of_distribution_images(self) -> dict[str, FolderImages]:
        if self.out_of_distribution is None:
            return {}
        root = Path(self.out_of_distribution).expanduser().resolve()
        if not root.is_dir():
            raise UserError(f"Expected a folder of images at {root}; there is none. Check data.out_of_distribution.")
        paths = image_paths([str(root)])
        names = [path.relative_to(root).as_posix() for path in paths]
        check_readable(paths, names, f"checking {root.name}")
        return {root.name: FolderImages(paths, names, [-1] * len(paths))}  # these images have no class

    @cached_property
    def _label_targets(self) -> tuple[list[str], NDArray[np.float32] | None]:
        """The labels' names, and the targets of each set of labels; for one label per image, the classes and None."""
        return label_targets(self._loaded[1]) if self.several_labels else (self._loaded[1], None)

    @property
    def all_class_names(self) -> list[str]:
        """Names of all classes as prompts contain them, in the order of the labels."""
        return map_names(self._label_targets[0], self.class_names_map)

    @property
    def method_names(self) -> list[str]:
        """The class names of a method: the classes, and the negative class if images have several labels."""
        return with_negative_class(self.class_names, self.negative_class) if self.several_labels else self.class_names

    @property
    def class_names(self) -> list[str]:
        """Names of the classes that train: all, unless the protocol reserves some as new classes."""
        names = self.all_class_names
        return names[: count_base(self.protocol_option, len(names))]

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

    @cached_property
    def official(self) -> OfficialSplit | None:
        """The split that the images' rows give, or None, so that ``split_seed`` draws one."""
        roles = self._column(lambda row: row.role or "")
        positions: dict[str, dict[ImageRole, Indices]] = {}
        for domain, values in roles.items():
            positions[domain] = {role: np.flatnonzero(values == role) for role in GIVEN_ROLES if role in values}
        return OfficialSplit(name_roles(self.files), positions) if roles else None

    @cached_property
    def groups(self) -> Mapping[str, Names]:
        """The patient, camera or other source of each image, by domain; "" without one. Empty if no image has one."""
        return self._column(lambda row: row.group)

    @cached_property
    def owners(self) -> Mapping[str, Names]:
        """The name of each image's client, by domain; empty if the partition chooses it."""
        return self._column(lambda row: row.client)

    def _column(self, value_of: Callable[[ImageFile], str]) -> dict[str, Names]:
        """Collect a value of each image's row, by domain; empty if no image has one."""
        _ = self.images  # without images that can't be read
        column = {domain: np.array(list(map(value_of, rows)), dtype=object) for domain, rows in self.files.items()}
        return column if any(values.any() for values in column.values()) else {}

    @cached_property
    def split_parts(self) -> list[SplitPart]:
        """The role of every image: training by client, then validation, test and held-out by domain."""
        plan = self.plan  # first, so that a wrong option is reported before files are read
        plan.check(self.held_out)
        names, targets = self._label_targets
        if targets is None:
            return plan.parts(self.images, len(names), self.groups, self.owners)
        if self.balance_classes:
            raise UserError("data.balance_classes does not support several labels, since no class is drawn. Remove it.")
        if self.protocol_option not in SEVERAL_LABELS:
            raise UserError(f"Only {', '.join(SEVERAL_LABELS)} support several labels; got {self.protocol_option}.")
        return plan.parts(by_rarest_label(self.images, targets), len(names) + 1, self.groups, self.owners)

    @property
    def plan(self) -> SplitPlan:
        """All options that determine the split."""
        return SplitPlan(
            self.source_domains,
            self.held_out_domains,
            self.rule,
            self.partition,
            self.official,
            self.protocol_option,
            self.class_split,
            [target.name for target in self.targets],
        )

    @property
    def _transfer_part(self) -> SplitPart:
        """The images that measure a run on another data set: the test images, or all images without any."""
        test_rows: dict[str, Indices] = {}
        for part in self.split_parts:
            if part.role in SERVED:
                test_rows |= part.rows_by_domain
        all_rows = {domain: np.arange(len(images)) for domain, images in self.images.items()}
        return SplitPart("transfer", test_rows or all_rows, classes=tuple(range(len(self.class_names))))

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
        """The training images, clients and measured images in one line."""
        return self.plan.describe_line(len(self.all_class_names))

    def describe(self) -> dict[str, Any]:
        """Describe the facts that must match for results to share a table, as values for JSON."""
        images = image_hash(self.images, self._loaded[1])
        names = {"domains": self.domains, "classes": self.class_names}
        description: dict[str, Any] = {"name": self.name, "images": images, **names, **self.plan.describe()}
        # Rare options are omitted unless they are used.
        if self.several_labels:
            description["negative_class"] = self.negative_class
        if new_classes := self.all_class_names[len(self.class_names) :]:
            description["new_classes"] = new_classes
        if self.class_split != "data_set":
            description["class_split"] = self.class_split
        for target in self.targets:
            facts: dict[str, Any] = {"name": target.name, "images": image_hash(target.images, target.class_names)}
            facts |= {"classes": target.class_names, "split": target._transfer_hash}
            description.setdefault("targets", []).append(facts)
        for name, unclassified in self._out_of_distribution_images.items():
            description[OUT_OF_DISTRIBUTION] = {"name": name, "images": identity(unclassified)}
        if isinstance(self.partition, LongTail) and not self.several_labels:
            # Results have accuracies of classes with many, medium and few training images.
            counts = np.zeros(len(self.class_names), np.int64)
            for part in self.split_parts:
                for domain, rows in part.rows_by_domain.items() if part.role == "train" else ():
                    counts += np.bincount(self.images[domain].labels[rows], minlength=len(counts))
            description["training_images"] = dict(zip(self.class_names, counts.tolist(), strict=True))
        return description

    @property
    def _transfer_hash(self) -> str:
        return split_hash([self._transfer_part], self.images, self.class_names)

    def image_identities(self) -> dict[str, str]:
        """Identify each domain by a string that is equal on all machines with the same images."""
        identities = {domain: identity(images) for domain, images in self.images.items()}
        for target in self.targets:
            identities |= {f"{target.name}/{domain}": text for domain, text in target.image_identities().items()}
        return identities

    def prepare_data(self) -> None:
        """Read and split the images, so that every mistake is found before training."""
        if self.positive_class not in (None, *(self.class_names if len(self.class_names) == 2 else ())):
            wrong = f"got {self.positive_class!r} for {', '.join(self.class_names)}. Correct or remove it."
            raise UserError(f"Expected data.positive_class to name one of two classes; {wrong}")
        if line := describe_ids(self.all_class_names):
            log.warning("%s", line)
        # Cached properties.
        _ = self.split_parts, self._out_of_distribution_images

    def setup(self, stage: str | None = None) -> None:
        """Split the images; bind the data to the trainer's module unless they were bound without a trainer."""
        _ = self.split_parts
        module = getattr(self.trainer, "lightning_module", None)
        transform = getattr(module, "transform", None)
        if transform is not None and (self._make_loaders is None or self._bound_to not in (None, module)):
            # This is enough for a plain Trainer. A federation binds again, with its method's precomputed constants.
            train_transform = getattr(module, "train_transform", None)
            include_domains = getattr(module, "needs_domains", False)
            self.bind(transform, train_transform=train_transform, include_domains=include_domains)

    def bind(
        self,
        transform: Transform,
        precompute: Precompute | None = None,
        key: str = "",
        device: torch.device | str = "cpu",
        train_transform: Transform | None = None,
        include_domains: bool = False,
    ) -> None:
        """Prepare images for a module, and drop the features of another module.

        Args:
            transform: Turns a PIL image into a tensor [3, V, V].
            precompute: Computes the outputs of frozen parts for images [B, 3, V, V] on ``device``: tensors [B, ...] by
                name. They are computed once per image, and batches contain them instead of images.
            key: Everything else that affects ``precompute``: weights, options and precision.
            device: The device of the batches.
            train_transform: ``transform`` with random crops and flips, for ``augmentation="crop_flip"``.
            include_domains: Whether inputs of training batches are a dict of ``images`` and ``domain`` [B], an image's
                position among the source domains.
        """
        is_augmented = self.augmentation == "crop_flip"
        if is_augmented and train_transform is None:
            raise UserError('augmentation="crop_flip" needs a module with a `train_transform`. Add it, or use "none".')
        self._bound_to = getattr(self.trainer, "lightning_module", None)
        self.__dict__.pop("loaders", None)
        self._make_loaders = partial(
            BoundLoaders,
            transform=transform,
            train_transform=train_transform if is_augmented else None,
            precompute=precompute,
            key=key,
            device=torch.device(device),
            domains=self.source_domains if include_domains else (),
            num_workers=self.num_workers,
            cache_dir=self.cache_dir,
            cache_images=self.cache_images,
        )

    @cached_property
    def loaders(self) -> dict[str, BoundLoaders]:
        """The bound module's loaders: "" for the data set itself, then each target and out-of-distribution images."""
        if self._make_loaders is None:
            raise UserError(
                "The module has no transform for its images. Give it a `transform` (PIL image to tensor), or call "
                "bind(transform=...)."
            )
        make = self._make_loaders
        names, targets = self.all_class_names, self._label_targets[1]
        loaders = {"": make(self.images, self.split_parts, class_names=names, targets=targets, groups=self.groups)}
        for target in self.targets:
            name = f"transfer/{target.name}"
            part, names = target._transfer_part, target.class_names
            loaders[name] = make(target.images, [part], class_names=names, groups=target.groups)
        for name, images in self._out_of_distribution_images.items():
            part = SplitPart("held_out", {name: np.arange(len(images))})
            loaders[OUT_OF_DISTRIBUTION] = make({name: images}, [part])
        return loaders

    def encode(self) -> None:
        """Compute all features of ``precompute``, or read them from the cache; without it, cache decoded images."""
        for loaders in self.loaders.values():
            loaders.encode()

    def train_dataloader(
        self, client: Client | None = None, seed: int | None = None, once: bool = False
    ) -> Loader | ImageLoader:
        """Make shuffled training batches of (inputs, labels); each pass over them has its own order.

        Args:
            client: The owner of the images; None takes all clients' images, for a plain Trainer.
            seed: Seed of order and augmentation in all passes; None takes the seed of ``seed_everything``.
            once: Whether a pass contains each image once, even with ``balance_classes``.
        """
        seed = torch.initial_seed() if seed is None else seed
        balanced = self.balance_classes and not once
        loaders = self.loaders[""]
        if client is None:
            return loaders.image_loader(loaders.train_parts, self.batch_size, seed, balanced)
        return loaders.train_loader(client.id, self.batch_size, seed, balanced)

    def evaluation_splits(self) -> list[EvaluationSplit]:
        """List the validation and test splits of each source domain, then the held-out domains, omitting empty ones.

        Protocols add splits of new classes, of each client's own images, and of other data sets.
        """
        splits = []
        for split in self.loaders[""].evaluation_splits(self.eval_batch_size):
            splits.append(split)
            if split.role == "personal":
                # The global model is also measured on the client's images.
                splits.append(replace(split, name=f"global/{split.domain}", role="global"))
        for target in self.targets:
            name = f"transfer/{target.name}"
            (split,) = self.loaders[name].evaluation_splits(self.eval_batch_size)
            class_names = () if target.class_names == self.class_names else split.class_names
            splits.append(replace(split, name=name, domain=target.name, class_names=class_names))
        return splits

    def out_of_distribution_splits(self) -> list[EvaluationSplit]:
        """List the out-of-distribution images as one split, if there are any."""
        if self.out_of_distribution is None:
            return []
        splits = self.loaders[OUT_OF_DISTRIBUTION].evaluation_splits(self.eval_batch_size)
        return [replace(split, name=f"{OUT_OF_DISTRIBUTION}/{split.domain}") for split in splits]

    def val_dataloader(self) -> list[ImageLoader]:
        """Make a loader of images for each source domain's validation split."""
        return self._image_loaders("validation")

    def test_dataloader(self) -> list[ImageLoader]:
        """Make a loader of images for each test split and held-out domain; validation loaders if there is none."""
        return self._image_loaders(*SERVED) or self.val_dataloader()

    def _image_loaders(self, *roles: ImageRole) -> list[ImageLoader]:
        loaders = self.loaders[""]
        return [loaders.image_loader([part], self.eval_batch_size) for part in self.split_parts if part.role in roles]

    @cached_property
    def split_hash(self) -> str:
        """16 hexadecimal digits that change with the role, domain, client, name or class of any image."""
        digest = split_hash(self.split_parts, self.images, self._loaded[1])
        targets = [target._transfer_hash for target in self.targets]
        return hash_lines([digest, *targets]) if targets else digest

    def split_table(self) -> list[dict[str, Any]]:
        """List the names of the images for each role, domain and client, as values for JSON."""
        table = split_table(self.split_parts, self.images)
        for target in self.targets:
            for entry in split_table([target._transfer_part], target.images):
                table.append({**entry, "domain": f"{target.name}/{entry['domain']}"})
        return table

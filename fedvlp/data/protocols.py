"""Evaluation protocols: each client's training images, the measured images, and their description."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedvlp.core.roles import PROTOCOLS, ImageRole, MeasuredRole, ProtocolName
from fedvlp.core.state import Client
from fedvlp.data.files.images import Images, Indices, compose_name
from fedvlp.data.partition import ByDomain, GivenClients, Partitioner, Pooled, apportion, join_pieces
from fedvlp.data.splits import GivenNames, Names, OfficialSplit, SplitPart, SplitRule, check_groups, generator_for
from fedvlp.utils.errors import UserError, did_you_mean_or_choose

ClassSplit = Literal["data_set", "client"]
NEW_ROLES: dict[ImageRole, MeasuredRole] = {"test": "test_new", "held_out": "held_out_new"}
"""The role for images of new classes, by the role for images of base classes."""


def count_base(protocol: ProtocolName, num_classes: int) -> int:
    """Count the classes that train: all, or the first half (rounded up as in CoOp) if the protocol splits classes.

    Raises UserError if there are fewer than four classes to split.

    >>> count_base("base_to_new", 18), count_base("base_to_new", 7), count_base("all_seen", 7)
    (9, 4, 7)
    """
    if not PROTOCOLS[protocol].splits_classes:
        return num_classes
    if num_classes < 4:
        raise UserError(f"Expected at least two base and two new classes; the data set has {num_classes} classes.")
    return math.ceil(num_classes / 2)


def choose_held_out(requested: Sequence[str], domains: Sequence[str]) -> list[str]:
    """List the held-out domains, sorted and unique; raise UserError unless they exist and leave one to train."""
    # File systems and keyboards encode accents differently.
    domains_by_name = {compose_name(name): name for name in domains}
    names = sorted({domains_by_name.get(compose_name(name), name) for name in requested})
    for name in names:
        if name not in domains:
            hint = did_you_mean_or_choose(name, domains)
            raise UserError(f"Expected held_out to name domains ({', '.join(domains)}); got {name!r}. {hint}")
    if len(names) == len(domains):
        raise UserError(f"All {len(domains)} domains are held out, so no domain is left to train. Hold out fewer.")
    return names


@dataclass(frozen=True)
class SplitPlan:
    """All options of a split.

    Attributes:
        sources: Source domains, in the order of their indices.
        held_out: Held-out domains. All their images test, or the images that the official split lists.
        rule: Draws the roles of each source domain that the official split does not contain.
        targets: Names of the other data sets that are measured.

    >>> SplitPlan(["ink"], ["sketch"], SplitRule()).describe_line(7)
    'held-out domain: sketch; one client per domain'
    >>> SplitPlan(["ink"], [], SplitRule(test_fraction=0.2, shots=16), protocol="all_seen").describe_line(7)
    'all domains seen, test split 20 %; one client per domain; 16-shot'
    >>> SplitPlan(["ink"], ["sketch"], SplitRule(), official=OfficialSplit("train/crossval", {})).describe_line(7)
    'held-out domain: sketch; one client per domain; official train/crossval split'
    """

    sources: Sequence[str]
    held_out: Sequence[str]
    rule: SplitRule
    partition: Partitioner = ByDomain()  # noqa: RUF009 (frozen)
    official: OfficialSplit | None = None
    protocol: ProtocolName = "leave_domains_out"
    class_split: ClassSplit = "data_set"
    targets: Sequence[str] = ()

    def parts(
        self, images: Mapping[str, Images], num_classes: int, groups: GivenNames = None, owners: GivenNames = None
    ) -> list[SplitPart]:
        """Assign a role to every image, and a client to every training image.

        Each domain is divided into roles first, so the measured images do not depend on the clients. Raises UserError
        if a client lacks training images, or test images or classes that the protocol needs.

        Args:
            images: Images by domain.
            num_classes: Number of classes.
            groups: Group of each image by domain; a group is on one side of the split.
            owners: Client of each image by domain, for GivenClients.

        Returns:
            Training parts in the order of the clients' ids, then validation and test parts of the source domains, the
            held-out domains, and parts of single clients. Empty parts are omitted.
        """
        num_base = count_base(self.protocol, num_classes)
        roles = self._roles(images, num_base, groups)
        train_rows = {domain: by_role["train"] for domain, by_role in roles.items()}
        training = self._training_parts(images, train_rows, groups, owners)
        parts = list(training)
        measured_roles: tuple[ImageRole, ...] = ("validation", "test")
        for role in measured_roles:
            for domain in self.sources:
                clients = tuple(part.clients[0] for part in training if domain in part.rows_by_domain)
                parts.append(SplitPart(role, {domain: roles[domain][role]}, clients))
        official_roles = self.official.roles if self.official else {}
        # All images of a held-out domain test, unless the official split lists its test images.
        for domain in self.held_out:
            rows = official_roles.get(domain, {}).get("held_out", np.arange(len(images[domain])))
            parts.append(SplitPart("held_out", {domain: rows}))
        if num_base < num_classes:
            parts = _base_and_new_parts(parts, images, num_base, num_classes)
        # Clients' parts come last, so they do not affect the order of the other parts.
        if self.class_split == "client":
            parts += _local_parts(parts, images, num_base)
        if self.protocol == "personal":
            parts = _add_client_tests(parts, images, self.rule.seed)
        parts = [part for part in parts if len(part)]
        if groups:
            check_groups(parts, groups)
        return parts

    def check(self, held_out: Sequence[str]) -> None:
        """Raise UserError unless the options suit the protocol, before any image is read.

        ``held_out`` are the domains that the user holds out. A data set may have other domains that never train.
        """
        facts = PROTOCOLS[self.protocol]
        if facts.holds_domains_out and not held_out:
            raise UserError(f"The protocol {self.protocol} holds domains out. Name them with data.held_out.")
        if held_out and not facts.holds_domains_out:
            raise UserError(f"The protocol {self.protocol} holds no domain out. Remove data.held_out or data.protocol.")
        if facts.measures_test_images and not self._tested:
            raise UserError(
                f"The protocol {self.protocol} measures test images of the source domains, but there are none. "
                "Set data.test_fraction, for example to 0.2."
            )
        if (self.protocol == "cross_dataset") != bool(self.targets):
            raise UserError(
                f"Only cross_dataset supports data.targets; the protocol is {self.protocol}. Remove data.targets."
                if self.targets
                else "The protocol cross_dataset measures other data sets. Name them with data.targets."
            )
        for target, count in Counter(self.targets).items():
            if count > 1:
                raise UserError(f"Expected data.targets of different names, as results contain them; got {target!r}.")
        if self.class_split == "client" and self.protocol != "base_to_new":
            raise UserError(f"Only base_to_new supports data.class_split; the protocol is {self.protocol}. Remove it.")

    def _roles(
        self, images: Mapping[str, Images], num_base: int, groups: GivenNames
    ) -> dict[str, dict[ImageRole, Indices]]:
        """Divide each source domain's images into roles; only images of base classes train or validate."""
        role_of_group: dict[str, ImageRole] = {}
        divided: dict[str, dict[ImageRole, Indices]] = {}
        for domain in self.sources:
            labels = images[domain].labels
            official = self.official.roles.get(domain) if self.official else None
            roles = self.rule.divide(labels, domain, official, groups[domain] if groups else None, role_of_group)
            if not len(roles["train"]):
                raise UserError(
                    f"The client {domain!r} has no training image. Add images to that domain, hold it out or remove it."
                )
            # Split after dividing all classes, so the test images match a run on all classes.
            for role in ("train", "validation"):
                roles[role] = roles[role][labels[roles[role]] < num_base]
            divided[domain] = roles
        return divided

    def _training_parts(
        self, images: Mapping[str, Images], train_rows: Mapping[str, Indices], groups: GivenNames, owners: GivenNames
    ) -> list[SplitPart]:
        # A partitioner sees the training images of all source domains as one list.
        labels = np.concatenate([images[domain].labels[rows] for domain, rows in train_rows.items()])
        positions = np.repeat(np.arange(len(train_rows)), [len(rows) for rows in train_rows.values()])
        rows = np.concatenate(list(train_rows.values()))
        is_pool = isinstance(self.partition, Pooled)
        if owners and isinstance(self.partition, GivenClients):
            chosen = np.concatenate([owners[domain][rows] for domain, rows in train_rows.items()])
            client_names = sorted(set(chosen))
            if "" in client_names:
                missing = int((chosen == "").sum())
                raise UserError(
                    f"Expected a client for each training image; {missing} of {len(chosen)} have none. Name them, "
                    "or choose data.partition."
                )
            rows_of_clients = [np.flatnonzero(chosen == name) for name in client_names]
        else:
            generator = generator_for(self.rule.seed, "clients")
            if groups:
                in_rows = np.concatenate([groups[domain][rows] for domain, rows in train_rows.items()])
                rows_of_clients = _divide_groups(self.partition, labels, positions, in_rows, generator)
            else:
                rows_of_clients = self.partition(labels, positions, generator)
            domains_of_clients = [np.unique(positions[chosen]).tolist() for chosen in rows_of_clients]
            client_names = ["pool"] if is_pool else _client_names(domains_of_clients, self.sources)
        parts = []
        for client_id, (name, chosen) in enumerate(zip(client_names, rows_of_clients, strict=True)):
            if not len(chosen):
                raise UserError(f"The client {name!r} has no training image. Use fewer clients or more images.")
            domains = np.unique(positions[chosen]).tolist()
            # A client with several domains gets the domain index -1.
            domain = domains[0] if len(domains) == 1 else -1
            client = Client(id=client_id, domain=domain, num_examples=len(chosen), name=name, is_pool=is_pool)
            rows_by_domain = {self.sources[index]: rows[chosen[positions[chosen] == index]] for index in domains}
            parts.append(SplitPart("train", rows_by_domain, (client,)))
        return parts

    def describe_line(self, num_classes: int) -> str:
        """Describe training images, clients and measured images in one line; results compare only if it matches."""
        facts = []
        num_base = count_base(self.protocol, num_classes)
        if num_base < num_classes:
            local = " and each client on its own" if self.class_split == "client" else ""
            new = num_classes - num_base
            facts.append(f"{PROTOCOLS[self.protocol].title}, {num_base} base and {new} new classes{local}")
        elif self.protocol == "personal":
            facts.append("each client on test images of its own")
        elif self.targets:
            facts.append(f"measured on {', '.join(self.targets)}")
        if not self.held_out:
            facts.append(f"all domains seen, {self._tested or 'no test split'}")
        else:
            plural = "s" if len(self.held_out) > 1 else ""
            is_official = self.official is not None and self.official.has("held_out")
            only = ", official test split only" if is_official else ""
            facts.append(f"held-out domain{plural}: {', '.join(self.held_out)}{only}")
            if self._tested:
                facts.append(f"seen domains, {self._tested}")
        facts.append(self.partition.description)
        if self.official:
            facts.append(f"official {self.official.title} split")
        if self.rule.shots is not None:
            facts.append(f"{self.rule.shots}-shot")
        return "; ".join(facts)

    @property
    def _tested(self) -> str:
        if self.official and self.official.has("test"):
            return "official test split"
        return f"test split {100 * self.rule.test_fraction:g} %" if self.rule.test_fraction else ""

    def describe(self) -> dict[str, Any]:
        """Describe the split as values for JSON."""
        rule, official = self.rule, self.official
        return {
            "kind": PROTOCOLS[self.protocol].title,
            "held_out": list(self.held_out),
            "partition": self.partition.description,
            "split_rule": f"official {official.title}" if official else "stratified",
            "shots": rule.shots,
            "validation_fraction": None if official and official.has("validation") else rule.validation_fraction,
            "test_fraction": 0.0 if official and official.has("test") else rule.test_fraction,
            "split_seed": rule.seed,
        }


def _divide_groups(
    partition: Partitioner, labels: Indices, domains: Indices, groups: Names, generator: np.random.Generator
) -> list[Indices]:
    """Divide images among clients so that each group of a domain has one client.

    The partitioner sees a group as one image of its most frequent class.
    """
    units: dict[tuple[int, str], list[int]] = {}
    for row, (domain, group) in enumerate(zip(domains.tolist(), groups, strict=True)):
        units.setdefault((domain, group or f"\0{row}"), []).append(row)
    rows_of_units = [np.asarray(rows, np.int64) for rows in units.values()]
    unit_labels = np.asarray([np.bincount(labels[rows]).argmax() for rows in rows_of_units])
    unit_domains = np.asarray([domain for domain, _ in units])
    pieces = []
    for chosen in partition(unit_labels, unit_domains, generator):
        pieces.append([rows_of_units[unit] for unit in chosen])
    return join_pieces(pieces)


def _client_names(domains_of_clients: Sequence[Sequence[int]], sources: Sequence[str]) -> list[str]:
    """Name clients after their domain, numbered if it has several, or "client N" if any client has several domains.

    >>> _client_names([[0], [1], [1]], ["photo", "sketch"]), _client_names([[0], [0, 1]], ["photo", "sketch"])
    (['photo', 'sketch 1', 'sketch 2'], ['client 1', 'client 2'])
    """
    if any(len(positions) != 1 for positions in domains_of_clients):
        return [f"client {number}" for number in range(1, len(domains_of_clients) + 1)]
    domains = [sources[positions[0]] for positions in domains_of_clients]
    counts = Counter(domains)
    numbers: Counter[str] = Counter()
    names = []
    for domain in domains:
        numbers[domain] += 1
        names.append(domain if counts[domain] == 1 else f"{domain} {numbers[domain]}")
    return names


def _base_and_new_parts(
    parts: Sequence[SplitPart], images: Mapping[str, Images], num_base: int, num_classes: int
) -> list[SplitPart]:
    new = range(num_base, num_classes)
    measured = [part for part in parts if part.role not in NEW_ROLES]
    # New classes follow the base classes of a role, as in the results.
    for role, new_role in NEW_ROLES.items():
        matching = [part for part in parts if part.role == role]
        measured += [part.select_classes(images, range(num_base)) for part in matching]
        measured += [replace(part.select_classes(images, new), role=new_role, classes=tuple(new)) for part in matching]
    return [part for part in measured if len(part)]


def _local_parts(parts: Sequence[SplitPart], images: Mapping[str, Images], num_base: int) -> list[SplitPart]:
    """Make a part for each client: the test images of its domains and classes, classified among its classes."""
    local = []
    for training in parts:
        if training.role != "train":
            continue
        labels = [images[domain].labels[rows] for domain, rows in training.rows_by_domain.items()]
        classes = np.unique(np.concatenate(labels)).tolist()
        rows_by_domain: dict[str, Indices] = {}
        for test in parts:
            if test.role == "test" and test.domains[0] in training.rows_by_domain:
                rows_by_domain |= test.select_classes(images, classes).rows_by_domain
        rows_by_domain = {domain: rows for domain, rows in rows_by_domain.items() if len(rows)}
        # No separate classifier is needed for all base classes.
        own_classes = () if len(classes) == num_base else tuple(classes)
        local.append(SplitPart("local", rows_by_domain, training.clients, own_classes))
    local = [part for part in local if len(part)]
    if not any(part.classes for part in local):
        raise UserError(
            f"data.class_split=client measures clients on their own classes, but each client has all {num_base}. "
            "Divide the classes among clients, for example with data.partition=FewClasses."
        )
    return local


def _add_client_tests(parts: Sequence[SplitPart], images: Mapping[str, Images], seed: int) -> list[SplitPart]:
    """Replace the domains' test images by the clients'.

    The images of each domain and class are divided among the clients that train on it, in proportion to their training
    images. Rounding errors carry over to the next class. Images of a class without clients are not used.
    """
    training = [part for part in parts if part.role == "train"]
    if training[0].clients[0].is_pool:
        raise UserError("The protocol personal measures clients, but centralised training has none. Use all_seen.")
    # This name determines the split, so it must not change.
    generator = generator_for(seed, "own test images")
    test_rows = {part.domains[0]: part.rows_by_domain[part.domains[0]] for part in parts if part.role == "test"}
    pieces: list[dict[str, list[Indices]]] = [{} for _ in training]
    # The fractional number of test images that each client should still get.
    due = np.zeros(len(training))
    for domain, rows in test_rows.items():
        labels = images[domain].labels
        nothing = np.empty(0, np.int64)
        trained = [Counter(labels[part.rows_by_domain.get(domain, nothing)].tolist()) for part in training]
        for label in np.unique(labels[rows]):
            counts = np.asarray([labels_of_client[int(label)] for labels_of_client in trained])
            if not counts.any():
                continue
            members = generator.permutation(rows[labels[rows] == label])
            due += len(members) * counts / counts.sum()
            shares = np.where(counts > 0, due.clip(min=0), 0)
            # If all clients of a class already have too many, only their training images count.
            sizes = apportion(len(members), shares if shares.any() else counts)
            due -= sizes
            for position, piece in enumerate(np.split(members, np.cumsum(sizes)[:-1])):
                if len(piece):
                    pieces[position].setdefault(domain, []).append(piece)
    personal = [part for part in parts if part.role != "test"]
    for part, by_domain in zip(training, pieces, strict=True):
        client = part.clients[0]
        if not by_domain:
            raise UserError(
                f"The protocol personal tests each client on its own images, but the client {client.name!r} with "
                f"{client.num_examples} training images got none. Raise data.test_fraction or the minimum per client "
                "(data.partition.min_examples), or use fewer clients."
            )
        rows_by_domain = {domain: np.sort(np.concatenate(rows)) for domain, rows in by_domain.items()}
        personal.append(SplitPart("personal", rows_by_domain, (client,)))
    return personal

"""What is known of a published data set before a byte of it is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fedvlp.data.catalog.forms import Form, SplitName


@dataclass(frozen=True)
class Description:
    """The facts of one data set: its names, how many images it has, and the forms in which users have it.

    Attributes:
        name: what the data set, and its data module, is called.
        config: name of its config.
        source: the project that publishes it, for those who do not have it.
        class_names: the classes: sorted by name, or in the order of the labels that CoOp or the publisher gives them.
        counts: images of each class, by domain, where they are published; the domains are those of ``domain_counts``.
        domain_counts: images of each domain; None where no number is published.
        split_counts: images of each domain in parts of the official split, by role.
        spellings: other names of domains, by how they are spelled on disk; case, spaces, ``_`` and ``-`` count nothing.
        class_spellings: other names of classes, likewise; a number is one only where the publisher numbers them.
        lists: for each style of list files, the role of a list ``<domain>_<ending>.txt``; "all" lists give no role.
        list_folders: where lists may lie, beside or below the images.
        split_folders: folders between domain and class, with the role of what is in them; None for no role.
        has_numbered_classes: whether class folders may be named by their number, from 0.
        tests_on_list: whether of a held-out domain only its official test images test, and not all.
        known_bad: images that many leave out because they can't be read.
        duplicates_list: name of a list of images to leave out, where the data set is known to have duplicates.
        known_gaps: classes that a domain is known to lack.
        may_lack_classes: whether domains lack classes, and it is not published which.
        is_subset: whether it is a part of a larger data set, so that other classes may lie in the folders.
        licence: what its owners allow, as far as known; empty where that is said elsewhere.
        forms: the forms in which it is had besides folders domain/class/image; the first that is found is read.
        is_tree: whether it is had as folders domain/class/image.
        domain_classes: the classes that a domain has, where it is published that it has not all.
        has_copies: whether images are there twice as it was published, on both sides of a split as well.
    """

    name: str
    config: str
    source: str
    class_names: tuple[str, ...]
    domain_counts: Mapping[str, int | None]
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    split_counts: Mapping[str, Mapping[SplitName, int]] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    class_spellings: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[Mapping[str, SplitName | None], ...] = ()
    list_folders: tuple[str, ...] = (".",)
    split_folders: Mapping[str, SplitName | None] = field(default_factory=dict)
    has_numbered_classes: bool = False
    tests_on_list: bool = False
    known_bad: tuple[str, ...] = ()
    duplicates_list: str | None = None
    known_gaps: tuple[tuple[str, str], ...] = ()
    may_lack_classes: bool = False
    is_subset: bool = False
    licence: str = ""
    forms: tuple[Form, ...] = ()
    is_tree: bool = True
    domain_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_copies: bool = False

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains, sorted."""
        return tuple(sorted(self.domain_counts))

    @property
    def images(self) -> int | None:
        """All images of all domains; None where not all numbers are published."""
        numbers = list(self.domain_counts.values())
        return None if None in numbers else sum(number for number in numbers if number is not None)

    @property
    def official_parts(self) -> str:
        """The parts of the official split as it is usually had, such as "train/crossval"; empty without one."""
        titles = [form.title for form in self.forms if form.title]
        if titles:
            return titles[0]
        parts = self.lists[0] if self.lists else self.split_folders
        # "full" stands for the other parts together.
        names = [name.removesuffix("_kfold") for name, role in parts.items() if role and name != "full"]
        return "/".join(names)

    def in_form(self, form: Form | None, domains: Collection[str]) -> Description:
        """Returns what was published of the domains that are there, in the form in which they are there."""
        known = dict(self.domain_counts)
        splits = self.split_counts
        if form is not None:
            known |= form.domain_counts
            splits = form.split_counts
        return replace(
            self, domain_counts={name: known[name] for name in known if name in domains}, split_counts=splits
        )

    def domain_of(self, folder: str) -> str | None:
        """Returns the domain that a name on disk stands for, or None."""
        return self._domains.get(plain(folder))

    def class_of(self, folder: str) -> str | None:
        """Returns the class that a name on disk stands for, or None."""
        if self.has_numbered_classes and folder.isdecimal():
            return dict(enumerate(self.class_names)).get(int(folder))
        return self._classes.get(plain(folder))

    @cached_property
    def _domains(self) -> dict[str, str]:
        known = {plain(name): name for name in self.domain_counts}
        return known | {plain(spelling): name for spelling, name in self.spellings.items()}

    @cached_property
    def _classes(self) -> dict[str, str]:
        known = {plain(name): name for name in self.class_names}
        return known | {plain(spelling): name for spelling, name in self.class_spellings.items()}


def plain(name: str) -> str:
    """Returns letters and digits in lower case: all in which two spellings of one name agree.

    >>> plain("Real World"), plain("Real_World"), plain("t-shirt")
    ('realworld', 'realworld', 'tshirt')
    """
    return "".join(letter for letter in name.casefold() if letter.isalnum())

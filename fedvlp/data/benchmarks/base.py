"""What the field's data sets have in common as data modules: each differs in its description only."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from fedvlp.data.benchmarks.download import obtain, read_source
from fedvlp.data.benchmarks.layouts import some
from fedvlp.data.benchmarks.on_disk import OnDisk, read_on_disk, splits_looked_for
from fedvlp.data.catalog import ClassNameStyle, Description, prompt_names
from fedvlp.data.domain_folders import DomainFolders, classes_of, labelled_images
from fedvlp.data.files.images import ArrayImages, Images, Indices
from fedvlp.data.module import mapped_names
from fedvlp.data.splits import OfficialSplit, Role
from fedvlp.utils.errors import UserError

log = logging.getLogger(__name__)


class Benchmark(DomainFolders):
    """A published data set, in any of the layouts in which users have it; class names are those of its folders.

    Args:
        root: Folder of the data set, or one up to three levels above its domains' folders.
        split: "official" for the split that came with the images, CoOp's where its file lies beside them; "stratified"
            to draw one by validation_fraction, test_fraction and split_seed; null takes the official one where it is
            found. What the official split does not give is drawn from its training images; its test images go before
            test_fraction.
        class_names: "clip" for names that CLIP has read more often, such as television for TV; "plain" for the names
            of the folders, with spaces for _ and -.
        download: Whether to download it to the root if it is not there, as ``fedvlp data download`` does, where it can.
        **options: The arguments of DomainFolders.
    """

    description: ClassVar[Description]

    def __init__(
        self,
        root: str,
        split: Literal["official", "stratified"] | None = None,
        class_names: ClassNameStyle = "clip",
        download: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(root, **options)
        self.name = self.description.name
        self.split = split
        self.class_name_style = class_names
        self.download = download
        # A domain may be named as its folder is, such as "art" for art_painting.
        self.held_out = [self.description.domain_of(name) or name for name in self.held_out]

    @property
    def all_class_names(self) -> list[str]:
        """Names of the classes, in the order of the labels, as prompts shall call them."""
        folders = self._files[1]
        names = dict(zip(folders, prompt_names(self.name, folders, self.class_name_style), strict=True))
        return mapped_names(folders, names | self.class_names_map)

    def describe(self) -> dict[str, Any]:
        """Returns what results must have in common, which names the prompts use, and where the images came from."""
        source = read_source(self._on_disk.folder) or read_source(self.root)
        named = {"source": source} if source else {}
        return {**super().describe(), "class_name_style": self.class_name_style, **named}

    @cached_property
    def _on_disk(self) -> OnDisk:
        """The data set as it is on disk; what was left out is logged."""
        if self.download:
            obtain(self.description, self.root)
        on_disk = read_on_disk(self.root, self.description)
        for note in on_disk.notes:
            log.warning("%s: %s", self.name, note)
        return self._chosen(on_disk)

    def _chosen(self, on_disk: OnDisk) -> OnDisk:
        """Returns what is used of the data set; all of it, but for a family of which some are named."""
        return on_disk

    @cached_property
    def _files(self) -> tuple[dict[str, Images], list[str]]:
        """The images of each domain and the names of the classes."""
        domains = self._on_disk.files
        classes = classes_of(domains)
        every = set().union(*classes.values())
        class_names = [name for name in self.description.class_names if name in every]
        lacking = [name for name in self.description.class_names if name not in every]
        if lacking and not self.allow_missing_classes:
            raise UserError(
                f"Expected the {len(self.description.class_names)} classes of {self.name} in {self._on_disk.folder}; "
                f"no domain has {some(lacking)}. Add them, or allow it with data.allow_missing_classes=true."
            )
        self._check_classes(classes)
        return {domain: self._labelled(domain, class_names) for domain in domains}, class_names

    def _labelled(self, domain: str, class_names: list[str]) -> Images:
        """Returns the images of a domain with their labels."""
        files = labelled_images(self._on_disk.files[domain], class_names)
        if domain not in self._on_disk.pixels:
            return files
        return ArrayImages(self._on_disk.pixels[domain], files.labels, files.names)

    def _check_classes(self, classes: dict[str, set[str]]) -> None:
        """Raises if a domain has no images, or lacks a class that it is not known to lack."""
        every = set().union(*classes.values())
        if self.description.may_lack_classes:
            classes = {domain: every if names else names for domain, names in classes.items()}
        excused = {domain: set(names) for domain, names in classes.items()}
        for domain, names in self.description.domain_classes.items():
            if domain in excused:
                excused[domain] |= every - set(names)
        for domain, name in self.description.known_gaps:
            if name in every - classes[domain]:
                log.warning("%s: %s has no %s, as is known.", self.name, domain, name)
                excused[domain].add(name)
        super()._check_classes(excused)

    @cached_property
    def official(self) -> OfficialSplit | None:
        """The split that came with the images, if there is one and it is used.

        Raises:
            UserError: if it is asked for and not there.
        """
        if self.split == "stratified":
            return None
        on_disk = self._on_disk
        if not on_disk.roles:
            self._raise_if_asked_for()
            self._tell_if_nothing_tests()
            return None
        split = OfficialSplit(on_disk.split, {domain: self._positions(domain) for domain in self.domains})
        # Two sets of test images in one domain would leave it open which of them a result is of.
        if split.has("test") and self.rule.test_fraction:
            log.warning(
                "%s: its official split has test images, so none are drawn by data.test_fraction. To draw them, set "
                "data.split=stratified.",
                self.name,
            )
        return split

    def _raise_if_asked_for(self) -> None:
        """Raises if the official split was asked for."""
        if self.split is None:
            return
        names = splits_looked_for(self.root, self._on_disk.folder, self.description)
        why = f"looked for {names}" if names else f"{self.name} has none"
        raise UserError(f"There is no official split: {why}. Add it, or draw a split with data.split=stratified.")

    def _tell_if_nothing_tests(self) -> None:
        """Warns if the data set has a split with test images that does not lie there, and none is drawn."""
        has_tests = any("test" in layout.title for layout in self.description.layouts)
        if self.held_out or self.rule.test_fraction or not has_tests:
            return
        looked_for = splits_looked_for(self.root, self._on_disk.folder, self.description)
        log.warning(
            "%s lies in %s without a split, so no image tests. Set data.test_fraction, or add a split; looked for %s",
            self.name,
            self._on_disk.folder,
            looked_for,
        )

    def _positions(self, domain: str) -> dict[Role, Indices]:
        """Returns the positions of a domain's images by official role."""
        role_of = self._on_disk.roles.get(domain, {})
        roles_of_images = np.array([role_of.get(name, "") for name in self._images[domain].names])
        roles: tuple[Role, ...] = ("train", "validation", "test")
        positions = {role: np.flatnonzero(roles_of_images == role) for role in roles if role in roles_of_images}
        # Published results are of the test list alone, also where the whole domain is held out.
        if self.description.tests_on_list and "test" in positions:
            positions["held_out"] = positions["test"]
        return positions

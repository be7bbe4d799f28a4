"""Data modules of published data sets, one for each description in the catalog; ``fedvlp data list`` prints them."""

import logging
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from fedvlp.catalog.description import DATA_SETS, ClassNameStyle, Description, prompt_names
from fedvlp.data.benchmarks.download import download, find_source, read_source
from fedvlp.data.benchmarks.layouts import find_layout
from fedvlp.data.benchmarks.manifest import Manifest, read_manifest
from fedvlp.data.class_names import map_names
from fedvlp.data.listed import ListedImages
from fedvlp.data.rows import ImageFile
from fedvlp.data.splits import OfficialSplit, SplitPart
from fedvlp.utils.errors import UserError, shorten

log = logging.getLogger(__name__)


class Benchmark(ListedImages):
    """A published data set in any supported layout.

    Args:
        root: Folder of the data set, up to three levels above its domains' folders.
        split: Use "official" for the published split, or CoOp's split if its file is next to the images. Use
            "stratified" to draw a split by validation_fraction, test_fraction and split_seed. With null, the official
            split is used if it is found. Roles that the official split lacks are drawn from its training images.
            Official test images take precedence over test_fraction.
        class_names: Use "clip" for names that are more frequent in CLIP's training data, such as television for TV. Use
            "plain" for folder names with spaces for _.
        download: Whether to download the data set to the root if it is missing, as ``fedvlp data download`` does.
        **options: The arguments of ListedImages.
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
        self.gaps = self.description.gaps
        # A domain may be given by its folder's name, such as "art" for art_painting.
        self.held_out = [self.description.match_domain(name) or name for name in self.held_out]

    @property
    def all_class_names(self) -> list[str]:
        """Names of the classes in prompts, in the order of the labels."""
        folders = self._label_targets[0]
        names = dict(zip(folders, prompt_names(self.name, folders, self.class_name_style), strict=True))
        return map_names(folders, names | self.class_names_map)

    def describe(self) -> dict[str, Any]:
        """Describe the facts that results must share, the style of class names, and the source of a download."""
        source = read_source(self._manifest.folder) or read_source(self.root)
        downloaded = {"source": source} if source else {}
        return {**super().describe(), "class_name_style": self.class_name_style, **downloaded}

    @cached_property
    def _manifest(self) -> Manifest:
        """The data set on disk; skipped images are logged."""
        if self.download:
            # A data set without a source is rejected even if it is on disk, since the option would fail elsewhere.
            find_source(self.description)
            if find_layout(self.root, self.description) is None:
                download(self.description, self.root, log.warning)
        manifest = read_manifest(self.root, self.description)
        for note in manifest.notes:
            log.warning("%s: %s", self.name, note)
        return manifest

    @property
    def held_out_domains(self) -> list[str]:
        """Names of the domains that no client sees, sorted; by default all that have no training images."""
        return super().held_out_domains or [name for name in self.domains if name in self.description.test_domains]

    def _check_copies(self, parts: Sequence[SplitPart], refuse: bool = False) -> None:
        """Report copies, unless the published data set contains copies on every machine."""
        if not self.description.has_copies:
            super()._check_copies(parts, refuse)

    def scan(self) -> dict[str, list[ImageFile]]:
        """List the images of each domain, without the domains that can neither train nor test."""
        files = dict(self._manifest.files)
        tests = set(self.description.test_domains)
        trains = files.keys() - tests
        if tests and trains <= set(self.held_out):
            raise UserError(f"Only {min(trains)} has training images, so it can't be held out. Hold out only variants.")
        # The base class reports unknown names.
        if self.held_out and files.keys() >= set(self.held_out):
            files = {domain: files[domain] for domain in files if domain not in tests - set(self.held_out)}
        return files

    def order_classes(self, names: Collection[str]) -> list[str]:
        """Order the classes by the publisher's labels; raise UserError if no domain has images of a class."""
        missing = [name for name in self.description.class_names if name not in names]
        if missing and not self.allow_missing_classes:
            raise UserError(
                f"Expected the {len(self.description.class_names)} classes of {self.name} in {self._manifest.folder}; "
                f"no domain has {shorten(missing)}. Add them, or allow it with data.allow_missing_classes=true."
            )
        return [name for name in self.description.class_names if name in names]

    @cached_property
    def official(self) -> OfficialSplit | None:
        """The published split, if it exists and is used.

        Raises UserError if the user requested it and it does not exist.
        """
        if self.split == "stratified":
            return None
        split = super().official
        if split is None:
            self._report_missing_split()
            return None
        roles = dict(split.roles)
        for domain, rows in split.roles.items():
            # Published results of a held-out domain also use its test list.
            if self.description.tests_on_list and "test" in rows:
                roles[domain] = {**rows, "held_out": rows["test"]}
        split = OfficialSplit(self._manifest.split, roles)
        # A second set of test images in one domain would make results ambiguous.
        if split.has("test") and self.rule.test_fraction:
            log.warning(
                "%s: its official split has test images, so data.test_fraction has no effect. To draw test images, set "
                "data.split=stratified.",
                self.name,
            )
        return split

    def _report_missing_split(self) -> None:
        """Raise UserError if the user requested the official split; warn if there are no test images without it."""
        folder = self._manifest.folder
        if self.split is not None:
            raise UserError(
                f"There is no official split of {self.name} in {folder}; published: "
                f"{self.description.official_parts or 'none'}. Add its files, or draw one with data.split=stratified."
            )
        has_tests = any("test" in layout.title for layout in self.description.layouts)
        if has_tests and not self.held_out and not self.rule.test_fraction:
            log.warning("%s in %s has no test images. Set data.test_fraction, or add a split.", self.name, folder)


def __getattr__(name: str) -> type[Benchmark]:
    """Make the data module of a data set in the catalog, which differs from others only in its description."""
    if name not in DATA_SETS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    description = DATA_SETS[name]
    members = {"__module__": __name__, "__doc__": description.summary, "description": description}
    members["several_labels"] = description.several_labels
    kind: type[Benchmark] = type(name, (Benchmark,), members)
    globals()[name] = kind  # later look-ups skip this function
    return kind

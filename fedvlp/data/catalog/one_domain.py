"""What the descriptions of data sets of one domain have in common.

Classes are called as CoOp calls them and stand in the order of its labels, so that halves of the classes are CoOp's.
Where CoOp's split lies beside the images it is read; else the publisher's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedvlp.data.catalog.description import Description
from fedvlp.data.catalog.fact_tables import read_facts
from fedvlp.data.catalog.forms import Form, ImageLists, SplitFile, SplitName, TorchvisionFolder

Sizes = Mapping[SplitName, int]
TITLES = {"train": "train", "validation": "val", "test": "test"}
THREE_SPLITS: Mapping[str, SplitName] = {"train": "train", "val": "validation", "test": "test"}
TWO_SPLITS: Mapping[str, SplitName] = {"train": "train", "test": "test"}


def describe(name: str, config: str, images: int, source: str, licence: str, *forms: Form) -> Description:
    """Describes a data set whose one domain is called as it is, with the table of facts that its config names."""
    facts = read_facts(config)
    return Description(
        name=name,
        config=f"data/{config}",
        source=source,
        class_names=facts.class_names,
        counts=facts.counts,
        domain_counts={name: images},
        class_spellings=facts.also,
        licence=licence,
        forms=forms,
        is_tree=False,
        # Images of the web are there more than once in many of them, as published.
        has_copies=True,
    )


def coop(name: str, called: str, images: str, sizes: tuple[int, int, int], total: int | None = None) -> Form:
    """Returns the form in which CoOp's scripts leave a data set.

    Args:
        name: the data set.
        called: what CoOp calls it.
        images: the folder that the paths of the split are relative to.
        sizes: images that train, validate and test.
        total: all of them, where the data set has more.
    """
    roles: tuple[SplitName, ...] = ("train", "validation", "test")
    file = f"split_zhou_{called}.json"
    return Form(
        of="CoOp",
        layout=f"{file}, {images}/…",
        parts=(SplitFile(file, images),),
        title="CoOp train/val/test",
        domain_counts={} if total is None else {name: total},
        split_counts={name: dict(zip(roles, sizes, strict=True))},
    )


def torchvision(name: str, part: TorchvisionFolder, sizes: Sizes | None = None) -> Form:
    """Returns the form in which torchvision leaves a data set; without sizes it has no split."""
    return Form(
        of="torchvision",
        layout=", ".join(f"{part.folder}/{held}" for held in part.holds),
        parts=(part,),
        title=title_of(sizes),
        split_counts={name: sizes} if sizes else {},
    )


def listed(name: str, of: str, layout: str, part: ImageLists, sizes: Sizes, title: str = "") -> Form:
    """Returns a form that lists of images tell of."""
    return Form(of, layout, (part,), title or title_of(sizes), split_counts={name: sizes})


def title_of(sizes: Sizes | None) -> str:
    """Returns what results call a split of these parts.

    >>> title_of({"train": 60, "test": 40})
    'train/test'
    """
    return "/".join(TITLES[role] for role in sizes or {})

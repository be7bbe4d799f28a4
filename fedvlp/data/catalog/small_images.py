"""Data sets of small images: CIFAR's batches of pixels, and TinyImageNet."""

from __future__ import annotations

from fedvlp.data.catalog.forms import ClassFolders, Form, ImageLists, PixelBatches, SplitName
from fedvlp.data.catalog.one_domain import TWO_SPLITS, Sizes, describe, title_of

_CIFAR_10_FILES: dict[str, SplitName] = {f"data_batch_{number}": "train" for number in range(1, 6)}
_CIFAR_SIZES: Sizes = {"train": 50_000, "test": 10_000}
CIFAR_10 = describe(
    "CIFAR10",
    "cifar10",
    60_000,
    'the University of Toronto, "Learning Multiple Layers of Features from Tiny Images" (2009)',
    "none stated",
    Form(
        of="torchvision",
        layout="cifar-10-batches-py, or cifar-10-python.tar.gz",
        parts=(
            PixelBatches(
                folder="cifar-10-batches-py",
                archive="cifar-10-python.tar.gz",
                files=_CIFAR_10_FILES | {"test_batch": "test"},
                labels="labels",
                names="batches.meta",
                names_key="label_names",
                md5={
                    "data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "634d18415352ddfa80567beed471001a",
                    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                    "test_batch": "40351d587109b95175f43aff81a1287e",
                    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
                },
            ),
        ),
        title=title_of(_CIFAR_SIZES),
        split_counts={"CIFAR10": _CIFAR_SIZES},
    ),
)
CIFAR_100 = describe(
    "CIFAR100",
    "cifar100",
    60_000,
    CIFAR_10.source,
    CIFAR_10.licence,
    Form(
        of="torchvision",
        layout="cifar-100-python, or cifar-100-python.tar.gz",
        parts=(
            PixelBatches(
                folder="cifar-100-python",
                archive="cifar-100-python.tar.gz",
                files=TWO_SPLITS,
                labels="fine_labels",
                names="meta",
                names_key="fine_label_names",
                md5={
                    "train": "16019d7e3df5f24257cddd939b257f8d",
                    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                    "meta": "7973b15100ade9c7d40fb424638fde48",
                },
            ),
        ),
        title=title_of(_CIFAR_SIZES),
        split_counts={"CIFAR100": _CIFAR_SIZES},
    ),
)
_TINY_SIZES: Sizes = {"train": 100_000, "test": 10_000}
TINY_IMAGENET = describe(
    "TinyImageNet",
    "tiny_imagenet",
    110_000,
    "Stanford's course CS231n; images of ImageNet at 64 x 64 pixels",
    "that of ImageNet",
    Form(
        of="its authors",
        layout="train/<wnid>/images/…, val/images/…, val/val_annotations.txt",
        parts=(
            ClassFolders("train", "train"),
            ImageLists(
                files={"val/val_annotations.txt": "test"},
                line=r"(?P<image>[^\t]+)\t(?P<class>n\d+)\t.*",
                image="val/images/{image}",
            ),
        ),
        title="train/val",
        split_counts={"TinyImageNet": _TINY_SIZES},
    ),
    Form(
        of="scripts that sort val",
        layout="{train,val}/<wnid>/…",
        parts=(ClassFolders("train", "train"), ClassFolders("val", "test")),
        title="train/val",
        split_counts={"TinyImageNet": _TINY_SIZES},
    ),
)
SMALL_IMAGE_DATA_SETS = (CIFAR_10, CIFAR_100, TINY_IMAGENET)

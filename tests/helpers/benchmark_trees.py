"""Small copies of the published data sets, in every folder layout that users have."""

import io
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedvlp.catalog.description import DESCRIPTIONS

FEW = {
    "PACS": ("dog", "giraffe", "person"),
    "OfficeHome": ("Alarm_Clock", "TV", "Table"),
    "VLCS": ("bird", "car", "person"),
    "DomainNet": ("The_Eiffel_Tower", "see_saw", "t-shirt"),
    "TerraIncognita": ("bird", "empty", "squirrel"),
    "DomainNet10": ("bird", "ice_cream", "zebra"),
    "DomainNet126": ("The_Eiffel_Tower", "see_saw", "zebra"),
    "FedISIC2019": ("basal_cell_carcinoma", "melanocytic_nevus", "melanoma"),
    "Camelyon17": ("normal", "tumor"),
    "Office31": ("back_pack", "mobile_phone", "trash_can"),
    "ImageCLEFDA": ("aeroplane", "bottle", "people"),
}
IMAGES = 5
Write = Callable[[Path], Path]


def tree(fill: Callable[..., None]) -> Callable[..., Write]:
    """Bind options to a function that fills a folder; the result fills a folder and returns it."""

    def with_options(*arguments: Any, **options: Any) -> Write:
        def write(root: Path) -> Path:
            fill(root, *arguments, **options)
            return root

        return write

    return with_options


def picture(seed: int) -> bytes:
    """Draw 8 x 8 pixels of noise as a PNG. Images of different seeds differ, and none is dark."""
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(64, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_images(root: Path, paths: Iterable[str]) -> None:
    """Write a different image to each path below a root."""
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(picture(zlib.crc32(str(target).encode())))


def write_list(path: Path, images: Iterable[str], first_label: int = 0, prefix: str = "") -> None:
    """Write a list of ``domain/class/image label``, with labels in alphabetical order of the classes."""
    images = list(images)
    classes = sorted({image.split("/")[-2] for image in images})
    lines = [f"{prefix}{image} {classes.index(image.split('/')[-2]) + first_label}\n" for image in images]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def list_paths(name: str, count: int = IMAGES) -> dict[str, list[str]]:
    """List a few paths ``domain/class/image`` of a data set, by domain."""
    (known,) = [known for known in DESCRIPTIONS if known.name == name]
    numbered = list(product(FEW[name], range(count)))
    names = {}
    for domain in known.domains:
        names[domain] = [f"{domain}/{class_name}/{index}.png" for class_name, index in numbered]
    return names


def part(paths: list[str], *indices: int) -> list[str]:
    """Select the images with these numbers."""
    return [path for path in paths if int(Path(path).stem) in indices]


def kfold(root: Path, folder: str = "kfold", lists: str = "kfold") -> Path:
    """Write PACS with its lists: labels start at 1, and test lists contain all images."""
    for domain, paths in list_paths("PACS").items():
        write_images(root / folder, paths)
        write_list(root / lists / f"{domain}_train_kfold.txt", part(paths, 0, 1, 2, 3), first_label=1)
        write_list(root / lists / f"{domain}_crossval_kfold.txt", part(paths, 4), first_label=1)
        write_list(root / lists / f"{domain}_test_kfold.txt", paths, first_label=1)
    return root


def absolute_lists(root: Path) -> Path:
    """Write PACS with lists of absolute paths on another machine, and labels from 0."""
    for domain, paths in list_paths("PACS").items():
        write_images(root, paths)
        for ending, chosen in (("train", part(paths, 0, 1, 2, 3)), ("val", part(paths, 4)), ("test", paths)):
            write_list(root / f"{domain}_{ending}.txt", chosen, prefix="/home/some one/PACS/kfold/")
    return root


@tree
def plain_tree(root: Path, name: str, renamed: Mapping[str, str] | None = None, inside: str = ".") -> None:
    """Write a data set as domain/class/image, with renamed domains."""
    for domain, paths in list_paths(name).items():
        folder = (renamed or {}).get(domain, domain)
        write_images(root / inside, [path.replace(domain, folder, 1) for path in paths])


def dassl_office_home(root: Path) -> Path:
    """Write OfficeHome with train and val folders between domain and class."""
    for domain, paths in list_paths("OfficeHome").items():
        for folder, chosen in (("train", part(paths, 0, 1, 2)), ("val", part(paths, 3, 4))):
            write_images(root / domain.lower() / folder, [path.split("/", 1)[1] for path in chosen])
    return root


def original_office31(root: Path) -> Path:
    """Write Office31 with an ``images`` folder in each domain."""
    for domain, paths in list_paths("Office31").items():
        write_images(root / "office31" / domain / "images", [path.split("/", 1)[1] for path in paths])
    return root


@tree
def numbered_vlcs(root: Path, parts: Mapping[str, tuple[int, ...]]) -> None:
    """Write VLCS with numbered class folders in each part. Image numbers restart in each part."""
    domains = {"Caltech101": "CALTECH", "LabelMe": "LABELME", "SUN09": "SUN", "VOC2007": "PASCAL"}
    numbers = {"bird": 0, "car": 1, "person": 4}
    for domain, paths in list_paths("VLCS").items():
        for folder, chosen in parts.items():
            rows = [path.split("/")[1:] for path in part(paths, *chosen)]
            write_images(root / domains[domain] / folder, [f"{numbers[of]}/{image}" for of, image in rows])


@tree
def domain_net(root: Path, name: str = "DomainNet", lists: str = "splits") -> None:
    """Write DomainNet with train and test lists. One image per domain is in no list."""
    for domain, paths in list_paths(name).items():
        write_images(root, [*paths, f"{domain}/{FEW[name][0]}/99.png"])
        trains = [path for path in part(paths, 0, 1, 2) if (domain, "t-shirt") != ("painting", path.split("/")[1])]
        write_list(root / lists / f"{domain}_train.txt", trains)
        write_list(root / lists / f"{domain}_test.txt", part(paths, 3, 4))


TREES: dict[str, tuple[str, Write, str]] = {
    "PACS original": ("PACS", kfold, "train/crossval"),
    "PACS FedDG-GA": (
        "PACS",
        lambda root: kfold(root, "raw_images", "raw_images/Train val splits and h5py files pre-read"),
        "train/crossval",
    ),
    "PACS absolute lists": ("PACS", absolute_lists, "train/val"),
    "PACS DomainBed": ("PACS", plain_tree("PACS"), ""),
    "OfficeHome original": (
        "OfficeHome",
        plain_tree("OfficeHome", {"Real_World": "Real World"}, "OfficeHomeDataset_10072016"),
        "",
    ),
    "OfficeHome Dassl": ("OfficeHome", dassl_office_home, ""),
    "VLCS DomainBed": ("VLCS", plain_tree("VLCS", inside="VLCS"), ""),
    "VLCS JigenDG": (
        "VLCS",
        numbered_vlcs({"full": (0, 1, 2), "train": (0, 1), "crossval": (2,), "test": (3, 4)}),
        "train/crossval/test",
    ),
    "VLCS full": ("VLCS", numbered_vlcs({"full": (0, 1, 2), "test": (3, 4)}), "full/test"),
    "DomainNet lists beside": ("DomainNet", domain_net(lists="."), "train/test"),
    "DomainNet Dassl": ("DomainNet", domain_net(), "train/test"),
    "TerraIncognita": ("TerraIncognita", plain_tree("TerraIncognita"), ""),
    "DomainNet10": ("DomainNet10", domain_net("DomainNet10"), "train/test"),
    "DomainNet126 Dassl": ("DomainNet126", domain_net("DomainNet126", "splits_mini"), "train/test"),
    "FedISIC2019 downloaded": ("FedISIC2019", domain_net("FedISIC2019"), "train/test"),
    "Camelyon17 downloaded": ("Camelyon17", plain_tree("Camelyon17"), ""),
    "Office31 original": ("Office31", original_office31, ""),
    "ImageCLEFDA class folders": (
        "ImageCLEFDA",
        plain_tree("ImageCLEFDA", {"bing": "b", "caltech": "C", "imagenet": "i", "pascal": "P"}),
        "",
    ),
}

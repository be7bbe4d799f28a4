"""Small copies of the single-domain data sets, in the layouts of CoOp's scripts and of torchvision."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io

from fedvlp.catalog.description import DESCRIPTIONS
from tests.helpers.benchmark_trees import tree, write_images

IMAGES = 5
"""Images per class. In CoOp's split, 0 to 2 are for training, 3 for validation and 4 for testing."""
COOP_PARTS = {"train": (0, 1, 2), "val": (3,), "test": (4,)}
BY_NAME = {known.name: known for known in DESCRIPTIONS}


@dataclass(frozen=True)
class FileLayout:
    """Files of a single-domain data set.

    Attributes:
        classes: Three of its classes, and the publisher's names for them in paths.
        images: Folder that the paths of CoOp's split are relative to.
        path: Path of an image, with {c} for the publisher's class, {i} for its number in the data set, and {part} for
            the folder of cars.
        split_file: File of CoOp's split.
    """

    classes: Mapping[str, str]
    images: str
    path: str
    split_file: str = ""


FILE_LAYOUTS = {
    "Caltech101": FileLayout(
        {"motorbike": "Motorbikes", "airplane": "airplanes", "yin_yang": "yin_yang"},
        "101_ObjectCategories", "{c}/image_{i:04d}.jpg", "split_zhou_Caltech101.json",
    ),
    "OxfordPets": FileLayout(
        {"abyssinian": "Abyssinian", "american_bulldog": "american_bulldog", "bengal": "Bengal"},
        "images", "{c}_{i}.jpg", "split_zhou_OxfordPets.json",
    ),
    "StanfordCars": FileLayout(
        dict.fromkeys(("2012 Acura RL Sedan", "2012 Acura TL Sedan", "2012 Ram C/V Cargo Van Minivan"), ""),
        ".", "{part}/{i:05d}.jpg", "split_zhou_StanfordCars.json",
    ),
    "Flowers102": FileLayout(
        {"pink primrose": "image", "fire lily": "image", "pink-yellow dahlia": "image"},
        "jpg", "{c}_{i:05d}.jpg", "split_zhou_OxfordFlowers.json",
    ),
    "Food101": FileLayout(
        {"apple_pie": "apple_pie", "baby_back_ribs": "baby_back_ribs", "waffles": "waffles"},
        "images", "{c}/{i}.jpg", "split_zhou_Food101.json",
    ),
    "FGVCAircraft": FileLayout({"707-320": "", "A300B4": "", "Yak-42": ""}, "images", "{i:07d}.jpg"),
    "SUN397": FileLayout(
        {
            "abbey": "a/abbey",
            "outdoor apartment building": "a/apartment_building/outdoor",
            "youth hostel": "y/youth_hostel",
        },
        "SUN397", "{c}/sun_{i}.jpg", "split_zhou_SUN397.json",
    ),
    "DTD": FileLayout(
        {"banded": "banded", "polka-dotted": "polka-dotted", "zigzagged": "zigzagged"},
        "images", "{c}/{c}_{i:04d}.jpg", "split_zhou_DescribableTextures.json",
    ),
    "EuroSAT": FileLayout(
        {"Annual Crop Land": "AnnualCrop", "Highway or Road": "Highway", "Sea or Lake": "SeaLake"},
        "2750", "{c}/{c}_{i}.jpg", "split_zhou_EuroSAT.json",
    ),
    "UCF101": FileLayout(
        {"Apply_Eye_Makeup": "Apply_Eye_Makeup", "Handstand_Pushups": "Handstand_Pushups", "Yo_Yo": "Yo_Yo"},
        "UCF-101-midframes", "{c}/v_{i}.jpg", "split_zhou_UCF101.json",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """One image of a small tree.

    Attributes:
        class_name: Name of its class in fedvlp.
        number: Its number within the class, from 0.
        path: Path below the folder that CoOp's paths are relative to.
        unique: Its number in the whole data set, from 1.
    """

    class_name: str
    number: int
    path: str
    unique: int


def list_images(name: str) -> list[Image]:
    """List the images of a small tree, class by class."""
    layout = FILE_LAYOUTS[name]
    images = []
    for class_name, called in layout.classes.items():
        for number in range(IMAGES):
            unique = len(images) + 1
            part = "cars_test" if number == 4 else "cars_train"
            images.append(Image(class_name, number, layout.path.format(c=called, i=unique, part=part), unique))
    return images


def label(name: str, image: Image) -> int:
    """Look up the label of an image, from 0."""
    return BY_NAME[name].class_names.index(image.class_name)


def write_all(name: str, folder: Path) -> None:
    write_images(folder / FILE_LAYOUTS[name].images, [image.path for image in list_images(name)])


@tree
def coop(root: Path, name: str, folder: str) -> None:
    """Write a data set in the layout of CoOp's scripts."""
    write_all(name, root / folder)
    split = {}
    for part, numbers in COOP_PARTS.items():
        split[part] = [[x.path, label(name, x), x.class_name] for x in list_images(name) if x.number in numbers]
    (root / folder / FILE_LAYOUTS[name].split_file).write_text(json.dumps(split), encoding="utf-8")


@tree
def without_split(root: Path, name: str, folder: str) -> None:
    """Write only the images of a data set."""
    write_all(name, root / folder)


@tree
def listed(
    root: Path, name: str, folder: str, lists: Mapping[str, tuple[int, ...]], line: Callable[[Image], str]
) -> None:
    """Write a data set with lists, each of the images with the given numbers."""
    write_all(name, root / folder)
    for file, numbers in lists.items():
        lines = [f"{line(image)}\n" for image in list_images(name) if image.number in numbers]
        (root / folder / file).parent.mkdir(exist_ok=True)
        (root / folder / file).write_text("".join(lines), encoding="utf-8")


def food101(root: Path) -> Path:
    """Write Food-101 in torchvision's layout."""
    write_all("Food101", root / "food-101")
    (root / "food-101" / "meta").mkdir()
    for split, numbers in (("train", (0, 1, 2, 3)), ("test", (4,))):
        content: dict[str, list[str]] = {}
        for image in list_images("Food101"):
            if image.number in numbers:
                content.setdefault(image.class_name, []).append(image.path.removesuffix(".jpg"))
        (root / "food-101" / "meta" / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")
    return root


def stanford_cars(root: Path) -> Path:
    """Write Stanford Cars in torchvision's layout. The folder of an image determines its split."""
    folder = root / "stanford_cars"
    write_all("StanfordCars", folder)
    (folder / "devkit").mkdir()
    called = {ours: other for other, ours in BY_NAME["StanfordCars"].class_spellings.items()}
    names = np.array([called[name] for name in BY_NAME["StanfordCars"].class_names], dtype=object)
    scipy.io.savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    for part, file in (("cars_train", "devkit/cars_train_annos.mat"), ("cars_test", "cars_test_annos_withlabels.mat")):
        rows = []
        for image in list_images("StanfordCars"):
            if image.path.startswith(part):
                rows.append((image.path.split("/")[1], label("StanfordCars", image) + 1))
        scipy.io.savemat(folder / file, {"annotations": np.array(rows, dtype=[("fname", object), ("class", object)])})
    return root


def flowers102(root: Path) -> Path:
    """Write Oxford Flowers in torchvision's layout."""
    folder = root / "flowers-102"
    write_all("Flowers102", folder)
    images = list_images("Flowers102")
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": [label("Flowers102", image) + 1 for image in images]})
    parts = {"trnid": (0, 1), "valid": (2,), "tstid": (3, 4)}
    numbers = {part: [x.unique for x in images if x.number in chosen] for part, chosen in parts.items()}
    scipy.io.savemat(folder / "setid.mat", numbers)
    return root


def sun397(root: Path) -> Path:
    """Write SUN397 in torchvision's layout."""
    write_all("SUN397", root)
    lines = [f"/{called}\n" for called in FILE_LAYOUTS["SUN397"].classes.values()]
    (root / "SUN397" / "ClassName.txt").write_text("".join(lines), encoding="utf-8")
    return root

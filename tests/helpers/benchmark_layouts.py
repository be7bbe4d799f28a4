"""Layouts of the published data sets, each with its data set, a small tree of files, and the name of its split."""

from tests.helpers.benchmark_trees import TREES, Write
from tests.helpers.family_trees import cifar, image_clef, imagenet, tiny_imagenet, wilds
from tests.helpers.single_domain_trees import (
    coop,
    flowers102,
    food101,
    listed,
    stanford_cars,
    sun397,
    without_split,
)

COOP = "CoOp train/val/test"
COOP_FOLDERS = {
    "Caltech101": "caltech-101",
    "OxfordPets": "oxford_pets",
    "StanfordCars": "stanford_cars",
    "Flowers102": "oxford_flowers",
    "Food101": "food-101",
    "SUN397": "sun397",
    "DTD": "dtd",
    "EuroSAT": "eurosat",
    "UCF101": "ucf101",
}
PETS = {"annotations/trainval.txt": (0, 1, 2, 3), "annotations/test.txt": (4,)}
VARIANTS = {
    f"images_variant_{part}.txt": numbers for part, numbers in (("train", (0, 1, 2)), ("val", (3,)), ("test", (4,)))
}
TEXTURES = {f"labels/{part}1.txt": numbers for part, numbers in (("train", (0, 1)), ("val", (2,)), ("test", (3, 4)))}
SCENES = {"Training_01.txt": (0, 1, 2), "Testing_01.txt": (3, 4)}
ACTIONS = {"ucfTrainTestlist/trainlist01.txt": (0, 1, 2), "ucfTrainTestlist/testlist01.txt": (3, 4)}
AS_COOP = {
    "ImageNetV2": "imagenetv2/imagenetv2-matched-frequency-format-val",
    "ImageNet-Sketch": "imagenet-sketch/images",
    "ImageNet-A": "imagenet-adversarial/imagenet-a",
    "ImageNet-R": "imagenet-rendition/imagenet-r",
}


def pet(image):
    return f"{image.path.removesuffix('.jpg')} 1 1 1"


def action(image):
    folder, file = image.path.removesuffix(".jpg").split("/")
    return f"{folder.replace('_', '')}/{file}.avi 1"


LAYOUTS: dict[str, tuple[str, Write, str]] = TREES | {
    **{f"{name} CoOp": (name, coop(name, folder), COOP) for name, folder in COOP_FOLDERS.items()},
    "Caltech101 torchvision": ("Caltech101", without_split("Caltech101", "caltech101"), ""),
    "OxfordPets torchvision": ("OxfordPets", listed("OxfordPets", "oxford-iiit-pet", PETS, pet), "trainval/test"),
    "StanfordCars torchvision": ("StanfordCars", stanford_cars, "train/test"),
    "Flowers102 torchvision": ("Flowers102", flowers102, "train/val/test"),
    "Food101 torchvision": ("Food101", food101, "train/test"),
    "FGVCAircraft CoOp": (
        "FGVCAircraft",
        listed("FGVCAircraft", "fgvc_aircraft", VARIANTS, lambda x: f"{x.unique:07d} {x.class_name}"),
        "train/val/test",
    ),
    "SUN397 CoOp without split": (
        "SUN397",
        listed("SUN397", "sun397", SCENES, lambda x: f"/{x.path}"),
        "partition 1 train/test",
    ),
    "SUN397 torchvision": ("SUN397", sun397, ""),
    "DTD torchvision": ("DTD", listed("DTD", "dtd/dtd", TEXTURES, lambda x: x.path), "train/val/test"),
    "EuroSAT torchvision": ("EuroSAT", without_split("EuroSAT", "eurosat"), ""),
    "UCF101 CoOp without split": ("UCF101", listed("UCF101", "ucf101", ACTIONS, action), "list 1 train/test"),
    "CIFAR10 torchvision": ("CIFAR10", cifar("CIFAR10"), "train/test"),
    "CIFAR100 torchvision": ("CIFAR100", cifar("CIFAR100"), "train/test"),
    "TinyImageNet its authors": ("TinyImageNet", tiny_imagenet(is_sorted=False), "train/val"),
    "TinyImageNet sorted": ("TinyImageNet", tiny_imagenet(is_sorted=True), "train/val"),
    "ImageNet CoOp": ("ImageNet", imagenet("imagenet/images", AS_COOP), "train/val"),
    "ImageNet torchvision": (
        "ImageNet",
        imagenet(".", {"ImageNet-Sketch": "sketch", "ImageNet-R": "imagenet-r"}),
        "train/val",
    ),
    "ImageCLEFDA its authors": ("ImageCLEFDA", image_clef("list/{}List.txt"), ""),
    "ImageCLEFDA lists beside": ("ImageCLEFDA", image_clef("{}List.txt"), ""),
    "ImageCLEFDA CDAN": ("ImageCLEFDA", image_clef("{}_list.txt", "/xxxx/image-clef/"), ""),
    "Camelyon17 WILDS": ("Camelyon17", wilds, "WILDS train/id_val"),
}

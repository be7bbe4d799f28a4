"""Small copies of ImageNet and its variants, TinyImageNet, ImageCLEF-DA, CIFAR and Camelyon17 of WILDS."""

import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torchvision.datasets

from tests.helpers.benchmark_trees import tree, write_images
from tests.helpers.single_domain_trees import BY_NAME, IMAGES


@tree
def cifar(root: Path, name: str) -> None:
    """Write CIFAR in torchvision's layout, with five images of each of three classes per file."""
    reader = getattr(torchvision.datasets, name)
    names = list(BY_NAME[name].class_names)
    folder = root / reader.base_folder
    folder.mkdir()
    (folder / reader.meta["filename"]).write_bytes(pickle.dumps({reader.meta["key"]: names}, protocol=2))
    labels = np.repeat([0, 3, len(names) - 1], IMAGES).tolist()
    for seed, (file, _) in enumerate(reader.train_list + reader.test_list):
        pixels = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        key = "labels" if name == "CIFAR10" else "fine_labels"
        (folder / file).write_bytes(pickle.dumps({"data": pixels, key: labels}, protocol=2))


CLASSES = ("tench", "goldfish", "American robin", "toilet paper")
FAMILY = {
    "ImageNet": CLASSES,
    "ImageNetV2": CLASSES,
    "ImageNet-Sketch": CLASSES,
    "ImageNet-A": ("American robin",),
    "ImageNet-R": ("goldfish",),
}
"""Classes of each ImageNet domain in the small tree."""


def wnid(class_name: str) -> str:
    """Look up the folder name (WordNet ID) of an ImageNet class."""
    return {ours: other for other, ours in BY_NAME["ImageNet"].class_spellings.items()}[class_name]


@tree
def imagenet(root: Path, train_and_val: str, variants: Mapping[str, str]) -> None:
    """Write ImageNet, and its variants in the given folders. ImageNetV2 numbers its class folders."""
    for class_name in CLASSES:
        for part, numbers in (("train", (0, 1, 2)), ("val", (3, 4))):
            folder = root / train_and_val / part / wnid(class_name)
            write_images(folder, [f"{wnid(class_name)}_{number}.JPEG" for number in numbers])
    for domain, folder in variants.items():
        for class_name in FAMILY[domain]:
            index = BY_NAME["ImageNet"].class_names.index(class_name)
            inside = str(index) if domain == "ImageNetV2" else wnid(class_name)
            write_images(root / folder / inside, [f"{inside}_{number}.jpg" for number in range(2)])


@tree
def tiny_imagenet(root: Path, is_sorted: bool) -> None:
    """Write TinyImageNet with its validation images in class folders or in a list."""
    ids = ("n01443537", "n01629819", "n12267677")
    folder = root / "tiny-imagenet-200"
    lines = []
    for number, name in enumerate(ids):
        write_images(folder / "train" / name / "images", [f"{name}_{i}.JPEG" for i in range(4)])
        (folder / "train" / name / f"{name}_boxes.txt").write_text("", encoding="utf-8")
        inside = f"{name}/images" if is_sorted else "images"
        write_images(folder / "val" / inside, [f"val_{number}.JPEG"])
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t63\t63\n")
    if not is_sorted:
        (folder / "val" / "val_annotations.txt").write_text("".join(lines), encoding="utf-8")
    write_images(folder / "test" / "images", ["test_0.JPEG"])


@tree
def image_clef(root: Path, lists: str, prefix: str = "") -> None:
    """Write ImageCLEF-DA with lists named by a pattern with {} for the domain."""
    for domain in "bcip":
        names = [f"{number:03d}_{i}.jpg" for number in (0, 4, 11) for i in range(IMAGES)]
        write_images(root / domain, names)
        path = root / lists.format(domain)
        path.parent.mkdir(exist_ok=True)
        lines = [f"{prefix}{domain}/{name} {int(name[:3])}\n" for name in names]
        path.write_text("".join(lines), encoding="utf-8")


def wilds(root: Path) -> Path:
    """Write Camelyon17 in the layout of WILDS, with three training images and one validation image per class."""
    folder = root / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for hospital in range(5):
        for tumor in (0, 1):
            for i in range(4):
                patient = f"{10 * hospital + tumor:03d}"
                lines.append(f"{len(lines) - 1},{patient},1,{96 * i},32,{tumor},{hospital},{hospital},{int(i == 3)}")
                name = f"patch_patient_{patient}_node_1_x_{96 * i}_y_32.png"
                write_images(folder / "patches" / f"patient_{patient}_node_1", [name])
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root

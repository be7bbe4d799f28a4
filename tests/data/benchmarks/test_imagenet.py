from __future__ import annotations

import pytest

from fedvlp.data.benchmarks.comparison import differences
from fedvlp.data.benchmarks.manifest import read_manifest
from fedvlp.data.catalog import DATA_SETS
from fedvlp.utils.errors import UserError
from tests.helpers.benchmark_layouts import AS_COOP
from tests.helpers.family_trees import FAMILY, imagenet

IMAGENET = DATA_SETS["ImageNet"]


def test_all_variants_that_lie_there_are_held_out(load, lay_out):
    data = load("ImageNet", lay_out("ImageNet CoOp"))
    assert data.held_out_domains == ["ImageNet-A", "ImageNet-R", "ImageNet-Sketch", "ImageNetV2"]
    assert data.source_domains == ["ImageNet"]
    assert {part.name: len(part) for part in data.split_parts} == {
        "train/ImageNet": 8,
        "validation/ImageNet": 4,
        "test/ImageNet": 8,
        "held_out/ImageNet-A": 2,
        "held_out/ImageNet-R": 2,
        "held_out/ImageNet-Sketch": 8,
        "held_out/ImageNetV2": 8,
    }
    for domain, images in data._images.items():
        assert {data.class_names[label] for label in images.labels} == set(FAMILY[domain])
    assert load("ImageNet", lay_out("ImageNet torchvision")).held_out_domains == ["ImageNet-R", "ImageNet-Sketch"]


def test_numbered_folders_are_the_classes_in_the_order_of_their_ids(load, lay_out):
    images = load("ImageNet", lay_out("ImageNet CoOp"))._images["ImageNetV2"]
    numbers = {"tench": "0", "goldfish": "1", "American robin": "15", "toilet paper": "999"}
    assert {name.split("/")[1]: name.split("/")[2].split("_")[0] for name in images.names} == numbers


def test_some_variants(load, lay_out):
    root = lay_out("ImageNet CoOp")
    data = load("ImageNet", root, held_out=["imagenet-rendition", "imagenetv2"])
    assert data.domains == ["ImageNet", "ImageNet-R", "ImageNetV2"]
    assert data.held_out_domains == ["ImageNet-R", "ImageNetV2"]
    assert data.protocol.startswith("held-out domains: ImageNet-R, ImageNetV2; seen domains, official test split")
    with pytest.raises(UserError, match="Only ImageNet has training images"):
        load("ImageNet", root, held_out="ImageNet").prepare_data()
    with pytest.raises(UserError, match="Did you mean 'ImageNet-R'"):
        load("ImageNet", root, held_out="ImageNet-Q").prepare_data()


def test_without_variants(load, tmp_path):
    data = load("ImageNet", imagenet(".", {})(tmp_path))
    assert data.protocol.startswith("all domains seen, official test split")


def test_the_classes_that_a_variant_has_are_known(tmp_path):
    assert {domain: len(names) for domain, names in IMAGENET.domain_classes.items()} == {
        "ImageNet-A": 200,
        "ImageNet-R": 200,
    }
    found = read_manifest(imagenet("imagenet/images", AS_COOP)(tmp_path), IMAGENET)
    lines = {line.split(":")[0]: line for line in differences(found, IMAGENET)}
    assert lines["ImageNet-A"].endswith(" and 194 more")
    assert "American robin" not in lines["ImageNet-A"]
    assert "tench" not in lines["ImageNet-R"]  # which has no tench, as is known
    assert "goldfish" not in lines["ImageNet-R"]
    assert "20 images, 1,331,167 published; 12 train images, 1,281,167 published" in lines["ImageNet"]

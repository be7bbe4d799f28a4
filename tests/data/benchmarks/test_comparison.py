import shutil
from dataclasses import replace

import pytest

from fedvlp.catalog.description import DATA_SETS
from fedvlp.data.benchmarks.comparison import compare, differences
from fedvlp.data.benchmarks.manifest import Manifest, read_manifest
from fedvlp.data.domain_folders import DomainFolders
from tests.helpers.benchmark_layouts import AS_COOP
from tests.helpers.benchmark_trees import FEW, IMAGES, kfold, picture
from tests.helpers.family_trees import imagenet

IMAGENET = DATA_SETS["ImageNet"]
PACS = DATA_SETS["PACS"]


def small():
    """PACS as if the small tree had been published."""
    classes = FEW["PACS"]
    return replace(
        PACS,
        class_names=classes,
        counts={domain: dict.fromkeys(classes, IMAGES) for domain in PACS.domains},
        domain_counts=dict.fromkeys(PACS.domains, IMAGES * len(classes)),
        layouts=with_sizes({domain: {"train": 12, "validation": 3} for domain in PACS.domains}),
    )


def with_sizes(split_counts):
    return (replace(PACS.layouts[0], split_counts=split_counts),)


@pytest.fixture
def pacs(tmp_path):
    return kfold(tmp_path)


def check(root):
    return compare(read_manifest(root, small()), small())


def test_published_images_have_no_problem_and_known_bad_ones_are_skipped(pacs):
    findings = check(pacs)
    assert (findings.problems, findings.notes) == ([], [])
    assert read_manifest(pacs, small()).role_counts("photo") == {"train": 12, "validation": 3}
    (pacs / "kfold" / "sketch" / "dog" / "n02103406_4068-1.png").write_bytes(picture(1))
    known = small()
    counts = {**known.counts, "sketch": {**known.counts["sketch"], "dog": IMAGES + 1}}
    layouts = with_sizes({"sketch": {"train": 13, "validation": 3}})
    known = replace(known, counts=counts, domain_counts={**known.domain_counts, "sketch": 16}, layouts=layouts)
    findings = compare(read_manifest(pacs, known), known)
    assert findings.problems == []
    assert findings.notes == ["skipped 1 known bad images: sketch/dog/n02103406_4068-1.png"]


def test_missing_images_are_counted_by_class(pacs):
    for lists in (pacs / "kfold").glob("*.txt"):
        lists.unlink()
    for name in ("photo/dog/0.png", "photo/giraffe/1.png"):
        (pacs / "kfold" / name).unlink()
    shutil.rmtree(pacs / "kfold" / "sketch" / "person")
    assert check(pacs).problems == [
        "photo: 13 images, 15 published (dog -1, giraffe -1)",
        "sketch: 10 images, 15 published (person -5)",
    ]
    # Images in the wrong class are found although the total is right.
    (pacs / "kfold/cartoon/dog/0.png").rename(pacs / "kfold/cartoon/person/90.png")
    assert check(pacs).problems[0] == "cartoon: 15 images in all, as published (dog -1, person +1)"
    known = replace(small(), counts={}, domain_counts=dict.fromkeys(PACS.domains))
    assert compare(read_manifest(pacs, known), known).problems == ["sketch: no image of person"]


def test_a_split_of_another_size(pacs):
    path = pacs / "kfold" / "photo_crossval_kfold.txt"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    (problem,) = check(pacs).problems
    assert problem.startswith("photo: 13 images, 15 published (")
    assert problem.endswith("; 1 validation images, 3 published")


def test_the_same_image_in_two_parts_of_the_split_or_two_domains_leaks(pacs):
    images = pacs / "kfold"
    shutil.copy(images / "photo/dog/0.png", images / "photo/dog/4.png")  # trains and validates
    shutil.copy(images / "cartoon/dog/0.png", images / "sketch/dog/1.png")
    shutil.copy(images / "photo/person/0.png", images / "photo/person/1.png")  # both train
    (problem,) = check(pacs).problems
    (note,) = check(pacs).notes
    pairs = "cartoon/dog/0.png = sketch/dog/1.png, photo/dog/0.png = photo/dog/4.png"
    assert problem == f"2 images are in two domains, or in two parts of the split: {pairs}"
    assert "1 images occur twice in one domain" in note
    assert note.endswith("photo/person/0.png = photo/person/1.png")


def test_folders_without_a_description(tree):
    shutil.copy(tree / "photo" / "cat" / "1.png", tree / "art" / "dog" / "copy.png")
    found = Manifest(tree, DomainFolders(str(tree)).scan())
    (problem,) = compare(found, None).problems
    assert problem.endswith(": art/dog/copy.png = photo/cat/1.png")
    shutil.rmtree(tree / "art" / "cat")
    (tree / "photo" / "dog" / "0.png").rename(tree / "gone")
    (tree / "photo" / "dog" / "0.png").symlink_to(tree / "nowhere")
    (tree / "sketch" / "dog").rename(tree / "sketch" / "Dog")
    problems = compare(Manifest(tree, DomainFolders(str(tree)).scan()), None).problems
    assert problems[0] == "art: no image of Dog, cat"
    assert problems[3] == "one class in 2 spellings: dog, Dog (see data.merge_spellings)"
    assert problems[4].startswith("1 images can't be read: photo/dog/0.png (it is a link to ")


def test_the_classes_that_a_variant_has_are_known(tmp_path):
    manifest = read_manifest(imagenet("imagenet/images", AS_COOP)(tmp_path), IMAGENET)
    lines = {line.split(":")[0]: line for line in differences(manifest, IMAGENET)}
    assert lines["ImageNet-A"].endswith(" and 194 more")
    assert "American robin" not in lines["ImageNet-A"]
    assert "tench" not in lines["ImageNet-R"]  # which has no tench, as its description states
    assert "goldfish" not in lines["ImageNet-R"]
    assert "20 images, 1,331,167 published; 12 train images, 1,281,167 published" in lines["ImageNet"]

import logging
import os
import shutil
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from fedvlp.data import ClassFolders
from fedvlp.data.files.images import read_rgb
from tests.helpers.data import refused


def test_domains_classes_and_order_and_odd_names_depths_and_endings(folders, tree, save):
    names = ["deep/er/1.PNG", "2.Jpg", "3.jpeg", "4.webp", "5.bmp", "6.gif", "7.tif", "8.TIFF", "9.ppm"]
    for seed, name in enumerate([*names, "träume & co/猫 1.png"], 1000):
        save(tree / "sketch" / "cat" / name, seed=seed)
    data = folders(tree, held_out="sketch")
    assert data.domains == ["art", "photo", "sketch"]
    assert data.class_names == ["cat", "dog"]
    data.setup("fit")
    assert [(client.name, client.num_examples) for client in data.clients] == [("art", 6), ("photo", 6)]
    names = data.split_table()[-1]["images"]
    assert names[:2] == ["sketch/cat/0.png", "sketch/cat/1.png"]
    assert len(names) == 8 + 10
    assert {"sketch/cat/deep/er/1.PNG", "sketch/cat/träume & co/猫 1.png"} <= set(names)


def test_names_with_spaces_and_accents_are_the_same_in_any_unicode_form(folders, tmp_path, save):
    composed, decomposed = (unicodedata.normalize(form, "café noir") for form in ("NFC", "NFD"))
    for domain, form in (("domäne 1", composed), ("zwei", decomposed)):
        for i in range(3):
            save(tmp_path / "tree" / domain / form / f"{i}.png", seed=10 * len(form) + i)
            save(tmp_path / "tree" / domain / "thé" / f"{i}.png", seed=20 * len(form) + i)
    data = folders(tmp_path / "tree", held_out=unicodedata.normalize("NFD", "domäne 1"))
    assert data.class_names == [composed, "thé"]
    assert data.held_out_domains == ["domäne 1"]
    data.setup()
    assert data.clients[0].num_examples == 4


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_images_whose_names_are_no_utf8_are_read(folders, tree):
    shutil.copy(tree / "art" / "cat" / "0.png", tree.parent / "copy.png")
    os.rename(tree / "art" / "cat" / "0.png", os.fsencode(tree / "art" / "cat") + b"/\xff.png")
    data = folders(tree)
    data.prepare_data()
    domains = data.verified_domains()
    row = domains["art"].names.index("art/cat/\udcff.png")
    assert domains["art"][row].tobytes() == read_rgb(tree.parent / "copy.png").tobytes()
    assert len(data.split_hash) == len(data.describe()["images"]) == 16


def test_the_split_is_the_same_wherever_and_in_whatever_order_the_files_were_written(folders, tree, tmp_path):
    other = tmp_path / "other"
    for path in sorted(tree.rglob("*.png"), reverse=True):
        target = other / path.relative_to(tree)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    assert folders(tree).split_hash == folders(other).split_hash
    assert folders(tree).split_table() == folders(other).split_table()


def test_links_are_followed_but_not_in_circles(folders, tree, tmp_path):
    (tree / "art").rename(tmp_path / "elsewhere")
    (tree / "art").symlink_to(tmp_path / "elsewhere")
    (tree / "photo" / "cat" / "loop").symlink_to(tree / "photo")
    data = folders(tree, held_out="photo")
    assert len(data.split_table()[-1]["images"]) == 8
    assert data.clients[0].num_examples == 6


def test_root_that_is_no_folder_or_empty(folders, tmp_path):
    (tmp_path / "file.zip").touch()
    for name in ("nowhere", "file.zip"):
        refused(folders(tmp_path / name), rf"there is no folder .*{name}. Check data.root")
    (tmp_path / "empty" / "art" / "cat").mkdir(parents=True)
    refused(folders(tmp_path / "empty"), r"as root/domain/class/image.*found no image \(\.avif, ")


@pytest.mark.parametrize(
    ("images", "root", "message"),
    [
        (["art/cat/0.png", "photo/cat/0.png"], "art", r"found root/cat/0\.png in "),
        (["cat/1.png", "dog/1.png"], ".", r"found root/.* in .*with --config data/class_folders"),
        (["1.png"], ".", r"found images directly in "),
        (["a/cat/1.png", "a/dog/1.png"], ".", r"found one domain, 'a', in .*with --config data/class_folders"),
    ],
    ids=["too low", "no domains", "no folders", "too high"],
)
def test_wrong_levels_of_folders(folders, tmp_path, save, images, root, message):
    for image in images:
        save(tmp_path / "lone" / "set" / image)
    refused(folders(tmp_path / "lone" / "set" / root), message)


def test_root_one_level_too_high_above_several_sets(folders, tree, tmp_path):
    above = tmp_path / "above"
    shutil.copytree(tree, above / "first")
    shutil.copytree(tree, above / "second")
    for domain in ("art", "photo", "sketch"):
        (above / "second" / domain).rename(above / "second" / f"other {domain}")
    refused(folders(above), r"first, .*found art, photo, sketch, which all have the same folders .*data/folders")
    for folder in ("first/art/dog", "second/other art/dog"):
        shutil.rmtree(above / folder)
    refused(folders(above), r"share no class at all, so data\.root may point one level too high")


def test_class_that_a_domain_lacks(folders, tree, save):
    save(tree / "art" / "owl" / "1.png")
    save(tree / "photo" / "owl" / "1.png")
    shutil.rmtree(tree / "photo" / "dog")
    refused(folders(tree), r"'photo' has no 'dog'; 'sketch' has no 'owl'.*allow_missing_classes")
    data = folders(tree, allow_missing_classes=True)
    data.prepare_data()
    assert data.class_names == ["cat", "dog", "owl"]


@pytest.fixture
def spelt(tmp_path, save):
    """Write folders of one domain with four classes; two have several spellings."""
    counts = {"Face": 2, "face": 3, "FACE": 1, "dog_house": 2, "dog  House": 2, "A": 2, "A+": 2}
    for place, (name, count) in enumerate(counts.items()):
        for i in range(count):
            save(tmp_path / "spelt" / name / f"{i}.png", seed=10 * place + i)
    return tmp_path / "spelt"


def test_spellings_of_one_class_are_reported_or_merged(spelt):
    def read(**options):
        return ClassFolders(str(spelt), cache_dir=None, **options)

    refused(
        read(class_names_map={"A": "grade"}),
        r"spelt in one spelling; 'face', 'Face', 'FACE' are one class in 3 spellings, and 'dog  House', 'dog_house' "
        r"are one class in 2 spellings\. .*data\.merge_spellings=true",
    )
    merged = read(merge_spellings=True)
    merged.prepare_data()
    assert merged.class_names == ["A", "A+", "dog  House", "face"]
    assert np.bincount(merged.images["spelt"].labels).tolist() == [2, 2, 4, 6]
    names = {name: f"{name} {place}" for place, name in enumerate(("face", "FACE", "dog_house"))}
    assert len(read(class_names_map=names).class_names) == 7


def test_ignored_files_are_logged(tree, save, caplog, folders):
    save(tree / "preview.png")
    save(tree / "art" / "preview.png")
    with caplog.at_level(logging.WARNING):
        assert len(folders(tree, held_out="art").split_table()[-1]["images"]) == 8
    assert "Ignoring 2 image(s) outside class folders" in caplog.text
    for path in (tree / "preview.png", tree / "art" / "preview.png"):
        path.unlink()
    caplog.clear()
    for name in ("art/cat/notes.txt", "art/dog/1.HEIC", "art/README"):
        (tree / name).touch()
    with caplog.at_level(logging.WARNING):
        folders(tree).load_domains()
        ClassFolders(str(tree / "art"), cache_dir=None).load_domains()
    ignored = "that are not images (.heic, .txt, no ending)."
    assert caplog.messages == [
        f"Ignoring 3 file(s) in {tree} {ignored}",
        f"Ignoring 3 file(s) in {tree / 'art'} {ignored}",
    ]


def spoil(tree: Path) -> None:
    (tree / "art" / "cat" / "0.png").write_text("no")
    (tree / "photo" / "dog" / "3.png").write_bytes(b"")


def test_unreadable_images_are_all_listed_or_skipped_with_one_warning(folders, tree, caplog):
    spoil(tree)
    refused(
        folders(tree),
        r"(?s)2 of 24 images can't be read:.*art/cat/0\.png: it is not.*photo/dog/3\.png: the file is empty.*skip",
    )
    data = folders(tree, on_bad_image="skip")
    with caplog.at_level(logging.WARNING):
        data.prepare_data()
        data.setup("fit")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "2 of 24 images" in caplog.text
    assert sum(len(row["images"]) for row in data.split_table()) == 22


def test_skipping_may_not_leave_a_class_without_images(folders, tree):
    for path in (tree / "art" / "cat").iterdir():
        path.write_text("no")
    refused(folders(tree, on_bad_image="skip"), "'art' has no 'cat'")
    folders(tree, on_bad_image="skip", allow_missing_classes=True).prepare_data()
    for path in (tree / "art" / "dog").iterdir():
        path.write_text("no")
    refused(folders(tree, on_bad_image="skip", allow_missing_classes=True), "found none in 'art'")
    (tree / "empty").mkdir()
    refused(folders(tree, allow_missing_classes=True), "found none in 'empty'")


def test_verification_is_remembered_until_a_file_changes(folders, tree, verified):
    folders(tree).prepare_data()
    assert sum(verified) == 24
    folders(tree).prepare_data()
    assert sum(verified) == 24
    os.utime(tree / "art" / "cat" / "0.png", ns=(1, 1))
    folders(tree).prepare_data()
    assert sum(verified) == 24 + 8  # only that domain
    spoil(tree)
    for _ in range(2):
        folders(tree, on_bad_image="skip").prepare_data()
    assert sum(verified) == 32 + 16 + 2  # then only known bad images

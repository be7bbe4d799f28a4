"""Misleading folders are read as the user intended, or rejected in one clear line."""

import itertools
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from fedvlp.commands.cli import main
from fedvlp.data import ClassFolders, DomainFolders
from fedvlp.utils.errors import UserError

FORMATS = {".heic": "PNG", ".jfif": "JPEG", ".jpe": "JPEG", ".pgm": "PPM", ".jp2": "JPEG2000"}
MODULES = {"folders": DomainFolders, "class_folders": ClassFolders}


@pytest.fixture
def plant(tmp_path):
    """Write four different images into each folder of a pattern such as "art,photo/cat,dog"."""
    generator = np.random.default_rng(0)

    def grow(*patterns: str) -> Path:
        for pattern in patterns:
            folders, _, ending = pattern.partition("*")
            for names in itertools.product(*(part.split(",") for part in folders.split("/"))):
                folder = tmp_path.joinpath("images", *names)
                folder.mkdir(parents=True, exist_ok=True)
                for i in range(4 if ending else 0):
                    image = Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8))
                    file_format = FORMATS.get(ending, ending[1:])
                    image.convert("L" if file_format == "PPM" else "RGB").save(folder / f"{i}{ending}", file_format)
        return tmp_path / "images"

    return grow


@pytest.fixture
def read(tmp_path):
    """Read and split a folder with the data module of a config."""

    def run(config: str, root: Path, **options: object):
        data = MODULES[config](str(root), cache_dir=str(tmp_path / "cache"), **options)
        data.prepare_data()
        return data

    return run


DOMAINS = "art,ink,photo"
NO_IMAGE = "Expected images in each class folder; found"
REFUSED = {
    "a level between domain and class": (
        [f"{DOMAINS}/images/cat,dog/*.png"],
        ("folders", "found one, 'images', with cat, dog in it. Check data.root, or move"),
    ),
    "one class": (["cat/*.png"], ("class_folders", "Expected two classes or more in", "'cat', with no folder in it.")),
    "parts in domains": (
        [f"{DOMAINS}/train,Val/cat,dog/*.png"],
        ("folders", "art, such as dog; found Val, train, which are parts of a split."),
    ),
    "parts for domains": (
        ["test,train,valid/cat,dog/*.png"],
        ("folders", "found test and train and valid, which are parts of a split, in"),
    ),
    "the same folders in all classes": (
        [f"{DOMAINS}/image,mask/cat,dog/*.png"],
        ("folders", "found image, mask, which all have the same folders in them (cat, dog). Put"),
    ),
    "domains for classes": (
        ["art,ink/cat,dog/*.png"],
        ("class_folders", "found art, ink, which all have the same folders in them (cat, dog). Put"),
    ),
    "files of other kinds": (
        [f"{DOMAINS}/cat,owl/*.png", f"{DOMAINS}/dog/*.heic"],
        ("folders", f"{NO_IMAGE} files of other kinds (.heic) in"),
    ),
    "nothing": (["cat,owl/*.png", "dog"], ("class_folders", f"{NO_IMAGE} no file in")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(plant, read, caplog, case):
    patterns, (config, *texts) = REFUSED[case]
    with pytest.raises(UserError) as error:
        read(config, plant(*patterns))
    assert all(text in str(error.value) for text in texts)
    assert not caplog.messages


READ = {
    "a class called train": ([f"{DOMAINS}/bus,car,train/*.png"], "folders", 3),
    "a folder in each class": ([f"{DOMAINS}/cat,dog/images/*.png"], "folders", 2),
    "the same folders next to images": (
        [f"{DOMAINS}/cat,dog/*.png", f"{DOMAINS}/cat,dog/left,right/*.png"],
        "folders",
        2,
    ),
    "folders of patients": ([f"{DOMAINS}/benign/1,2/*.png", f"{DOMAINS}/malignant/3,4/*.png"], "folders", 2),
    "endings that few cameras write": (["a/*.jfif", "b/*.jpe", "c/*.pgm", "d/*.jp2", "e/*.png"], "class_folders", 5),
    "folders of network storage": (
        [
            f"{DOMAINS}/cat,dog/*.png",
            ".git,@eaDir,#recycle,lost+found,__MACOSX,$RECYCLE.BIN,System Volume Information/cat/*.png",
            f"{DOMAINS}/@eaDir/cat/*.png",
            f"{DOMAINS}/cat/@eaDir/1.png/*.png",
        ],
        "folders",
        2,
    ),
}


@pytest.mark.parametrize("case", READ)
def test_read(plant, read, capsys, caplog, case):
    patterns, config, num_classes = READ[case]
    root = plant(*patterns)
    for name in ("Thumbs.db", ".DS_Store"):
        (root / name).touch()
    assert len(read(config, root).class_names) == num_classes
    assert main(["data", "check", config, f"--root={root}"]) == 0
    assert "These images can be used." in capsys.readouterr().out
    assert not caplog.messages


def test_a_client_may_have_one_class_and_an_empty_folder_but_no_class_gets_lost(plant, read):
    root = plant("art,photo/cat,dog/*.png", "ink/cat/*.png", "ink/dog")
    read("folders", root, held_out="photo", allow_missing_classes=True)
    plant("ink/dog/*.heic")
    with pytest.raises(UserError, match=r"found files of other kinds \(\.heic\)"):
        read("folders", root, held_out="photo", allow_missing_classes=True)
    root = plant(f"lost/{DOMAINS}/cat,dog,owl/*.png") / "lost"
    for path in root.glob("*/owl/*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"Expected a readable image of each class; found none of owl\."):
        read("folders", root, held_out="photo", on_bad_image="skip")


def test_a_held_out_domain_that_is_a_copy_is_refused(plant, read):
    root = plant("art,ink/cat,dog/*.png")
    shutil.copytree(root / "art", root / "photo")
    for _ in range(2):  # from the files, then from the cache
        with pytest.raises(
            UserError, match=r"8 files are in both, such as photo/cat/0.png = art/cat/0.png. Remove one"
        ):
            read("folders", root, held_out="photo")
    read("folders", root, held_out=["art", "photo"])


def test_copies_in_other_splits_and_classes_are_reported(plant, read, caplog):
    root = plant("art,photo/cat,dog/*.png")
    for path in root.glob("photo/*/*.png"):  # a held-out domain may repeat itself
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    for i in range(4):
        shutil.copy(root / f"art/dog/{i}.png", root / f"art/dog/copy-{i}.png")
    shutil.copy(root / "art/cat/0.png", root / "art/dog/cat.png")
    read("folders", root, held_out="photo")
    (line,) = caplog.messages
    assert " are both training and validation or test images (art/dog/" in line
    assert line.endswith("1 are in two classes (art/cat/0.png = art/dog/cat.png). Keep one of each.")


def test_names_of_classes_come_from_an_option_or_a_file(plant, read, tmp_path):
    root = plant("0,1/*.png")
    names = {0: "airplane", "1": "car"}
    (tmp_path / "names.yaml").write_text(yaml.safe_dump(names))
    for option in (names, str(tmp_path / "names.yaml")):
        assert read("class_folders", root, class_names_map=option).class_names == ["airplane", "car"]


WRONG_NAMES = {
    "names that YAML reads as booleans": ("{cat: yes}", "got True in {'cat': True}"),
    "one prompt for two classes": ("{kitten: CAT, cat: Cat}", "cat and kitten are both called 'cat'"),
    "a number for text": ("{007: bond}", "renames '7', but there is no such class"),
    "a file that is a list": ("list.yaml", "got None in"),
    "no file": ("nowhere.yaml", "nowhere.yaml can't be read"),
}


@pytest.mark.parametrize("case", WRONG_NAMES)
def test_wrong_class_names_are_rejected(plant, read, tmp_path, monkeypatch, case):
    value, text = WRONG_NAMES[case]
    root = plant("cat,kitten,dog/*.png")
    monkeypatch.chdir(tmp_path)
    Path("list.yaml").write_text("[cat, kitten]")
    with pytest.raises(UserError) as error:
        read("class_folders", root, class_names_map=yaml.safe_load(value))
    assert text in str(error.value)


@pytest.mark.parametrize("names", ["n01440764,n01443537,cat", "009.Brewer_Blackbird,010_Red_Bird"])
def test_numbers_and_ids_for_names_are_reported(plant, read, caplog, capsys, names):
    root = plant(f"{names}/*.png")
    read("class_folders", root)
    (line,) = caplog.messages
    assert "class names are numbers or ids, such as" in line
    assert main(["data", "check", "class_folders", f"--root={root}"]) == 0
    assert f"note: {line}" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
@pytest.mark.parametrize("folder", ["cat", "art"])
def test_folder_names_that_are_not_utf8_are_rejected(plant, read, folder):
    root = plant("art,photo/cat,dog/*.png")
    for path in sorted(root.rglob(folder)):
        os.rename(path, os.fsencode(path.parent) + b"/caf\xe9")
    with pytest.raises(UserError, match=r"in UTF-8; got 'caf\\udce9'. Rename its folder."):
        read("folders", root)

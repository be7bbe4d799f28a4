from __future__ import annotations

import shutil

import pytest

from fedvlp.catalog import DESCRIPTIONS
from fedvlp.commands.cli import main
from tests.helpers.benchmark_trees import LAYOUTS, kfold, plain_tree


def test_list(capsys):
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 24
    assert max(map(len, printed.splitlines())) <= 100
    for known in DESCRIPTIONS:
        assert known.name in printed
        assert known.config in printed
    assert "586,575" in printed


@pytest.mark.parametrize(("name", "write", "split"), LAYOUTS.values(), ids=LAYOUTS)
def test_check_reads_every_layout_and_says_what_a_part_of_it_lacks(tmp_path, capsys, name, write, split):
    assert main(["data", "check", name, f"--root={write(tmp_path)}"]) == 1
    printed = capsys.readouterr().out
    assert f"This is not {name} as it was published. It can be had from" in printed
    assert "problem: " in printed
    assert (f"official {split} split" if split else "no official split here") in printed
    assert "can't be read" not in printed
    assert "two domains" not in printed
    assert len(printed.splitlines()) < 32


def test_check_of_own_images(capsys, image_root, tmp_path):
    assert main(["data", "check", "folders", f"--root={image_root}"]) == 0
    assert "These images can be used." in capsys.readouterr().out
    shutil.copytree(image_root, tmp_path / "images")
    (tmp_path / "images/ink/star/0.png").write_bytes(b"no image")
    assert main(["data", "check", "folders", f"--root={tmp_path / 'images'}"]) == 1
    assert "problem: 1 images can't be read: ink/star/0.png" in capsys.readouterr().out


def test_check_says_how_classes_are_called(capsys, tmp_path):
    main(["data", "check", "office_home", f"--root={plain_tree('OfficeHome')(tmp_path)}"])
    assert "prompts: spaces for _ and -; TV -> television, unless data.class_names=plain" in capsys.readouterr().out


def test_wrong_names_and_roots(capsys, tmp_path):
    assert main(["data", "check", "domainet", f"--root={tmp_path}"]) == 1
    assert "Did you mean 'domain_net'?" in capsys.readouterr().err
    assert main(["data", "check", "pacs", f"--root={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert "Expected a folder for each domain of PACS (art_painting, cartoon, photo, sketch)" in said
    assert "PACS can be had from the authors' project page" in said
    kfold(tmp_path)
    assert main(["data", "check", "data/pacs", f"--root={tmp_path}"]) == 1
    with pytest.raises(SystemExit, match="2"):
        main(["data", "check", "pacs"])

from __future__ import annotations

import logging
import os
from pathlib import Path

from tests.helpers.data import refused


def spoil(tree: Path) -> None:
    (tree / "art" / "cat" / "0.png").write_text("no")
    (tree / "photo" / "dog" / "3.png").write_bytes(b"")


def test_unreadable_images_are_all_listed(folders, tree):
    spoil(tree)
    refused(
        folders(tree),
        r"(?s)2 of 24 images can't be read:.*art/cat/0\.png: it is not.*photo/dog/3\.png: the file is empty.*skip",
    )


def test_unreadable_images_are_skipped_with_one_warning(folders, tree, caplog):
    spoil(tree)
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


def test_verification_is_remembered_until_a_file_changes(folders, tree, verified):
    folders(tree).prepare_data()
    assert sum(verified) == 24
    folders(tree).prepare_data()
    assert sum(verified) == 24
    os.utime(tree / "art" / "cat" / "0.png", ns=(1, 1))
    folders(tree).prepare_data()
    assert sum(verified) == 24 + 8  # that domain alone


def test_known_bad_images_alone_are_tried_again(folders, tree, verified):
    spoil(tree)
    for _ in range(2):
        folders(tree, on_bad_image="skip").prepare_data()
    assert sum(verified) == 24 + 2
    refused(folders(tree), "2 of 24")


def test_damaged_or_absent_memory_is_made_again(folders, tree, tmp_path, verified):
    folders(tree).prepare_data()
    for path in (tmp_path / "cache" / "verified").iterdir():
        path.write_text('{"bad": [99]}')
    folders(tree).prepare_data()
    folders(tree, cache_dir=None).prepare_data()
    assert sum(verified) == 3 * 24


def test_names_are_known_without_opening_a_file(folders, tree, verified):
    spoil(tree)
    assert folders(tree).class_names == ["cat", "dog"]
    assert verified == []

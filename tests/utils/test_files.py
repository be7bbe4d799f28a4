"""Files that appear whole or not at all, whatever the disk does; what dead processes left goes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import NODE, atomic_write, remove_dead_temporaries, write_json, write_text


def dead_process():
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def fill_the_disk(path):
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_refuses_is_named_by_the_file_and_leaves_the_old(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "old")
    with pytest.raises(OSError, match="No space left") as caught:
        fill_the_disk(path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_are_no_utf8_can_be_written_and_read_back(tmp_path):
    name = os.fsdecode(b"k\xfctz\xc3\xa9.jpg")
    write_json(tmp_path / "names.json", {"first": name})
    assert json.loads((tmp_path / "names.json").read_text(encoding="utf-8")) == {"first": "k\udcfctzé.jpg"}
    write_text(tmp_path / "names.csv", f"{name},1\n")
    assert (tmp_path / "names.csv").read_text(encoding="utf-8") == "k\\udcfctzé.jpg,1\n"


def test_a_folder_that_is_not_there_is_named_by_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "gone" / "table.csv", "new")
    assert caught.value.filename == str(tmp_path / "gone" / "table.csv")


def test_an_error_of_another_file_stays_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError) as caught, atomic_write(tmp_path / "table.csv"):
        (tmp_path / "image.png").read_bytes()
    assert caught.value.filename == str(tmp_path / "image.png")


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "."])
def test_devices_and_folders_are_not_replaced(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="Expected the name of a file"):
        write_text(tmp_path / path, "new")


def test_only_temporary_files_of_dead_processes_of_this_machine_go(tmp_path):
    dead = dead_process()
    left = tmp_path / f".a.csv.{NODE}-{dead}-1.tmp"
    stays = [
        f".a.csv.{NODE}-{os.getpid()}-1.tmp",
        f".a.csv.another{NODE}-{dead}-1.tmp",
        f"a.{NODE}-{dead}-1.tmp",
        ".tmp",
    ]
    for name in (left.name, *stays):
        (tmp_path / name).touch()
    assert remove_dead_temporaries(tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == set(stays)

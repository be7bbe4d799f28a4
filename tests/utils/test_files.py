"""Files that appear whole or not at all despite disk errors, and locks that end with their process."""

import errno
import os
import subprocess
import sys

import pytest

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import atomic_write, check_replaceable, is_locked, locked, write_text


def fill_the_disk(path):
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_error_names_the_file_and_keeps_the_old_content(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "old")
    with pytest.raises(OSError, match="No space left") as caught:
        fill_the_disk(path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError) as caught, atomic_write(path):
        (tmp_path / "image.png").read_bytes()
    assert caught.value.filename == str(tmp_path / "image.png"), "the error names the wrong file"
    for name in ("/dev/null", "."):
        with pytest.raises(UserError, match="Expected the name of a file"):
            write_text(tmp_path / name, "new")


def test_an_input_file_is_not_replaced_under_any_name(tmp_path):
    image = tmp_path / "image.png"
    image.touch()
    (tmp_path / "other.png").touch()
    (tmp_path / "link.csv").symlink_to(image)
    inputs = [tmp_path / "gone.png", image]
    for path in (image, tmp_path / "link.csv"):
        with pytest.raises(UserError, match="is an input file"):
            check_replaceable(path, inputs)
    for name in ("other.png", "new.csv"):
        check_replaceable(tmp_path / name, inputs)


def test_a_lock_is_exclusive_and_ends_with_its_block(tmp_path):
    path = tmp_path / "file"
    assert not is_locked(path)
    with locked(path, wait=False):
        assert is_locked(path)
        with pytest.raises(BlockingIOError, match="Another process"), locked(path, wait=False):
            pass
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)


def test_a_lock_ends_with_a_killed_process(tmp_path):
    code = "import sys\nfrom pathlib import Path\nfrom fedvlp.utils.files import locked\n"
    code += "with locked(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert is_locked(tmp_path / "file")
        process.kill()
    assert not is_locked(tmp_path / "file")


def test_waiting_callers_continue_without_a_lock_if_the_disk_supports_none(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with locked(tmp_path / "file"):
        pass
    (tmp_path / "no folder").touch()
    with locked(tmp_path / "no folder" / "file"):
        pass
    with pytest.raises(PermissionError), locked(tmp_path / "file", wait=False):
        pass

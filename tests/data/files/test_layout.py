"""Trees that nobody can mean."""

import pytest

from fedvlp.data.files.folders import DEEPEST, list_images
from fedvlp.utils.errors import UserError


def test_folders_without_end_are_refused(tmp_path):
    tmp_path.joinpath(*["d"] * 200).mkdir(parents=True)
    with pytest.raises(UserError, match=rf"More than {DEEPEST} folders lie in each other, from d/d/d on"):
        list_images(tmp_path)


def test_deep_folders_are_well(tmp_path):
    folder = tmp_path.joinpath(*["d"] * DEEPEST)
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(b"")
    assert [len(parts) for parts, _ in list_images(tmp_path)] == [DEEPEST + 1]

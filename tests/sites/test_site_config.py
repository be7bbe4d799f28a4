"""What a site decides for itself."""

import pytest

from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.errors import UserError
from tests.helpers.shapes import unchecked


def test_paths_are_relative_to_the_home(tmp_path):
    (tmp_path / "site.yaml").write_text("name: ward 7\nroot: images\n")
    found = read_site_config(tmp_path)
    assert (found.name, found.root, found.cache_dir) == ("ward 7", str(tmp_path / "images"), str(tmp_path / "cache"))
    (tmp_path / "site.yaml").write_text("name: ward 7\nroot: /data\ncache_dir: null\nidle_minutes: 5\n")
    found = read_site_config(tmp_path)
    assert (found.root, found.cache_dir, found.idle_minutes) == ("/data", None, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected options"),
        ("[name]", "Expected options"),
        ("name: a", "required: site.root"),
        ("root: a\nname: 7", "site.name.*Got value: 7"),
        ("name: a\nroot: b\nidle_minute: 3", "option 'idle_minute'"),
        ("name: a\nroot: b\nidle_minutes: 0", "site.idle_minutes"),
        ("name: a/b\nroot: b", "without slashes"),
        ("name: ' '\nroot: b", "without slashes"),
        ("name: a\nroot: b\nnum_workers: -1", "num_workers"),
        ("name: a\nroot: b\non_bad_image: ignore", "site.on_bad_image.*error.*skip"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, message):
    (tmp_path / "site.yaml").write_text(text)
    with unchecked(), pytest.raises(UserError, match=message):
        read_site_config(tmp_path)


def test_a_folder_without_it_is_no_home(tmp_path):
    with pytest.raises(UserError, match=r"Expected site\.yaml in"):
        read_site_config(tmp_path)

"""The options of a site."""

import pytest

from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.errors import UserError


def test_paths_are_relative_to_the_home(tmp_path):
    (tmp_path / "site.yaml").write_text("name: ward 7\nroot: images\npolicy: {signers: [chief.pub]}\n")
    found = read_site_config(tmp_path)
    assert (found.name, found.root, found.cache_dir) == ("ward 7", str(tmp_path / "images"), str(tmp_path / "cache"))
    assert (found.secure_sum, found.policy.signers) == (None, [str(tmp_path / "chief.pub")])
    (tmp_path / "site.yaml").write_text("name: ward 7\nroot: /data\ncache_dir: null\nnum_threads: 5\nsecure_sum: s\n")
    found = read_site_config(tmp_path)
    assert (found.root, found.cache_dir, found.num_threads) == ("/data", None, 5)
    assert found.secure_sum == str(tmp_path / "s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[name]", "Expected options"),
        ("name: a", "it names no images. Add root"),
        ("root: a\nname: 7", "name: Input should be a valid string, found 7. Correct it."),
        ("name: a\nroot: b\nnum_thread: 3", "there is no option num_thread. Did you mean 'num_threads'?"),
        ("name: a\nroot: b\npolicy: {max_round: 3}", "there is no option policy.max_round. Did you mean 'max_rounds'?"),
        ("name: a\nroot: b\npolicy: {not_after: soon}", "policy.not_after: Invalid isoformat string: 'soon'"),
        ("name: a/b\nroot: b", "name: Input should be a name without slashes and control characters, found 'a/b'"),
        ("name: a\nroot: b\non_bad_image: ignore", "on_bad_image: Input should be 'error' or 'skip', found 'ignore'"),
    ],
)
def test_a_wrong_option_is_one_clear_line(tmp_path, text, message):
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_site_config(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

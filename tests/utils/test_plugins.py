"""Registered classes are read from packages' metadata, and imported only when needed."""

import logging
import sys
from pathlib import Path

import pytest

from fedvlp import PromptFL
from fedvlp.utils import plugins
from fedvlp.utils.config_files import find_config
from fedvlp.utils.errors import UserError
from tests.helpers.plugins import install, on_the_path

METHOD = "from fedvlp import PromptFL\nclass {}(PromptFL):\n    pass\n"


@pytest.fixture
def site(tmp_path):
    with on_the_path(tmp_path / "site") as folder:
        yield folder


def test_a_registered_class_is_trusted_only_under_its_own_names(site):
    groups = {"fedvlp.methods": {"Trusted": "trusted_one:Trusted"}}
    files = {"trusted_one/__init__.py": "from trusted_one.inner import Other, Trusted\n"}
    files["trusted_one/inner.py"] = METHOD.format("Trusted") + METHOD.format("Other")
    install(site, "trusted-one", "0.3", groups, files)
    assert "trusted_one" not in sys.modules
    for path in ("Trusted", "trusted_one.Trusted", "trusted_one.inner.Trusted"):
        assert plugins.is_plugin_class(path)
    for path in ("trusted_one.Other", "Other", "elsewhere.Trusted", "trusted_one", "os.system", ""):
        assert not plugins.is_plugin_class(path)
    kind = plugins.registered_classes()["Trusted"].load()
    assert plugins.find_plugins([kind(["a"], "fedvlp-tiny"), PromptFL]) == {
        "trusted-one": {"version": "0.3", "classes": ["Trusted"]}
    }


def test_a_plugin_that_fails_is_named_and_does_not_stop_others(site, caplog):
    groups = {"fedvlp.methods": {"Broken": "broken_one:Broken", "Sound": "sound_one:Sound"}}
    files = {"broken_one.py": "import nowhere_at_all\n", "sound_one.py": METHOD.format("Sound")}
    install(site, "half-one", "0.4", groups, files)
    with caplog.at_level(logging.WARNING):
        plugins.import_plugins()
    assert "half-one could not import Broken (No module named 'nowhere_at_all')" in caplog.text
    assert "sound_one" in sys.modules


def test_configs_of_plugins_are_found_by_name(site):
    names = ("configs/methods/odd", "configs/even")
    files = {"odd_one/__init__.py": "raise SystemExit\n"} | {f"odd_one/{name}.yaml": "model: TRIP\n" for name in names}
    install(site, "odd-one", "1.2", {"fedvlp.configs": {"odd_one": "odd_one.configs"}}, files)
    for name in ("odd", "methods/odd", "odd.yaml"):
        assert Path(find_config(name)) == site / "odd_one" / "configs" / "methods" / "odd.yaml"
    with pytest.raises(UserError, match="Did you mean 'even'"):
        find_config("evn")
    assert "odd_one" not in sys.modules


def test_missing_configs_name_their_package(site):
    install(site, "odd-one", "1.2", {"fedvlp.configs": {"odd_one": "odd_one.nowhere"}}, {"odd_one/__init__.py": ""})
    with pytest.raises(UserError, match=r"odd-one registers configs in odd_one\.nowhere, but there is no such folder"):
        find_config("odd")

"""What packages register is read from their metadata, once, without importing them, and only if it is needed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedvlp.utils import plugins
from fedvlp.utils.config_files import find_config
from fedvlp.utils.errors import UserError
from tests.helpers.plugins import install, on_the_path


@pytest.fixture
def site(tmp_path):
    with on_the_path(tmp_path / "site") as folder:
        yield folder


def test_registrations_name_package_and_version(site):
    groups = {"fedvlp.methods": {"Odd": "odd_one.parts:Odd"}, "fedvlp.data": {"Even": "odd_one:Even"}}
    install(site, "odd-one", "0.3.1", groups, {"odd_one/__init__.py": "raise SystemExit\n"})
    odd = plugins.registered_as("Odd")
    assert (odd.group, odd.value, odd.owner, odd.top) == (
        "fedvlp.methods",
        "odd_one.parts:Odd",
        "odd-one 0.3.1",
        "odd_one",
    )
    assert plugins.registered_as("Even").top == "odd_one"
    assert plugins.registered_as("Odd", ("fedvlp.data",)) is None
    assert plugins.registered_as("odd_one") is None
    assert "odd_one" not in sys.modules


def configs(site, package, *names):
    """Installs a package that has configs of these names."""
    top = package.replace("-", "_")
    files = {f"{top}/configs/{name}.yaml": "model: TRIP\n" for name in names}
    init = {f"{top}/__init__.py": "raise SystemExit\n"}
    install(site, package, "1.2", {"fedvlp.configs": {top: f"{top}.configs"}}, {**init, **files})


def test_configs_of_plugins_are_found_by_name(site):
    configs(site, "odd-one", "methods/odd", "even")
    for name in ("odd", "methods/odd", "odd.yaml"):
        assert Path(find_config(name)) == site / "odd_one" / "configs" / "methods" / "odd.yaml"
    with pytest.raises(UserError, match=r"quickstart.*, even, methods/odd\b.* Did you mean 'even'"):
        find_config("evn")
    assert "odd_one" not in sys.modules


def test_bundled_configs_are_found_without_a_look_at_plugins(site, monkeypatch):
    configs(site, "odd-one", "trip")
    monkeypatch.setattr(plugins, "entry_points", None)
    assert "odd_one" not in find_config("trip")
    with pytest.raises(TypeError):
        find_config("odd")


def test_a_config_of_two_plugins_is_refused_with_both(site):
    configs(site, "odd-one", "odd")
    configs(site, "other-one", "methods/odd", "only")
    with pytest.raises(UserError, match=r"odd-one 1\.2 \(.*odd_one.*\) and other-one 1\.2 \(.*other_one.*\)"):
        find_config("odd")
    assert "other_one" in find_config("methods/odd")
    assert "other_one" in find_config("only")


@pytest.mark.parametrize("value", ["odd_one.nowhere", "missing.configs", "0.configs", "json.configs"])
def test_configs_that_are_not_there_name_their_package(site, value):
    files = {"odd_one/__init__.py": ""}
    install(site, "odd-one", "1.2", {"fedvlp.configs": {"odd_one": value}}, files)
    with pytest.raises(UserError, match=rf"odd-one 1\.2 registers configs in {value}, but there is no such folder"):
        find_config("odd")

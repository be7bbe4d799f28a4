"""Classes of plug-ins are found by short name, trusted alone of their package, and refused with its name."""

from __future__ import annotations

import sys

import pytest

import fedvlp
from fedvlp.runs.plugin_classes import import_all, import_named, is_plugin_class, plugin_class, plugin_names, plugins_of
from fedvlp.runs.trusted_classes import check_classes
from fedvlp.utils import plugins
from fedvlp.utils.errors import UserError
from tests.helpers.plugins import install, on_the_path

MODULE = """
from dataclasses import dataclass
from fedvlp import Aggregator, FederatedDataModule, PromptFL, WeightedMean
from fedvlp.core.strategies import FedAvg

class PluggedMethod(PromptFL):
    pass

class PluggedData(FederatedDataModule):
    pass

class PluggedRule(WeightedMean):
    pass

class PluggedStrategy(FedAvg):
    pass

def wipe():
    raise SystemExit
"""
GROUPS = {
    "fedvlp.methods": {"PluggedMethod": "plugged.parts:PluggedMethod"},
    "fedvlp.data": {"PluggedData": "plugged.parts:PluggedData"},
    "fedvlp.strategies": {"PluggedRule": "plugged:PluggedRule", "PluggedStrategy": "plugged.parts:PluggedStrategy"},
}
FILES = {"plugged/__init__.py": "from plugged.parts import PluggedRule\n", "plugged/parts.py": MODULE}


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    """A package whose plug-ins are as they should be."""
    with on_the_path(tmp_path_factory.mktemp("plugged")) as site:
        install(site, "plugged-in", "1.5", GROUPS, FILES)
        yield site


@pytest.fixture
def site(plugged, tmp_path):
    """A place for packages beside it."""
    with on_the_path(tmp_path / "site") as folder:
        yield folder


def one(site, package, group, name, module, target=None):
    """Installs a package of one module that registers one class."""
    top = package.replace("-", "_")
    groups = {f"fedvlp.{group}": {name: f"{top}:{target or name}"}}
    install(site, package, "0.4", groups, {f"{top}.py": module})


def test_classes_of_all_groups_are_found(plugged):
    names = {"PluggedData", "PluggedMethod", "PluggedRule", "PluggedStrategy"}
    assert names <= set(plugin_names())  # others may be installed where tests run
    for name in names:
        assert plugin_class(name).__name__ == name
    assert plugin_class("TRIP") is None
    assert "PluggedMethod" not in fedvlp.__all__


def test_only_what_is_registered_is_trusted(plugged, tmp_path):
    trusted = ["PluggedMethod", "plugged.parts.PluggedMethod", "plugged.PluggedRule", "plugged.parts.PluggedRule"]
    for path in trusted:
        assert is_plugin_class(path)
        check_classes(tmp_path, {"class_path": path})
    others = [
        "plugged.parts.wipe",
        "elsewhere.PluggedMethod",
        "plugged.PluggedMethod",
        "plugged.parts",
        "plugged.odd.PluggedRule",
    ]
    for path in others:
        assert not is_plugin_class(path)
        with pytest.raises(UserError, match=r"install the package that registers it, or pass --allow"):
            check_classes(tmp_path, {"class_path": path})


def test_own_names_are_known_without_a_look_at_plugins(monkeypatch):
    plugins.registrations.cache_clear()
    monkeypatch.setattr(plugins, "entry_points", None)
    import_named({"model": {"class_path": "TRIP"}, "data": ["fedvlp.data.PACS", "cpu", "a photo", 3, None, "os.path"]})
    with pytest.raises(TypeError):
        import_named([{"class_path": "Elsewhere"}])


def test_a_class_is_imported_where_it_is_named(site):
    one(site, "lazy-one", "methods", "Lazy", "from fedvlp import PromptFL\nclass Lazy(PromptFL): pass\n")
    import_named({"data": {"class_path": "elsewhere.Lazy"}, "model": "Lazy One"})
    assert "lazy_one" not in sys.modules
    import_named({"trainer": {"callbacks": [{"class_path": "lazy_one.Lazy"}]}})
    assert "lazy_one" in sys.modules


def test_two_packages_of_one_name_are_both_named(site):
    for package in ("first-one", "second-one"):
        one(site, package, "methods", "Twice", "from fedvlp import PromptFL\nclass Twice(PromptFL): pass\n")
    expected = r"Twice is registered by first-one 0\.4 \(first_one:Twice\) and second-one 0\.4 \(second_one:Twice\)"
    with pytest.raises(UserError, match=expected):
        plugin_class("Twice")
    assert plugin_class("PluggedMethod"), "others go on"


def test_a_package_that_takes_a_name_of_fedvlp_is_refused_with_both(site):
    groups = {"fedvlp.methods": {"Newer": "newer:Newer", "TRIP": "newer:TRIP"}}
    install(site, "newer-one", "0.4", groups, {"newer.py": "raise SystemExit\n"})
    expected = (
        r"newer-one 0\.4 registers TRIP \(newer:TRIP\), a name of fedvlp \S+'s own fedvlp\.methods\.trip\.trip\.TRIP"
    )
    with pytest.raises(UserError, match=expected):
        plugin_class("Newer")
    with pytest.raises(UserError, match=expected):
        is_plugin_class("newer.TRIP")
    assert plugin_class("PluggedMethod"), "others go on"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import nowhere_at_all", r"ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "AttributeError"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_and_others_go_on(site, module, why):
    one(site, "broken-one", "methods", "Broken", f"{module}\n")
    with pytest.raises(
        UserError, match=rf"broken-one 0\.4 registers Broken, but .*broken_one:Broken fails \({why}.*uninstall"
    ):
        plugin_class("Broken")
    (problem,) = import_all()
    assert "broken-one" in problem


@pytest.mark.parametrize(
    ("group", "target", "expected"),
    [
        ("methods", "PluggedData", "FederatedModule"),
        ("data", "PluggedMethod", "FederatedDataModule"),
        ("strategies", "PluggedData", "Aggregator or Strategy"),
        ("methods", "wipe", "FederatedModule"),
    ],
)
def test_what_is_in_the_wrong_group_is_refused(site, group, target, expected):
    one(site, "wrong-one", group, "Wrong", "from plugged.parts import *\n", target)
    with pytest.raises(UserError, match=rf"wrong-one 0\.4 registers wrong_one:{target} in .*subclass of {expected} is"):
        plugin_class("Wrong")


def test_a_short_name_is_the_name_of_the_class(site):
    one(site, "wrong-one", "methods", "Wrong", "from plugged.parts import *\n", "PluggedMethod")
    with pytest.raises(UserError, match=r"wrong-one 0\.4 registers the class PluggedMethod as Wrong"):
        plugin_class("Wrong")


def test_a_run_knows_whose_its_classes_are(plugged):
    rule = plugin_class("PluggedRule")()
    strategy = plugin_class("PluggedStrategy")()
    others = [fedvlp.WeightedMean(), 3, rule]
    assert plugins_of([strategy, *others]) == {
        "plugged-in": {"version": "1.5", "classes": ["PluggedStrategy", "PluggedRule"]}
    }
    assert plugins_of(others[:2]) == {}

"""Configs by name, and among the arguments of a command."""

from functools import cache
from pathlib import Path

import open_clip
import pytest

from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.utils.config_files import bundled_configs, find_config, names_a_method, sort_options
from fedvlp.utils.errors import UserError


def test_configs_are_found_by_name():
    assert "quickstart" in bundled_configs()
    assert find_config("trip") == find_config("methods/trip") == find_config("methods/trip.yaml")
    assert Path(find_config("trip")).is_file()
    with pytest.raises(UserError, match="Did you mean 'quickstart'"):
        find_config("quikstart")
    with pytest.raises(UserError, match=r"icon_domains_30_clients[^?]*\.$"):
        find_config("xyz")
    assert names_a_method(find_config("trip"))
    assert not names_a_method(find_config("data/folders"))


def test_a_bundled_config_is_hidden_only_by_a_file_with_a_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "methods").mkdir()
    for name in ("quickstart", "methods/trip", "mine", "trip.yaml"):
        (tmp_path / name).write_text("{}")
    for name in ("quickstart", "methods/trip"):
        assert find_config(name) == str(bundled_configs()[name])
    for name in ("mine", "trip.yaml", "./quickstart", str(tmp_path / "quickstart")):
        assert find_config(name) == name


def test_the_order_of_options_does_not_matter():
    """Configs come first, and a class before its options; a second callback stays where it is."""
    arguments = [
        *("--model.optimizer.lr", "-1", "--trainer.callbacks=A", "--trainer.callbacks.x=2", "--trainer.callbacks=B"),
        *("--config=b", "--model.optimizer=Adam", "--config=a", "--model=M", "--images", "c", "d"),
    ]
    assert sort_options(arguments) == [
        *("--config=b", "--config=a", "--model=M", "--model.optimizer=Adam", "--model.optimizer.lr=-1"),
        *("--trainer.callbacks=A", "--trainer.callbacks.x=2", "--trainer.callbacks=B", "--images", "c", "d"),
    ]


@cache
def parsed(*configs):
    return ParsingCLI.make([f"--config={config}" for config in configs]).config.as_dict()


@pytest.mark.parametrize("name", [name for name in bundled_configs() if name.startswith(("add_ons/", "aggregators/"))])
def test_a_method_and_an_add_on_or_aggregator_are_two_configs(name):
    plain = parsed("methods/promptfl", "data/icon_domains")
    changed = parsed("methods/promptfl", name, "data/icon_domains")
    assert changed["model"] == plain["model"]
    chosen = [
        name
        for group in ("local", "server")
        for name, value in changed["trainer"][group].items()
        if value != plain["trainer"][group][name]
    ]
    assert chosen in (["add_ons"], ["aggregation"])


@pytest.mark.parametrize("name", [name for name in bundled_configs() if name.startswith("clip/")])
def test_a_method_and_a_clip_are_two_configs(name):
    plain = parsed("methods/promptfl", "data/icon_domains")
    other = parsed("methods/promptfl", name, "data/icon_domains")
    clip = other["model"]["init_args"]["clip"]
    is_published = (clip["name"], clip["pretrained"]) in open_clip.list_pretrained()
    assert is_published or clip["name"].startswith("hf-hub:")
    other["model"]["init_args"]["clip"] = plain["model"]["init_args"]["clip"]
    assert other["model"] == plain["model"]
    assert other["trainer"] == plain["trainer"]

"""Configs by name, and among the arguments of a command."""

from pathlib import Path

import open_clip
import pytest

import fedvlp
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.utils.config_files import (
    bundled_configs,
    configs_folder,
    find_config,
    names_a_method,
    read_yaml,
    sort_options,
)
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


OPTION = {
    "add_ons": ("trainer", "local", "add_ons"),
    "aggregators": ("trainer", "server", "aggregation"),
    "clip": ("model", "init_args", "clip"),
}
"""The only option that the configs of a folder set, so that they can follow a method's config."""


@pytest.mark.parametrize("folder", OPTION)
def test_configs_of_a_folder_set_one_option(folder):
    for config in (configs_folder() / folder).glob("*.yaml"):
        value = read_yaml(config)
        for name in OPTION[folder]:
            assert value.keys() == {name}, config
            value = value[name]
        if folder == "clip":
            is_published = (value["name"], value["pretrained"]) in open_clip.list_pretrained()
            assert is_published or value["name"].startswith("hf-hub:")
        else:
            assert hasattr(fedvlp, value)


def test_a_method_and_three_configs_keep_everything_else():
    plain, changed = (
        ParsingCLI.make([f"--config={name}" for name in ("promptfl", *names, "data/icon_domains")]).config.as_dict()
        for names in ([], ["add_ons/moon", "aggregators/fed_adam", "clip/siglip2_base"])
    )
    for *path, option in OPTION.values():
        before, after = plain, changed
        for name in path:
            before, after = before[name], after[name]
        assert before.pop(option) != after.pop(option)
    assert all(changed[section] == plain[section] for section in ("model", "data", "trainer"))

"""``fedvlp site`` shows a site's process; ``fedvlp deploy init`` writes an app that Flower takes."""

from __future__ import annotations

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.sites import commands as deploy

CONFIG = ["--config", "methods/promptfl", "--config", "data/icon_domains", "--model.clip.name=fedvlp-tiny"]
FILES = ("config.yaml", "README.md", "fedvlp_server.py", "pyproject.toml")


@pytest.fixture(autouse=True)
def as_if_installed(monkeypatch):
    """What the command writes does not depend on Flower, so that it is tested without, too."""
    monkeypatch.setattr(deploy, "find_spec", lambda name: object())


def test_writes_what_fit_would_train(tmp_path, capsys):
    app = tmp_path / "apps" / "first"
    assert main(["deploy", "init", str(app), *CONFIG, "--trainer.rounds", "3"]) == 0
    assert {path.name for path in app.iterdir()} == {*FILES}
    printed = capsys.readouterr().out.splitlines()
    assert printed[:-1] == [str(app / name) for name in FILES]
    assert f"flwr run {app} " in printed[-1]
    config = yaml.safe_load((app / "config.yaml").read_text(encoding="utf-8"))
    assert config["trainer"]["rounds"] == 3
    assert config["model"]["class_path"] == "fedvlp.PromptFL"
    assert config["model"]["init_args"]["clip"]["name"] == "fedvlp-tiny"
    assert config["data"]["class_path"] == "fedvlp.IconDomains"
    assert len((app / "README.md").read_text(encoding="utf-8").splitlines()) == 3


def test_flower_itself_takes_the_app(tmp_path):
    check = pytest.importorskip("flwr.cli.config_utils", reason="needs the extra `flower`")
    assert main(["deploy", "init", str(tmp_path / "app"), *CONFIG]) == 0
    config, warnings = check.load_and_validate(tmp_path / "app" / "pyproject.toml")
    assert config["project"]["name"] == "fedvlp-promptfl"
    assert not warnings


def test_a_missing_extra_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(deploy, "find_spec", lambda name: None)
    assert main(["deploy", "init", str(tmp_path / "app"), *CONFIG]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "fedvlp[flower]"' in line
    assert not (tmp_path / "app").exists()


def test_what_is_in_the_folder_stays(tmp_path, capsys):
    (tmp_path / "note.txt").write_text("mine", encoding="utf-8")
    for folder in (tmp_path, tmp_path / "note.txt"):
        assert main(["deploy", "init", str(folder), *CONFIG]) == 1
        assert "new or empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_config_is_needed_and_must_be_one(tmp_path, capsys):
    assert main(["deploy", "init", str(tmp_path / "app")]) == 1
    assert "--config methods/promptfl" in capsys.readouterr().err
    assert main(["deploy", "init", str(tmp_path / "app"), *CONFIG, "--trainer.round=3"]) == 2
    assert "--trainer.round: " in capsys.readouterr().err
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize("action", ["start", "stop", "status"])
def test_a_folder_that_is_no_sites(tmp_path, capsys, action):
    assert main(["site", action, str(tmp_path)]) == 1
    assert "Expected site.yaml" in capsys.readouterr().err

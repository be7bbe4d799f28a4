"""``fedvlp site`` manages a site, and ``fedvlp deploy init`` writes an app for Flower."""

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.sites import commands as deploy

CONFIG = ["--config", "methods/promptfl", "--config", "data/icon_domains", "--model.clip.name=fedvlp-tiny"]
FILES = ("config.yaml", "README.md", "fedvlp_server.py", "pyproject.toml")


@pytest.fixture(autouse=True)
def flower_seems_installed(monkeypatch):
    """Pretend that Flower is installed, because the written files do not depend on it."""
    monkeypatch.setattr(deploy, "find_spec", lambda name: object())


def test_the_app_contains_the_config_of_fit(tmp_path, capsys):
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


def test_flower_accepts_the_app(tmp_path):
    check = pytest.importorskip("flwr.cli.config_utils", reason="needs the extra `flower`")
    assert main(["deploy", "init", str(tmp_path / "app"), *CONFIG]) == 0
    config, warnings = check.load_and_validate(tmp_path / "app" / "pyproject.toml")
    assert config["project"]["name"] == "fedvlp-promptfl"
    assert not warnings


def test_a_rejected_command_writes_no_files(tmp_path, monkeypatch, capsys):
    (tmp_path / "note.txt").write_text("mine", encoding="utf-8")
    app = str(tmp_path / "app")
    for words, code, message in (
        ([str(tmp_path), *CONFIG], 1, "new or empty folder"),
        ([str(tmp_path / "note.txt"), *CONFIG], 1, "new or empty folder"),
        ([app], 1, "--config methods/promptfl"),
        ([app, *CONFIG, "--trainer.round=3"], 2, "--trainer.round: "),
    ):
        assert main(["deploy", "init", *words]) == code
        assert message in capsys.readouterr().err
    monkeypatch.setattr(deploy, "find_spec", lambda name: None)
    assert main(["deploy", "init", app, *CONFIG]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "fedvlp[flower]"' in line
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_folder_that_is_no_site_is_rejected(tmp_path, capsys):
    for action in ("stop", "status", "ledger"):
        assert main(["site", action, str(tmp_path)]) == 1
        assert "Expected the site's options" in capsys.readouterr().err

"""The pages of real sites and their policy: options, files and commands match the code."""

import pytest
import yaml

from fedvlp.commands.cli import main
from fedvlp.sites import commands as deploy
from fedvlp.sites.policy import Policy
from fedvlp.sites.site_config import SiteConfig, read_site_config
from tests.helpers.documents import ROOT, Document, names

PAGE = Document(ROOT / "docs" / "sites.md")
POLICY = Document(ROOT / "docs" / "policy.md")
SITE, SITES = PAGE.blocks("yaml")


def test_every_option_of_a_site_is_explained():
    tables = ((PAGE, "| option of `site.yaml` |", SiteConfig), (POLICY, "| option of `policy` |", Policy))
    for page, head, options in tables:
        named = [name for row in page.rows(head) for name in names(row[0])]
        assert named == [*options.model_fields]


def test_site_files_are_valid(tmp_path):
    (tmp_path / "site.yaml").write_text(SITE, encoding="utf-8")
    assert read_site_config(tmp_path).name == "north"
    (tmp_path / "site.yaml").write_text(POLICY.blocks("yaml")[0], encoding="utf-8")
    assert read_site_config(tmp_path).policy.max_run_bytes == 5_000_000


def test_the_app_can_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deploy, "find_spec", lambda name: object())
    (tmp_path / "sites.yaml").write_text(SITES, encoding="utf-8")
    (words,) = PAGE.commands("init")
    assert main(words[1:]) == 0
    config = yaml.safe_load((tmp_path / "skin" / "config.yaml").read_text(encoding="utf-8"))
    assert config["data"]["init_args"]["sites"] == ["north", "south", "west"]
    assert config["trainer"]["server"]["min_clients"] == 2


def test_every_row_of_the_troubleshooting_is_a_fault():
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    from experiments.sites.faults import FAULTS

    # One fault makes two rows.
    assert 10 <= len(PAGE.rows("## Troubleshooting")) <= len(FAULTS) + 1

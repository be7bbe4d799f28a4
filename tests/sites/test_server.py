"""Configs that the server rejects before contacting any site, and the files that it writes."""

import json

import pytest

from fedvlp.sites.server import read_sites_file, serve
from fedvlp.utils.errors import UserError
from tests.helpers.images import DOMAINS
from tests.helpers.sites import Deployment, InProcess, in_process, method_config, sites_config, write_config


def refused(path, tmp_path, capsys):
    assert serve(path, InProcess({}), tmp_path / "deployed") == 1
    return capsys.readouterr().err


def test_errors_in_a_config_are_explained(tmp_path, image_root, capsys):
    config = method_config("promptfl")
    path = write_config(tmp_path / "c.yaml", config, "fedvlp.DomainFolders", root=str(image_root), cache_dir=None)
    assert "Expected data of fedvlp.sites.data.SitesData" in refused(path, tmp_path, capsys)
    config["model"]["class_path"] = "Nothing"
    path = sites_config(tmp_path / "c.yaml", config, DOMAINS)
    assert "no class 'Nothing' was found" in refused(path, tmp_path, capsys)
    path = sites_config(tmp_path / "c.yaml", method_config("centred_means"), DOMAINS)
    assert "CentredMeans adapts to test images, which sites do not support" in refused(path, tmp_path, capsys)
    path = write_config(tmp_path / "c.yaml", method_config("promptfl"), "fedvlp.sites.data.SitesData")
    assert "sites" in refused(path, tmp_path, capsys)


def test_the_run_folders_config_repeats_the_run(tmp_path, image_root):
    deployment = Deployment(tmp_path, image_root)
    assert deployment.serve(method_config("promptfl", rounds=1), into="one") == 0
    assert serve(deployment.run("one") / "config.yaml", in_process(deployment.homes), tmp_path / "two") == 0
    one, two = (deployment.run(name) / "prompts.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_facts_of_sites_are_restored(tmp_path):
    with pytest.raises(UserError, match=r"is not a run of sites: it has no sites\.json"):
        read_sites_file(tmp_path)
    facts = {"classes": ["x"], "counts": {"train": 3}, "images": "i", "split": "s", "versions": {"fedvlp": "1"}}
    (tmp_path / "sites.json").write_text(json.dumps({"run": "abc", "sites": {"ink": facts}}))
    run, sites = read_sites_file(tmp_path)
    assert run == "abc"
    assert sites["ink"].model_dump() == facts

import shutil

import pytest

import fedvlp
from fedvlp.catalog.description import DATA_SETS, DESCRIPTIONS
from fedvlp.commands.cli import main
from fedvlp.tools import data as command
from tests.helpers.benchmark_layouts import LAYOUTS
from tests.helpers.hub import Hub
from tests.helpers.hub_data_sets import as_uploaded, upload

PACS = DATA_SETS["PACS"]
PACS_FILE = "data/train-00000-of-00001.parquet"


@pytest.fixture
def pacs_hub(monkeypatch):
    """Make a hub with a small PACS, and replace the published description by its own."""
    small = as_uploaded(PACS)
    monkeypatch.setattr(command, "DESCRIPTIONS", (small, *DESCRIPTIONS[1:]))
    monkeypatch.setattr(fedvlp.PACS, "description", small)
    hub = Hub(monkeypatch)
    upload(hub, "PACS")
    return hub


def test_the_list_fits_a_terminal_and_names_every_data_set(capsys):
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 40
    assert max(map(len, printed.splitlines())) <= 100
    for description in DESCRIPTIONS:
        assert description.name in printed
        assert description.config in printed
    assert "586,575" in printed


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("VLCS JigenDG", "official train/crossval/test split"),
        ("SUN397 torchvision", "108,754 published"),
        ("ImageNet CoOp", "licence, as far as known: "),
    ],
)
def test_check_reports_missing_parts_of_a_data_set(tmp_path, capsys, layout, expected):
    name, write, _ = LAYOUTS[layout]
    assert main(["data", "check", name, f"--root={write(tmp_path)}"]) == 1
    printed = capsys.readouterr().out
    assert f"This is not {name} as it was published. It is available from" in printed
    assert expected in printed
    assert "problem: " in printed
    assert "can't be read" not in printed
    assert "two domains" not in printed
    assert len(printed.splitlines()) < 32


def test_check_of_own_images(capsys, image_root, tmp_path):
    assert main(["data", "check", "folders", f"--root={image_root}"]) == 0
    assert "These images can be used." in capsys.readouterr().out
    assert main(["data", "check", "class_folders", f"--root={image_root / 'ink'}"]) == 0
    assert capsys.readouterr().out.splitlines()[4].split()[0] == "ink"
    shutil.copytree(image_root, tmp_path / "images")
    (tmp_path / "images/ink/star/0.png").write_bytes(b"no image")
    assert main(["data", "check", "folders", f"--root={tmp_path / 'images'}"]) == 1
    assert "problem: 1 images can't be read: ink/star/0.png" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "domainet", "--root=."], "Did you mean 'domain_net'?"),
        (["check", "data/pacs", "--root=."], "PACS is available from the authors' project page"),
        (["check", "folders", "--root=.", "--several_labels"], "Only tables support --several_labels and --columns"),
        (["check", "pacs", "--root=."], "Expected a folder for each domain of PACS (art_painting, cartoon, photo"),
        (["download", "vlcs"], "VLCS can't be downloaded with a command; it is available from the DomainBed"),
        (["download", "folders"], "your own images need no download"),
    ],
)
def test_wrong_names_and_roots_are_explained(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(["data", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_download_uses_the_configs_folder_and_can_be_checked(pacs_hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "download", "pacs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "48 images in datasets/pacs; their counts match the published ones"
    assert lines[-1] == "Train on it: fedvlp fit --config methods/trip --config data/pacs"
    assert main(["data", "check", "pacs", "--root", "datasets/pacs"]) == 0
    assert "This is PACS as it was published." in capsys.readouterr().out
    assert main(["data", "download", "pacs", "--root", "datasets/pacs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PACS is in datasets/pacs already: flwrlabs/pacs at 3941")
    assert lines[1].endswith("--config data/pacs --data.root datasets/pacs")


def test_an_interrupted_download_says_how_to_resume(pacs_hub, tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedvlp.data.benchmarks.download.write_images", stop)
    assert main(["data", "download", "pacs", f"--root={tmp_path / 'images'}"]) == 130
    assert capsys.readouterr().err == "fedvlp: stopped; run the same command again to resume or restart\n"


def test_a_sweep_downloads_before_its_runs(pacs_hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--config=data/pacs", "--models=promptfl,zero_shot", "--seeds=0", "--dry_run"]
    options += ["--", "--data.download=true"]
    assert main(["sweep", *options, "--model.clip.name=fedvlp-tiny"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert pacs_hub.sent[PACS_FILE] == len(pacs_hub.repositories["flwrlabs/pacs"].files[PACS_FILE])

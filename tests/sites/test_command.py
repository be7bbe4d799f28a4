"""The command ``fedvlp site``."""

import pytest

from fedvlp.commands.cli import main
from tests.helpers.sites import make_site


def test_status_of_a_site_whose_process_does_not_run(tmp_path, capsys):
    home = make_site(tmp_path / "ink", "ink", tmp_path)
    assert main(["site", "status", str(home)]) == 1
    assert capsys.readouterr().out == "state stopped\n"
    assert main(["site", "stop", str(home)]) == 0
    assert capsys.readouterr().out == "there was none\n"


def test_start_look_and_stop(tmp_path, capsys):
    home = make_site(tmp_path / "ink", "ink", tmp_path)
    try:
        assert main(["site", "start", str(home)]) == 0
        assert "process" in capsys.readouterr().out
        assert main(["site", "status", str(home)]) == 0
    finally:
        assert main(["site", "stop", str(home)]) == 0
    assert capsys.readouterr().out.endswith("stopped\n")


def test_a_folder_that_is_no_sites(tmp_path, capsys):
    assert main(["site", "status", str(tmp_path)]) == 1
    assert "Expected site.yaml" in capsys.readouterr().err


def test_an_unknown_action(tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["site", "begin", str(tmp_path)])
    assert caught.value.code == 2

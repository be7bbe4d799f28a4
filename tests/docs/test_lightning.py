"""The page for those who come from Lightning: tables as the code is, commands that are accepted, code that runs."""

from __future__ import annotations

import inspect
import re

import lightning
import pytest

from docs.lightning import COMMAND, PAGE, main, tables, with_tables
from fedvlp.commands.lightning_cli import ParsingCLI
from fedvlp.training.lightning_hooks import CALLED
from fedvlp.utils.config_files import with_config_paths
from tests.helpers.documents import Document
from tests.helpers.toy_federation import Linear, Points, federation

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    assert with_tables(TEXT) == TEXT, f"docs/lightning.md is older than the code: run `{COMMAND}`"
    hooks = re.findall(r"^\| `(\w+)`", tables()["hooks"], re.MULTILINE)
    assert hooks == list(CALLED)
    options = re.findall(r"^\| `(\w+)`", tables()["options"], re.MULTILINE)
    assert options == list(inspect.signature(lightning.Trainer).parameters)


def test_check_says_what_to_run(capsys, monkeypatch, tmp_path):
    page = tmp_path / "lightning.md"
    page.write_text(TEXT.replace("| `teardown` |", "| `tear_down` |"), encoding="utf-8")
    monkeypatch.setattr("docs.lightning.PAGE", page)
    assert main(["--check"]) == 1
    assert f"run {COMMAND}" in capsys.readouterr().out
    assert main([]) == 0
    assert page.read_text(encoding="utf-8") == TEXT
    with pytest.raises(ValueError, match="one pair of marks"):
        with_tables("no marks")


FITS = [words for words in Document(PAGE).commands("fedvlp") if words[1] == "fit" and "--config" in words]


@pytest.mark.parametrize("words", FITS, ids=lambda words: words[5])
def test_commands_are_accepted(words):
    command = ParsingCLI(run=False, args=with_config_paths(words[2:]), save_config_callback=None)
    given = command.config.trainer.logger or command.config.trainer.callbacks
    assert given.class_path.endswith(words[5])


def test_the_example_ends_a_run(tmp_path):
    (code,) = Document(PAGE).blocks("python")
    names = {}
    exec(code, names)
    run = federation(tmp_path, rounds=5, callbacks=[names["StopAt"](60.0)], default_callbacks=False)
    run.evaluate = lambda *state: {"validation": 30.0 + 20.0 * run.current_epoch}
    run.fit(Linear(), Points())
    assert len(run.run_state.history) == 3

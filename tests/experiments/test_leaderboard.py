"""Our entries are what their summaries say, and their page ranks them all."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedvlp
from experiments.leaderboard.collect import ENTRIES, METHODS, collect
from experiments.options import parse
from experiments.oracle.run import runs_of, study_parser
from fedvlp.commands.cli import main
from tests.helpers.study_runs import finish

OURS = sorted(path.parent for path in ENTRIES.glob("*/*/photo-0/summary.json"))
"""One of each method: all of them take a minute, and are the same in all but the held-out domain."""


@pytest.mark.usefixtures("home")
def test_entries_are_verified_and_ranked(tmp_path, capsys):
    page = tmp_path / "index.html"
    assert main(["verify", *map(str, OURS), "--output", str(page)]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count(": verified: ") == len(OURS) == len(METHODS)
    text = page.read_text()
    runs = fedvlp.load_runs(OURS)
    # Zero-shot CLIP is the same in all entries.
    runs.loc[runs["row"] == "zero-shot CLIP", "method"] = "zero-shot CLIP"
    held_out = runs[
        (runs["row"] != "best on source validation") & (runs["role"] == "held_out") & (runs["domain"] != "")
    ]
    ranked = held_out.groupby("method")["accuracy"].mean().sort_values(ascending=False).index
    table = text.partition("</table>")[0].replace("_", "").casefold()
    places = [table.index(f'row">{name.casefold()}<') for name in ranked]
    assert places == sorted(places)


def test_entries_are_made_of_runs(tmp_path):
    choice = parse(study_parser(""), ["--held_out", "photo", "--seeds", "4", "--output", str(tmp_path / "runs")])
    for config in METHODS:
        (run,) = runs_of(config, choice)[0]
        finish(run, 50.0)
        (folder,) = (Path(choice.setting.output) / run.name).glob("*/")
        (folder / "prompts.safetensors").write_bytes(b"prompts")
        (folder / "config.yaml").write_text("trainer: {default_root_dir: /home/ann/runs}")
    entries = collect(choice, tmp_path / "entries")
    assert entries[0] == tmp_path / "entries/styled_shapes/promptfl/photo-4"
    for entry in entries:
        assert {path.name for path in entry.iterdir()} == {"config.yaml", "prompts.safetensors", "summary.json"}
        assert "ann" not in (entry / "config.yaml").read_text()
    assert collect(choice, tmp_path / "entries") == entries

from __future__ import annotations

import json

import pytest

from fedvlp.tools.explain.artifacts import Artifact, write_artifacts
from fedvlp.utils.errors import UserError


def make_artifact(file, caption="what it is", content=b"1"):
    return Artifact(file, "title", caption, "seen", content)


def listed(folder):
    return [entry["file"] for entry in json.loads((folder / "captions.json").read_text(encoding="utf-8"))]


def test_replaces_its_own_kinds_and_keeps_the_others(tmp_path):
    folder = tmp_path / "run" / "explanations"
    first = {
        "overlays": [make_artifact("overlays_1.png"), make_artifact("overlays_2.png")],
        "tsne": [make_artifact("tsne.png")],
    }
    assert [path.name for path in write_artifacts(folder, first)] == ["overlays_1.png", "overlays_2.png", "tsne.png"]
    assert listed(folder) == ["overlays_1.png", "overlays_2.png", "tsne.png"]
    (folder / "overlays_mine.txt").write_text("mine")
    write_artifacts(
        folder, {"overlays": [make_artifact("overlays.png", content=b"2"), make_artifact("overlays.csv", caption="")]}
    )
    assert listed(folder) == ["tsne.png", "overlays.png"]
    names = {path.name for path in folder.iterdir()}
    assert names == {"captions.json", "overlays.csv", "overlays.png", "overlays_mine.txt", "tsne.png"}
    assert (folder / "overlays.png").read_bytes() == b"2"
    (entry,) = [entry for entry in json.loads((folder / "captions.json").read_text()) if "overlays" in entry["file"]]
    assert entry == {"file": "overlays.png", "title": "title", "caption": "what it is", "alt": "seen"}


def test_captions_of_files_that_are_gone_are_left_out(tmp_path):
    write_artifacts(tmp_path, {"tsne": [make_artifact("tsne.png")]})
    (tmp_path / "tsne.png").unlink()
    write_artifacts(tmp_path, {"words": [make_artifact("words.png")]})
    assert listed(tmp_path) == ["words.png"]


@pytest.mark.parametrize("damage", ["{", "[1]", '[{"title": "no file"}]'])
def test_damaged_captions_are_reported_before_anything_is_written(tmp_path, damage):
    (tmp_path / "captions.json").write_text(damage)
    with pytest.raises(UserError, match="damaged"):
        write_artifacts(tmp_path, {"tsne": [make_artifact("tsne.png")]})
    assert [path.name for path in tmp_path.iterdir()] == ["captions.json"]

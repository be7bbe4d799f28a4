"""``fedvlp explain``: files for trained runs of several methods, and errors."""

import csv
import json
import shutil

import pytest
import yaml
from matplotlib.figure import Figure

from fedvlp.clip import load_clip
from fedvlp.commands.cli import main
from fedvlp.results.figures import Picture, write_explanations
from fedvlp.runs.checkpoint import load_deployed
from fedvlp.tools.explain.words import nearest, token_embeddings
from tests.helpers.runs import short_fit


@pytest.fixture(scope="module")
def trip_run(image_root, tmp_path_factory):
    """Train TRIP for one round and return the run folder."""
    root = tmp_path_factory.mktemp("trained")
    options = ["--trainer.rounds=1", "--model.num_experts=2", "--model.prompt_length=3"]
    assert main(["fit", "--config=methods/trip", *short_fit(image_root, root), *options]) == 0
    (folder,) = root.glob("runs/*/*")
    return folder


@pytest.fixture
def learned_words(monkeypatch):
    """Treat the tiny CLIP as a CLIP with learned words."""
    monkeypatch.setattr("fedvlp.tools.explain.command.BUNDLED", {})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_run_is_explained_by_all_pictures(trip_run, tmp_path, capsys):
    folder = shutil.copytree(trip_run, tmp_path / "run")
    assert main(["explain", f"--ckpt_path={folder}", "--num_images=2"]) == 0
    files = ["captions.json", "experts.png", "overlays.png", "predictions.png"]
    assert names(folder / "explanations") == files
    printed = capsys.readouterr().out
    assert "words left out: fedvlp-tiny has learned few words" in printed
    assert all(str(folder / "explanations" / name) in printed for name in files)
    captions = json.loads((folder / "explanations" / "captions.json").read_text(encoding="utf-8"))
    assert [entry["file"] for entry in captions] == ["predictions.png", "overlays.png", "experts.png"]
    assert all(entry.keys() == {"file", "title", "caption", "alt"} and all(entry.values()) for entry in captions)
    assert captions[1]["alt"].count("maps for") == 2


def test_words_come_from_the_trained_prompts_and_need_no_data(trip_run, tmp_path):
    folder = shutil.copytree(trip_run, tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["data"]["init_args"]["root"] = "/nowhere"
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    assert main(["explain", f"--ckpt_path={folder / 'prompts_best.safetensors'}", "--what=words"]) == 0
    experts = load_deployed(folder / "prompts_best.safetensors")[0]["experts"]
    distances, tokens = nearest(experts[1], token_embeddings(load_clip("fedvlp-tiny")), 1)
    rows = csv.DictReader((folder / "explanations" / "words.csv").read_text(encoding="utf-8").splitlines())
    found = [row for row in rows if row["prompt"] == "expert 2" and row["rank"] == "1"]
    assert [int(row["token"]) for row in found] == tokens[:, 0].tolist()
    assert [float(row["distance"]) for row in found] == pytest.approx(distances[:, 0].tolist(), abs=1e-5)


def test_prompts_without_a_run_need_images(trip_run, image_root, tmp_path, capsys):
    prompts = shutil.copy(trip_run / "prompts.safetensors", tmp_path)
    image = str(image_root / "ink" / "star" / "0.png")
    assert main(["explain", "--ckpt_path", prompts, "--images", image, image, "--what=experts"]) == 0
    assert names(tmp_path / "explanations") == ["captions.json", "experts.png"]
    assert main(["explain", "--ckpt_path", prompts, "--what=experts"]) == 1
    assert "Pass --images" in capsys.readouterr().err


def test_a_run_of_a_method_with_one_prompt_shows_no_experts(copied_run, capsys, learned_words):
    assert main(["explain", f"--ckpt_path={copied_run}", "--num_images=1"]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" left out")[0] for line in printed.splitlines() if "left out" in line] == ["experts"]
    made = {path.name for path in (copied_run / "explanations").glob("*.png")}
    assert made == {"predictions.png", "overlays.png"}
    rows = csv.DictReader((copied_run / "explanations" / "words.csv").read_text(encoding="utf-8").splitlines())
    assert {row["prompt"] for row in rows} == {"prompt"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what=experts"], "PromptFL with these options does not route tokens to experts"),
        (["--what=words,wrods"], "wrods"),
        (["--what=overlays", "--toward=cat"], "circle, square, star"),
        (["--images=missing.png"], "does not exist"),
    ],
)
def test_wrong_options_write_no_files(finished_run, tmp_path, capsys, arguments, message):
    assert main(["explain", f"--ckpt_path={finished_run}", f"--output={tmp_path / 'out'}", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pictures_of_the_same_kind_are_replaced_and_others_stay(tmp_path):
    def listed_files():
        return [entry["file"] for entry in json.loads((tmp_path / "captions.json").read_text(encoding="utf-8"))]

    picture = Picture(Figure(figsize=(1, 1)), "title", "caption", "description")
    first = {"overlays": {"overlays_1.png": picture, "overlays_2.png": picture}, "experts": {"experts.png": picture}}
    assert [path.name for path in write_explanations(tmp_path, first)] == listed_files()
    write_explanations(tmp_path, {"overlays": {"overlays.png": picture, "overlays.csv": "1,2"}})
    assert listed_files() == ["experts.png", "overlays.png"]
    assert (tmp_path / "overlays.csv").read_text(encoding="utf-8") == "1,2"

"""``fedvlp explain``: what it writes for trained runs of several methods, and what it refuses."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
import yaml
from matplotlib.figure import Figure

from fedvlp.clip import load_clip
from fedvlp.commands.cli import main
from fedvlp.results.figures import Picture
from fedvlp.runs.checkpoint import load_deployed
from fedvlp.tools.explain.command import write_explanations
from fedvlp.tools.explain.words import nearest, token_embeddings
from tests.helpers.runs import short_fit


@pytest.fixture(scope="module")
def train(image_root, tmp_path_factory):
    """Returns a function from a method to the folder of a run of one round."""
    root = tmp_path_factory.mktemp("trained")
    known = {}

    def run_of(method, *options):
        if method not in known:
            given = [f"--config=methods/{method}", *short_fit(image_root, root), "--trainer.rounds=1"]
            assert main(["fit", *given, f"--trainer.name={method}", "--seed_everything=1", *options]) == 0
            (known[method],) = (root / "runs" / method).iterdir()
        return known[method]

    return run_of


@pytest.fixture
def run(train, tmp_path):
    """Returns a function from a method to a copy of a run's folder, without explanations."""

    def copy(method, *options):
        folder = tmp_path / method
        shutil.copytree(train(method, *options), folder)
        return folder

    return copy


@pytest.fixture
def learned_words(monkeypatch):
    """Takes the tiny CLIP's words for learned ones, as those of other CLIPs are."""
    monkeypatch.setattr("fedvlp.tools.explain.command.BUNDLED", {})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_everything_of_a_run(run, capsys):
    folder = run("trip", "--model.num_experts=2", "--model.prompt_length=3")
    assert main(["explain", f"--ckpt_path={folder}", "--num_images=2"]) == 0
    files = ["captions.json", "experts.png", "overlays.png", "predictions.png"]
    assert names(folder / "explanations") == files
    printed = capsys.readouterr().out
    assert "words left out: fedvlp-tiny has learned few words" in printed
    assert all(str(folder / "explanations" / name) in printed for name in files)
    captions = json.loads((folder / "explanations" / "captions.json").read_text(encoding="utf-8"))
    assert [entry["file"] for entry in captions] == ["predictions.png", "overlays.png", "experts.png"]
    assert all(entry.keys() == {"file", "title", "caption", "alt"} and all(entry.values()) for entry in captions)
    assert captions[1]["alt"].count("asked for") == 2


def test_words_are_those_of_the_trained_prompts_and_need_no_data(run):
    folder = run("trip", "--model.num_experts=2", "--model.prompt_length=3")
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


def test_prompts_alone_need_images(train, image_root, tmp_path, capsys):
    trained = train("trip", "--model.num_experts=2", "--model.prompt_length=3") / "prompts.safetensors"
    prompts = shutil.copy(trained, tmp_path)
    image = str(image_root / "ink" / "star" / "0.png")
    assert main(["explain", "--ckpt_path", prompts, "--images", image, image, "--what=experts"]) == 0
    assert names(tmp_path / "explanations") == ["captions.json", "experts.png"]
    assert main(["explain", "--ckpt_path", prompts, "--what=experts"]) == 1
    assert "Pass --images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "head", "left_out"),
    [
        ("promptfl", ["prompt"], ["experts"]),
        ("single_domain", ["prompt of ink", "prompt of paint"], ["predictions", "overlays", "experts"]),
    ],
)
def test_each_method_shows_what_it_has(run, capsys, learned_words, method, head, left_out):
    folder = run(method, "--model.prompt_length=2", "--model.optimizer.lr=0.5")
    capsys.readouterr()
    assert main(["explain", f"--ckpt_path={folder}", "--num_images=1"]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" left out")[0] for line in printed.splitlines() if "left out" in line] == left_out
    made = {path.name for path in (folder / "explanations").glob("*.png")}
    assert made == {f"{kind}.png" for kind in {"predictions", "overlays", "experts"} - set(left_out)}
    rows = csv.DictReader((folder / "explanations" / "words.csv").read_text(encoding="utf-8").splitlines())
    assert list(dict.fromkeys(row["prompt"] for row in rows)) == head


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what=experts"], "PromptFL, as it is set up here, sends no token to an expert"),
        (["--what=words,wrods"], "wrods"),
        (["--what=overlays", "--toward=cat"], "circle, square, star"),
        (["--images=missing.png"], "does not exist"),
    ],
)
def test_mistakes_write_nothing(train, tmp_path, capsys, arguments, message):
    folder = train("promptfl", "--model.prompt_length=2", "--model.optimizer.lr=0.5")
    assert main(["explain", f"--ckpt_path={folder}", f"--output={tmp_path / 'out'}", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pictures_of_the_same_kinds_are_replaced_in_the_list_and_others_stay(tmp_path):
    def listed():
        return [entry["file"] for entry in json.loads((tmp_path / "captions.json").read_text(encoding="utf-8"))]

    picture = Picture(Figure(figsize=(1, 1)), "title", "what it is", "seen")
    first = {"overlays": {"overlays_1.png": picture, "overlays_2.png": picture}, "experts": {"experts.png": picture}}
    assert [path.name for path in write_explanations(tmp_path, first)] == listed()
    write_explanations(tmp_path, {"overlays": {"overlays.png": picture, "overlays.csv": "1,2"}})
    assert listed() == ["experts.png", "overlays.png"]
    assert (tmp_path / "overlays.csv").read_text(encoding="utf-8") == "1,2"

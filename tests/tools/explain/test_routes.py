"""What ``fedvlp diagnose`` measures of routes, against numbers taken image by image, and as a command."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fedvlp.commands.cli import main
from fedvlp.methods import TRIP
from fedvlp.tools.explain.routes import route_measurements
from tests.helpers.runs import short_fit

CLASSES = ["red circle", "star", "big square"]


@pytest.fixture
def domains(clip):
    generator = torch.Generator().manual_seed(1)
    shape = (3, clip.image_size, clip.image_size)
    return {name: [torch.randn(5, *shape, generator=generator) for _ in range(2)] for name in ("ink", "photo")}


def rows_of(module, domains):
    return {(row["domain"], row["mode"]): row for row in route_measurements(module, domains)}


def test_measurements_image_by_image(clip, domains):
    module = TRIP(CLASSES, clip, num_experts=3, prompt_length=2)
    rows = rows_of(module, domains)
    assert list(rows) == [(name, mode) for mode in ("train", "eval") for name in ("ink", "photo", "all domains")]
    module.router.seed = 1
    reseeded = {name: [module.precompute(batch) for batch in batches] for name, batches in domains.items()}
    module.router.seed = 0
    for (name, mode), row in rows.items():
        batches = [batch for known, of in domains.items() for batch in of if name in (known, "all domains")]
        again = [constants for known, of in reseeded.items() for constants in of if name in (known, "all domains")]
        constants = [module.precompute(batch) for batch in batches]
        weights = np.concatenate([found[f"{mode}_weights"].numpy() for found in constants])
        other = np.concatenate([found[f"{mode}_weights"].numpy() for found in again])
        mirror = np.concatenate([module.precompute(batch.flip(-1))[f"{mode}_weights"].numpy() for batch in batches])
        kept = np.concatenate([found[f"{mode}_kept"].numpy() for found in constants])
        largest = np.bincount(weights.argmax(1), minlength=3) / len(weights)
        each = [np.corrcoef(weights[:, m], other[:, m])[0, 1] for m in range(3)]
        mirrored = [np.corrcoef(weights[:, m], mirror[:, m])[0, 1] for m in range(3)]
        assert row["images"] == len(weights)
        assert row["capacity"] == (1.0 if mode == "train" else 2.0)
        assert row["dropped"] == pytest.approx(1 - kept.mean(), abs=1e-6)
        assert row["r of experts"] == pytest.approx(each, abs=1e-5)
        assert row["seeds r"] == pytest.approx(np.mean(each), abs=1e-5)
        assert row["seeds same"] == pytest.approx((weights.argmax(1) == other.argmax(1)).mean())
        assert row["chance same"] == pytest.approx((largest**2).sum())
        assert row["mirror r"] == pytest.approx(np.mean(mirrored), abs=1e-5)
        assert row["mirror same"] == pytest.approx((weights.argmax(1) == mirror.argmax(1)).mean())
        assert row["spread"] == pytest.approx(weights.std(0).mean(), abs=1e-6)
        assert row["load"] == pytest.approx(weights.mean(0).tolist(), abs=1e-6)
        assert row["largest"] == pytest.approx(largest.tolist())


def test_limit_cases(clip, domains):
    keyed = rows_of(TRIP(CLASSES, clip, num_experts=3, prompt_length=2, cluster_start="keys"), domains)
    assert all(row["seeds r"] == pytest.approx(1) and row["seeds same"] == 1 for row in keyed.values())
    uniform = rows_of(TRIP(CLASSES, clip, num_experts=3, prompt_length=2, routing="uniform"), domains)
    assert all(row["seeds r"] is None and row["spread"] == 0 for row in uniform.values())
    image = rows_of(TRIP(CLASSES, clip, num_experts=3, prompt_length=2, routing="learned_image"), domains)
    assert all(sum(row["load"]) == pytest.approx(1) for row in image.values())
    unlimited = TRIP(CLASSES, clip, num_experts=3, prompt_length=2, train_capacity=None)
    assert rows_of(unlimited, domains)["ink", "train"]["dropped"] == 0


def test_leaves_the_module_as_it_was(clip, domains):
    module = TRIP(CLASSES, clip, num_experts=3, prompt_length=2)
    module.train()
    route_measurements(module, domains)
    assert module.router.training
    assert module.router.seed == 0


def options(image_root, tmp_path, method):
    return [f"--config=methods/{method}", *short_fit(image_root, tmp_path), "--trainer.rounds=1"]


def test_command_writes_into_the_run_or_where_it_is_told(image_root, tmp_path, capsys):
    given = options(image_root, tmp_path, "trip")
    assert main(["diagnose", *given]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("ink", "paint", "photo", "all domains", "seeds r: "))
    assert not list(tmp_path.rglob("routing.json"))
    assert main(["diagnose", *given, f"--output={tmp_path / 'mine' / 'here.json'}"]) == 0
    untrained = json.loads((tmp_path / "mine" / "here.json").read_text(encoding="utf-8"))
    assert main(["fit", *given]) == 0
    run = next((tmp_path / "runs").glob("*/*"))
    for place in (run, run / "prompts.safetensors", run.parent, next((run / "checkpoints").iterdir())):
        (run / "routing.json").unlink(missing_ok=True)
        assert main(["diagnose", *given, f"--ckpt_path={place}"]) == 0
        assert json.loads((run / "routing.json").read_text(encoding="utf-8")) == untrained  # routes are not trained
    assert [row["domain"] for row in untrained["rows"]][:3] == ["ink", "paint", "photo"]


def test_command_takes_the_trained_router(image_root, tmp_path):
    given = [*options(image_root, tmp_path, "trip"), "--model.routing=learned_image", "--model.optimizer.lr=0.1"]
    assert main(["fit", *given]) == 0
    run = next((tmp_path / "runs").glob("*/*"))
    found = []
    for where in ([f"--output={tmp_path / 'untrained.json'}"], [f"--ckpt_path={run}"]):
        assert main(["diagnose", *given, *where]) == 0
    for path in (tmp_path / "untrained.json", run / "routing.json"):
        found.append(json.loads(path.read_text(encoding="utf-8"))["rows"][0]["load"])
    assert found[0] != pytest.approx(found[1], abs=1e-4)


def test_a_method_without_a_diagnosis_says_so(image_root, tmp_path, capsys):
    assert main(["diagnose", *options(image_root, tmp_path, "promptfl")]) == 1
    assert "PromptFL has no diagnosis" in capsys.readouterr().err

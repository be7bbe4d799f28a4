"""Exported files compute what the methods do: all by their exportable forward, a few by files that are run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from docs.export import rows_in, trained, with_rows
from docs.privacy import method
from fedvlp.export import FORMATS, ExportedClassifier, export_method, formats, write
from fedvlp.export.description import example_images
from fedvlp.methods.trip.clustering import capacity_kmeans, cluster_capacities
from fedvlp.methods.trip.hashing import float_bits
from fedvlp.methods.trip.subset_assignment import cheapest_assignment
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.errors import UserError
from tests.helpers.configs import METHODS
from tests.helpers.shapes import unchecked

scipy_optimize = pytest.importorskip("scipy.optimize")


def made(config):
    return trained(method(configs_folder() / "methods" / f"{config}.yaml"))


def loop(goes_on, step, values):
    while goes_on(*values):
        values = step(*values)
    return values


@pytest.fixture
def exporting(monkeypatch):
    """Lets methods take the way that they take in an export, with values instead of a graph."""

    def begin():
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
        monkeypatch.setattr(torch, "while_loop", loop)

    return begin


@pytest.mark.parametrize("config", METHODS)
@torch.no_grad()
def test_the_exportable_forward_gives_the_same_logits(config, exporting):
    classifier = ExportedClassifier(made(config))
    images = example_images(classifier.method, 3, seed=7)
    ours = classifier(images)
    assert ours.std() > 1e-3
    exporting()
    torch.testing.assert_close(classifier(images), ours, rtol=0, atol=2e-5)


@pytest.mark.parametrize("capacity", [0.5, 1.0, 2.0, None])
@pytest.mark.parametrize("seed", range(2))
def test_plain_clusters_are_those_of_the_fast_algorithm(scene, exporting, capacity, seed):
    tokens, start = scene(seed=seed, scale=[0.3, 3.0][seed])
    capacities = cluster_capacities(50, 4, capacity)
    fast = [capacity_kmeans(tokens, start, capacities, iterations) for iterations in (3, 100)]
    exporting()
    for found, iterations in zip(fast, (3, 100), strict=True):
        plain = capacity_kmeans(tokens, start, capacities, iterations)
        assert torch.equal(plain.kept, found.kept)
        torch.testing.assert_close(plain.centroids.float(), found.centroids, atol=1e-5, rtol=0)


def test_plain_clusters_of_equal_tokens_begin_anew_alike(exporting):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(3, 8, generator=generator)[torch.randint(3, (4, 30), generator=generator)]
    start = torch.arange(6).expand(4, 6)
    fast = capacity_kmeans(tokens, start, cluster_capacities(30, 6, 1.0))
    exporting()
    assert torch.equal(capacity_kmeans(tokens, start, cluster_capacities(30, 6, 1.0)).kept, fast.kept)


def test_the_cheapest_assignment_is_that_of_scipy():
    costs = torch.rand(20, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = cheapest_assignment(costs)
    for image in range(20):
        assert found[image].tolist() == scipy_optimize.linear_sum_assignment(costs[image].numpy())[1].tolist()
    with pytest.raises(UserError, match="at most 12"):
        cheapest_assignment(torch.zeros(1, 13, 13))


def test_bits_of_all_kinds_of_numbers():
    values = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    values = values.view(torch.float32)
    powers = torch.exp2(torch.arange(-149, 128).double()).float()
    below = torch.nextafter(powers, torch.tensor(0.0))
    every = torch.cat([values[values.isfinite()], powers, -powers, below, -below, torch.tensor([0.0, -0.0])])
    assert torch.equal(float_bits(every), every.view(torch.int32).long())


@pytest.mark.parametrize("config", ["trip", "plan"])
def test_onnx_runtime_gives_the_same_logits(config, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    module = made(config)
    with unchecked():
        exported = export_method(module, "onnx", tmp_path / "model.onnx")
    assert exported.difference < 1e-4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.onnx"]
    stored = onnx.load(exported.file)
    assert [each.version for each in stored.opset_import if each.domain == ""] == [20]
    metadata = {each.key: each.value for each in stored.metadata_props}
    described = json.loads(exported.description.read_text(encoding="utf-8"))
    assert json.loads(metadata["class_names"]) == described["class_names"] == list(module.class_names)
    assert metadata["method"] == described["method"] == type(module).__name__
    assert described["preprocess"]["size"] == 64


@pytest.mark.parametrize("file_format", ["torchscript", "torch_export"])
def test_files_of_pytorch_give_the_same_logits(file_format, tmp_path):
    with unchecked():
        exported = export_method(made("zero_shot"), file_format, tmp_path / "model.file")
    assert exported.difference < 1e-5


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    kind = replace(FORMATS["torch_export"], load=lambda path: lambda images: torch.full((len(images), 7), 3.0))
    monkeypatch.setitem(formats.FORMATS, "torch_export", kind)
    monkeypatch.setattr(write, "exported_program", lambda classifier, examples: None)
    monkeypatch.setitem(FORMATS, "torch_export", replace(kind, write=lambda program, text, path: path.touch()))
    with pytest.raises(UserError, match="more than 1e-04"):
        export_method(made("zero_shot"), "torch_export", tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    module = made("zero_shot")
    with pytest.raises(UserError, match="another suffix"):
        export_method(module, "torch_export", tmp_path / "model.json")
    with pytest.raises(UserError, match="Expected --format onnx"):
        export_method(module, "tflite", tmp_path / "model")
    monkeypatch.setattr("fedvlp.export.onnx_file.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "fedvlp\[export\]"'):
        export_method(module, "onnx", tmp_path / "model.onnx")


def test_the_table_keeps_rows_that_are_not_measured_anew():
    text = with_rows("before <!-- differences: written by python -m docs.export --> <!-- end of differences -->", {})
    row = ["`trip`", "TRIP", "1.0e-06", "0", "2.0e-06", "5 MB"]
    once = with_rows(text, {"trip": row})
    assert rows_in(once) == {"trip": row}
    assert with_rows(once, rows_in(once)) == once

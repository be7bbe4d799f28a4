"""Exported files give the methods' logits: all methods by their exportable forward, some by loading real files."""

import json

import pytest
import torch

from docs._scripts.privacy import method
from experiments.export.differences import trained
from fedvlp.clip import load_clip
from fedvlp.methods.trip.routing import make_keys, match_clusters
from fedvlp.tools.export import export
from fedvlp.tools.export.export import (
    FORMATS,
    ExportedClassifier,
    example_images,
    export_method,
    export_program,
    exportable_routing,
    float_bits,
    load_onnx,
    write_onnx,
)
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.errors import UserError
from tests.helpers.configs import METHODS, each_config
from tests.helpers.shapes import unchecked


def load_method(config):
    return trained(method(configs_folder() / "methods" / f"{config}.yaml", load_clip("fedvlp-tiny")))


def plain_loop(condition, step, values):
    """Replace the exported loop by a Python loop."""
    while condition(*values):
        values = step(*values)
    return values


@pytest.mark.parametrize("config", each_config({*METHODS} - {"centred_means", "latte"}))  # these need test images
@torch.no_grad()
def test_the_exportable_forward_gives_the_same_logits(config, monkeypatch):
    classifier = ExportedClassifier(load_method(config))
    images = example_images(classifier.method, 3, seed=7)
    ours = classifier(images)
    assert ours.std() > 1e-3
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    monkeypatch.setattr(torch, "while_loop", plain_loop)
    with exportable_routing():
        torch.testing.assert_close(classifier(images), ours, rtol=0, atol=2e-5)


def test_bits_of_all_kinds_of_floats():
    values = torch.randint(-(2**31), 2**31, (20_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    values = values.view(torch.float32)
    powers = torch.exp2(torch.arange(-149, 128).double()).float()
    below = torch.nextafter(powers, torch.tensor(0.0))
    every = torch.cat([values[values.isfinite()], powers, -powers, below, -below, torch.tensor([0.0, -0.0])])
    assert torch.equal(float_bits(every), every.view(torch.int32).long())


def test_routing_among_too_many_experts_is_rejected():
    centroids = torch.randn(4, 8, 12, generator=torch.Generator().manual_seed(0))
    keys = make_keys("orthogonal", 9, 12, seed=1)
    expected = match_clusters(centroids, keys[:8])
    with exportable_routing():
        assert torch.equal(match_clusters(centroids, keys[:8]), expected)
        with pytest.raises(UserError, match="among 9 experts cannot be exported"):
            match_clusters(torch.randn(2, 9, 12), keys)


@pytest.mark.every_config
def test_files_give_the_same_logits(tmp_path, monkeypatch):
    """ONNX weights are in a second file, like for a large graph. experiments/export measures other methods."""
    monkeypatch.setattr("fedvlp.tools.export.export.MAX_FILE_BYTES", 0)
    onnx = pytest.importorskip("onnx")
    module = load_method("promptfl")
    with unchecked():
        program = export_program(ExportedClassifier(module), example_images(module, 2))
        monkeypatch.setattr(export, "export_program", lambda classifier, examples: program)
        assert export_method(module, "torch_export", tmp_path / "other" / "model.pt2") < 1e-5
        assert export_method(module, "onnx", tmp_path / "model.onnx") < 1e-4
    assert sorted(path.name for path in tmp_path.glob("model.*")) == ["model.json", "model.onnx", "model.onnx.data"]
    stored = onnx.load(tmp_path / "model.onnx")
    assert [each.version for each in stored.opset_import if each.domain == ""] == [20]
    metadata = {each.key: each.value for each in stored.metadata_props}
    described = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    assert json.loads(metadata["class_names"]) == described["class_names"] == list(module.class_names)
    assert metadata["method"] == described["method"] == type(module).__name__
    assert described["preprocess"]["size"] == 64


@pytest.mark.every_config
def test_products_of_doubles_load_in_older_runtimes(tmp_path):
    """ONNX Runtime up to 1.24 fuses transposition and product, and lacks this operator for doubles."""
    onnx = pytest.importorskip("onnx")

    class Products(torch.nn.Module):
        def forward(self, images):
            rows = images.flatten(2)
            exact = rows.double()
            batches = (exact @ exact.transpose(1, 2)).sum(dim=2)
            matrices = exact[:, 0] @ exact[:, 1].T
            mixed = (exact @ exact[0].T).sum(dim=2) + (exact[0] @ exact.transpose(1, 2)).sum(dim=1)
            vectors = exact @ exact[0, 0]
            single = (rows @ rows.transpose(1, 2)).sum(dim=2)
            exact_ones = torch.cat([batches, matrices.sum(dim=1, keepdim=True), mixed, vectors], dim=1)
            return torch.cat([exact_ones.float(), single], dim=1)

    images = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    write_onnx(export_program(Products(), images), {}, tmp_path / "model.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert kinds.count("Einsum") == 4  # matrix products in double precision
    assert kinds.count("MatMul") == 2  # the product with a vector, and the product in single precision
    found = load_onnx(tmp_path / "model.onnx")(images)
    torch.testing.assert_close(found, Products()(images), rtol=1e-5, atol=1e-5)


def test_a_view_is_stored_without_its_base_tensor():
    class Cut(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("row", torch.arange(12.0).view(3, 4)[1:2])

        def forward(self, images):
            return images * self.row

    images = torch.ones(2, 3, 4, 4)
    program = export_program(Cut(), images)
    stored = {**program.state_dict, **program.constants}
    assert [tensor.untyped_storage().nbytes() for tensor in stored.values()] == [16]
    torch.testing.assert_close(program.module()(images), Cut()(images))


def write_nothing(program, description, path):
    path.touch()


def fill_disk(program, description, path):
    raise OSError("8 requested and 0 written")  # NumPy's error, without errno


def test_a_failed_export_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "export_program", lambda classifier, examples: None)
    for write, message in (
        (write_nothing, "more than 1e-04"),
        (fill_disk, r"model\.pt2 was not written: 8 .*Check the disk"),
    ):
        other = (write, lambda path: lambda images: torch.full((len(images), 7), 3.0))
        monkeypatch.setitem(FORMATS, "torch_export", other)
        with unchecked(), pytest.raises(UserError, match=message):
            export_method(load_method("zero_shot"), "torch_export", tmp_path / "model.pt2")
    with pytest.raises(UserError, match="another suffix"):
        export_method(load_method("zero_shot"), "torch_export", tmp_path / "model.json")
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "fedvlp\[export\]"'):
        export_method(load_method("zero_shot"), "onnx", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())

"""Compiled towers give the same numbers; without a compiler that is said."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
import torch

from fedvlp.methods import ADAPT, PromptFL
from fedvlp.utils.errors import UserError
from tests.helpers.images import CLASSES
from tests.helpers.shapes import unchecked
from tests.helpers.toy_federation import Linear, Points, federation

BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.skipif("FEDVLP_SLOW" not in os.environ, reason="slow"))]


@pytest.fixture
def fresh_clip():
    from fedvlp.clip import load_clip

    return load_clip("fedvlp-tiny")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["promptfl", "adapt"])
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_towers_give_the_same(backend, method, fresh_clip, monkeypatch):
    """Losses and gradients, through the text tower and through both."""
    torch._dynamo.reset()  # what was compiled before would serve again
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    names = list(CLASSES)
    module = PromptFL(names, fresh_clip) if method == "promptfl" else ADAPT(names, ["ink", "paint"], fresh_clip)
    images = torch.rand(4, 3, fresh_clip.image_size, fresh_clip.image_size)
    labels = torch.tensor([0, 1, 2, 0])

    def step():
        module.zero_grad()
        loss = module.training_step((images, labels), 0)
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in module.trainable())]

    with unchecked():  # the compiler cannot follow the checks of shapes
        plain = step()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        fresh_clip.compile_towers()
        compiled = step()
    for found, exact in zip(compiled, plain, strict=True):
        assert torch.allclose(found, exact, rtol=0, atol=1e-5 * exact.abs().max().item())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_run_asks_for_it(tmp_path, monkeypatch):
    asked = []
    module = Linear()
    module.clip.compile_towers = lambda: asked.append(True)
    federation(tmp_path, rounds=1, default_callbacks=False).fit(module, Points())
    assert not asked
    federation(tmp_path, rounds=1, default_callbacks=False, compile=True).fit(module, Points())
    assert asked


def test_says_that_there_is_no_compiler(fresh_clip, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="none was found"):
        fresh_clip.compile_towers()

"""Copies in pages that are used again: never while anybody holds a tensor of them."""

from __future__ import annotations

import torch
from fedvlp.training.tensor_arena import TensorArena


def test_copies_have_every_type_and_shape():
    state = {
        "prompt": torch.randn(3, 5).T,
        "half": torch.randn(3).bfloat16(),
        "flags": torch.tensor([True, False, True]),
        "count": torch.tensor(7),
        "none": torch.empty(0, 4),
        "large": torch.randn(1000),
    }
    buffers = TensorArena(page_bytes=512)
    copies = [buffers.copy(state) for _ in range(3)]
    for copy in copies:
        assert copy.keys() == state.keys()
        assert all(torch.equal(copy[name], value) and copy[name].dtype == value.dtype for name, value in state.items())
    copies[0]["prompt"].zero_()
    assert torch.equal(copies[1]["prompt"], state["prompt"])


def test_a_page_is_used_again_when_nobody_holds_it():
    buffers = TensorArena(page_bytes=256)
    first = buffers.copy({"prompt": torch.ones(64)})
    where = first["prompt"].data_ptr()
    buffers.release()
    held = first["prompt"][3:4]
    del first
    second = buffers.copy({"prompt": torch.full((64,), 2.0)})
    assert held.item() == 1
    assert second["prompt"].data_ptr() != where
    del held
    buffers.release()
    assert buffers.copy({"prompt": torch.zeros(64)})["prompt"].data_ptr() == where
    assert second["prompt"].eq(2).all()
    assert len(buffers.pages) == 2


def test_copies_hold_no_graph():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert not TensorArena().copy({"prompt": parameter * 2})["prompt"].requires_grad

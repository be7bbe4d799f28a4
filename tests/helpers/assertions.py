"""Comparisons of the tensors and the metrics of two runs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedvlp.core.state import RunState
from fedvlp.testing.contract import run_tensors as run_tensors


def run_metrics(state: RunState) -> list[dict[str, Any]]:
    """Returns the metrics of all rounds but their times."""
    rows = []
    for row in state.history:
        rows.append({name: value for name, value in row.items() if "seconds" not in name})
    return rows


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Fails unless both have the same tensors, bit for bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def assert_same_run(one: RunState, other: RunState) -> None:
    """Fails unless two runs have the same tensors, bit for bit, and the same metrics."""
    assert_equal(run_tensors(one), run_tensors(other))
    assert run_metrics(one) == run_metrics(other)

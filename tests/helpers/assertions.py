"""Assertions that compare the tensors and metrics of two runs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedvlp.core.state import RunState
from fedvlp.testing.contract import run_tensors as run_tensors


def run_metrics(state: RunState) -> list[dict[str, Any]]:
    """List the metrics of each round, without times."""
    rows = []
    for row in state.history:
        rows.append({name: value for name, value in row.items() if "seconds" not in name})
    return rows


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def assert_same_run(one: RunState, other: RunState) -> None:
    """Assert that two runs have the same metrics and bitwise equal tensors."""
    assert_equal(run_tensors(one), run_tensors(other))
    assert run_metrics(one) == run_metrics(other)

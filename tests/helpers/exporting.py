"""Lets methods take the way that they take in an export, with values instead of a graph."""

from __future__ import annotations

import pytest
import torch


def take_the_exported_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the code believes that it is exported; loops are Python's."""
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    monkeypatch.setattr(torch, "while_loop", _loop)


def _loop(goes_on, step, values):
    while goes_on(*values):
        values = step(*values)
    return values

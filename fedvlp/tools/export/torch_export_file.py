"""torch.export's own files, which PyTorch alone reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fedvlp.tools.export.description import NAME


def check() -> None:
    """Passes: PyTorch is there."""


def write(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Writes a graph; the description is its extra file ``fedvlp.json``."""
    content = BytesIO()  # a path would have to end with .pt2
    torch.export.save(program, content, extra_files={NAME: json.dumps(description)})
    path.write_bytes(content.getbuffer())


def load(path: Path) -> Callable[[Tensor], Tensor]:
    """Returns what the file computes."""
    loaded: Callable[[Tensor], Tensor] = torch.export.load(BytesIO(path.read_bytes())).module()
    return loaded

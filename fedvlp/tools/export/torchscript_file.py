"""TorchScript files, for programs that load PyTorch's older format, such as those in C++."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fedvlp.tools.export.description import NAME
from fedvlp.tools.export.scripted_graph import ScriptedGraph
from fedvlp.utils.errors import UserError

_JIT: Any = torch.jit  # whose functions have no types


def check() -> None:
    """Passes if this PyTorch still writes TorchScript, which is deprecated.

    Raises:
        UserError: If it does not.
    """
    if not all(hasattr(_JIT, name) for name in ("trace", "script", "save", "load")):
        raise UserError(f"PyTorch {torch.__version__} writes no TorchScript. Use --format torch_export or onnx.")


@torch.no_grad()
def write(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Writes a graph; the description is its extra file ``fedvlp.json``."""
    (examples,) = program.example_inputs[0]
    with _without_deprecation():
        graph = ScriptedGraph(program.module())
        graph.script_loops(examples)
        traced = _JIT.trace(graph, (examples,), check_trace=False)
        _JIT.save(traced, path, _extra_files={NAME: json.dumps(description)})


def load(path: Path) -> Callable[[Tensor], Tensor]:
    """Returns what the file computes."""
    with _without_deprecation():
        loaded = _JIT.load(path)

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = loaded(images)
        return logits

    return run


@contextmanager
def _without_deprecation() -> Iterator[None]:
    """Leaves out that TorchScript is deprecated, which the documentation says, and that constants are traced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.\w+` is (deprecated|not supported)")
        warnings.filterwarnings("ignore", category=_JIT.TracerWarning)
        yield

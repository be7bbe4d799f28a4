"""The formats: how each is written from a graph, and how the file is run to compare it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.export import ExportedProgram

from fedvlp.tools.export import onnx_file, torch_export_file, torchscript_file

Run = Callable[[Float[Tensor, "B 3 V V"]], Float[Tensor, "B C"]]


@dataclass(frozen=True)
class Format:
    """A format of exported files.

    Attributes:
        check: raises UserError if what it needs is missing; called before anything else.
        write: writes a graph with a description into a file.
        load: returns what runs the file.
    """

    check: Callable[[], None]
    write: Callable[[ExportedProgram, Mapping[str, Any], Path], None]
    load: Callable[[Path], Run]


FORMATS = {
    "onnx": Format(onnx_file.check, onnx_file.write, onnx_file.load),
    "torchscript": Format(torchscript_file.check, torchscript_file.write, torchscript_file.load),
    "torch_export": Format(torch_export_file.check, torch_export_file.write, torch_export_file.load),
}
"""By the names of ``--format``."""

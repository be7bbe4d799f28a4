"""ONNX files, by PyTorch's exporter of graphs, and ONNX Runtime to compare them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fedvlp.utils.errors import UserError

OPSET = 20
"""The version of ONNX's operators."""
LARGEST_FILE = 2**31 - 2**20
"""In bytes. A file of ONNX holds less than 2 GiB; the weights of a larger one stand beside it, in <its name>.data."""
MISSING = 'ONNX needs onnx, onnxscript and onnxruntime, which are not all installed. Run: pip install "fedvlp[export]"'


def check() -> None:
    """Passes if all packages are there.

    Raises:
        UserError: If one is not.
    """
    if not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise UserError(MISSING)


def write(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Writes a graph with input ``images`` and output ``logits``; the description is metadata, each value as JSON."""
    made: Any = torch.onnx.export(
        program,
        (),
        input_names=["images"],
        output_names=["logits"],
        opset_version=OPSET,
        dynamo=True,
        custom_translation_table=_translations(),
        verbose=False,
    )
    for name, value in description.items():
        made.model.metadata_props[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    size = sum(tensor.nbytes for tensor in {**program.state_dict, **program.constants}.values())
    made.save(path, external_data=size > LARGEST_FILE)


def _translations() -> dict[Any, Callable[..., Any]]:
    """Returns operators in place of those that PyTorch's exporter would write."""
    operators = torch.ops.aten
    products = dict.fromkeys((operators.matmul.default, operators.bmm.default, operators.mm.default), _product)
    return {operators.sort.stable: _stable_sort, **products}


def _product(first: Any, second: Any) -> Any:
    """Translates a product of matrices; in double precision as a sum over an index.

    Before a product, ONNX Runtime takes a transposition into an operator of its own, which its releases up to 1.24 at
    least have for floats alone: of doubles they load no such file.
    """
    import onnxscript

    operators: Any = onnxscript.opset20
    ranks = (len(first.shape), len(second.shape))
    if first.dtype != onnxscript.DOUBLE.dtype or min(ranks) < 2:
        return operators.MatMul(first, second)
    # they also take no two "..." of different length
    left, right = ("" if rank == 2 else "..." for rank in ranks)
    return operators.Einsum(first, second, equation=f"{left}ij,{right}jk->{left or right}ik")


def _stable_sort(values: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Translates a sort that keeps the order of equals, as ONNX says of TopK."""
    import onnxscript

    operators: Any = onnxscript.opset20
    size = operators.Gather(operators.Shape(values), operators.Constant(value_ints=[dim]))
    return operators.TopK(values, size, axis=dim, largest=int(descending), sorted=1)


def load(path: Path) -> Callable[[Tensor], Tensor]:
    """Returns what ONNX Runtime computes of the file on the CPU."""
    # Else it makes an identifier of this machine at its import, and sends its maker what it runs.
    for name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):  # its releases have had both
        os.environ.setdefault(name, "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns of constants that its own simplifications leave over
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return run

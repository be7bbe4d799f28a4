"""From a classifier to one graph of tensor operators with a free batch size, and its files: ONNX and torch.export."""

from __future__ import annotations

import json
import logging
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fedvlp.methods.trip import clustering, hashing, routing
from fedvlp.utils.errors import UserError

DESCRIPTION_NAME = "fedvlp.json"
"""The description's name among the extra files of torch.export."""
OPSET = 20
"""The version of ONNX's operators."""
LARGEST_FILE = 2**31 - 2**20
"""In bytes. A file of ONNX holds less than 2 GiB; the weights of a larger one are beside it, in <its name>.data."""


@torch.no_grad()
def exported_program(classifier: nn.Module, examples: Float[Tensor, "B 3 V V"]) -> ExportedProgram:
    """The classifier's graph, in which all that does not depend on the images is a constant.

    Args:
        classifier: on the CPU and in evaluation mode.
        examples: images to trace it with, at least two; a batch of one looks like no batch.
    """
    # Computes what is computed on first use, such as a teacher's text features, which a trace would repeat.
    classifier(examples)
    # Exported twice: the first graph shows what is constant, the second has only what is left.
    with exportable_routing():
        traced = _export(classifier, examples).run_decompositions({})
    return _export(fold_constants(traced.module()), examples)


@contextmanager
def exportable_routing() -> Iterator[None]:
    """Replace the parts of TRIP's routing that no graph can hold, within the block."""
    replacements: dict[tuple[ModuleType, str], Any] = {
        (hashing, "weighted_bits"): _weighted_bits,
        (clustering, "iterate"): _iterate,
        # All orders of at most 8 experts, 40,320, are tried in the graph.
        (routing, "LARGEST_ENUMERATED"): 8,
        (routing, "cheapest_assignment"): _refuse_assignment,
    }
    originals = {place: getattr(*place) for place in replacements}
    try:
        for place, replacement in replacements.items():
            setattr(*place, replacement)
        yield
    finally:
        for place, original in originals.items():
            setattr(*place, original)


def _weighted_bits(pixels: Tensor, factors: Tensor) -> Tensor:
    # As a product of matrices: ONNX Runtime takes a sum of whole numbers in double precision.
    return float_bits(pixels) @ factors


def float_bits(values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Compute ``values.view(torch.int32)`` of finite float32 values by arithmetic, which can be exported.

    >>> values = torch.tensor([1.0, -2.5, -0.0])
    >>> float_bits(values).tolist()
    [1065353216, -1071644672, -2147483648]
    >>> values.view(torch.int32).tolist()
    [1065353216, -1071644672, -2147483648]
    """
    exact = values.double()
    magnitudes = exact.abs()
    exponents = magnitudes.clamp(min=2.0**-126).log2().floor()  # may be one off, next to a power of two
    exponents = exponents + (magnitudes * torch.exp2(-exponents) >= 2).double()
    exponents = exponents - (magnitudes * torch.exp2(-exponents) < 1).double()
    exponents = exponents.clamp(min=-126)  # numbers below the least power of two have its exponent
    mantissas = magnitudes * torch.exp2(23 - exponents)  # whole numbers, from 2^23 where there is a leading one
    is_negative = (exact < 0) | (1 / exact < 0)  # also zero has a sign
    positive = (mantissas + (exponents + 126) * 2.0**23).long()
    return positive - is_negative.long() * 2**31


def _iterate(products: Tensor, limits: Tensor, state: clustering.Iteration, max_iterations: int) -> Any:
    # One operator, where a trace would have to know how often Python's own loop runs.
    def is_running(iteration: Tensor, *values: Tensor) -> Tensor:
        return (iteration < max_iterations) & values[-1].any()

    def step(iteration: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (iteration + 1, *clustering.next_iteration(products, limits, clustering.Iteration(*values)))

    while_loop: Any = torch.while_loop  # absent in early versions, which can train but not export
    _, *last = while_loop(is_running, step, (torch.zeros((), dtype=torch.int64), *state))
    return clustering.Iteration(*last)


def _refuse_assignment(costs: Tensor) -> Tensor:
    raise UserError(
        f"TRIP's routing among {costs.shape[2]} experts cannot be exported: an exported graph tries all orders of the "
        "experts. Use at most 8 experts."
    )


def _export(module: nn.Module, examples: Tensor) -> ExportedProgram:
    return torch.export.export(module, (examples,), dynamic_shapes=({0: Dim("batch")},), strict=False)


@torch.no_grad()
def fold_constants(traced: GraphModule) -> GraphModule:
    """The graph in which all that depends on no input is a constant, and of the weights only what is still used.

    ``traced`` is of functional operators, as ``run_decompositions`` makes them; it is changed.
    """
    graph = traced.graph
    values = _constant_values(traced)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    replacements: dict[Node, Any] = {}

    def substitute(node: Node) -> Any:
        # A weight that is a part of another tensor becomes a constant as well: torch.export would store it with all of
        # that other one.
        value = values.get(node)
        is_whole = isinstance(value, Tensor) and value.untyped_storage().nbytes() == value.nbytes
        if node not in values or (node.op == "get_attr" and is_whole):
            return node
        if node not in replacements:
            replacements[node] = value
            if isinstance(value, Tensor):
                name = f"constant_{len(replacements)}"
                traced.register_buffer(name, value.detach().clone(memory_format=torch.contiguous_format))
                with graph.inserting_before(first):
                    replacements[node] = graph.get_attr(name)
        return replacements[node]

    for node in graph.nodes:
        if node not in values:
            node.args = map_arg(node.args, substitute)
            node.kwargs = map_arg(node.kwargs, substitute)
    # Checks that tracing adds go, too; so does attention, which by itself counts as random, for it may have dropout.
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return GraphModule(traced, graph)  # takes along what the graph still names, and nothing else


def _constant_values(traced: GraphModule) -> dict[Node, Any]:
    """The values of all nodes that depend on constants alone."""
    values: dict[Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(traced)
            if isinstance(value, Tensor):  # and not the body of a loop
                values[node] = value
            continue
        is_pure = node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload)
        if is_pure and all(each in values for each in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


def write_onnx(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Writes a graph with input ``images`` and output ``logits``; the description is metadata, each value as JSON."""
    operators: Any = torch.ops.aten
    products = dict.fromkeys((operators.matmul.default, operators.bmm.default, operators.mm.default), _product)
    # PyTorch 2.8 writes four lines of warnings about operators of torchvision's, which no graph here has.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    made: Any = torch.onnx.export(
        program,
        (),
        input_names=["images"],
        output_names=["logits"],
        opset_version=OPSET,
        dynamo=True,
        custom_translation_table={
            operators.sort.stable: _stable_sort,
            operators.where.self: _where,
            **products,
        },
        verbose=False,
    )
    for name, value in description.items():
        made.model.metadata_props[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    size = sum(tensor.nbytes for tensor in {**program.state_dict, **program.constants}.values())
    made.save(path, external_data=size > LARGEST_FILE)


def _product(self: Any, other: Any = None) -> Any:
    """Translates a product of matrices; in double precision as a sum over an index.

    PyTorch takes it for an operator's if arguments without a default have the operator's names; `mm` has `mat2`.

    Before a product, ONNX Runtime takes a transposition into an operator of its own, which its releases up to 1.24 at
    least have for floats alone: of doubles they load no such file.
    """
    import onnxscript

    operators: Any = onnxscript.opset20
    ranks = (len(self.shape), len(other.shape))
    if self.dtype != onnxscript.DOUBLE.dtype or min(ranks) < 2:
        return operators.MatMul(self, other)
    # They also take no two "..." of different length.
    left, right = ("" if rank == 2 else "..." for rank in ranks)
    return operators.Einsum(self, other, equation=f"{left}ij,{right}jk->{left or right}ik")


def _where(condition: Any, self: Any, other: Any) -> Any:
    """Translate a choice; ONNX Runtime has none between truth values."""
    import onnxscript

    operators: Any = onnxscript.opset20
    if self.dtype != onnxscript.BOOL.dtype:
        return operators.Where(condition, self, other)
    chosen = operators.And(condition, self)
    return operators.Or(chosen, operators.And(operators.Not(condition), other))


def _stable_sort(self: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Translates a sort that keeps the order of equals, as ONNX specifies TopK."""
    import onnxscript

    operators: Any = onnxscript.opset20
    size = operators.Gather(operators.Shape(self), operators.Constant(value_ints=[dim]))
    return operators.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """What ONNX Runtime computes of the file on the CPU."""
    # Else it makes an identifier of this machine at its import, and sends its maker what it runs.
    for name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):  # its releases have had both
        os.environ.setdefault(name, "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Errors alone: it warns of constants that its own simplifications leave over.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])

    return run


def write_torch_export(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Writes a graph; the description is its extra file ``fedvlp.json``."""
    # A path would have to end with .pt2.
    content = BytesIO()
    torch.export.save(program, content, extra_files={DESCRIPTION_NAME: json.dumps(description)})
    path.write_bytes(content.getbuffer())


def load_torch_export(path: Path) -> Callable[[Tensor], Tensor]:
    """What the file computes."""
    loaded: Callable[[Tensor], Tensor] = torch.export.load(BytesIO(path.read_bytes())).module()
    return loaded


class Format(NamedTuple):
    """How a format writes a graph with a description into a file, and makes what runs the file."""

    write: Callable[[ExportedProgram, Mapping[str, Any], Path], None]
    load: Callable[[Path], Callable[[Tensor], Tensor]]


FORMATS = {"onnx": Format(write_onnx, load_onnx), "torch_export": Format(write_torch_export, load_torch_export)}
"""By the names of ``--format``."""

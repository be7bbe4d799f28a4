"""Export of a trained method to a graph with a dynamic batch size, as a file of ONNX or torch.export."""

import json
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fedvlp.core.module import FederatedModule
from fedvlp.data.files.images import intensity_of
from fedvlp.methods.trip import clustering, hashing, routing
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_json
from fedvlp.version import __version__

MAX_DIFFERENCE = 1e-4  # between the file's and the method's output
BATCH_SIZES = (1, 3)
OPSET = 20  # of ONNX
MAX_FILE_BYTES = 2**31 - 2**20
"""An ONNX file is limited to 2 GiB; larger graphs store their weights in a second file, <name>.data."""


class ExportedClassifier(nn.Module):
    """Classifier that uses the shared part of a method in evaluation mode, like ``predict``."""

    def __init__(self, method: FederatedModule) -> None:
        super().__init__()
        self.method = method
        self.eval()

    def forward(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        """Compute the logits of images from CLIP's evaluation transform, or the labels' probabilities [B, L]."""
        with self.method.shared_part_only():
            if self.method.has_several_labels:
                return self.method.predict_step(images, 0)
            return self.method.calibrated_logits(images)


def export_method(method: FederatedModule, file_format: str, output: Path, inputs: Iterable[Path] = ()) -> float:
    """Write a trained method and its description, if the file computes the method's output.

    Args:
        method: The method with its trained tensors, on the CPU; it is switched to evaluation mode.
        file_format: One of ``FORMATS``.
        output: The file. Its description has the same name with the suffix ``.json``.
        inputs: Files that must not be replaced.

    Returns:
        The largest difference between the file's and the method's output.

    Raises:
        UserError: If the format lacks a package, outputs differ, a file would be replaced, or it can't be written.
    """
    if file_format == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise UserError('ONNX needs onnx, onnxscript and onnxruntime. Run: pip install "fedvlp[export]"')
    description = output.with_suffix(".json")
    if description == output:
        raise UserError(f"{output} has the suffix .json, which the file's description uses. Choose another suffix.")
    for file in (output, description):
        check_replaceable(file, inputs)
    classifier = ExportedClassifier(method)
    program = export_program(classifier, example_images(method, 2))
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A graph above 2 GiB names its second file, so all files get their names in a temporary folder.
        with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            difference = write_checked(classifier, program, file_format, Path(folder) / output.name)
            write_json(Path(folder) / description.name, describe(method, file_format))
            for path in sorted(Path(folder).iterdir()):
                os.replace(path, output.parent / path.name)
    except OSError as error:  # NumPy's error for a full disk names neither its number nor the file
        raise UserError(f"{output} was not written: {error}. Check the disk and its permissions.") from error
    return difference


@torch.no_grad()
def write_checked(classifier: ExportedClassifier, program: ExportedProgram, file_format: str, file: Path) -> float:
    """Write a graph, and return the largest difference of its output; raise a UserError if it is too large or NaN."""
    write, load = FORMATS[file_format]
    write(program, describe(classifier.method, file_format), file)
    run = load(file)
    differences = []
    for size in BATCH_SIZES:
        images = example_images(classifier.method, size, seed=size)
        differences.append((run(images) - classifier(images)).abs().max())
    difference = float(torch.stack(differences).max())
    # Also true for NaN.
    if not difference <= MAX_DIFFERENCE:
        raise UserError(
            f"The exported file's output differs from the method's by {difference:.1e}, more than "
            f"{MAX_DIFFERENCE:.0e}, so the file was deleted. Use another --format."
        )
    return difference


def describe(method: FederatedModule, file_format: str) -> dict[str, Any]:
    """Describe classes, input, output and preprocessing as JSON values."""
    size = int(method.clip.image_size)  # type: ignore[attr-defined]
    transform = asdict(method.clip.preprocess_options)  # type: ignore[attr-defined]
    class_names = [str(name) for name in method.label_names]
    output = "probabilities" if method.has_several_labels else "logits"
    return {
        "format": file_format,
        "fedvlp": __version__,
        "method": type(method).__name__,
        "clip": str(method.hparams["clip"]["name"]),
        "class_names": class_names,
        **({"thresholds": method.thresholds} if method.has_several_labels else {}),
        "input": {"name": "images", "type": "float32", "shape": ["batch", 3, size, size]},
        "output": {"name": output, "type": "float32", "shape": ["batch", len(class_names)]},
        "preprocess": json.loads(json.dumps({**transform, "size": size, "intensity": intensity_of(method.transform)})),
    }


def example_images(method: FederatedModule, count: int, seed: int = 0) -> Float[Tensor, "B 3 V V"]:
    """Create random images, normalised like the output of the method's transform."""
    size = int(method.clip.image_size)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, size, size), generator=generator) / 255
    options = method.clip.preprocess_options  # type: ignore[attr-defined]
    return (pixels - torch.tensor(options.mean)[:, None, None]) / torch.tensor(options.std)[:, None, None]


@torch.no_grad()
def export_program(classifier: nn.Module, examples: Float[Tensor, "B 3 V V"]) -> ExportedProgram:
    """Export the graph of a classifier in evaluation mode, with values that do not depend on images as constants.

    ``examples`` are at least two images.
    """
    # The first call caches values such as a teacher's text features.
    classifier(examples)
    # The first graph determines which values are constant.
    with exportable_routing():
        traced = _export(classifier, examples).run_decompositions({})
    return _export(fold_constants(traced.module()), examples)


@contextmanager
def exportable_routing() -> Iterator[None]:
    """Replace the parts of TRIP's routing that can't be exported, within the block."""
    with (
        patch.object(hashing, "weighted_bits", _weighted_bits),
        patch.object(clustering, "iterate", _iterate),
        # The graph tries all orders of at most 8 experts (40,320).
        patch.object(routing, "LARGEST_ENUMERATED", 8),
        patch.object(routing, "cheapest_assignment", _refuse_assignment),
    ):
        yield


def _weighted_bits(pixels: Tensor, factors: Tensor) -> Tensor:
    # ONNX Runtime sums integers in double precision, but multiplies matrices of integers exactly.
    return float_bits(pixels) @ factors


def float_bits(values: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Compute ``values.view(torch.int32)`` of finite float32 values with arithmetic that can be exported.

    >>> float_bits(torch.tensor([1.0, -2.5, -0.0])).tolist()
    [1065353216, -1071644672, -2147483648]
    """
    exact = values.double()
    magnitudes = exact.abs()
    exponents = magnitudes.clamp(min=2.0**-126).log2().floor()  # may be one off, next to a power of two
    exponents = exponents + (magnitudes * torch.exp2(-exponents) >= 2).double()
    exponents = exponents - (magnitudes * torch.exp2(-exponents) < 1).double()
    exponents = exponents.clamp(min=-126)  # subnormal values share the smallest exponent
    mantissas = magnitudes * torch.exp2(23 - exponents)  # integers, at least 2^23 for normal values
    is_negative = (exact < 0) | (1 / exact < 0)  # zero has a sign, too
    positive = (mantissas + (exponents + 126) * 2.0**23).long()
    return positive - is_negative.long() * 2**31


def _iterate(products: Tensor, limits: Tensor, state: clustering.Iteration, max_iterations: int) -> Any:
    # Tracing a Python loop would fix its number of iterations.
    def is_running(iteration: Tensor, *values: Tensor) -> Tensor:
        return (iteration < max_iterations) & values[-1].any()

    def step(iteration: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        return (iteration + 1, *clustering.next_iteration(products, limits, clustering.Iteration(*values)))

    while_loop: Any = torch.while_loop  # missing in early versions, which can train but not export
    _, *last = while_loop(is_running, step, (torch.zeros((), dtype=torch.int64), *state))
    return clustering.Iteration(*last)


def _refuse_assignment(costs: Tensor) -> Tensor:
    raise UserError(
        f"TRIP's routing among {costs.shape[2]} experts cannot be exported, because the graph tries all orders of the "
        "experts. Use at most 8 experts."
    )


def _export(module: nn.Module, examples: Tensor) -> ExportedProgram:
    return torch.export.export(module, (examples,), dynamic_shapes=({0: Dim("batch")},), strict=False)


@torch.no_grad()
def fold_constants(traced: GraphModule) -> GraphModule:
    """Replace values that do not depend on the input by constants, and remove unused weights.

    ``traced`` is modified. Its operators must be functional, as ``run_decompositions`` makes them.
    """
    graph = traced.graph
    values = _constant_values(traced)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    replacements: dict[Node, Any] = {}

    def substitute(node: Node) -> Any:
        # torch.export would store the whole weight for a view, so views become constants, too.
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
    # Checks and attention are marked as impure, but have no side effects.
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return GraphModule(traced, graph)  # contains only weights that the graph uses


def _constant_values(traced: GraphModule) -> dict[Node, Any]:
    values: dict[Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(traced)
            if isinstance(value, Tensor):  # rather than the body of a loop
                values[node] = value
            continue
        is_pure = node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload)
        if is_pure and all(argument in values for argument in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


def write_onnx(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Write a graph with input ``images`` and the described output; the description becomes metadata, as JSON."""
    # PyTorch 2.8 warns about torchvision's operators.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    onnx_program: Any = torch.onnx.export(
        program,
        (),
        input_names=["images"],
        output_names=[description.get("output", {}).get("name", "logits")],
        opset_version=OPSET,
        dynamo=True,
        custom_translation_table=_translations(),
        verbose=False,
    )
    for name, value in description.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        onnx_program.model.metadata_props[name] = text
    size = sum(tensor.nbytes for tensor in {**program.state_dict, **program.constants}.values())
    onnx_program.save(path, external_data=size > MAX_FILE_BYTES)


def _translations() -> dict[Any, Callable[..., Any]]:
    """Translate operators that ONNX Runtime lacks, or that it can't load in double precision."""
    import onnxscript

    onnx: Any = onnxscript.opset20

    # `other` has a default, because arguments without one must have the operator's names, and `mm` has `mat2`.
    def product(self: Any, other: Any = None) -> Any:
        ranks = (len(self.shape), len(other.shape))
        if self.dtype != onnxscript.DOUBLE.dtype or min(ranks) < 2:
            return onnx.MatMul(self, other)
        # A sum over an index: ONNX Runtime fuses products with transpositions, and versions up to at least 1.24 can't
        # load the fused operator with doubles. It does not support two "..." of different lengths.
        left, right = ("" if rank == 2 else "..." for rank in ranks)
        return onnx.Einsum(self, other, equation=f"{left}ij,{right}jk->{left or right}ik")

    # ONNX Runtime's `where` does not support booleans.
    def where(condition: Any, self: Any, other: Any) -> Any:
        if self.dtype != onnxscript.BOOL.dtype:
            return onnx.Where(condition, self, other)
        return onnx.Or(onnx.And(condition, self), onnx.And(onnx.Not(condition), other))

    # TopK is stable by ONNX's specification.
    def stable_sort(self: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
        size = onnx.Gather(onnx.Shape(self), onnx.Constant(value_ints=[dim]))
        return onnx.TopK(self, size, axis=dim, largest=int(descending), sorted=1)

    aten: Any = torch.ops.aten
    products = dict.fromkeys((aten.matmul.default, aten.bmm.default, aten.mm.default), product)
    return {aten.sort.stable: stable_sort, aten.where.self: where, **products}


def load_onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """Load a file into ONNX Runtime on the CPU, without its telemetry."""
    for name in ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED"):  # the name depends on the release
        os.environ.setdefault(name, "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    return run


def write_torch_export(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Write a graph, with the description as its extra file ``fedvlp.json``."""
    # Through memory, because torch.export.save accepts only paths that end with .pt2.
    content = BytesIO()
    torch.export.save(program, content, extra_files={"fedvlp.json": json.dumps(description)})
    path.write_bytes(content.getbuffer())


def load_torch_export(path: Path) -> Callable[[Tensor], Tensor]:
    """Load a file of torch.export."""
    return torch.export.load(BytesIO(path.read_bytes())).module()


FORMATS = {"onnx": (write_onnx, load_onnx), "torch_export": (write_torch_export, load_torch_export)}
"""By the values of ``--format``: functions that write a graph with a description, and load the file as a function."""

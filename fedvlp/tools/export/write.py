"""Writes a method as a file of some format, if that file computes what the method does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import ExportedProgram

from fedvlp.core.module import FederatedModule
from fedvlp.tools.export import onnx_file
from fedvlp.tools.export.graph import exported_program
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_json
from fedvlp.version import __version__

LARGEST_DIFFERENCE = 1e-4
"""Between a logit of the file and ours. Classes can then change places only where their logits are nearer than twice
that, which is a tie."""
BATCH_SIZES = (1, 3)
DESCRIPTION_NAME = "fedvlp.json"
"""The description's name among the extra files of torch.export."""

Run = Callable[[Float[Tensor, "B 3 V V"]], Float[Tensor, "B C"]]


@dataclass(frozen=True)
class Format:
    """A format of exported files.

    Attributes:
        write: writes a graph with a description into a file.
        load: returns what runs the file.
    """

    write: Callable[[ExportedProgram, Mapping[str, Any], Path], None]
    load: Callable[[Path], Run]


def write_torch_export(program: ExportedProgram, description: Mapping[str, Any], path: Path) -> None:
    """Writes a graph; the description is its extra file ``fedvlp.json``."""
    content = BytesIO()  # a path would have to end with .pt2
    torch.export.save(program, content, extra_files={DESCRIPTION_NAME: json.dumps(description)})
    path.write_bytes(content.getbuffer())


def load_torch_export(path: Path) -> Callable[[Tensor], Tensor]:
    """Returns what the file computes."""
    loaded: Callable[[Tensor], Tensor] = torch.export.load(BytesIO(path.read_bytes())).module()
    return loaded


FORMATS = {
    "onnx": Format(onnx_file.write, onnx_file.load),
    "torch_export": Format(write_torch_export, load_torch_export),
}
"""By the names of ``--format``."""


class ExportedClassifier(nn.Module):
    """Classifies as ``predict`` does: with what all clients share, in evaluation.

    Args:
        method: the method, with the tensors that it is to classify with; put into evaluation mode.
    """

    def __init__(self, method: FederatedModule) -> None:
        super().__init__()
        self.method = method
        self.eval()

    def forward(self, images: Float[Tensor, "B 3 V V"]) -> Float[Tensor, "B C"]:
        """Returns the logits of images, as CLIP's evaluation transform puts them out."""
        with self.method.shared_part_alone():
            logits: Tensor = self.method(images)
        return logits


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        file: the graph.
        description: the JSON beside it: classes and preprocessing.
        difference: the largest between its logits and the method's own, over all images that were compared.
    """

    file: Path
    description: Path
    difference: float


def export_method(method: FederatedModule, file_format: str, output: Path) -> Exported:
    """Writes a trained method and its description, unless the file does not compute what the method does.

    Args:
        method: with the tensors that it is to classify with, on the CPU; put into evaluation mode.
        file_format: one of ``FORMATS``.
        output: the file; its description has the same name with the suffix ``.json``.

    Raises:
        UserError: If the format is unknown or lacks a package, the method can't be exported, or logits differ.
    """
    if file_format not in FORMATS:
        raise UserError(f"Expected --format {', '.join(FORMATS)}; got {file_format!r}.")
    if file_format == "onnx":
        onnx_file.check()
    beside = output.with_suffix(".json")
    if beside == output:
        raise UserError(f"{output} is the name of the description beside the file. Give it another suffix.")
    check_replaceable(output)
    check_replaceable(beside)
    classifier = ExportedClassifier(method)
    program = exported_program(classifier, example_images(method, 2))
    output.parent.mkdir(parents=True, exist_ok=True)
    # a graph above 2 GiB has a second file, which it knows by name, so all get their names in a folder first
    with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        difference = write_checked(classifier, program, file_format, Path(folder) / output.name)
        write_json(Path(folder) / beside.name, describe(method, file_format))
        for path in sorted(Path(folder).iterdir()):
            os.replace(path, output.parent / path.name)
    return Exported(output, beside, difference)


def write_checked(classifier: ExportedClassifier, program: ExportedProgram, file_format: str, file: Path) -> float:
    """Writes a graph into a file and returns the largest difference between its logits and the classifier's.

    Raises:
        UserError: If it is too large; the file is to be removed then.
    """
    kind = FORMATS[file_format]
    kind.write(program, describe(classifier.method, file_format), file)
    difference = largest_difference(classifier, kind.load(file))
    if not difference <= LARGEST_DIFFERENCE:
        raise UserError(
            f"The exported file's logits differ from the method's by {difference:.1e}, more than "
            f"{LARGEST_DIFFERENCE:.0e}, so it is not kept. Use another --format."
        )
    return difference


@torch.no_grad()
def largest_difference(classifier: ExportedClassifier, run: Run) -> float:
    """Returns the largest difference between a file's logits and a method's own; NaN if one of them is."""
    differences = []
    for size in BATCH_SIZES:
        images = example_images(classifier.method, size, seed=size)
        differences.append((run(images) - classifier(images)).abs().max())
    return float(torch.stack(differences).max())


def describe(method: FederatedModule, file_format: str) -> dict[str, Any]:
    """Returns the description, of plain values that JSON can hold.

    Its ``preprocess`` has the size in pixels, how an image is brought to it (``resize_mode`` and ``interpolation``,
    then the centre is cut out), and the mean and deviation of each colour, of values in [0, 1].
    """
    transform = asdict(method.clip.preprocess_options)  # type: ignore[attr-defined]
    return {
        "format": file_format,
        "fedvlp": __version__,
        "method": type(method).__name__,
        "clip": str(method.hparams["clip"]["name"]),
        "class_names": [str(name) for name in method.hparams["class_names"]],
        "input": {"name": "images", "type": "float32", "shape": ["batch", 3, *_pixels(method)]},
        "output": {"name": "logits", "type": "float32", "shape": ["batch", len(method.hparams["class_names"])]},
        "preprocess": json.loads(json.dumps({**transform, "size": _pixels(method)[0]})),
    }


def example_images(method: FederatedModule, count: int, seed: int = 0) -> Float[Tensor, "B 3 V V"]:
    """Returns images of random pixels, with the mean and the deviation that the transform gives to photographs.

    Args:
        method: whose transform it is.
        count: how many.
        seed: another one gives other images.
    """
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, *_pixels(method)), generator=generator) / 255
    options = method.clip.preprocess_options  # type: ignore[attr-defined]
    return (pixels - torch.tensor(options.mean)[:, None, None]) / torch.tensor(options.std)[:, None, None]


def _pixels(method: FederatedModule) -> tuple[int, int]:
    size = int(method.clip.image_size)  # type: ignore[attr-defined]
    return size, size

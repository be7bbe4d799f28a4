"""Export of a trained method to a file that computes the same logits."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import ExportedProgram

from fedvlp.core.module import FederatedModule
from fedvlp.data.files.images import intensity_of
from fedvlp.tools.export.graph import FORMATS, export_program
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_json
from fedvlp.version import __version__

MAX_DIFFERENCE = 1e-4  # between the file's and the method's output
BATCH_SIZES = (1, 3)


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
    kind = FORMATS[file_format]
    kind.write(program, describe(classifier.method, file_format), file)
    run = kind.load(file)
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

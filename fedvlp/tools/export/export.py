"""A trained method as a file, if that file computes what the method does."""

from __future__ import annotations

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
from fedvlp.tools.export.graph import FORMATS, exported_program
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_json
from fedvlp.version import __version__

LARGEST_DIFFERENCE = 1e-4
"""Between a logit of the file and ours. Classes can then change places only where their logits are nearer than twice
that, which is a tie."""
BATCH_SIZES = (1, 3)


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
        """The logits of images, which have passed CLIP's evaluation transform."""
        with self.method.shared_part_alone():
            logits: Tensor = self.method(images)
        return logits


def export_method(method: FederatedModule, file_format: str, output: Path, inputs: Iterable[Path] = ()) -> float:
    """Writes a trained method and its description, unless the file does not compute what the method does.

    Args:
        method: with the tensors that it is to classify with, on the CPU; put into evaluation mode.
        file_format: one of ``FORMATS``.
        output: the file; its description is beside it, with the suffix ``.json``.
        inputs: files that neither of the two may replace.

    Returns:
        The largest difference between the file's logits and the method's own, over all images that were compared.

    Raises:
        UserError: if the format lacks a package, logits differ, a file would be replaced, or it can't be written.
    """
    if file_format == "onnx" and not all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        raise UserError('ONNX needs onnx, onnxscript and onnxruntime. Run: pip install "fedvlp[export]"')
    beside = output.with_suffix(".json")
    if beside == output:
        raise UserError(f"{output} is the name of the description beside the file. Give it another suffix.")
    for file in (output, beside):
        check_replaceable(file, inputs)
    classifier = ExportedClassifier(method)
    program = exported_program(classifier, example_images(method, 2))
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A graph above 2 GiB has a second file, which it knows by name, so all get their names in a folder first.
        with TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
            difference = write_checked(classifier, program, file_format, Path(folder) / output.name)
            write_json(Path(folder) / beside.name, describe(method, file_format))
            for path in sorted(Path(folder).iterdir()):
                os.replace(path, output.parent / path.name)
    except OSError as error:  # of a full disk NumPy, which writes the second file, names neither number nor file
        raise UserError(f"{output} was not written: {error}. Check the disk and its rights.") from error
    return difference


@torch.no_grad()
def write_checked(classifier: ExportedClassifier, program: ExportedProgram, file_format: str, file: Path) -> float:
    """Writes a graph into a file and returns the largest difference between its logits and the classifier's.

    Raises:
        UserError: if it is too large or NaN; the file is to be removed then.
    """
    kind = FORMATS[file_format]
    kind.write(program, describe(classifier.method, file_format), file)
    run = kind.load(file)
    differences = []
    for size in BATCH_SIZES:
        images = example_images(classifier.method, size, seed=size)
        differences.append((run(images) - classifier(images)).abs().max())
    difference = float(torch.stack(differences).max())
    # Written so that NaN is refused as well.
    if not difference <= LARGEST_DIFFERENCE:
        raise UserError(
            f"The exported file's logits differ from the method's by {difference:.1e}, more than "
            f"{LARGEST_DIFFERENCE:.0e}, so it is not kept. Use another --format."
        )
    return difference


def describe(method: FederatedModule, file_format: str) -> dict[str, Any]:
    """The description, of plain values that JSON can hold.

    Its ``preprocess`` has the size in pixels, how an image is brought to it (``resize_mode`` and ``interpolation``,
    then the centre is cut out), and the mean and deviation of each colour, of values in [0, 1].
    """
    size = int(method.clip.image_size)  # type: ignore[attr-defined]
    transform = asdict(method.clip.preprocess_options)  # type: ignore[attr-defined]
    class_names = [str(name) for name in method.hparams["class_names"]]
    return {
        "format": file_format,
        "fedvlp": __version__,
        "method": type(method).__name__,
        "clip": str(method.hparams["clip"]["name"]),
        "class_names": class_names,
        "input": {"name": "images", "type": "float32", "shape": ["batch", 3, size, size]},
        "output": {"name": "logits", "type": "float32", "shape": ["batch", len(class_names)]},
        "preprocess": json.loads(json.dumps({**transform, "size": size})),
    }


def example_images(method: FederatedModule, count: int, seed: int = 0) -> Float[Tensor, "B 3 V V"]:
    """Images of random pixels, with the mean and the deviation that the method's transform gives to photographs."""
    size = int(method.clip.image_size)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (count, 3, size, size), generator=generator) / 255
    options = method.clip.preprocess_options  # type: ignore[attr-defined]
    return (pixels - torch.tensor(options.mean)[:, None, None]) / torch.tensor(options.std)[:, None, None]

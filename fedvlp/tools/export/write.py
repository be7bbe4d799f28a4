"""Writes a method as a file of some format, if that file computes what the method does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.export import ExportedProgram

from fedvlp.core.module import FederatedModule
from fedvlp.tools.export.classifier import ExportedClassifier
from fedvlp.tools.export.description import describe, example_images
from fedvlp.tools.export.formats import FORMATS, Run
from fedvlp.tools.export.program import exported_program
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_json

LARGEST_DIFFERENCE = 1e-4
"""Between a logit of the file and ours. Classes can then change places only where their logits are nearer than twice
that, which is a tie."""
BATCH_SIZES = (1, 3)


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
    FORMATS[file_format].check()
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
    found = []
    for size in BATCH_SIZES:
        images = example_images(classifier.method, size, seed=size)
        found.append((run(images) - classifier(images)).abs().max())
    return float(torch.stack(found).max())

"""From a classifier to one graph of tensor operators with a free batch size, from which all formats are written."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fedvlp.tools.export.folding import fold_constants
from fedvlp.utils.errors import UserError

LARGEST_BATCH = 2**31 - 1


@torch.no_grad()
def exported_program(classifier: nn.Module, examples: Float[Tensor, "B 3 V V"]) -> ExportedProgram:
    """Returns the classifier's graph, in which all that does not depend on the images is a constant.

    Args:
        classifier: on the CPU and in evaluation mode.
        examples: images to trace it with, at least two; a batch of one looks like no batch.

    Raises:
        UserError: If this PyTorch cannot export loops.
    """
    if not hasattr(torch, "while_loop"):
        raise UserError(f"Export needs a PyTorch with torch.while_loop; this is {torch.__version__}. Update torch.")
    classifier(examples)  # what is computed when it is first asked for, such as a teacher's texts, is known afterwards
    traced = _export(classifier, examples).run_decompositions({})
    return _export(fold_constants(traced.module()), examples)


def _export(module: nn.Module, examples: Tensor) -> ExportedProgram:
    # PyTorch 2.7 takes no dimension without an upper bound
    shapes = ({0: Dim("batch", max=LARGEST_BATCH)},)
    return torch.export.export(module, (examples,), dynamic_shapes=shapes, strict=False)

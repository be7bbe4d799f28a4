"""Count the equal routes of TRIP for tokens of towers in float32 and in bfloat16.

``python -m experiments.half_precision.routes``: all images of StyledShapes. Equal tokens have equal routes in any
precision, but rounded towers produce different tokens.
"""

from __future__ import annotations

import sys

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.tables import markdown
from experiments.tiny_clip.shapes import StyledShapes
from fedvlp import TRIP
from fedvlp.clip import load_clip

BATCH = 64
SAME = 1e-6
"""Shares that differ by less are equal; each is a ratio of counts of tokens."""


@torch.no_grad()
def routes(dtype: torch.dtype) -> dict[str, Float[Tensor, "N E"]]:
    """Compute the weights pi of each style's images with the untrained method, and towers in a type."""
    clip = load_clip("fedvlp-tiny")
    domains, class_names = StyledShapes().load_domains()
    module = TRIP(class_names, clip, templates=1).eval()
    clip.cast_towers(dtype)
    found = {}
    for name, images in domains.items():
        rows = []
        for start in range(0, len(images), BATCH):
            count = range(start, min(start + BATCH, len(images)))
            pixels = torch.stack([clip.preprocess(images[row]) for row in count])
            rows.append(module.precompute(pixels)["train_weights"])
        found[name] = torch.cat(rows)
    return found


def main() -> None:
    """Print the table."""
    single = routes(torch.float32)
    half = routes(torch.bfloat16)
    lines = []
    for name, weights in single.items():
        moved = (weights - half[name]).abs().amax(dim=1)
        largest = weights.argmax(dim=1) == half[name].argmax(dim=1)
        shares = [(moved < SAME).float().mean(), largest.float().mean(), moved.mean()]
        lines.append([name, f"{len(weights)}", *[f"{100 * float(share):.1f} %" for share in shares]])
    head = ["style", "images", "equal weights", "same first expert", "mean largest change of a weight"]
    sys.stdout.write(f"{markdown(head, lines)}\n")


if __name__ == "__main__":
    main()

"""Accuracy loss from untrained image tokens: zero-shot CLIP with the initial tokens of Fed-DPT and ADAPT.

``python -m experiments.fair_comparison.image_tokens``: each style of StyledShapes, three tokens for three source
domains, drawn with several seeds, and the template "a photo of a" in the text tower.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from experiments.runs import Setting
from experiments.tables import markdown, spread
from experiments.tiny_clip.shapes import StyledShapes
from fedvlp import FedDPT
from fedvlp.clip import CLIP, load_clip
from fedvlp.methods.zero_shot import ZeroShotCLIP

SEEDS = range(5)


def image_tokens(clip: CLIP, class_names: list[str], seed: int) -> FedDPT:
    """Make the untrained Fed-DPT, with the fixed text prompt."""
    torch.manual_seed(seed)
    return FedDPT(class_names, ["one", "two", "three"], clip, components="visual")


@torch.no_grad()
def main() -> None:
    """Print the table."""
    clip = load_clip("fedvlp-tiny")
    domains, class_names = StyledShapes().load_domains()
    plain = ZeroShotCLIP(class_names, clip)
    lines = []
    for domain in Setting().domains():
        images = torch.stack([clip.preprocess(domains[domain][row]) for row in range(len(domains[domain]))])
        labels = torch.as_tensor(np.asarray(domains[domain].labels))

        def accuracy(logits: torch.Tensor, labels: torch.Tensor = labels) -> float:
            return 100 * float((logits.argmax(dim=1) == labels).float().mean())

        with_tokens = [accuracy(image_tokens(clip, class_names, seed)(images)) for seed in SEEDS]
        lines.append([domain, f"{accuracy(plain(plain.precompute(images))):.1f}", spread(with_tokens)])
    sys.stdout.write(markdown(["style", "zero-shot CLIP", "with untrained image tokens"], lines) + "\n")


if __name__ == "__main__":
    main()

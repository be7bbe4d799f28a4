"""Evaluate fedvlp-small on IconDomains: ``python -m experiments.small_clip.probe``, half a minute."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from open_clip import CLIP
from torch import Tensor

from experiments.icon_domains.icons import things
from experiments.tiny_clip.probe import encode_images, linear_probe, zero_shot
from fedvlp.clip.loading import bundled_config, bundled_state_dict
from fedvlp.clip.zero_shot import SINGLE_TEMPLATE
from fedvlp.data.icon_domains.module import IconDomains

SHOTS = 4
SEEDS = 3
_NAME = "fedvlp-small"
_RETRIEVED = 10


def wilson(right: int, count: int) -> str:
    """Format a share in percent with its 95 % Wilson interval.

    >>> wilson(5, 10)
    '50.0 [23.7, 76.3]'
    """
    z = 1.96
    share = right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return f"{100 * share:.1f} [{100 * (middle - half):.1f}, {100 * (middle + half):.1f}]"


def row(scores: Float[Tensor, "B C"], labels: Int[Tensor, "B"], is_seen: Bool[Tensor, "C"]) -> list[str]:
    """Compute accuracies: seen things among seen, never trained ones among such, all among all, and both parts."""
    seen = is_seen[labels]
    among_seen = scores.masked_fill(~is_seen, -torch.inf).argmax(dim=1) == labels
    among_new = scores.masked_fill(is_seen, -torch.inf).argmax(dim=1) == labels
    among_all = scores.argmax(dim=1) == labels
    cells = (among_seen[seen], among_new[~seen], among_all, among_all[seen], among_all[~seen])
    return [wilson(int(right.sum()), len(right)) for right in cells]


def few_shot(features: Float[Tensor, "B d"], labels: Int[Tensor, "B"], tested: Bool[Tensor, "B"], seed: int) -> float:
    """Compute the accuracy in percent of a linear classifier of four images per class, on the test images."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    others = order[~tested[order]]
    classes = int(labels.max()) + 1
    chosen = torch.cat([others[labels[others] == label][:SHOTS] for label in range(classes)])
    head = linear_probe({"others": (features[chosen], labels[chosen])}, classes)
    with torch.no_grad():
        right = head(features[tested]).argmax(dim=1) == labels[tested]
    return 100 * float(right.float().mean())


def retrieval(scores: Float[Tensor, "B C"], labels: Int[Tensor, "B"], classes: Iterable[int]) -> float:
    """Compute the mean share of correct images among the first ten for a class's caption, in percent."""
    shares = [(labels[scores[:, label].topk(_RETRIEVED).indices] == label).float().mean() for label in classes]
    return 100 * float(np.mean(shares))


def main() -> None:
    """Write the table."""
    model = CLIP(**bundled_config(_NAME))
    model.load_state_dict(bundled_state_dict(_NAME))
    model.eval().requires_grad_(False)
    domains, class_names = IconDomains(cache_dir=None).load_domains()
    seen_names = {thing.name for thing in things() if thing.part == "seen"}
    is_seen = torch.tensor([name in seen_names for name in class_names])
    arrays = [np.stack([np.asarray(images[index]) for index in range(len(images))]) for images in domains.values()]
    features = torch.cat([encode_images(model, images) for images in arrays])
    labels = torch.cat([torch.tensor(images.labels) for images in domains.values()])
    domain = np.repeat(list(domains), [len(images.labels) for images in domains.values()])
    scores = features @ zero_shot(model, class_names, SINGLE_TEMPLATE).T
    head = ["domain", "images", "seen / seen", "never trained / never trained", "all / all", "seen / all"]
    lines = ["| " + " | ".join([*head, "never trained / all", f"{SHOTS}-shot probe"]) + " |", "|---" * 8 + "|"]
    for name in [*domains, "all"]:
        tested = torch.from_numpy((domain == name) | (name == "all"))
        probes = [few_shot(features, labels, tested, seed) for seed in range(SEEDS)] if name != "all" else []
        probed = f"{np.mean(probes):.1f} ± {np.std(probes):.1f}" if probes else ""
        cells = [name, str(int(tested.sum())), *row(scores[tested], labels[tested], is_seen), probed]
        lines.append("| " + " | ".join(cells) + " |")
    for part, chosen in (("seen", is_seen), ("never trained", ~is_seen)):
        found = retrieval(scores, labels, chosen.nonzero().flatten().tolist())
        lines.append(
            f"\nOf the first {_RETRIEVED} images that the caption of a {part} class finds, {found:.1f} % show it."
        )
    right = scores.argmax(dim=1) == labels
    by_class = sorted((right[labels == label].float().mean().item(), name) for label, name in enumerate(class_names))
    lines.append("\nHardest among all: " + ", ".join(f"{name} {100 * share:.0f} %" for share, name in by_class[:20]))
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()

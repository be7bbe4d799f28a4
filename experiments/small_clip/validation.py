"""Zero-shot accuracy on the icon sets that are only used to choose the recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from open_clip import CLIP
from torch import Tensor

from experiments.icon_domains.icons import download, icon_sets, on_white, read_icons, render, things, things_by_words
from experiments.tiny_clip.probe import encode_images
from experiments.tiny_clip.train import encode_text
from fedvlp.clip.zero_shot import SINGLE_TEMPLATE


@dataclass(frozen=True)
class Validation:
    """Icons of things with names that the benchmark does not test.

    Args:
        images: On white.
        labels: Thing of each image.
        makers: Set of each image.
        tokens: "a photo of a {}." for each thing.
        is_seen: Whether captions contain the thing; the others are the 14 of development.
    """

    images: np.ndarray
    labels: Int[Tensor, "B"]
    makers: np.ndarray
    tokens: Int[Tensor, "C length"]
    is_seen: Bool[Tensor, "C"]

    @classmethod
    def read(cls, folder: Path, tokens: Callable[[Sequence[str]], Tensor]) -> Validation:
        """Read the validation sets in a folder."""
        sets = [icons for icons in icon_sets() if icons.use == "validation"]
        download(sets, folder)
        shown = [thing for thing in things() if thing.part != "never trained"]
        number = {thing.name: index for index, thing in enumerate(shown)}
        thing_of = things_by_words()
        found = []
        for icon in (icon for icons in sets for icon in read_icons(icons, folder)):
            thing = thing_of.get(icon.words)
            if thing is not None and thing.name in number:
                found.append((on_white(render(icon.svg)), number[thing.name], icon.of.name))
        images, labels, makers = zip(*found, strict=True)
        return cls(
            np.stack(images),
            torch.tensor(labels),
            np.array(makers),
            tokens([SINGLE_TEMPLATE.format(thing.name) for thing in shown]),
            torch.tensor([thing.part != "development" for thing in shown]),
        )

    def measure(self, model: CLIP) -> str:
        """Compute accuracies in percent: of seen things among seen ones by maker, and of others among each other."""
        model.eval()
        with torch.no_grad():
            scores = encode_images(model, self.images) @ encode_text(model, self.tokens).T
        model.train()
        seen = self.is_seen[self.labels]
        right = self._right(scores, self.is_seen)
        parts = [f"seen {_percent(right[seen])}", f"new {_percent(self._right(scores, ~self.is_seen)[~seen])}"]
        parts.append(f"all {_percent(scores.argmax(dim=1) == self.labels)}")
        for maker in np.unique(self.makers):
            parts.append(f"{maker} {_percent(right[seen & torch.from_numpy(self.makers == maker)])}")
        return ", ".join(parts)

    def _right(self, scores: Float[Tensor, "B C"], allowed: Bool[Tensor, "C"]) -> Bool[Tensor, "B"]:
        return scores.masked_fill(~allowed, -torch.inf).argmax(dim=1) == self.labels


def _percent(right: Bool[Tensor, "B"]) -> str:
    return f"{100 * right.float().mean():.1f}"

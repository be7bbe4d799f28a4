"""Evaluate the tiny CLIP on StyledShapes, with each style held out in turn: zero-shot, PromptFL and linear probes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from open_clip import CLIP
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor
from torch.nn import functional

from experiments.tiny_clip.shapes import CLASS_NAMES, styled_shapes
from fedvlp.clip.loading import bundled_config, bundled_state_dict

Shapes = Mapping[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]
"""Images and labels by style."""
Features = dict[str, tuple[Float[Tensor, "B d"], Int[Tensor, "B"]]]
"""Image features and labels by style."""


def load() -> CLIP:
    """Load the bundled tiny CLIP, frozen."""
    model = CLIP(**bundled_config())
    model.load_state_dict(bundled_state_dict())
    frozen: CLIP = model.eval().requires_grad_(False)
    return frozen


def encode_images(model: CLIP, images: NDArray[np.uint8]) -> Float[Tensor, "B d"]:
    """Compute normalised image features."""
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    mean, deviation = (torch.tensor(value).view(3, 1, 1) for value in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD))
    with torch.no_grad():
        parts = torch.split((pixels - mean) / deviation, 256)
        return torch.cat([model.encode_image(part, normalize=True) for part in parts])


def zero_shot(model: CLIP, class_names: Sequence[str], template: str) -> Float[Tensor, "C d"]:
    """Compute the normalised text features of the template with each class name."""
    tokens = SimpleTokenizer()([template.format(name) for name in class_names])
    with torch.no_grad():
        features: Tensor = model.encode_text(tokens, normalize=True)
    return features


@dataclass(frozen=True)
class Prompted:
    """Text features under a prompt: ``[SOS][prompt][class].[EOS]``.

    Args:
        model: The frozen CLIP.
        words: Embedded tokens of the classes, beginning with the start of text.
        ends: Positions of the end of text.
    """

    model: CLIP
    words: Float[Tensor, "C length D"]
    ends: Int[Tensor, "C"]

    @classmethod
    def of(cls, model: CLIP, class_names: Sequence[str]) -> Prompted:
        """Make the encoder for the class names."""
        tokens = SimpleTokenizer()([name + "." for name in class_names])
        ends = tokens.argmax(dim=1)
        return cls(model, model.token_embedding(tokens[:, : int(ends.max()) + 1]), ends)

    def __call__(self, prompt: Float[Tensor, "L D"]) -> Float[Tensor, "C d"]:
        """Compute normalised text features of all classes."""
        shared = prompt.expand(len(self.words), -1, -1)
        hidden = torch.cat([self.words[:, :1], shared, self.words[:, 1:]], dim=1)
        length = hidden.shape[1]
        hidden = hidden + self.model.positional_embedding[:length]
        hidden = self.model.transformer(hidden, attn_mask=self.model.attn_mask[:length, :length])
        hidden = self.model.ln_final(hidden)[torch.arange(len(hidden)), self.ends + len(prompt)]
        return functional.normalize(hidden @ self.model.text_projection, dim=1)


def local_prompt(
    encoder: Prompted,
    prompt: Float[Tensor, "L D"],
    data: tuple[Float[Tensor, "B d"], Int[Tensor, "B"]],
    rate: float,
    generator: torch.Generator,
) -> Float[Tensor, "L D"]:
    """Train the prompt on one client for one epoch of cross-entropy, in batches of 32."""
    prompt = prompt.clone().requires_grad_()
    optimizer = torch.optim.AdamW([prompt], lr=rate)
    features, labels = data
    for rows in torch.split(torch.randperm(len(labels), generator=generator), 32):
        logits = encoder.model.logit_scale.exp() * features[rows] @ encoder(prompt).T
        loss = functional.cross_entropy(logits, labels[rows])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return prompt.detach()


def prompt_fl(encoder: Prompted, sources: Features, rounds: int, rate: float, seed: int) -> Float[Tensor, "L D"]:
    """Train PromptFL's prompt of 16 tokens: one client per style, averaged by size after each epoch."""
    generator = torch.Generator().manual_seed(seed)
    prompt = 0.02 * torch.randn(16, encoder.words.shape[2], generator=generator)
    sizes = torch.tensor([len(labels) for _, labels in sources.values()]).float()
    for _ in range(rounds):
        local = [local_prompt(encoder, prompt, data, rate, generator) for data in sources.values()]
        prompt = torch.einsum("k,kld->ld", sizes / sizes.sum(), torch.stack(local))
    return prompt


def linear_probe(sources: Features, classes: int) -> torch.nn.Linear:
    """Fit a linear classifier of image features to all sources, with a little weight decay."""
    features = torch.cat([f for f, _ in sources.values()])
    labels = torch.cat([y for _, y in sources.values()])
    torch.manual_seed(0)
    head = torch.nn.Linear(features.shape[1], classes)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.05, weight_decay=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(20 * head(features), labels))
        optimizer.step()
    return head


def accuracy(scores: Float[Tensor, "B C"], labels: Int[Tensor, "B"]) -> float:
    """Compute the percentage of images with the highest score for their label."""
    return 100 * (scores.argmax(dim=1) == labels).float().mean().item()


def encoded(model: CLIP, shapes: Shapes) -> Features:
    """Encode the images of all styles, with labels."""
    return {
        style: (encode_images(model, images), torch.from_numpy(labels)) for style, (images, labels) in shapes.items()
    }


def measure(model: CLIP, shapes: Shapes, extra: Features, options: argparse.Namespace) -> list[str]:
    """Make a Markdown table with a row per held-out style, and means, in percent."""
    domains = encoded(model, shapes)
    plain = zero_shot(model, CLASS_NAMES, "a photo of a {}.")
    encoder = Prompted.of(model, CLASS_NAMES)
    rows = []
    for held_out, (features, labels) in domains.items():
        sources = {style: data for style, data in domains.items() if style != held_out}
        prompts = [prompt_fl(encoder, sources, options.rounds, options.rate, seed) for seed in range(options.seeds)]
        scores = [features @ plain.T, *(features @ encoder(prompt).T for prompt in prompts)]
        others = {style: data for style, data in extra.items() if style != held_out}
        heads = [linear_probe(data, len(plain)) for data in (others, {held_out: extra[held_out]})]
        scores += [head(features) for head in heads]
        rows.append([accuracy(score, labels) for score in scores])
    rows.append(np.mean(rows, axis=0).tolist())
    lines = [
        "| held-out style | zero-shot | PromptFL | probe of other styles | probe of this style |",
        "|---|---|---|---|---|",
    ]
    for style, (base, *learned, other, own) in zip([*domains, "mean"], rows, strict=True):
        deviation = np.std(learned)
        lines.append(f"| {style} | {base:.1f} | {np.mean(learned):.1f} ± {deviation:.1f} | {other:.1f} | {own:.1f} |")
    return lines


def main() -> None:
    """Read the command line, evaluate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of PromptFL, of one epoch each")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of AdamW")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of PromptFL")
    parser.add_argument("--probe_images", type=int, default=60, help="images per class and style of the linear probes")
    options = parser.parse_args()
    model = load()
    extra = encoded(model, styled_shapes(seed=1, images_per_class=options.probe_images))
    sys.stdout.write("\n".join([*measure(model, styled_shapes(), extra, options), ""]))


if __name__ == "__main__":
    main()

"""Gain of learned prompts with a small CLIP on other makers: ``python -m experiments.small_clip.prompts WEIGHTS``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import open_clip
import torch
from jaxtyping import Bool, Float, Int
from open_clip import CLIP
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from experiments.icon_domains.icons import things
from experiments.small_clip.train import NAME
from experiments.small_clip.validation import Validation
from experiments.tiny_clip.probe import encode_images
from fedvlp.clip.loading import bundled_config, expand

STEPS = 100
BATCH = 64
RATE = 0.003


def load(weights: Path) -> CLIP:
    """Load the small CLIP with these weights, frozen."""
    config = bundled_config(NAME)
    model = CLIP(**config)
    model.load_state_dict(expand(load_file(weights), config["text_cfg"]["vocab_size"]))
    return model.eval().requires_grad_(False)


def text_features(
    model: CLIP, prompt: Float[Tensor, "length width"], tokens: Int[Tensor, "C places"]
) -> Float[Tensor, "C d"]:
    """Compute features of texts in which a prompt replaces the first tokens after the start."""
    words = model.token_embedding(tokens)
    start, rest = words[:, :1], words[:, 1 + len(prompt) :]
    places = tokens.shape[1]
    hidden = torch.cat([start, prompt.expand(len(tokens), -1, -1), rest], dim=1) + model.positional_embedding[:places]
    hidden = model.ln_final(model.transformer(hidden, attn_mask=model.attn_mask[:places, :places]))
    ends = hidden[torch.arange(len(tokens)), tokens.argmax(dim=1)]
    return functional.normalize(ends @ model.text_projection, dim=1)


def learn(
    model: CLIP,
    images: Float[Tensor, "B d"],
    labels: Int[Tensor, "B"],
    is_learned: Bool[Tensor, "B"],
    names: list[str],
    length: int,
) -> list[str]:
    """Compute accuracies before and after learning a random prompt: on other images, and on the training images."""
    generator = torch.Generator().manual_seed(0)
    tokens = open_clip.get_tokenizer("ViT-B-32")([f"{'x ' * length}{name}." for name in names])
    tokens = tokens[:, : int(tokens.argmax(dim=1).max()) + 1]
    prompt = (0.02 * torch.randn(length, model.positional_embedding.shape[1], generator=generator)).requires_grad_()
    optimizer = torch.optim.AdamW([prompt], lr=RATE)
    learned = is_learned.nonzero().flatten()
    measured = [accuracies(images @ text_features(model, prompt, tokens).T, labels, is_learned)]
    for _ in range(STEPS):
        batch = learned[torch.randint(len(learned), (BATCH,), generator=generator)]
        logits = model.logit_scale.exp() * images[batch] @ text_features(model, prompt, tokens).T
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(logits, labels[batch]))
        optimizer.step()
    measured.append(accuracies(images @ text_features(model, prompt, tokens).T, labels, is_learned))
    return measured


def accuracies(scores: Float[Tensor, "B C"], labels: Int[Tensor, "B"], is_learned: Bool[Tensor, "B"]) -> str:
    """Compute accuracies in percent: on images that were not used for learning, and on those that were."""
    is_right = (scores.argmax(dim=1) == labels).float()
    return f"{100 * is_right[~is_learned].mean():.1f} / {100 * is_right[is_learned].mean():.1f}"


def main() -> None:
    """Print a line for no prompt, and for prompts of 4 and 16 vectors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--packages", type=Path, default=Path("packages"), help="folder of the packages of icons")
    options = parser.parse_args()
    model = load(options.weights)
    validation = Validation.read(options.packages, open_clip.get_tokenizer("ViT-B-32"))
    names = [thing.name for thing in things() if thing.part != "never trained"]
    with torch.no_grad():
        images = encode_images(model, validation.images)
        zero_shot = images @ model.encode_text(validation.tokens, normalize=True).T
    is_learned = torch.rand(len(images), generator=torch.Generator().manual_seed(0)) < 0.5
    sys.stdout.write(f"a photo of a: {accuracies(zero_shot, validation.labels, is_learned)}\n")
    for length in (4, 16):
        before, after = learn(model, images, validation.labels, is_learned, names, length)
        sys.stdout.write(f"{length} vectors: {before}, learned {after}\n")


if __name__ == "__main__":
    main()

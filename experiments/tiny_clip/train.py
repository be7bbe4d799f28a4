"""Train the bundled tiny CLIP on captioned drawings and write its weights."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from open_clip import CLIP
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import OneCycleLR

from experiments.tiny_clip.drawings import describe, is_true, pretraining_drawing, scene_codes
from experiments.tiny_clip.shapes import Scene
from fedvlp.clip.loading import BUNDLED, bundled_config, expand

_LOG = logging.getLogger(__name__)
_ATTRIBUTE_WEIGHTS = (0.15, 1.0, 0.6, 0.15, 0.15, 0.15)


@dataclass(frozen=True)
class Corpus:
    """Drawings with captions in tokens, renumbered by the few words that occur.

    Args:
        images: All drawings.
        codes: Attributes of the drawings.
        tokens: Several captions of each drawing, truncated at the longest.
        named: Attributes in the captions.
        index: The tokenizer's number for each new token number.
    """

    images: UInt8[Tensor, "drawings 3 64 64"]
    codes: Int[Tensor, "drawings attributes"]
    tokens: Int[Tensor, "drawings captions length"]
    named: Int[Tensor, "drawings captions attributes"]
    index: Int[Tensor, "words"]


def draw_all(count: int, seed: int) -> tuple[UInt8[Tensor, "drawings 3 64 64"], list[Scene]]:
    """Draw this many drawings of the pretraining styles with their scenes, on all cores."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        drawn = list(pool.map(partial(pretraining_drawing, seed), range(count), chunksize=256))
    images = np.stack([image for image, _ in drawn]).transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(images)), [scene for _, scene in drawn]


def make_corpus(count: int, captions: int, seed: int) -> Corpus:
    """Make a corpus of drawings with this many captions each."""
    images, scenes = draw_all(count, seed)
    generator = np.random.default_rng([seed, 3])
    described = []
    for scene in scenes:
        described += [describe(scene, generator) for _ in range(captions)]
    tokens = SimpleTokenizer()([caption.text for caption in described])
    tokens = tokens[:, : int(tokens.argmax(dim=1).max()) + 1]
    index, renumbered = tokens.unique(return_inverse=True)
    codes = torch.from_numpy(np.stack([scene_codes(scene) for scene in scenes]))
    named = torch.tensor([caption.codes for caption in described])
    return Corpus(images, codes, renumbered.view(count, captions, -1), named.view(count, captions, -1), index)


def augment(images: UInt8[Tensor, "B 3 64 64"], generator: torch.Generator) -> Float[Tensor, "B 3 64 64"]:
    """Normalise the images for CLIP, with random contrast, brightness, noise and a small common shift."""
    shift = torch.randint(-3, 4, (2,), generator=generator).tolist()
    pixels = functional.pad(images.float() / 255, (3, 3, 3, 3), mode="replicate")
    pixels = pixels[:, :, 3 + shift[0] : 67 + shift[0], 3 + shift[1] : 67 + shift[1]]
    scale, offset = torch.rand(2, len(images), 1, 1, 1, generator=generator)
    pixels = (pixels - 0.5) * (0.75 + 0.4 * scale) + 0.5 + 0.2 * (offset - 0.5)
    pixels = pixels + 0.03 * torch.randn(pixels.shape, generator=generator)
    mean, deviation = (torch.tensor(value).view(3, 1, 1) for value in (OPENAI_DATASET_MEAN, OPENAI_DATASET_STD))
    normalised: Tensor = (pixels - mean) / deviation
    return normalised


def encode_text(model: CLIP, tokens: Int[Tensor, "texts length"], offset: int = 0) -> Float[Tensor, "texts d"]:
    """Compute normalised text features of truncated sequences; the last token number is the end of text.

    Args:
        model: CLIP with the text tower.
        tokens: Tokens from the start to the end of text.
        offset: Number of free positions after the start.
    """
    length = tokens.shape[1]
    places = torch.arange(length)
    places[1:] += offset
    hidden = model.token_embedding(tokens) + model.positional_embedding[places]
    hidden = model.ln_final(model.transformer(hidden, attn_mask=model.attn_mask[:length, :length]))
    ends = hidden[torch.arange(len(tokens)), tokens.argmax(dim=1)]
    features: Tensor = functional.normalize(ends @ model.text_projection, dim=1)
    return features


def contrastive_loss(logits: Float[Tensor, "B texts"], positive: Bool[Tensor, "B texts"]) -> Float[Tensor, ""]:
    """Compute the symmetric contrastive loss, where all true captions of an image share the target equally."""
    target = positive.float()
    by_image = -(logits.log_softmax(dim=1) * target).sum(dim=1) / target.sum(dim=1)
    by_text = -(logits.log_softmax(dim=0) * target).sum(dim=0) / target.sum(dim=0)
    return (by_image.mean() + by_text.mean()) / 2


def attribute_loss(
    heads: nn.ModuleList, features: Float[Tensor, "B d"], codes: Int[Tensor, "B attributes"]
) -> Float[Tensor, ""]:
    """Compute the weighted cross-entropy of linear heads for each attribute that a drawing shows."""
    losses = []
    for head, weight, labels in zip(heads, _ATTRIBUTE_WEIGHTS, codes.T, strict=True):
        shown = labels >= 0
        losses.append(weight * functional.cross_entropy(head(features[shown]), labels[shown]))
    return torch.stack(losses).sum()


def step_loss(
    model: CLIP, heads: nn.ModuleList, corpus: Corpus, rows: Int[Tensor, "B"], generator: torch.Generator
) -> Float[Tensor, ""]:
    """Compute the loss of one batch with two captions for each drawing."""
    picks = torch.randint(corpus.tokens.shape[1], (2, len(rows)), generator=generator)
    tokens = torch.cat([corpus.tokens[rows, pick] for pick in picks])
    named = torch.cat([corpus.named[rows, pick] for pick in picks])
    positive = torch.from_numpy(is_true(named.numpy(), corpus.codes[rows].numpy())).T
    pixels = augment(corpus.images[rows], generator)
    with torch.autocast("cpu", torch.bfloat16):
        image_features = model.visual(pixels)
        text_features = encode_text(model, tokens)
    image_features = image_features.float()
    logits = model.logit_scale.exp() * functional.normalize(image_features, dim=1) @ text_features.float().T
    return contrastive_loss(logits, positive) + attribute_loss(heads, image_features, corpus.codes[rows])


def make_optimizers(model: CLIP, heads: nn.ModuleList, rate: float) -> list[torch.optim.Optimizer]:
    """Make Muon for the matrices of the transformers, which needs far fewer steps, and AdamW for the rest."""
    matrices = {name: p for name, p in model.named_parameters() if p.ndim == 2 and "resblocks" in name}
    rest = [p for name, p in model.named_parameters() if name not in matrices]
    return [
        torch.optim.Muon(matrices.values(), lr=10 * rate, weight_decay=0.01),
        torch.optim.AdamW([*rest, *heads.parameters()], lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def train(model: CLIP, corpus: Corpus, epochs: int, batch_size: int, rate: float, seed: int) -> Iterator[float]:
    """Train the model in place with a one-cycle learning rate, and yield each epoch's mean loss."""
    generator = torch.Generator().manual_seed(seed)
    heads = nn.ModuleList(nn.Linear(model.visual.output_dim, int(values) + 1) for values in corpus.codes.amax(dim=0))
    optimizers = make_optimizers(model, heads, rate)
    steps = len(corpus.images) // batch_size
    cycle = partial(OneCycleLR, total_steps=epochs * steps, pct_start=0.15, cycle_momentum=False)
    schedules = [cycle(optimizer, optimizer.param_groups[0]["lr"]) for optimizer in optimizers]
    for _ in range(epochs):
        order = torch.randperm(len(corpus.images), generator=generator)
        losses = []
        for rows in order[: steps * batch_size].view(steps, batch_size):
            loss = step_loss(model, heads, corpus, rows, generator)
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0.0, float(np.log(100)))
            losses.append(loss.item())
        yield float(np.mean(losses))


def build(words: int, seed: int) -> CLIP:
    """Make the untrained tiny CLIP with a vocabulary of this many words."""
    torch.manual_seed(seed)
    config = bundled_config()
    config["text_cfg"]["vocab_size"] = words
    model: CLIP = CLIP(**config)
    return model


def save(model: CLIP, index: Int[Tensor, "words"], path: Path) -> None:
    """Write the weights in float16 with the trained rows of the vocabulary, and check that they load."""
    stored = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    stored["token_embedding.rows"] = stored.pop("token_embedding.weight")
    stored["token_embedding.index"] = index.int()
    CLIP(**bundled_config()).load_state_dict(expand(stored, bundled_config()["text_cfg"]["vocab_size"]))
    save_file(stored, path)


def main() -> None:
    """Read the command line, train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--drawings", type=int, default=32_000, help="number of drawings")
    parser.add_argument("--captions", type=int, default=8, help="captions of each drawing")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the drawings")
    parser.add_argument("--batch_size", type=int, default=128, help="drawings in a batch")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of drawings, captions and training")
    weights = BUNDLED["fedvlp-tiny"] / "weights.safetensors"
    parser.add_argument("--output", type=Path, default=weights, help="file to write")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    start = time.perf_counter()
    corpus = make_corpus(options.drawings, options.captions, options.seed)
    _LOG.info("%d drawings, %d words, %.0f s", len(corpus.images), len(corpus.index), time.perf_counter() - start)
    model = build(len(corpus.index), options.seed)
    losses = train(model, corpus, options.epochs, options.batch_size, options.rate, options.seed)
    for epoch, loss in enumerate(losses, start=1):
        _LOG.info("epoch %d: loss %.3f, %.0f s", epoch, loss, time.perf_counter() - start)
        save(model, corpus.index, options.output)


if __name__ == "__main__":
    main()

"""Train fedvlp-small on icons, in two processes: ``python -m experiments.small_clip.train``.

Needs npm and ``pip install resvg-py==0.5.0``.
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from lightning.fabric import Fabric, seed_everything
from open_clip import CLIP
from open_clip.constants import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim.lr_scheduler import LambdaLR

from experiments.small_clip.augmentation import COLOURS, LOOKS, Augmentation
from experiments.small_clip.corpus import LOOKS as LOOKS_OF_SETS
from experiments.small_clip.corpus import LOOKS_TEMPLATES, PAIR_TEMPLATES, Corpus, make_corpus
from experiments.small_clip.validation import Validation
from experiments.tiny_clip.train import encode_text
from fedvlp.clip.loading import BUNDLED, bundled_config, expand
from fedvlp.clip.zero_shot import SINGLE_TEMPLATE, TEMPLATES

NAME = "fedvlp-small"
PROCESSES = 2
"""Number of processes, each with separate batches."""
VOCABULARY = 8000
"""Size of the vocabulary in words."""
CHECK_EVERY = 400
"""Steps between saved weights."""
_NOT = {"pixel art": tuple(COLOURS), "colourful": tuple(LOOKS_OF_SETS)}
_NOT |= {colour: tuple(other for other in LOOKS if other != colour) for colour in COLOURS}
_NOT |= {look: (*(other for other in LOOKS_OF_SETS if other != look), "pixel art") for look in LOOKS_OF_SETS}
"""Words that captions avoid, or rarely use, for a picture of this look."""
_LOG = logging.getLogger(__name__)


class Words(nn.Module):
    """Embedding of words: their vectors, transformed by a learned matrix, plus a learned part per word."""

    def __init__(self, vectors: Float[Tensor, "words 100"], width: int) -> None:
        super().__init__()
        self.vectors = vectors
        self.matrix = nn.Parameter(0.1 * torch.randn(vectors.shape[1], width))
        self.own = nn.Parameter(0.01 * torch.randn(len(vectors), width))

    def rows(self) -> Float[Tensor, "words width"]:
        """Compute the embeddings of all words."""
        return self.vectors @ self.matrix + self.own

    def forward(self, tokens: Int[Tensor, "texts length"]) -> Float[Tensor, "texts length width"]:
        """Compute the embeddings of tokens."""
        return functional.embedding(tokens, self.rows())


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of fedvlp-small.

    Args:
        steps: Number of steps.
        batch_size: Images in a batch of a process.
        more_names: Names in a batch without an image in it.
        rate: Highest learning rate of AdamW; Muon's is 10 times that.
        power: Exponent of a name's number of authors, for the frequency of its icons.
        colour: Factor of the frequency of icons in colour.
        plain: Share of the steps with unchanged icons.
        pairs: Share of the images with two icons.
        places: Number of patches of an image that are encoded.
        whole: Share of the steps after which all patches are encoded.
        looks: Images in a batch with captions of their look.
    """

    steps: int = 8_800
    batch_size: int = 96
    more_names: int = 256
    rate: float = 2e-3
    power: float = 2.0
    colour: float = 6.0
    plain: float = 0.06
    pairs: float = 0.06
    places: int = 32
    whole: float = 0.85
    looks: int = 24


@dataclass(frozen=True)
class Batch:
    """The data of a step.

    Args:
        images: Normalised pixels.
        kept: Indices of the encoded patches; None for all.
        tokens: Captions.
        positive: Captions that are true for an image.
        labels: Frequent name of an image; -1 for none.
        offset: Number of free positions after the start of the text.
    """

    images: Float[Tensor, "B 3 64 64"]
    kept: Int[Tensor, "B places"] | None
    tokens: Int[Tensor, "texts length"]
    positive: Bool[Tensor, "B texts"]
    labels: Int[Tensor, "B"]
    offset: int


class Batches:
    """Random batches of a corpus.

    Args:
        corpus: Icons and names.
        recipe: Hyperparameters.
        seed: Seed of all draws.
    """

    def __init__(self, corpus: Corpus, recipe: Recipe, seed: int) -> None:
        self.corpus = corpus
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(seed)
        self.weights = corpus.weights(recipe.power, recipe.colour)
        self.frequent = corpus.frequent()

    def draw(self, progress: float) -> Batch:
        """Draw a batch for a time of training in [0, 1]: pictures get harder, and are whole at the end."""
        recipe = self.recipe
        strength = 0.0 if progress < recipe.plain else min(1.0, 0.5 + (progress - recipe.plain) / 0.2)
        pairs = int(recipe.pairs * recipe.batch_size) if strength == 1 else 0
        count = recipe.batch_size + recipe.more_names
        rows = torch.multinomial(self.weights, count, replacement=True, generator=self.generator)
        names = self.corpus.name[rows]
        rows = rows[: recipe.batch_size]
        pictures = torch.from_numpy(self.corpus.pictures[self.corpus.rows[rows].numpy()])
        is_black = torch.from_numpy(self.corpus.is_black[rows.numpy()])
        images, changed = Augmentation(self.generator, strength)(pictures, is_black, pairs)
        looks = [LOOKS[new] if new >= 0 else self.corpus.looks[row] for new, row in zip(changed, rows, strict=True)]
        labels = self.frequent[names[: len(rows)]]
        labels[:pairs] = -1
        tokens, positive = self.captions(names, looks, pairs)
        kept = None if progress >= recipe.whole else self.inked(images, recipe.places)
        return Batch(normalised(images), kept, tokens, positive, labels, self.offset(tokens.shape[1]))

    def captions(self, names: Int[Tensor, "names"], looks: Sequence[str], pairs: int) -> tuple[Tensor, Tensor]:
        """Make captions, and mark which of them are true for the images of the first names.

        Captions contain all names, pairs, and the looks of images, if known, also in negated form.
        """
        images = len(looks)
        unique = torch.unique(names)
        texts = [self.template().format(self.corpus.names[name]) for name in unique.tolist()]
        positive = names[:images, None] == unique
        for left, right in zip(names[:pairs].tolist(), names[:images].flip(0).tolist(), strict=False):
            template = PAIR_TEMPLATES[self.choose(len(PAIR_TEMPLATES))]
            texts.append(template.format(self.corpus.names[left], self.corpus.names[right]))
        positive[:pairs] |= positive.flip(0)[:pairs]
        own = torch.eye(images, dtype=torch.bool)
        told = [index for index in range(pairs, images - pairs) if looks[index]][: self.recipe.looks]
        for index in told:
            template = LOOKS_TEMPLATES[self.choose(len(LOOKS_TEMPLATES))]
            others = _NOT[looks[index]]
            for look in (looks[index], others[self.choose(len(others))]):
                texts.append(template.format(look=look, name=self.corpus.names[names[index]]))
        of_looks = torch.stack([own[:, told], torch.zeros(images, len(told), dtype=torch.bool)], dim=2).flatten(1)
        return self.corpus.tokens(texts), torch.cat([positive, own[:, :pairs], of_looks], dim=1)

    def offset(self, length: int) -> int:
        """Draw 0 or, for half of the batches, any number of free positions, so that all positions are learned.

        Learned prompts are longer than captions.
        """
        return self.choose(2) * self.choose(bundled_config(NAME)["text_cfg"]["context_length"] - length + 1)

    def template(self) -> str:
        """Draw no template, the most common one, or any, so that names have more influence."""
        kind = self.choose(10)
        if kind < 6:
            return "{}"
        return SINGLE_TEMPLATE if kind < 8 else TEMPLATES[self.choose(len(TEMPLATES))]

    def choose(self, count: int) -> int:
        """Draw a number below a count."""
        return int(torch.randint(count, (1,), generator=self.generator))

    def inked(self, images: Float[Tensor, "B 3 64 64"], places: int) -> Int[Tensor, "B places"]:
        """Choose the patches in which images vary most, with a little randomness."""
        mean = functional.interpolate(functional.avg_pool2d(images, 8), scale_factor=8)
        varied = functional.avg_pool2d((images - mean).abs().mean(dim=1), 8).flatten(1)
        return (varied + 0.02 * torch.rand(varied.shape, generator=self.generator)).topk(places).indices


def normalised(images: Float[Tensor, "B 3 64 64"]) -> Float[Tensor, "B 3 64 64"]:
    """Normalise images in [0, 1] like CLIP's transform."""
    mean = torch.tensor(OPENAI_DATASET_MEAN).view(3, 1, 1)
    deviation = torch.tensor(OPENAI_DATASET_STD).view(3, 1, 1)
    return (images - mean) / deviation


class Pretraining(nn.Module):
    """The CLIP, and a linear head over frequent names that is discarded.

    Args:
        vectors: Vectors of the words.
        frequent: Number of frequent names.
    """

    def __init__(self, vectors: Float[Tensor, "words 100"], frequent: int) -> None:
        super().__init__()
        config = bundled_config(NAME)
        config["text_cfg"]["vocab_size"] = len(vectors)
        self.clip = CLIP(**config)
        self.clip.token_embedding = Words(vectors, config["text_cfg"]["width"])
        self.clip.to(memory_format=torch.channels_last)  # memory format with fast convolutions
        self.head = nn.Linear(config["embed_dim"], frequent)

    def keep_image_tower(self, weights: Path) -> None:
        """Load and freeze the image tower of trained weights, so that only the text tower learns."""
        state = load_file(weights)
        self.clip.visual.load_state_dict(
            {name.removeprefix("visual."): value for name, value in state.items() if name.startswith("visual.")}
        )
        self.clip.visual.requires_grad_(False)
        self.head.requires_grad_(False)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        """Compute the loss: images to captions, with all true captions alike, and images to frequent names."""
        with torch.autocast("cpu", torch.bfloat16):
            image_features = functional.normalize(self.encode_image(batch.images, batch.kept), dim=1)
            text_features = encode_text(self.clip, batch.tokens, batch.offset)
            scores = self.head(16 * image_features)
        logits = self.clip.logit_scale.exp() * image_features.float() @ text_features.float().T
        target = batch.positive.float()
        by_image = -(logits.log_softmax(dim=1) * target).sum(dim=1) / target.sum(dim=1)
        # Names without an image here serve only as negatives.
        by_text = -(logits.log_softmax(dim=0) * target).sum(dim=0) / target.sum(dim=0).clamp(min=1)
        contrastive = (by_image.mean() + by_text.sum() / batch.positive.any(dim=0).sum()) / 2
        named = functional.cross_entropy(scores.float(), batch.labels, ignore_index=-1)
        loss: Tensor = contrastive + named
        return loss

    def encode_image(self, images: Float[Tensor, "B 3 64 64"], kept: Tensor | None) -> Float[Tensor, "B d"]:
        """Encode images at the kept patches."""
        trunk = self.clip.visual.trunk
        tokens = trunk.patch_embed(images.contiguous(memory_format=torch.channels_last)) + trunk.pos_embed
        if kept is not None:
            tokens = tokens.gather(1, kept[..., None].expand(-1, -1, tokens.shape[2]))
        features: Tensor = trunk.forward_head(trunk.blocks(tokens))
        return features


def make_optimizers(model: Pretraining, rate: float) -> list[torch.optim.Optimizer]:
    """Make Muon for the matrices of the transformers, which needs far fewer steps, and AdamW for the rest."""
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    words = named.pop("clip.token_embedding.own")
    matrices = [name for name, weight in named.items() if weight.ndim == 2 and "blocks" in name]
    muon = torch.optim.Muon([named.pop(name) for name in matrices], lr=10 * rate, weight_decay=0.01)
    # The learned part of a word stays small, so that unseen words resemble seen ones.
    groups: list[dict[str, Any]] = [
        {"params": list(named.values())},
        {"params": [words], "lr": 0.1 * rate, "weight_decay": 3.0},
    ]
    return [muon, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)]


def schedule(step: int, steps: int) -> float:
    """Compute the factor of the learning rate: a short warm-up, and a decay to 0 from 30 % of the steps on."""
    return min(1.0, (step + 1) / 60, (1 - step / steps) / 0.7)


def train(fabric: Fabric, model: Pretraining, batches: Batches) -> Iterator[float]:
    """Train the model in place, and yield the loss of each step."""
    steps = batches.recipe.steps
    optimizers = make_optimizers(model, batches.recipe.rate)
    schedules = [LambdaLR(optimizer, partial(schedule, steps=steps)) for optimizer in optimizers]
    wrapped, *wrapped_optimizers = fabric.setup(model, *optimizers)
    for step in range(steps):
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has a slow backward pass on CPUs
            loss = wrapped(batches.draw(step / steps))
            fabric.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in wrapped_optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for each in schedules:
            each.step()
        with torch.no_grad():
            model.clip.logit_scale.clamp_(0.0, math.log(60))
        yield loss.item()


def save(model: CLIP, words: Int[Tensor, "words"], path: Path) -> None:
    """Write the weights in float16 with the learned rows of the vocabulary, and check that they load."""
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("token_embedding.")}
    stored = {name: value.half().contiguous() for name, value in state.items()}
    stored["token_embedding.rows"] = model.token_embedding.rows().detach().half()
    stored["token_embedding.index"] = words.int()
    config = bundled_config(NAME)
    CLIP(**config).load_state_dict(expand(stored, config["text_cfg"]["vocab_size"]))
    save_file(stored, path)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--packages", type=Path, default=Path("packages"), help="folder of the packages of icons and vectors")
    add("--output", type=Path, default=BUNDLED[NAME] / "weights.safetensors", help="file to write")
    add("--image_tower", type=Path, help="weights with an image tower to freeze, so that only the text tower learns")
    add("--steps", type=int, default=Recipe.steps, help="number of steps")
    add("--seed", type=int, default=0, help="seed of weights and batches")
    return parser.parse_args(arguments)


def main() -> None:
    """Read the command line, train and save."""
    options = parse_options()
    recipe = Recipe(options.steps)
    if options.image_tower:
        recipe = Recipe(options.steps, plain=0.0, whole=0.0)
    fabric = Fabric(accelerator="cpu", devices=PROCESSES)
    fabric.launch()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # also on CPUs
    logging.basicConfig(level=logging.INFO if fabric.is_global_zero else logging.WARNING, format="%(message)s")
    with fabric.rank_zero_first():
        corpus = make_corpus(options.packages, VOCABULARY)
    seed_everything(options.seed, verbose=False)
    model = Pretraining(corpus.vectors, int(corpus.frequent().max()) + 1)
    if options.image_tower:
        model.keep_image_tower(options.image_tower)
    counts = (len(corpus.rows), len(corpus.names), sum(value.numel() for value in model.clip.parameters()))
    _LOG.info("%d icons, %d names, %d parameters", *counts)
    _LOG.info("seed %d, %s", options.seed, recipe)
    validation = Validation.read(options.packages, corpus.tokens)
    batches = Batches(corpus, recipe, seed=options.seed * PROCESSES + fabric.global_rank)
    losses: list[float] = []
    start = time.perf_counter()
    for step, loss in enumerate(train(fabric, model, batches), start=1):
        losses.append(loss)
        if step % CHECK_EVERY and step != recipe.steps:
            continue
        seconds = time.perf_counter() - start
        images = step * recipe.batch_size * PROCESSES
        mean = np.mean(losses[-CHECK_EVERY:])
        if fabric.is_global_zero:
            _LOG.info("%d images, %.0f s: loss %.3f, %s", images, seconds, mean, validation.measure(model.clip))
            save(model.clip, corpus.words, options.output)


if __name__ == "__main__":
    main()

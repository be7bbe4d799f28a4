"""Computes what a recipe costs in GPU hours: the operations of all its runs, divided by an assumed rate.

Nothing is measured. ``python -m experiments.reproduce.cost FILE``, with a file of ``recipes/``, prints the cost of each
method. ``--rate`` is how many 10^12 operations the GPU does in a second, all told; 10 is about half of what an A100 can
do at most in float32. Reading and resizing images comes on top, and a GPU is slower where steps are small.

What is counted: two operations for each weight and token of CLIP's towers, and attention; as much again for a backward
pass, since the towers are frozen. A method encodes what :class:`Work` says: every training image counts in every round,
every validation and test image in every evaluated round. Methods whose prompts leave the image tower alone encode each
image once in a sweep. Routing, losses and optimizers are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.reproduce.recipe import Recipe, load_recipe
from fedvlp.catalog.description import prompt_names

RATE = 10.0  # 10^12 operations a second


@dataclass(frozen=True)
class Tower:
    """A transformer of CLIP.

    Attributes:
        width: of a token.
        blocks: their number.
        tokens: of an image, or the most of a text.
        start: operations before the first block.
    """

    width: int
    blocks: int
    tokens: int
    start: int = 0

    def operations(self, tokens: int) -> int:
        """Returns the operations of a forward pass over a sequence: 24 W^2 + 4 T W a token and block."""
        return self.start + tokens * self.blocks * (24 * self.width**2 + 4 * tokens * self.width)


IMAGES = {"ViT-B-16": Tower(768, 12, 197, start=2 * 196 * 768 * 768)}
TEXT = Tower(512, 12, 77)  # of ViT-B-16 and of RN50
CONVOLUTIONS = {"RN50": 12_200_000_000}  # of an image through CLIP's ResNet-50


@dataclass(frozen=True)
class Work:
    """What a method encodes, in forward passes; a backward pass counts as one more.

    Attributes:
        images: of each training image, in a round.
        texts: of each training image, over all classes under one prompt.
        batch_texts: of each batch, over all classes under one prompt.
        evaluated_images: of each image that measures.
        evaluated_texts: of each image that measures, over all classes.
        prompt_tokens: prompt tokens in the image tower.
        prompts_of_classes: whether each class has a prompt of its own.
    """

    images: float = 0
    texts: int = 0
    batch_texts: int = 0
    evaluated_images: int = 0
    evaluated_texts: int = 0
    prompt_tokens: int = 0
    prompts_of_classes: bool = False


@dataclass(frozen=True)
class Cost:
    """The operations of a method's runs in a recipe.

    Attributes:
        label: the method.
        runs: number of runs.
        encoding: operations that encode every image once.
        training: of all runs.
        evaluation: of all runs.
    """

    label: str
    runs: int
    encoding: float
    training: float
    evaluation: float

    def hours(self, rate: float = RATE) -> float:
        """Returns GPU hours at a rate in 10^12 operations a second."""
        return (self.encoding + self.training + self.evaluation) / (rate * 1e12 * 3600)


def work_of(method: str, domains: int, options: Any) -> Work:
    """Returns what a method encodes.

    Args:
        method: name of its class.
        domains: number of source domains.
        options: the method's options.

    Raises:
        KeyError: if it is not known; add it here.
    """
    return {
        "ZeroShotCLIP": Work(),
        "PromptFL": Work(batch_texts=2),
        "SingleDomain": Work(batch_texts=2),
        "FedCLIP": Work(),  # an adapter behind the towers
        "FedAPT": Work(batch_texts=2, evaluated_texts=1, prompts_of_classes=True),
        "FedOTP": Work(images=1, batch_texts=2 * 2, evaluated_images=1),  # two prompts; all patches of each image
        "CCST": Work(3 * options.get("styles", 0), evaluated_images=1),  # a tower that is trained: forward, twice back
        "ELCFS": Work(3 * 2, evaluated_images=1),  # two passes, one after the other
        "StableFDG": Work(3 * 1.5, evaluated_images=1),  # images are doubled every second time
        "FedADG": Work(3, evaluated_images=1),
        "FineTuning": Work(3, evaluated_images=1),
        "SWAD": Work(3, evaluated_images=1),
        "DoPrompt": Work(1 + 2 * 3, 0, 0, 2, 0, options.get("prompt_length", 0)),  # as it is, with two prompts
        "HCVP": Work(1 + 3, 0, 0, 2, 0, 2),  # the frozen tower makes the prompts
        "FedSR": Work(3, evaluated_images=1),
        "FedMaPLe": Work(2, 0, 2, 1, 0, options.get("prompt_length", 0)),
        "PFedPG": Work(images=2, evaluated_images=1, prompt_tokens=options.get("prompt_length", 0)),
        "FedPR": Work(images=2, evaluated_images=1, prompt_tokens=options.get("prompt_length", 0)),
        "TRIP": Work(texts=2, evaluated_texts=1),  # a prompt of its own for each image
        "DiPrompT": Work(batch_texts=2 * (1 + 2 * domains)),  # G; D and Q with every domain
        "FedDPT": Work(2, 0, domains + 1, 1, 0, domains),  # one of the domains' text prompts learns
        "ADAPT": Work(2, 0, domains + 1, 1, 0, domains),
        "PLAN": Work(5, 0, 5, 1, 0, options.get("prompt_length", 0)),  # own prompts, reference; aggregated prompts
    }[method]


def costs(recipe: Recipe) -> list[Cost]:
    """Returns the cost of each method of a recipe."""
    return [_cost(recipe, label, config) for label, config in recipe.configs.items()]


@dataclass(frozen=True)
class Images:
    """How many images are passed.

    Attributes:
        learned: that train in a round.
        measured: that measure after a round that is evaluated.
    """

    learned: float
    measured: float


def _cost(recipe: Recipe, label: str, config: Any) -> Cost:
    """Returns the cost of a method's runs over all held-out domains and seeds."""
    seeds = len(recipe.plan.seeds)
    training = 0.0
    evaluation = 0.0
    for held_out in recipe.held_out:
        work = _work(recipe, config, held_out)
        text = _text(recipe, config, work.prompts_of_classes)
        image = _image(_clip(config), work.prompt_tokens)
        images = _images(recipe, config, held_out)
        rounds = config.trainer.rounds if work.images + work.texts + work.batch_texts else 0
        batches = images.learned / config.data.init_args.batch_size
        evaluated = rounds / config.trainer.evaluate_every
        each = images.learned * (work.images * image + work.texts * text)
        training += rounds * (each + batches * work.batch_texts * text)
        evaluation += evaluated * images.measured * (work.evaluated_images * image + work.evaluated_texts * text)
    encoded = _image(_clip(config), 0) * (recipe.data.images or 0)
    return Cost(label, seeds * len(recipe.held_out), encoded, seeds * training, seeds * evaluation)


def _work(recipe: Recipe, config: Any, held_out: Sequence[str]) -> Work:
    """Returns what a method encodes while some domains are held out."""
    sources = len(recipe.data.domains) - len(held_out)
    return work_of(config.model.class_path.rpartition(".")[2], sources, config.model.init_args)


def _clip(config: Any) -> str:
    """Returns the name of the frozen CLIP."""
    clip = config.model.init_args.clip
    return str(clip if isinstance(clip, str) else clip.name)


def _text(recipe: Recipe, config: Any, prompts_of_classes: bool) -> float:
    """Returns the operations of a forward pass over all classes, under one prompt or each under its own."""
    names = prompt_names(recipe.data.name, recipe.data.class_names, config.data.init_args.class_names)
    prompt_length = config.model.init_args.get("prompt_length") or 0
    tokens = _text_tokens(tuple(names), prompt_length)
    if prompts_of_classes:
        tokens += (len(names) - 1) * (1 + prompt_length)
    return TEXT.operations(TEXT.tokens) / TEXT.tokens * tokens


def _images(recipe: Recipe, config: Any, held_out: Sequence[str]) -> Images:
    """Returns how many images train in a round, and how many measure after it."""
    data = config.data.init_args
    counts = recipe.data.domain_counts
    learned = 0.0
    measured = float(sum(counts[name] or 0 for name in held_out))
    for name in set(counts) - set(held_out):
        images = counts[name] or 0
        if data.split == "official":
            test = recipe.data.layouts[0].split_counts[name].get("test", 0)
        else:
            test = round(images * data.test_fraction)
        validation = (images - test) * data.validation_fraction
        shots = data.shots and data.shots * len(recipe.data.class_names)
        learned += min(images - test - validation, shots or images)
        measured += test + validation
    clients = _clients(config, len(counts) - len(held_out))
    return Images(learned * min(config.trainer.clients.cohort_size or clients, clients) / clients, measured)


def _clients(config: Any, sources: int) -> int:
    """Returns the number of clients."""
    partition = config.data.init_args.partition
    if is_pooled(config):
        return 1
    return sources if partition is None else int(partition.init_args.num_clients)


def is_pooled(config: Any) -> bool:
    """Returns whether the images of all source domains are in one place."""
    partition = config.data.init_args.partition
    return partition is not None and partition.class_path.endswith(".Pooled")


def _image(clip: str, prompt_tokens: int) -> int:
    """Returns the operations of a forward pass of one image."""
    if clip in CONVOLUTIONS:
        return CONVOLUTIONS[clip]
    tower = IMAGES[clip]
    return tower.operations(tower.tokens + prompt_tokens)


@cache
def _text_tokens(names: tuple[str, ...], prompt_length: int) -> int:
    """Returns the tokens of all classes behind one prompt: start, prompt, and each class's name, full stop and end."""
    import open_clip

    tokenizer = open_clip.SimpleTokenizer()
    return 1 + prompt_length + sum(len(tokenizer.encode(f"{name}.")) + 1 for name in names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the cost of each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a recipe")
    parser.add_argument("--rate", type=float, default=RATE, help="10^12 operations a second")
    options = parser.parse_args(arguments)
    found = costs(load_recipe(options.file))
    sys.stdout.write(f"computed, not measured, for {options.rate:g} x 10^12 operations a second:\n")
    for cost in found:
        sys.stdout.write(f"{cost.label:20} {cost.runs:3} runs {cost.hours(options.rate):10.2f} GPU hours\n")
    sys.stdout.write(f"{'all':20} {sum(cost.runs for cost in found):3} runs ")
    sys.stdout.write(f"{sum(cost.hours(options.rate) for cost in found):10.2f} GPU hours\n")


if __name__ == "__main__":
    main()

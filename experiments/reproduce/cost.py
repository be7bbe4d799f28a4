"""Compute the GPU hours of a recipe: the operations of all its runs, divided by an assumed rate.

Nothing is measured. ``python -m experiments.reproduce.cost FILE``, with a file of ``recipes/``, prints the cost of each
method. ``--rate`` is the GPU's overall rate in 10^12 operations per second; 10 is about half of the peak of an A100 in
float32. Reading and resizing images takes additional time, and small steps reach lower rates.

The count has two operations per weight and token of CLIP's towers, and attention. A backward pass counts the same,
because the towers are frozen. :class:`Work` lists the passes of a method: training images count in every round,
validation and test images in every evaluated round. Methods without image prompts encode each image once per sweep.
Routing, losses and optimizers are not counted.
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

RATE = 10.0  # 10^12 operations per second


@dataclass(frozen=True)
class Tower:
    """A transformer of CLIP.

    Attributes:
        width: Width of a token.
        blocks: Number of blocks.
        tokens: Tokens of an image, or the maximum of a text.
        start: Operations before the first block.
    """

    width: int
    blocks: int
    tokens: int
    start: int = 0

    def operations(self, tokens: int) -> int:
        """Count the operations of a forward pass over a sequence: 24 W^2 + 4 T W per token and block."""
        return self.start + tokens * self.blocks * (24 * self.width**2 + 4 * tokens * self.width)


IMAGES = {"ViT-B-16": Tower(768, 12, 197, start=2 * 196 * 768 * 768)}
TEXT = Tower(512, 12, 77)  # of ViT-B-16 and RN50
CONVOLUTIONS = {"RN50": 12_200_000_000}  # of an image through CLIP's ResNet-50


@dataclass(frozen=True)
class Work:
    """The passes of a method through CLIP's towers, in forward passes; a backward pass counts as one more.

    Attributes:
        images: Passes of each training image, per round.
        texts: Passes of each training image, over all classes with one prompt.
        batch_texts: Passes of each batch, over all classes with one prompt.
        evaluated_images: Passes of each evaluated image.
        evaluated_texts: Passes of each evaluated image, over all classes.
        prompt_tokens: Prompt tokens in the image tower.
        prompts_of_classes: Whether each class has its own prompt.
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
        label: The method.
        runs: Number of runs.
        encoding: Operations to encode every image once.
        training: Operations of training in all runs.
        evaluation: Operations of evaluation in all runs.
    """

    label: str
    runs: int
    encoding: float
    training: float
    evaluation: float

    def hours(self, rate: float = RATE) -> float:
        """Compute GPU hours at a rate in 10^12 operations per second."""
        return (self.encoding + self.training + self.evaluation) / (rate * 1e12 * 3600)


def work_of(method: str, domains: int, options: Any) -> Work:
    """Look up the passes of a method.

    Args:
        method: Name of the method's class.
        domains: Number of source domains.
        options: Options of the method.

    Raises:
        KeyError: If the method is unknown; add it here.
    """
    return {
        "ZeroShotCLIP": Work(),
        "PromptFL": Work(batch_texts=2),
        "SingleDomain": Work(batch_texts=2),
        "FedCLIP": Work(),  # an adapter after the towers
        "FedAPT": Work(batch_texts=2, evaluated_texts=1, prompts_of_classes=True),
        "FedOTP": Work(images=1, batch_texts=2 * 2, evaluated_images=1),  # two prompts; all patches of each image
        "CCST": Work(3 * options.get("styles", 0), evaluated_images=1),  # trained tower: forward, twice backward
        "ELCFS": Work(3 * 2, evaluated_images=1),  # two passes in sequence
        "StableFDG": Work(3 * 1.5, evaluated_images=1),  # images are doubled every second time
        "FedADG": Work(3, evaluated_images=1),
        "FineTuning": Work(3, evaluated_images=1),
        "SWAD": Work(3, evaluated_images=1),
        "DoPrompt": Work(1 + 2 * 3, 0, 0, 2, 0, options.get("prompt_length", 0)),  # unprompted, and with two prompts
        "HCVP": Work(1 + 3, 0, 0, 2, 0, 2),  # the frozen tower makes the prompts
        "FedSR": Work(3, evaluated_images=1),
        "FedMaPLe": Work(2, 0, 2, 1, 0, options.get("prompt_length", 0)),
        "PFedPG": Work(images=2, evaluated_images=1, prompt_tokens=options.get("prompt_length", 0)),
        "FedPR": Work(images=2, evaluated_images=1, prompt_tokens=options.get("prompt_length", 0)),
        "TRIP": Work(texts=2, evaluated_texts=1),  # a separate prompt for each image
        "DiPrompT": Work(batch_texts=2 * (1 + 2 * domains)),  # G; D and Q with every domain
        "FedDPT": Work(2, 0, domains + 1, 1, 0, domains),  # one of the domains' text prompts is trained
        "ADAPT": Work(2, 0, domains + 1, 1, 0, domains),
        "PLAN": Work(5, 0, 5, 1, 0, options.get("prompt_length", 0)),  # own prompts, reference; aggregated prompts
    }[method]


def costs(recipe: Recipe) -> list[Cost]:
    """Compute the cost of each method of a recipe."""
    return [_cost(recipe, label, config) for label, config in recipe.configs.items()]


@dataclass(frozen=True)
class Images:
    """Numbers of images.

    Attributes:
        learned: Images that train in a round.
        measured: Images that are evaluated after an evaluated round.
    """

    learned: float
    measured: float


def _cost(recipe: Recipe, label: str, config: Any) -> Cost:
    """Compute the cost of a method's runs over all held-out domains and seeds."""
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
    """Look up the passes of a method while some domains are held out."""
    sources = len(recipe.data.domains) - len(held_out)
    return work_of(config.model.class_path.rpartition(".")[2], sources, config.model.init_args)


def _clip(config: Any) -> str:
    """Look up the name of the frozen CLIP."""
    clip = config.model.init_args.clip
    return str(clip if isinstance(clip, str) else clip.name)


def _text(recipe: Recipe, config: Any, prompts_of_classes: bool) -> float:
    """Count the operations of a forward pass over all classes, with a common prompt or one prompt per class."""
    names = prompt_names(recipe.data.name, recipe.data.class_names, config.data.init_args.class_names)
    prompt_length = config.model.init_args.get("prompt_length") or 0
    tokens = _text_tokens(tuple(names), prompt_length)
    if prompts_of_classes:
        tokens += (len(names) - 1) * (1 + prompt_length)
    return TEXT.operations(TEXT.tokens) / TEXT.tokens * tokens


def _images(recipe: Recipe, config: Any, held_out: Sequence[str]) -> Images:
    """Count the images that train in a round, and the images that are evaluated after it."""
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
    """Count the clients."""
    partition = config.data.init_args.partition
    if is_pooled(config):
        return 1
    return sources if partition is None else int(partition.init_args.num_clients)


def is_pooled(config: Any) -> bool:
    """Check whether the images of all source domains are pooled."""
    partition = config.data.init_args.partition
    return partition is not None and partition.class_path.endswith(".Pooled")


def _image(clip: str, prompt_tokens: int) -> int:
    """Count the operations of a forward pass of one image."""
    if clip in CONVOLUTIONS:
        return CONVOLUTIONS[clip]
    tower = IMAGES[clip]
    return tower.operations(tower.tokens + prompt_tokens)


@cache
def _text_tokens(names: tuple[str, ...], prompt_length: int) -> int:
    """Count the tokens of all classes after one prompt: start, prompt, and each class's name, full stop and end."""
    import open_clip

    tokenizer = open_clip.SimpleTokenizer()
    return 1 + prompt_length + sum(len(tokenizer.encode(f"{name}.")) + 1 for name in names)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the cost of each method."""
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

"""Attempts to be more accurate than class means mixed with text features, on the same images and frozen features.

``python -m experiments.closed_form.attempts --held_out pixel,emoji+pixel`` uses IconDomains with fedvlp-small, and
``--data FOLDER`` a folder of domains. The seed chooses the validation images, the batches and the initial prompts.
Results of a held-out domain and a seed are kept in a file. ``--readme NAME`` also writes the table into the README.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.closed_form.run import study_parser
from experiments.options import Choice, parse
from experiments.tables import markdown, spread, write_block
from fedvlp import Federation, PromptFL
from fedvlp.clip import CLIP, load_clip, zero_shot_text_features
from fedvlp.data import DomainFolders, IconDomains
from fedvlp.tools.sweep.plan import TOGETHER
from fedvlp.utils.files import read_json, write_json

Images = tuple[Tensor, Tensor]  # unit features [N, d] with classes [N]
Predictor = Callable[[Tensor], Tensor]  # of features [B, d]; logits [B, C]
Attempt = Callable[["Task"], dict[str, Predictor]]  # predictors by their option

TEXT_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
RATES = (0.0003, 0.001, 0.003, 0.01)
PROMPT_RATES = (0.003, 0.01)
MIXTURES = (0.0, 0.25, 0.5, 0.75, 1.0)
ROUNDS, STEPS, BATCH = 5, 10, 32
FIT_STEPS = 200
README = Path(__file__).with_name("README.md")


@dataclass(frozen=True)
class Task:
    """Features of all images of one protocol.

    Attributes:
        clients: Training images of each source domain.
        validation: Validation images of each source domain.
        held_out: Images of each held-out domain.
        texts: Text features of the classes [C, d], of length 1.
        class_names: Names of the classes.
        clip: The frozen CLIP.
        seed: Seed of batches and prompts.
    """

    clients: list[Images]
    validation: list[Images]
    held_out: list[Images]
    texts: Tensor
    class_names: list[str]
    clip: CLIP
    seed: int

    @property
    def scale(self) -> float:
        """CLIP's logit scale."""
        return float(self.clip.logit_scale)


def load_task(data: str, held_out: str, clip: CLIP, seed: int) -> Task:
    """Read and encode the images, with validation images chosen by the seed."""
    options: dict[str, Any] = {"held_out": held_out.split(TOGETHER), "split_seed": seed}
    module = IconDomains(**options) if data == "icon_domains" else DomainFolders(data, **options)
    module.prepare_data()
    module.setup("fit")
    method = PromptFL(module.class_names, clip)
    Federation(rounds=1, accelerator="cpu", enable_progress_bar=False).prepare(method, module)
    splits = module.evaluation_splits()
    return Task(
        [read(module.train_dataloader(client, seed=0, once=True)) for client in module.clients],
        [read(split.loader) for split in splits if split.role == "validation"],
        [read(split.loader) for split in splits if split.role == "held_out"],
        zero_shot_text_features(clip, module.class_names).float().cpu(),
        module.class_names,
        clip,
        seed,
    )


def read(loader: Any) -> Images:
    """Concatenate a loader's batches, with features of length 1."""
    features, labels = zip(*((inputs["features"].float(), labels) for inputs, labels in loader), strict=True)
    return F.normalize(torch.cat(features), dim=-1), torch.cat(labels)


def class_sums(images: Images, texts: Tensor) -> Tensor:
    """Sum the features of each class."""
    return F.one_hot(images[1], len(texts)).float().T @ images[0]


def mixed_means(task: Task, weight: float = 0.5) -> Tensor:
    """Compute class means of all clients plus weighted text features, of length 1."""
    sums = torch.stack([class_sums(images, task.texts) for images in task.clients]).sum(0)
    means = torch.where(sums.any(-1, keepdim=True), F.normalize(sums, dim=-1), task.texts)
    return F.normalize(means + weight * task.texts, dim=-1)


def client_keys(task: Task) -> Tensor:
    """Compute the unit class means of each client [K, C, d], zero for a missing class."""
    return F.normalize(torch.stack([class_sums(images, task.texts) for images in task.clients]), dim=-1)


def linear(weight: Tensor, scale: float) -> Predictor:
    """Make a linear classifier."""
    return lambda features: scale * features @ weight.T


# Attempts without gradients


def with_text(task: Task, weights: Sequence[float] = TEXT_WEIGHTS) -> dict[str, Predictor]:
    """Mix class means with text features in different weights."""
    return {f"{weight:g}": linear(mixed_means(task, weight), task.scale) for weight in weights}


def tip_adapter(task: Task, weights: Sequence[float] = (50, 100, 200, 400)) -> dict[str, Predictor]:
    """Add the similarity to each client's class means to zero-shot CLIP's logits."""
    keys = client_keys(task)

    def predictor(weight: float, sharpness: float) -> Predictor:
        def predict(features: Tensor) -> Tensor:
            affinity = torch.exp(sharpness * (torch.einsum("bd,kcd->bkc", features, keys) - 1)) * keys.any(-1)
            return task.scale * features @ task.texts.T + weight * affinity.sum(1)

        return predict

    return {f"{weight:g}/{beta:g}": predictor(weight, beta) for weight in weights for beta in (3.0, 5.5, 8.0)}


def means_per_client(task: Task) -> dict[str, Predictor]:
    """Score a class by the log-sum-exp over clients of the similarity to the client's mean mixed with the text."""
    keys = client_keys(task)

    def predictor(weight: float, factor: float) -> Predictor:
        mixed = F.normalize(keys + weight * task.texts, dim=-1)

        def predict(features: Tensor) -> Tensor:
            logits = factor * task.scale * torch.einsum("bd,kcd->bkc", features, mixed)
            return logits.masked_fill(~keys.any(-1), -math.inf).logsumexp(1)

        return predict

    return {f"{weight:g}/{factor:g}": predictor(weight, factor) for weight in TEXT_WEIGHTS[1:] for factor in (0.3, 1.0)}


# Attempts with gradients


def train(module: nn.Module, task: Task, rate: float) -> None:
    """Train a module under FedAvg, weighted by images, with AdamW and the same number of steps at each client."""
    parameters = [value for value in module.parameters() if value.requires_grad]
    shares = torch.tensor([float(len(labels)) for _, labels in task.clients])
    shares /= shares.sum()
    for round in range(ROUNDS):
        start = [value.detach().clone() for value in parameters]
        total = [torch.zeros_like(value) for value in start]
        for client, (features, labels) in enumerate(task.clients):
            generator = torch.Generator().manual_seed(1_000_000 * task.seed + 1000 * round + client)
            for value, first in zip(parameters, start, strict=True):
                value.data.copy_(first)
            optimizer = torch.optim.AdamW(parameters, lr=rate)
            for _ in range(STEPS):
                batch = torch.randint(len(labels), (BATCH,), generator=generator)
                optimizer.zero_grad()
                loss: Any = F.cross_entropy(module(features[batch]), labels[batch])
                loss.backward()
                optimizer.step()
            for summed, value in zip(total, parameters, strict=True):
                summed.add_(value.detach(), alpha=float(shares[client]))
        for value, mean in zip(parameters, total, strict=True):
            value.data.copy_(mean)
    module.requires_grad_(False)


class Probe(nn.Module):
    """Linear classifier."""

    def __init__(self, weight: Tensor, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits."""
        return self.scale * features @ self.weight.T


class LowRank(nn.Module):
    """Low-rank map x + x A B of features before a fixed classifier; it starts at the identity."""

    def __init__(self, weight: Tensor, scale: float, rank: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        width = weight.shape[1]
        self.down = nn.Parameter(torch.randn(width, rank, generator=generator) / math.sqrt(width))
        self.up = nn.Parameter(torch.zeros(rank, width))
        self.weight = weight
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits."""
        moved = features + features @ self.down @ self.up
        return self.scale * F.normalize(moved, dim=-1) @ self.weight.T


class Keys(nn.Module):
    """Tip-Adapter-F: the keys are trained."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        first = client_keys(task)
        self.present = first.any(-1)
        self.keys = nn.Parameter(first)
        self.texts = task.texts
        self.scale = task.scale

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits with the package's default weights."""
        affinity = torch.exp(5.5 * (torch.einsum("bd,kcd->bkc", features, self.keys) - 1)) * self.present
        return self.scale * features @ self.texts.T + 200 * affinity.sum(1)


class Prompts(nn.Module):
    """Class-specific prompts of four tokens."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        torch.manual_seed(task.seed)
        self.method = PromptFL(task.class_names, task.clip, class_specific=True, prompt_length=4)
        for name, value in self.method.named_parameters():
            value.requires_grad_(name == "prompt")

    def texts(self) -> Tensor:
        """Compute the text features [C, d], of length 1."""
        return F.normalize(self.method.text(self.method.prompt.flatten(0, -2)), dim=-1)

    def forward(self, features: Tensor) -> Tensor:
        """Compute logits."""
        return self.method.logits(features)

    def fit(self, targets: Tensor, rate: float = 0.01) -> None:
        """Move the text features towards targets [C, d], without images."""
        optimizer = torch.optim.AdamW([self.method.prompt], lr=rate)
        for _ in range(FIT_STEPS):
            optimizer.zero_grad()
            loss: Any = 1 - (self.texts() * targets).sum(-1).mean()
            loss.backward()
            optimizer.step()


def trained(module: nn.Module, task: Task, rate: float) -> Predictor:
    """Train a module and return it."""
    train(module, task, rate)
    return module


def probe(task: Task, rates: Sequence[float] = RATES) -> dict[str, Predictor]:
    """Train a linear classifier from mixed class means."""
    start = mixed_means(task)
    return {f"{rate:g}": trained(Probe(start, task.scale), task, rate) for rate in rates}


def probe_and_means(task: Task) -> dict[str, Predictor]:
    """Average the trained linear classifier and its start, in different shares."""
    start = mixed_means(task)
    found: dict[str, Predictor] = {}
    for rate in RATES:
        module = Probe(start, task.scale)
        train(module, task, rate)
        for share in MIXTURES[1:-1]:
            found[f"{rate:g}, {share:g}"] = linear(torch.lerp(start, module.weight.detach(), share), task.scale)
    return found


def low_rank(task: Task) -> dict[str, Predictor]:
    """Train a low-rank map of the features before mixed class means."""
    start = mixed_means(task)
    options = [(rank, rate) for rank in (4, 16) for rate in RATES]
    return {
        f"{rank}/{rate:g}": trained(LowRank(start, task.scale, rank, task.seed), task, rate) for rank, rate in options
    }


def trained_keys(task: Task) -> dict[str, Predictor]:
    """Train Tip-Adapter's keys."""
    return {f"{rate:g}": trained(Keys(task), task, rate) for rate in RATES}


def prompt_attempts(task: Task) -> dict[str, dict[str, Predictor]]:
    """Make all attempts with prompts, which share their training."""
    means = mixed_means(task)
    by_means = linear(means, task.scale)
    fitted = Prompts(task)
    fitted.fit(means)
    fitted_texts = fitted.texts().detach()
    found: dict[str, dict[str, Predictor]] = {
        "class-specific prompts, trained from random vectors": {},
        "class-specific prompts fitted to the mixed class means": {"": linear(fitted_texts, task.scale)},
        "prompts fitted to the mixed class means, then trained": {},
        "logits of trained prompts and of class means": {},
    }
    for rate in PROMPT_RATES:
        plain = Prompts(task)
        train(plain, task, rate)
        by_prompts = linear(plain.texts(), task.scale)
        found["class-specific prompts, trained from random vectors"][f"{rate:g}"] = by_prompts
        for share in MIXTURES:
            found["logits of trained prompts and of class means"][f"{rate:g}, {share:g}"] = mixture(
                by_prompts, by_means, share
            )
        more = Prompts(task)
        more.method.prompt.data.copy_(fitted.method.prompt.data)
        train(more, task, rate)
        found["prompts fitted to the mixed class means, then trained"][f"{rate:g}"] = linear(more.texts(), task.scale)
    return found


def mixture(first: Predictor, second: Predictor, share: float) -> Predictor:
    """Average two predictors' logits; ``share`` is the first one's."""
    return lambda features: share * first(features) + (1 - share) * second(features)


ATTEMPTS: dict[str, Attempt] = {
    "class means + 0.5 text (FedNCM)": lambda task: with_text(task, (0.5,)),
    "class means + text": with_text,
    "a mean per client and class, with text, log-sum-exp": means_per_client,
    "Tip-Adapter, package's weights": lambda task: {"": tip_adapter(task, (200,))["200/5.5"]},
    "Tip-Adapter": tip_adapter,
    "Tip-Adapter with trained keys": trained_keys,
    "linear probe from class means + 0.5 text": probe,
    "average of this probe and its start": probe_and_means,
    "low-rank map before class means + 0.5 text": low_rank,
}
LEFT_OUT = (
    "class means + text",
    "a mean per client and class, with text, log-sum-exp",
    "Tip-Adapter",
    "linear probe from class means + 0.5 text",
    "average of this probe and its start",
)
"""Attempts that also choose their option by the accuracy on each source domain when it is left out of training."""


def accuracy(predict: Predictor, groups: Sequence[Images]) -> float:
    """Compute the mean accuracy over groups of images, in percent."""
    correct = [(predict(features).argmax(-1) == labels).float().mean().item() for features, labels in groups]
    return 100 * statistics.mean(correct)


@torch.no_grad()
def measure(candidates: Mapping[str, Predictor], task: Task, scores: Mapping[str, float]) -> dict[str, float | str]:
    """Measure the candidate with the best score; the first of equal ones."""
    chosen = max(candidates, key=lambda name: scores[name])
    predict = candidates[chosen]
    found = {"validation": accuracy(predict, task.validation), "held_out": accuracy(predict, task.held_out)}
    return {"chosen": chosen, **found}


def scores_on_validation(candidates: Mapping[str, Predictor], task: Task) -> dict[str, float]:
    """Score candidates on source validation."""
    with torch.no_grad():
        return {name: accuracy(predict, task.validation) for name, predict in candidates.items()}


def scores_left_out(attempt: Attempt, task: Task) -> dict[str, float]:
    """Score candidates on each source domain's training images, without this domain's client."""
    by_domain = []
    for index, images in enumerate(task.clients):
        others = replace(task, clients=task.clients[:index] + task.clients[index + 1 :])
        with torch.enable_grad():
            candidates = attempt(others)
        by_domain.append({name: accuracy(predict, [images]) for name, predict in candidates.items()})
    return {name: statistics.mean(scores[name] for scores in by_domain) for name in by_domain[0]}


def results(task: Task) -> dict[str, dict[str, float | str]]:
    """Make all attempts on one task."""
    found: dict[str, dict[str, float | str]] = {}
    candidates = {title: attempt(task) for title, attempt in ATTEMPTS.items()} | prompt_attempts(task)
    for title, by_option in candidates.items():
        found[title] = measure(by_option, task, scores_on_validation(by_option, task))
        if title in LEFT_OUT:
            found[f"{title}; left-out sources"] = measure(by_option, task, scores_left_out(ATTEMPTS[title], task))
    return found


def load_results(choice: Choice, held_out: str, seed: int, clip: CLIP) -> dict[str, dict[str, float | str]]:
    """Read the results of a held-out domain and a seed, or make and store them."""
    file = choice.setting.output / "attempts" / choice.setting.name / f"{held_out}-{seed}.json"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, results(load_task(choice.setting.data, held_out, clip, seed)))
    stored: dict[str, dict[str, float | str]] = read_json(file)
    return stored


def table(choice: Choice) -> str:
    """Format a row per attempt, with mean and standard deviation over seeds, and the mean over held-out domains."""
    clip = load_clip(choice.setting.clip)
    domains = [str(domain) for domain in choice.held_out]
    by_seed = {(domain, seed): load_results(choice, domain, seed, clip) for domain in domains for seed in choice.seeds}
    rows = []
    for title in next(iter(by_seed.values())):
        cells = [title]
        for domain in domains:
            for role in ("validation", "held_out"):
                cells.append(spread([float(by_seed[domain, seed][title][role]) for seed in choice.seeds]))
        means = []
        for seed in choice.seeds:
            means.append(statistics.mean(float(by_seed[domain, seed][title]["held_out"]) for domain in domains))
        rows.append([*cells, spread(means)])
    columns = [f"{domain}: {role}" for domain in domains for role in ("source validation", "held out")]
    return markdown(["attempt", *columns, "held out, mean"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the missing attempts, and print the table."""
    parser = study_parser(__doc__)
    parser.set_defaults(seeds="0,1,2")
    parser.add_argument("--readme", metavar="NAME", help="also write it into the README, at the mark with this name")
    choice = parse(parser, arguments)
    text = table(choice)
    sys.stdout.write(f"{text}\n")
    if choice.options.readme:
        write_block(README, choice.options.readme, text)


if __name__ == "__main__":
    main()

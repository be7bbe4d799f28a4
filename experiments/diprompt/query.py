"""Measure whether DiPrompT's query prompt moves, and finds domains better than the handwritten prompt.

``python -m experiments.diprompt.query``: StyledShapes, each style held out in turn, the tiny CLIP, the three source
styles dispersed over 20 clients, of which 5 train in a round. Prints a table for the README.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import get_args

import lightning
import torch
from jaxtyping import Float
from torch import Tensor

from experiments.tiny_clip.shapes import StyledShapes
from fedvlp import DiPrompT
from fedvlp.clip import CLIP, load_clip
from fedvlp.data.partition import Dispersed
from fedvlp.federation import Federation
from fedvlp.methods.diprompt import Part, given_class, pair_logits
from fedvlp.training.options import Clients, Runtime


@dataclass(frozen=True)
class Outcome:
    """Effect of one training on the query prompt.

    Attributes:
        moved: Distance from its start, relative to the norm of the start.
        found: By prompt, the share of source validation images with the correct most likely domain, in percent: for
            the true class, and over all classes.
    """

    moved: float
    found: dict[str, tuple[float, float]]


@torch.no_grad()
def found_domains(data: StyledShapes, pairs: Float[Tensor, "C M d"], clip: CLIP) -> tuple[float, float]:
    """Compute the two shares of ``Outcome.found`` for text features of all pairs."""
    under_class = over_all = total = 0
    for split in data.evaluation_splits():
        if split.role != "validation":
            continue
        domain = data.source_domains.index(split.domain)
        for inputs, labels in split.loader:
            logits = pair_logits(inputs["features"], pairs, clip.logit_scale)  # type: ignore[index,call-overload]
            under_class += int((given_class(logits, labels).argmax(1) == domain).sum())
            over_all += int((logits.amax(1).argmax(1) == domain).sum())
            total += len(labels)
    return 100 * under_class / total, 100 * over_all / total


def train(
    clip: CLIP, style: str, seed: int, without: tuple[Part, ...], rounds: int, output: Path, domain_labels: bool
) -> Outcome:
    """Train DiPrompT with one style held out."""
    lightning.seed_everything(seed, verbose=False)
    data = StyledShapes(held_out=style, partition=Dispersed(num_clients=20))
    module = DiPrompT(
        data.class_names, data.source_domains, clip, rounds=rounds, without=without, domain_labels=domain_labels
    )
    start = module.state_dict()["query_prompt"].clone()
    federation = Federation(
        rounds=rounds,
        clients=Clients(cohort_size=5),
        evaluate_every=rounds,
        seed=seed,
        accelerator="cpu",
        default_root_dir=str(output),
        runtime=Runtime(num_threads=1, default_callbacks=False),
    )
    federation.fit(module, data)
    trained = module.state_dict()["query_prompt"]
    text = module.domain_text
    found = {
        name: found_domains(data, text.encode_with_prompt(prompt).detach(), clip)
        for name, prompt in {"handwritten": None, "Q-prompt, start": start, "Q-prompt, trained": trained}.items()
    }
    return Outcome(float((trained - start).norm() / start.norm()), found)


def main() -> None:
    """Make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/diprompt"), help="folder of the runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of training")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of training")
    parser.add_argument(
        "--without", nargs="*", choices=get_args(Part), default=[], help="parts of DiPrompT to leave out"
    )
    parser.add_argument(
        "--domain_labels",
        action="store_true",
        help="clients know their domain; Q chooses test images' D-prompts",
    )
    options = parser.parse_args()
    clip = load_clip("fedvlp-tiny")
    styles = StyledShapes().domains
    labelled = options.domain_labels
    without = tuple(dict.fromkeys([*options.without, *(["ensemble"] if labelled else [])]))
    runs: dict[str, list[Outcome]] = {}
    for style in styles:
        runs[style] = [
            train(clip, style, seed, without, options.rounds, options.output, labelled) for seed in options.seeds
        ]
    head = ["prompt", *styles, "mean", "over all classes", "moved by"]
    sys.stdout.write(f"| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}\n")
    for prompt in runs[styles[0]][0].found:
        sys.stdout.write(f"| {prompt} | {' | '.join(row(runs, prompt))} |\n")


def row(runs: dict[str, list[Outcome]], prompt: str) -> list[str]:
    """Format the cells of one prompt: each held-out style's runs, their mean, and the distance moved."""
    shares = []
    for of_style in runs.values():
        shares.append([run.found[prompt][0] for run in of_style])
    shares.append([statistics.mean(of_seed) for of_seed in zip(*shares, strict=True)])
    cells = [f"{statistics.mean(values):.1f} ± {statistics.pstdev(values):.1f}" for values in shares]
    everything = list(chain.from_iterable(runs.values()))
    moved = 100 * statistics.mean(run.moved for run in everything)
    over_all = statistics.mean(run.found[prompt][1] for run in everything)
    return [*cells, f"{over_all:.1f}", f"{moved:.1f} %" if prompt.endswith("trained") else ""]


if __name__ == "__main__":
    main()

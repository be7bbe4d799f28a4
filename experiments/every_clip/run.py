"""Train a step of each group of methods with each of open_clip's architectures, shrunk, and write the outcomes.

``python -m experiments.every_clip.run`` writes ``results.csv`` in this folder.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import open_clip
import torch

from experiments.every_clip.licences import licences
from experiments.every_clip.shrink import count_parameters, shrunk
from fedvlp import TRIP, FedLoRA, FedMaPLe, FedOTP, FineTuning, PromptFL
from fedvlp.clip import CLIP
from fedvlp.core.module import FederatedModule, check_phases
from fedvlp.core.phases import RoundContext
from fedvlp.core.state import Client
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import UserError

RESULTS = Path(__file__).parent / "results.csv"
CLASSES = ["cat", "dog"]
CLIENT = Client(0, 0, 2, "photo")
METHODS: Mapping[str, type[FederatedModule]] = {
    "text prompts": PromptFL,
    "tokens": TRIP,
    "patches": FedOTP,
    "deep prompts": FedMaPLe,
    "LoRA": FedLoRA,
    "fine-tuning": FineTuning,
}
"""A method of each group, by its requirements for CLIP."""

COLUMNS = ("architecture", "text tower", "image tower", "context", "image size", "parameters", *METHODS, "weights")


def row(name: str) -> dict[str, str]:
    """Make a row: an architecture's kinds of towers, its sizes, and the outcome of a step of each group of methods."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        clip = shrunk(name, Path(folder))
        cells = {
            "architecture": name,
            "text tower": text_kind(clip.model),
            "image tower": clip.image.kind,
            "context": str(clip.context_length),
            "image size": str(clip.image_size),
            "parameters": str(count_parameters(name)),
        }
        cells |= {group: outcome(kind, clip) for group, kind in METHODS.items()}
        return cells | {"weights": licences(name)}


def text_kind(model: Any) -> str:
    """Describe the kind of a text tower, and the token of its features."""
    tower = getattr(model, "text", model)
    if hasattr(tower, "pooler"):
        return f"{type(tower.transformer).__name__}, {type(tower.pooler).__name__}"
    if getattr(tower, "cls_emb", None) is not None:
        return "causal, class token"
    pool = getattr(tower, "pool_type", None) or getattr(tower, "text_pool_type", "argmax")
    place = "last token" if pool == "last" else "end of text"
    return f"{'sees all' if tower.attn_mask is None else 'causal'}, {place}"


def outcome(kind: type[FederatedModule], clip: CLIP) -> str:
    """Train a step; return "yes", or "no" if the method's constructor rejects the architecture."""
    # The shortest context has 16 tokens, too few for the default prompts of some methods.
    options = {"prompt_length": 4} if "prompt_length" in constructor_arguments(kind) else {}
    try:
        method = kind(CLASSES, clip, **options)  # type: ignore[call-arg,arg-type]
    except UserError:
        return "no"
    train_step(method)
    return "yes"


def train_step(method: FederatedModule) -> None:
    """Train a method on two random images, and check that the update has changed and is finite."""
    size = cast(CLIP, method.clip).image_size
    with torch.no_grad():
        inputs = method.eval().precompute(torch.randn(2, 3, size, size))
    method.start_client(RoundContext(0, check_phases(method)[0], CLIENT))
    before = {name: tensor.clone() for name, tensor in method.upload_state().items()}
    optimizer = method.configure_optimizers()
    loss = method.train().training_step((inputs, torch.tensor([0, 1])), 0)
    assert isinstance(loss, torch.Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    assert isinstance(optimizer, torch.optim.Optimizer)
    optimizer.step()
    after = method.upload_state()
    if not all(bool(tensor.isfinite().all()) for tensor in after.values()):
        raise RuntimeError(f"{type(method).__name__} has values that are not finite.")
    if all(torch.equal(before[name], tensor) for name, tensor in after.items()):
        raise RuntimeError(f"A step of {type(method).__name__} changed nothing.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=open_clip.list_models(), help="architectures; default: all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    with options.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name in options.names:
            writer.writerow(row(name))
            file.flush()


if __name__ == "__main__":
    main()

"""The command ``fedvlp diagnose``: how much a route of TRIP depends on the image, and how much on chance.

Each image is routed again with another seed of all that is random in routing, with the same keys, and again
mirrored: what a route says of the image should survive both.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from lightning.pytorch.cli import LightningArgumentParser
from torch import Tensor

from fedvlp.commands.trained_config import config_of_command
from fedvlp.core.protocols import EvaluationSplit
from fedvlp.core.roles import OF_CLIENTS
from fedvlp.data import FederatedDataModule
from fedvlp.federation import Federation
from fedvlp.methods import TRIP
from fedvlp.runs.run_folder import files_of_runs, run_of
from fedvlp.tools.trained_run import TrainedRunCLI, load_run, parse
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import check_replaceable, write_json
from fedvlp.utils.text_table import align_columns

Value = str | int | float | list[float | None] | list[float] | None
"""Of a measurement."""

Observed = dict[str, Tensor]
"""Of N images, by mode and kind: routing weights [N, E] under ``seed``, ``other seed`` and of the ``mirror`` image, and
the share of tokens ``kept`` [N, 1]."""

MODES = ("train", "eval")
MEANING = {
    "capacity": "the capacity factor, of training and of evaluation; - where there is no limit",
    "dropped": "mean share of an image's tokens that found no room in their cluster",
    "seeds r": "correlation over images of an expert's weight under two seeds of the clustering, mean over experts; "
    "1 where nothing is random",
    "seeds same": "share of images with the same largest expert under both seeds",
    "chance same": "the same share for two images that have nothing to do with each other",
    "mirror r": "the same correlation between each image and its mirror image, under one seed",
    "mirror same": "share of images with the same largest expert as their mirror image, under one seed",
    "spread": "standard deviation over images of an expert's weight, mean over experts",
    "load": "mean weight of each expert",
    "largest": "share of images in which each expert is the largest",
    "r of experts": "the correlation under two seeds, for each expert",
}


class DiagnoseCLI(TrainedRunCLI):
    """Makes a method and its data; nothing is trained."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what this command takes."""
        super().add_arguments_to_parser(parser)
        help = "JSON file, or a folder for it; the run's folder if not given, and no file without a run."
        parser.add_argument("--output", type=str | None, help=help)


def run_diagnose(arguments: Sequence[str]) -> int:
    """Prints the measurements of TRIP's routes, and writes them to the run's folder or to ``--output``."""
    trained = config_of_command("diagnose", arguments)
    description = "Look inside a method on the images of every domain."
    command = parse(DiagnoseCLI, with_config_paths(arguments), trained, description)
    output = command.config.output
    run = load_run(command)
    if not isinstance(run.module, TRIP):
        raise UserError(f"{run.name} has no diagnosis; TRIP has one, of its routes.")
    data = cast(FederatedDataModule, run.data)
    # Splits of clients have images of domains that are measured already.
    splits = [split for split in data.evaluation_splits() if split.role not in OF_CLIENTS]
    domains = {split.domain: _images_of_domain(splits, split.domain) for split in splits}
    with cast(Federation, command.trainer).fabric.autocast():
        rows = route_measurements(run.module, domains)
    sys.stdout.write(f"{measurement_table(rows)}\n")
    if run.file is not None and output is None:
        output = run_of(run.file)
    if output is not None:
        path = Path(output)
        file = path / "routing.json" if path.is_dir() or not path.suffix else path
        if run.file is not None:
            check_replaceable(file, files_of_runs([run_of(run.file)]))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"name": "routing", "meaning": MEANING, "rows": rows})
        sys.stdout.write(f"written to {file}\n")
    return 0


def _images_of_domain(splits: Sequence[EvaluationSplit], domain: str) -> Iterator[Tensor]:
    """Yields a domain's images in batches, from all of its evaluation splits."""
    for split in splits:
        if split.domain == domain:
            for images, _ in split.loader:
                yield cast(Tensor, images)


@torch.no_grad()
def route_measurements(
    module: TRIP, domains: Mapping[str, Iterable[Float[Tensor, "B 3 V V"]]]
) -> list[dict[str, Value]]:
    """Returns correlations, agreement, dropped tokens and loads, under both capacities, by domain and over all."""
    observed: dict[str, Observed] = {}
    for name, batches in domains.items():
        observed[name] = _joined([_observe(module, images) for images in batches])
    if len(observed) > 1:
        # Not a mean of the rows: a correlation over all images also sees what tells domains apart.
        observed["all domains"] = _joined(list(observed.values()))
    rows: list[dict[str, Value]] = []
    for mode in MODES:
        rows += [_row(module, name, mode, of_domain) for name, of_domain in observed.items()]
    return rows


def _observe(module: TRIP, images: Float[Tensor, "B 3 V V"]) -> Observed:
    """Returns the routing weights of a batch of images and of its variants, in each mode."""
    router: Any = module.router
    # A shallow copy: keys and options are shared, and only the seed differs.
    reseeded = copy.copy(router)
    reseeded.seed = router.seed + 1
    was_training = router.training
    observed: Observed = {}
    for kind, drawn, pixels in (
        ("seed", router, images),
        ("other seed", reseeded, images),
        ("mirror", router, images.flip(-1)),
    ):
        features, tokens = module.clip.encode_image_tokens(pixels)
        constants = {"features": features, **drawn.precompute(pixels, features, tokens)}
        for mode in MODES:
            # How constants become weights depends on no seed.
            router.train(mode == "train")
            observed[f"{mode} {kind}"] = router(constants, module.expert_features).float().cpu()
            if kind == "seed":
                # Only routers with a capacity drop tokens.
                every = torch.ones(len(images))
                observed[f"{mode} kept"] = constants.get(f"{mode}_kept", every)[:, None].float().cpu()
    router.train(was_training)
    return observed


def _joined(parts: Sequence[Observed]) -> Observed:
    """Returns the observations of several batches or domains as one."""
    joined: Observed = {}
    for name in parts[0]:
        joined[name] = torch.cat([part[name] for part in parts])
    return joined


def _row(module: TRIP, domain: str, mode: str, observed: Observed) -> dict[str, Value]:
    options: Any = module.router.options
    weights = observed[f"{mode} seed"]
    reseeded = observed[f"{mode} other seed"]
    mirrored = observed[f"{mode} mirror"]
    # How often each expert is the largest; two independent images agree by the sum of squares.
    largest = F.one_hot(weights.argmax(dim=1), weights.shape[1]).float().mean(dim=0)
    seeds = correlations(weights, reseeded)
    return {
        "domain": domain,
        "mode": mode,
        "images": len(weights),
        "capacity": options.train_capacity if mode == "train" else options.eval_capacity,
        "dropped": 1 - observed[f"{mode} kept"].mean().item(),
        "seeds r": _defined(seeds.mean()),
        "seeds same": agreement(weights, reseeded),
        "chance same": largest.square().sum().item(),
        "mirror r": _defined(correlations(weights, mirrored).mean()),
        "mirror same": agreement(weights, mirrored),
        "spread": weights.std(dim=0, correction=0).mean().item(),
        "load": weights.mean(dim=0).tolist(),
        "largest": largest.tolist(),
        "r of experts": [_defined(value) for value in seeds],
    }


def _defined(value: Tensor) -> float | None:
    # A weight that is equal for all images has no correlation.
    return None if bool(value.isnan()) else value.item()


def correlations(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> Float[Tensor, "E"]:
    """Returns Pearson's correlation over images of each expert's weight; nan where a weight is the same for all."""
    # In double precision: weights are near 1 / E, and their deviations are small.
    first = first.double() - first.double().mean(dim=0)
    second = second.double() - second.double().mean(dim=0)
    spread = first.norm(dim=0) * second.norm(dim=0)
    # Below the limit it is rounding, of weights that are equal.
    return torch.where(spread > 1e-12 * len(first), (first * second).sum(dim=0) / spread, torch.nan).float()


def agreement(first: Float[Tensor, "N E"], second: Float[Tensor, "N E"]) -> float:
    """Returns the share of images that have the same largest expert, in [0, 1]; the first of equals counts."""
    return (first.argmax(dim=1) == second.argmax(dim=1)).double().mean().item()


def measurement_table(rows: Sequence[Mapping[str, Value]]) -> str:
    """Returns rows of the same columns, aligned, and below them what the columns mean."""
    cells = [list(rows[0])]
    for row in rows:
        cells.append([_cell(value) for value in row.values()])
    lines = [line.rstrip() for line in align_columns(cells)]
    meanings = [f"{column}: {description}" for column, description in MEANING.items()]
    return "\n".join([*lines, "", *meanings])


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return " ".join("-" if item is None else f"{item:.2f}" for item in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)

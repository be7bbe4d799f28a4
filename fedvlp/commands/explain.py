"""The command ``fedvlp explain``: pictures and words that show what a trained method does."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import yaml
from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.commands.lightning_cli import FederationCLI, trained_config, write_config
from fedvlp.core.state import State
from fedvlp.data.class_list import ClassNames
from fedvlp.explain.artifacts import CAPTIONS, write_exhibits
from fedvlp.explain.explanations import KINDS, Subject
from fedvlp.explain.relevance import Method
from fedvlp.explain.samples import Samples, read_samples, rows_of_run, samples_of_files
from fedvlp.federation import Federation
from fedvlp.runs.run_folder import load_trained, run_of
from fedvlp.training.setup import attach, launch
from fedvlp.utils.errors import UserError

HELP = {
    "ckpt_path": "A run's folder, its prompts.safetensors or one of its checkpoints.",
    "images": "Image files or folders to look at; if not given, a few of the run's own images on which nobody trained.",
    "what": f"What to make, with commas between: {', '.join(KINDS)}; all that the method has if not given.",
    "output": "Folder to write to; explanations in the run's folder if not given.",
    "toward": "The class that overlays are of: predicted, true, or the name of a class.",
    "relevance": "How overlays are measured: attention weighted by its gradient, which a ViT has, or Grad-CAM.",
    "num_images": "How many of the run's own images to look at.",
    "most_points": "The largest number of images in t-SNE.",
    "perplexity": "Perplexity of t-SNE; 30, or less for few images, if not given.",
}


class ExplainCLI(FederationCLI):
    """Makes the method of a trained file, and its run's data where they are needed; nothing is trained."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds what this command takes."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--ckpt_path", type=str | None, help=HELP["ckpt_path"])
        parser.add_argument("--images", type=str, nargs="+", help=HELP["images"])
        parser.add_argument("--what", type=str | None, help=HELP["what"])
        parser.add_argument("--output", type=str | None, help=HELP["output"])
        parser.add_argument("--toward", type=str, default="predicted", help=HELP["toward"])
        parser.add_argument("--relevance", type=Method | None, help=HELP["relevance"])
        parser.add_argument("--num_images", type=int, default=4, help=HELP["num_images"])
        parser.add_argument("--most_points", type=int, default=1000, help=HELP["most_points"])
        parser.add_argument("--perplexity", type=float | None, help=HELP["perplexity"])

    def before_instantiate_classes(self) -> None:
        """Leaves out what writes about runs."""
        config = self.config
        config.trainer.logger = config.trainer.callbacks = None
        config.trainer.default_callbacks = False


def print_explanations(arguments: Sequence[str]) -> None:
    """Makes what was asked for, says where it is, and prints the nearest words."""
    about = {"prog": "fedvlp explain", "description": "Show what a trained method does, in pictures and words."}
    given = list(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        if not {"--help", "-h"} & set(given):
            file = Path(scratch) / "trained.yaml"
            write_config(file, _config(given))
            given = ["--config", str(file), *given]
        command = ExplainCLI(run=False, args=given, save_config_callback=None, parser_kwargs=about)
    for line in explain(command):
        sys.stdout.write(f"{line}\n")


def explain(command: ExplainCLI) -> list[str]:
    """Writes the explanations, and returns what there is to say of them."""
    config = command.config
    named, kinds = config.what is not None, _kinds(config.what)
    where = trained_file(config.ckpt_path)
    subject = _subject(command, where, kinds)
    said: list[str] = []
    found = []
    for kind in kinds:
        try:
            KINDS[kind][0](subject)
        except UserError as error:
            if named:
                raise
            said.append(f"{kind} left out: {error}")
        else:
            found.append(kind)
    exhibits = {kind: KINDS[kind][1](subject) for kind in found}
    if not exhibits:
        raise UserError(f"There is nothing to explain {subject.name} by. " + " ".join(said))
    folder = Path(config.output) if config.output else run_of(where) / "explanations"
    written = write_exhibits(folder, exhibits)
    return [*said, *(str(path) for path in written), f"captions: {folder / CAPTIONS}"]


def trained_file(given: str | None) -> Path:
    """Returns the file of trained tensors that ``--ckpt_path`` means.

    Raises:
        UserError: if none is given.
    """
    if given is None or given == "last":
        raise UserError("explain needs --ckpt_path: a run's folder, or its prompts.safetensors.")
    where = Path(given)
    return run_of(where) / "prompts.safetensors" if where.is_dir() else where


def _config(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the config of the trained method, with its run's data where images of it are needed."""
    options = dict(pairwise(arguments)) | dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    where = trained_file(options.get("--ckpt_path"))
    config = trained_config(where)
    run = run_of(where) / "config.yaml"
    if run.is_file() and _needs_data(_kinds(options.get("--what")), "--images" in options):
        config["data"] = yaml.safe_load(run.read_text(encoding="utf-8"))["data"]
    return config


def _needs_data(kinds: Sequence[str], has_images: bool) -> bool:
    """Whether images of the run are needed."""
    return "tsne" in kinds or (not has_images and bool({"overlays", "experts"} & set(kinds)))


def _kinds(what: str | None) -> list[str]:
    """Returns what to make.

    Raises:
        UserError: if there is no such kind.
    """
    if what is None:
        return list(KINDS)
    kinds = list(dict.fromkeys(what.split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UserError(f"Expected --what of {', '.join(KINDS)}, with commas between; got {', '.join(unknown)!r}.")
    return kinds


def _subject(command: ExplainCLI, where: Path, kinds: Sequence[str]) -> Subject:
    """Returns the trained method with the images to look at."""
    config, module, data = command.config, command.model, command.datamodule
    federation = cast(Federation, command.trainer)
    if config.num_images < 1 or config.most_points < 4:
        found = f"{config.num_images} and {config.most_points}"
        raise UserError(f"Expected num_images of at least 1 and most_points of at least 4, got {found}.")
    launch(federation.fabric, module, federation.num_threads)
    own = None if isinstance(data, ClassNames) else data
    deployed, personal = load_trained(where, module)
    module.load_state(deployed)
    module.eval()
    if own is not None:
        attach(federation.fabric, module, own, federation.precision, serves_images=True)
    return Subject(
        module=module,
        deployed=deployed,
        personal=_by_name(personal, run_of(where)),
        samples=_samples(config, module.clip, own),
        data=own,
        toward=config.toward,
        relevance=config.relevance,
        most_points=config.most_points,
        perplexity=config.perplexity,
    )


def _samples(config: Any, clip: Any, data: Any) -> Samples | None:
    """Returns the images to look at: those given, or a few of the run's."""
    if config.images:
        return samples_of_files(config.images, clip)
    return None if data is None else read_samples(rows_of_run(data, config.num_images))


def _by_name(personal: Mapping[int, State], run: Path) -> dict[str, State]:
    """Returns what clients keep by the clients' names, as far as the run's summary knows them."""
    summary = run / "summary.json"
    names = list(json.loads(summary.read_text(encoding="utf-8"))["clients"]) if summary.is_file() else []
    return {names[client] if client < len(names) else f"client {client}": state for client, state in personal.items()}

"""The command ``fedvlp explain``: pictures and words that show what a trained method does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.commands.lightning_cli import FederationCLI
from fedvlp.commands.trained_config import (
    ALLOW_HELP,
    chosen_kinds,
    config_option,
    data_of_run,
    first_look,
    trained_config,
    trained_file,
)
from fedvlp.core.state import State
from fedvlp.data.without_images import PredictionData
from fedvlp.federation import Federation
from fedvlp.runs.run_folder import load_trained, run_of
from fedvlp.tools.explain.artifacts import CAPTIONS, write_artifacts
from fedvlp.tools.explain.context import ExplainContext
from fedvlp.tools.explain.explanations import EXPLANATIONS
from fedvlp.tools.explain.relevance import Method
from fedvlp.tools.explain.samples import Samples, read_samples, run_images, samples_of_files
from fedvlp.training.setup import set_up_data, set_up_method
from fedvlp.utils.config_files import with_config_paths
from fedvlp.utils.errors import UserError, unwrapped_errors
from fedvlp.utils.ranges import PositiveFloat, PositiveInt

HELP = {
    "ckpt_path": "A run's folder, its prompts.safetensors or one of its checkpoints.",
    "images": "Image files or folders to look at; if not given, a few of the run's own images on which nobody trained.",
    "what": f"What to make, with commas between: {', '.join(EXPLANATIONS)}; all that the method has if not given.",
    "output": "Folder to write to; explanations in the run's folder if not given.",
    "toward": "The class that overlays are of: predicted, true, or the name of a class.",
    "relevance": "How overlays are measured: attention weighted by its gradient, which a ViT has, or Grad-CAM.",
    "num_images": "How many of the run's own images to look at.",
    "most_points": "The largest number of images in t-SNE.",
    "perplexity": "Perplexity of t-SNE; 30, or less for few images, if not given.",
    "allow": ALLOW_HELP,
}
PARSER = {"prog": "fedvlp explain", "description": "Show what a trained method does, in pictures and words."}


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
        parser.add_argument("--num_images", type=PositiveInt, default=4, help=HELP["num_images"])
        parser.add_argument("--most_points", type=PositiveInt, default=1000, help=HELP["most_points"])
        parser.add_argument("--perplexity", type=PositiveFloat | None, help=HELP["perplexity"])
        parser.add_argument("--allow", action="append", metavar="NAME", help=HELP["allow"])

    def before_instantiate_classes(self) -> None:
        """Leaves out what writes about runs."""
        config = self.config
        config.trainer.logger = None
        config.trainer.callbacks = None
        config.trainer.runtime.default_callbacks = False


def run_explain(arguments: Sequence[str]) -> int:
    """Makes what was asked for, says where it is, and prints the nearest words; returns the exit code.

    Raises:
        UserError: if there is no trained file, or nothing to explain it by.
    """
    sys.stdout.writelines(f"{line}\n" for line in explanation_lines(arguments))
    return 0


def explanation_lines(arguments: Sequence[str]) -> list[str]:
    """Makes what was asked for, and returns what there is to say of it.

    Raises:
        UserError: as ``run_explain``.
    """
    given = with_config_paths(arguments)
    trained = _config(given)
    if trained is not None:
        given.insert(0, config_option(trained))
    with unwrapped_errors():
        command = ExplainCLI(run=False, args=given, save_config_callback=None, parser_kwargs=PARSER)
        return explain(command)


def explain(command: ExplainCLI) -> list[str]:
    """Writes the explanations, and returns what there is to say of them.

    Raises:
        UserError: if what was asked for by name can't be made of this method, or nothing can.
    """
    config = command.config
    kinds = _kinds(config.what)
    where = trained_file(config.ckpt_path, "explain")
    context = _context(command, where, kinds)
    messages: list[str] = []
    found = []
    for kind in kinds:
        try:
            _check(kind, context, is_asked_for=config.what is not None)
        except UserError as error:
            if config.what is not None:
                raise
            messages.append(f"{kind} left out: {error}")
        else:
            found.append(kind)
    artifacts = {kind: EXPLANATIONS[kind].make(context) for kind in found}
    if not artifacts:
        raise UserError(f"There is nothing to explain {context.name} by. " + " ".join(messages))
    folder = Path(config.output) if config.output else run_of(where) / "explanations"
    written = write_artifacts(folder, artifacts)
    return [*messages, *(str(path) for path in written), f"captions: {folder / CAPTIONS}"]


def _check(kind: str, context: ExplainContext, is_asked_for: bool) -> None:
    """Raises UserError if a kind can't be made, or, where nobody asked for it by name, says nothing."""
    explanation = EXPLANATIONS[kind]
    explanation.check(context)
    if explanation.advise is not None and not is_asked_for:
        explanation.advise(context)


def _config(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Returns the config of the trained method, with its run's data where images of it are needed; None for help."""
    given = first_look(arguments)
    if given.help:
        return None
    where = trained_file(given.ckpt_path, "explain")
    config = trained_config(where, given.allow)
    run = run_of(where) / "config.yaml"
    if run.is_file() and _needs_data(_kinds(given.what), given.images is not None):
        config["data"] = data_of_run(run, "--images", given.allow)
    return config


def _needs_data(kinds: Sequence[str], has_images: bool) -> bool:
    """Whether images of the run are needed."""
    return "tsne" in kinds or (not has_images and bool({"predictions", "overlays", "experts"} & set(kinds)))


def _kinds(what: str | None) -> list[str]:
    return list(EXPLANATIONS) if what is None else chosen_kinds(what, EXPLANATIONS)


def _context(command: ExplainCLI, where: Path, kinds: Sequence[str]) -> ExplainContext:
    """Returns the trained method with the images to look at."""
    config = command.config
    module = command.model
    data = command.datamodule
    federation = cast(Federation, command.trainer)
    set_up_method(federation.fabric, module, federation.runtime.num_threads)
    own = None if isinstance(data, PredictionData) else data
    deployed, personal = load_trained(where, module)
    module.load_state(deployed)
    module.eval()
    if own is not None:
        set_up_data(federation.fabric, module, own, federation.precision, serves_images=True)
    return ExplainContext(
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
    return None if data is None else read_samples(run_images(data, config.num_images))


def _by_name(personal: Mapping[int, State], run: Path) -> dict[str, State]:
    """Returns what clients keep by the clients' names, as far as the run's summary knows them."""
    summary = run / "summary.json"
    names: list[str] = []
    if summary.is_file():
        names = list(json.loads(summary.read_text(encoding="utf-8"))["clients"])
    return {names[client] if client < len(names) else f"client {client}": state for client, state in personal.items()}

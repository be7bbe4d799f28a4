"""The command ``fedvlp explain``: pictures and words that explain a trained method."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.cli import LightningArgumentParser

from fedvlp.clip.loading import BUNDLED
from fedvlp.commands.trained_config import config_option, parse_kinds, trained_config, trained_file
from fedvlp.core.several_labels import probabilities
from fedvlp.core.state import State
from fedvlp.results.figures import CAPTIONS, Files, Picture, write_explanations
from fedvlp.runs.run_folder import find_run_folder
from fedvlp.tools.explain import images, pictures, words
from fedvlp.tools.explain.images import Method, Samples
from fedvlp.tools.explain.methods import text_prompts, token_experts
from fedvlp.tools.trained_run import TrainedRun
from fedvlp.tools.trained_run_cli import TrainedRunCLI, load_run
from fedvlp.utils.config_files import option_values, split_options
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import read_json
from fedvlp.utils.ranges import PositiveInt

KINDS = ("predictions", "overlays", "experts", "words")
IMAGES_IN_A_FIGURE = 6


class ExplainCLI(TrainedRunCLI):
    """Parser that creates the method of a trained file and, if needed, its run's data, without training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of this command."""
        super().add_arguments_to_parser(parser)
        add = parser.add_argument
        help = "Image files or folders; by default some of the run's images that no client trained on."
        add("--images", type=str, nargs="+", help=help)
        help = f"Kinds of explanations, separated by commas: {', '.join(KINDS)}; by default all that the method has."
        add("--what", type=str | None, help=help)
        add("--output", type=str | None, help="Output folder; by default `explanations` in the run's folder.")
        help = "Class or label that overlays explain: predicted (the likeliest), true, or its name."
        add("--toward", type=str, default="predicted", help=help)
        help = "Measure of overlays: attention weighted by its gradient (only for a ViT), or Grad-CAM."
        add("--relevance", type=Method | None, help=help)
        add("--num_images", type=PositiveInt, default=4, help="Number of the run's images, without --images.")


def run_explain(arguments: Sequence[str]) -> int:
    """Write explanations, print the files and missing kinds, and return the exit code."""
    options = dict(split_options(arguments))
    # The parser needs the method's class, so read the file first.
    words = list(arguments)
    if "--help" not in options:
        file = trained_file("".join(options.get("--ckpt_path", [])), "explain")
        kinds = parse_kinds("".join(options["--what"]) if "--what" in options else None, KINDS)
        needs_samples = "--images" not in options and bool({"predictions", "overlays", "experts"} & set(kinds))
        data_option = "--images" if needs_samples else None
        words.insert(0, config_option(trained_config(file, option_values(arguments, "--allow"), data_option)))
    about = "Explain a trained method in pictures and words."
    command = ExplainCLI.make(words, prog="fedvlp explain", description=about)
    config = command.config
    run = load_run(command)
    folder = run.folder(config.output, "explanations")
    samples = None
    if config.images:
        samples = images.read_samples(config.images, run.clip)
    elif run.data is not None:
        chosen = images.choose_images(run.data, config.num_images)
        samples = images.read_run_samples(chosen, run.module.label_names, run.clip)
    lines: list[str] = []
    explanations: dict[str, Files] = {}
    for kind in parse_kinds(config.what, KINDS):
        try:
            explanations[kind] = explain(kind, run, samples, config)
        except UserError as error:
            # No method has all kinds, so skip missing kinds unless they were requested.
            if config.what is not None:
                raise
            lines.append(f"{kind} left out: {error}")
    if not explanations:
        raise UserError(f"{run.name} can't be explained. " + " ".join(lines))
    lines += [*map(str, write_explanations(folder, explanations)), f"captions: {folder / CAPTIONS}"]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def explain(kind: str, run: TrainedRun, samples: Samples | None, config: Any) -> Files:
    """Create the files of one kind of explanation; raise a UserError if the method has none, or images are missing."""
    if kind == "words":
        return explain_words(run, is_requested=config.what is not None)
    # Only routes are the same for all clients.
    if kind != "experts" and run.module.personal and run.personal:
        raise UserError(f"{run.name} has personal tensors on each client, so there is no single model to explain.")
    if samples is None:
        raise UserError("There are no images. Pass --images, or a run folder with its config.yaml.")
    draw = {"predictions": explain_predictions, "overlays": explain_overlays, "experts": explain_experts}[kind]
    figures = [draw(run, page, config) for page in samples.pages(IMAGES_IN_A_FIGURE)]
    if len(figures) == 1:
        return {f"{kind}.png": figures[0]}
    return {f"{kind}_{number}.png": figure for number, figure in enumerate(figures, start=1)}


@torch.no_grad()
def explain_predictions(run: TrainedRun, samples: Samples, config: Any) -> Picture:
    """Draw the predicted classes before and after training."""
    pixels = samples.pixels.to(run.module.device)
    chosen = {}
    for name, module in images.compared_methods(run.module).items():
        values = probabilities(module(pixels).float(), module.hparams["class_names"]).cpu()
        chosen[name] = [module.named_probabilities(row) for row in values]
    return pictures.prediction_picture(samples, chosen, run.module.label_names)


def explain_overlays(run: TrainedRun, samples: Samples, config: Any) -> Picture:
    """Draw the relevance of patches for a class."""
    classes = images.choose_classes(config.toward, samples, run.module.label_names)
    if classes is not None:
        classes = classes.to(run.module.device)
    method = config.relevance or images.choose_method(run.clip)
    views = images.compute_views(run.module, samples.pixels.to(run.module.device), classes, method)
    return pictures.overlay_picture(samples, views, run.module.label_names)


def explain_experts(run: TrainedRun, samples: Samples, config: Any) -> Picture:
    """Draw the expert of each patch."""
    experts = token_experts(run.module, samples.pixels.to(run.module.device))
    if experts is None:
        raise UserError(f"{run.name} with these options does not route tokens to experts.")
    return pictures.token_map_picture(samples, experts.cpu(), list(text_prompts(run.module)))


def explain_words(run: TrainedRun, is_requested: bool) -> Files:
    """List the words nearest to the learned prompts, as CSV."""
    if not text_prompts(run.module):
        raise UserError(f"{run.name} learns no vectors among the words of its prompts.")
    if run.clip.spec.name in BUNDLED and run.clip.spec.pretrained == "auto" and not is_requested:
        raise UserError(
            f"{run.clip.spec.name} has learned few words, so the words nearest to a vector have no meaning. "
            "Pass --what words to list them anyway."
        )
    prompts = words.named_prompts(run.module, run.deployed, _personal_by_name(run))
    nearest = words.prompt_words(run.clip, prompts)
    return {"words.csv": nearest.to_csv(index=False, float_format="%.6f", lineterminator="\n")}


def _personal_by_name(run: TrainedRun) -> dict[str, State]:
    """Map clients' names to personal tensors; a stopped run has no summary, so its clients are numbered."""
    names: list[str] = []
    summary = find_run_folder(run.file) / "summary.json" if run.file else Path()
    if summary.is_file():
        names = list(read_json(summary)["clients"])
    states = run.personal.items()
    return {names[client] if client < len(names) else f"client {client}": state for client, state in states}

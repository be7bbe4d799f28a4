"""The command ``fedvlp audit``: measures how much uploads and trained prompts reveal about clients' images."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.pytorch.cli import LightningArgumentParser
from matplotlib.figure import Figure

from fedvlp.commands.trained_config import config_option, parse_kinds, trained_config, trained_file
from fedvlp.core.module import restored
from fedvlp.results.figures import SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.audit.attack import MEASURES, SOURCES, Attacked, invert_gradients
from fedvlp.tools.audit.inversion import InversionOptions
from fedvlp.tools.audit.membership import MembershipOptions, measure_membership
from fedvlp.tools.trained_run import TrainedRun, drawable, read_pixels, training_images
from fedvlp.tools.trained_run_cli import TrainedRunCLI, load_run
from fedvlp.utils.config_files import option_values, split_options
from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_bytes, write_json
from fedvlp.utils.seeding import restored_generators, seed_generators
from fedvlp.utils.text_table import text_table

KINDS = ("inversion", "membership")
MAX_ROWS = 8  # of images in the picture
Facts = dict[str, Any]


class AuditCLI(TrainedRunCLI):
    """Parser that creates a method and its clients' data, without training."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options of this command."""
        super().add_arguments_to_parser(parser)
        help = f"Measures, separated by commas: {', '.join(KINDS)}; by default all that the method supports."
        parser.add_argument("--what", type=str | None, help=help)
        help = "Output folder; by default `audit` in the run's folder, or in the current folder without a run."
        parser.add_argument("--output", type=str | None, help=help)
        parser.add_class_arguments(InversionOptions, "inversion", instantiate=False)
        parser.add_class_arguments(MembershipOptions, "membership", instantiate=False)

    def before_instantiate_classes(self) -> None:
        """Check the options before loading anything, and disable augmentation."""
        super().before_instantiate_classes()
        config = self.config
        if config.output is not None and Path(config.output).is_file():
            raise UserError(f"Expected a folder for --output, but {config.output} is a file. Choose another path.")
        if "augmentation" in (config.data.get("init_args") or {}):
            config.data.init_args.augmentation = "none"


def run_audit(arguments: Sequence[str]) -> int:
    """Measure the requested kinds, write and print them, and return the exit code."""
    options = dict(split_options(arguments))
    # Without a trained file, --config describes an untrained method.
    words = list(arguments)
    if "--ckpt_path" in options and "--help" not in options:
        file = trained_file("".join(options["--ckpt_path"]), "audit")
        data_option = None if "--data" in options else "--data"
        words.insert(0, config_option(trained_config(file, option_values(arguments, "--allow"), data_option)))
    about = "Measure how much uploads and prompts reveal about clients' images."
    command = AuditCLI.make(words, prog="fedvlp audit", description=about)
    config = command.config
    kinds = None if config.what is None else parse_kinds(config.what, KINDS)
    run = load_run(command)
    if run.module.has_several_labels:
        raise UserError("audit supports one label per image. The images of this run have several.")
    inversion = InversionOptions(**vars(config.inversion))
    membership = MembershipOptions(**vars(config.membership))
    folder = run.folder(config.output, "audit")
    facts, picture, skipped = audit(run, kinds, inversion, membership, config.trainer.seed)
    written = write_audit(folder, facts, picture)
    lines = [*skipped, audit_table(facts), "", *map(str, written)]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def audit(
    run: TrainedRun,
    kinds: Sequence[str] | None = None,
    inversion: InversionOptions | None = None,
    membership: MembershipOptions | None = None,
    seed: int = 0,
) -> tuple[Facts, Picture | None, list[str]]:
    """Measure how much a method's uploads and its deployed prompts reveal about training images.

    Args:
        run: The method, and the images of its clients.
        kinds: Some of ``KINDS``; None for all that the method supports.
        inversion: Options for inverting gradients.
        membership: Options for recognising members.
        seed: Seed of all random numbers.

    Returns:
        The content of ``audit.json``; a picture of the inversion, or None; and the reason for each kind that can't be
        measured.

    Raises:
        UserError: If a kind in ``kinds`` can't be measured, or none can.
    """
    facts: Facts = {
        "method": run.name,
        "is_trained": run.file is not None,
        "clip": run.clip.spec.name,
        "clip_fingerprint": run.clip.fingerprint(),
        "seed": seed,
        **dict.fromkeys(KINDS),
    }
    picture = None
    skipped: list[str] = []
    for kind in kinds or KINDS:
        try:
            # Seeded for each kind, so that results do not depend on the other kinds.
            with restored_generators(), restored(run.module):
                seed_generators(seed)
                run.module.load_state(run.deployed)
                if kind == "inversion":
                    facts[kind], picture = audit_inversion(run, inversion or InversionOptions(), seed)
                else:
                    options = membership or MembershipOptions()
                    run.module.eval()
                    facts[kind] = {"options": asdict(options), **measure_membership(run, options, seed)}
        except UserError as error:
            if kinds is not None:
                raise
            skipped.append(f"{kind} left out: {error}")
    if len(skipped) == len(KINDS):
        raise UserError(f"{run.name} can't be audited. " + " ".join(skipped))
    return facts, picture, skipped


def audit_inversion(run: TrainedRun, options: InversionOptions, seed: int) -> tuple[Facts, Picture]:
    """Measure the similarity of recovered and true images, and draw both."""
    if run.data is None:
        raise UserError("There are no images of clients. Pass a run folder with its config.yaml, or --data.")
    # Losses depend only on whether any round was finished.
    round = int(run.file is not None)
    phase, sent, attacked = invert_gradients(run.module, training_images(run.data), options, round, seed)
    rows: list[Facts] = []
    for client, images, sources in attacked:
        for recovered in sources:
            for image, scores in zip(images, recovered.scores, strict=True):
                row = {
                    "image": image.name,
                    "client": client.name,
                    "class": run.module.label_names[image.label],
                    "source": recovered.source,
                    "gradient_distance": recovered.distance,
                }
                rows.append(row | scores)
    means = pd.DataFrame(rows).groupby("source", sort=False)[list(MEASURES)].mean()
    facts = {"options": asdict(options), "phase": phase, "sent": sent, "mean": means.to_dict("index"), "images": rows}
    return facts, inversion_picture(run, attacked)


def inversion_picture(run: TrainedRun, attacked: Sequence[Attacked]) -> Picture:
    """Draw one row for each of the first images: the image, then the image recovered from each gradient."""
    rows: list[list[tuple[str, torch.Tensor]]] = []
    for client, images, sources in attacked:
        for index, image in enumerate(images):
            row = [(f"true: {run.module.label_names[image.label]}\nof {client.name}", read_pixels([image]))]
            for recovered in sources:
                if recovered.source in SOURCES:
                    score = recovered.scores[index]
                    title = f"{recovered.source}\n{score['psnr']:.1f} dB, SSIM {score['ssim']:.2f}"
                    row.append((title, recovered.images[index : index + 1].detach().cpu()))
            rows.append(row)
    rows = rows[:MAX_ROWS]
    columns = max(map(len, rows))
    figure = Figure(figsize=(1.6 * columns, 2.0 * len(rows)), dpi=200, layout="constrained")
    panels = figure.subplots(len(rows), columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()  # rows without a closed form are shorter
    for all_axes, row in zip(panels, rows, strict=True):
        for axes, (title, pixels) in zip(all_axes, row, strict=False):
            axes.imshow(drawable(run.clip, pixels)[0])
            lines = "\n".join(map(escape_text, title.split("\n")))
            axes.set_title(lines, fontsize=SMALL_FONT_SIZE - 1, linespacing=1.3)
    caption = (
        f"Images recovered from gradients of {run.name}. Each row shows a true image, its recovery from the gradient "
        "of the prompts, which clients send, and its recovery from the gradient of image tower and prompts, with the "
        "same start and number of steps. Closed form: solution of linear equations, for a full gradient of one image "
        "of a ViT."
    )
    alt = "; ".join(", ".join(title.replace("\n", " ") for title, _ in row) for row in rows)
    return Picture(figure, f"Images recovered from gradients of {run.name}", caption, alt)


def write_audit(folder: Path, facts: Facts, picture: Picture | None) -> list[Path]:
    """Write the files, remove an earlier audit's picture, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "audit.json"
    write_json(numbers, facts)
    image = folder / "inversion.png"
    if picture is None:
        image.unlink(missing_ok=True)
        return [numbers]
    write_bytes(image, picture.image("png"))
    return [numbers, image]


def audit_table(facts: Facts) -> str:
    """Format a short table for each measure."""
    tables = {"inversion": _inversion_table, "membership": _membership_table}
    return "\n\n".join(tables[kind](facts[kind]) for kind in KINDS if facts[kind] is not None)


def _inversion_table(facts: Mapping[str, Any]) -> str:
    rows = facts["images"]
    count = sum(row["source"] == rows[0]["source"] for row in rows)
    cells = [[f"images recovered from gradients, mean of {count}", "MSE", "PSNR in dB", "SSIM", "cosine of features"]]
    for source, means in facts["mean"].items():
        formats = zip(("{:.4f}", "{:.2f}", "{:.3f}", "{:.3f}"), MEASURES, strict=True)
        cells.append([source, *(form.format(means[measure]) for form, measure in formats)])
    lines = [text_table(cells)]
    if not facts["sent"]:
        lines.append(f"Clients send no parameters in phase {facts['phase']!r}, so no gradient of prompts was inverted.")
    return "\n".join(lines)


def _membership_table(facts: Mapping[str, Any]) -> str:
    coverage = f"{facts['options']['confidence']:.0%}"
    cells = [["members recognised by loss, client", "images", "others", "AUC", f"{coverage} from", "to"]]
    for result in (*facts["clients"], facts["all"]):
        scores = [f"{result[name]:.3f}" for name in ("auc", "low", "high")]
        cells.append([result["name"], str(result["members"]), str(result["others"]), *scores])
    return (
        f"{text_table(cells)}\nmodel: {facts['model']}; others: {facts['others']} images of the same domains; "
        "AUC 0.5 reveals nothing"
    )

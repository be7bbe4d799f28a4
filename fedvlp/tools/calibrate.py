"""The command ``fedvlp calibrate``: fits the temperature of a trained method's probabilities, and stores it."""

import sys
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from lightning import Fabric
from scipy.optimize import minimize_scalar
from torch import Tensor

from fedvlp.commands.trained_config import trained_file, trained_options
from fedvlp.core.metrics import single_state
from fedvlp.core.module import FederatedModule
from fedvlp.core.predictions import Predictions, calibration_errors, interval
from fedvlp.core.protocols import MeasuredData
from fedvlp.results.figures import Picture, add_legend, new_axes, series_style, write_explanations
from fedvlp.runs.descriptions import check_predicts
from fedvlp.tools.trained_run_cli import TrainedRunCLI, load_run
from fedvlp.training.evaluation import batch_logits
from fedvlp.utils.errors import UserError
from fedvlp.utils.tensor_files import check_header, read_tensors, write_tensors
from fedvlp.utils.text_table import text_table

Logits = tuple[Float[Tensor, "N C"], Int[Tensor, "N"]]  # with labels


def run_calibrate(arguments: Sequence[str]) -> int:
    """Store the temperature in the run's prompts, print calibration errors, and return the exit code."""
    about = "Fit a temperature on a run's source validation images, and store it in its prompts.safetensors."
    words = [*trained_options("calibrate", arguments), *arguments]
    command = TrainedRunCLI.make(words, prog="fedvlp calibrate", description=about)
    file = trained_file(command.config.ckpt_path, "calibrate")
    tensors, header = read_tensors(file)
    check_header(file, header, "prompts")
    module = load_run(command, serves_images=False).module
    check_predicts(module)
    if module.has_several_labels:
        raise UserError("calibrate supports one label per image. This run has several, with thresholds instead.")
    measured = shared_logits(module, command.datamodule, command.trainer.fabric)
    temperature = fit_temperature([pair for split, pair in measured.items() if split.startswith("validation/")])
    header["model"]["calibration_temperature"] = temperature
    write_tensors(file, tensors, header)
    compared = {split: (predict(*pair, 1.0), predict(*pair, temperature)) for split, pair in measured.items()}
    rows = [["calibration error in points [95 % over images]", "before", "after"]]
    for split, pair in compared.items():
        errors = [calibration_errors(each, split) for each in pair]
        cells = ["{:.2f} [{:.2f}, {:.2f}]".format(each[0], *interval(each[1:])) for each in errors]
        rows.append([split, *cells])
    picture = reliability_picture(compared)
    (figure,) = write_explanations(file.parent / "explanations", {"reliability": {"reliability.png": picture}})
    sys.stdout.write(f"{text_table(rows)}\n\ntemperature {temperature:g} -> {file}\n{figure}\n")
    return 0


@torch.no_grad()
def shared_logits(module: FederatedModule, data: MeasuredData, fabric: Fabric) -> dict[str, Logits]:
    """Compute the logits of each evaluation split in double precision, with the shared tensors and no temperature."""
    measured = {}
    for split in data.evaluation_splits():
        if not (split.class_names and module.has_fixed_classes):
            classifier = module.for_classes(split.class_names) if split.class_names else module
            with classifier.shared_part_only():
                logits, labels = zip(*batch_logits(classifier, fabric, split.loader), strict=True)
            measured[split.name] = (torch.cat(logits).double().cpu(), torch.cat(labels).cpu())
    return measured


def fit_temperature(splits: Sequence[Logits]) -> float:
    """Find the temperature T with the lowest cross-entropy of softmax(logits / T) (Guo et al., ICML 2017, Sec. 4.2).

    T is between 0.01 and 100. Raises a UserError if no image is misclassified, because then the best T is 0.
    """
    if all(bool((logits.argmax(-1) == labels).all()) for logits, labels in splits):
        raise UserError("Expected misclassified validation images, got none. Use more validation images.")

    def loss(scale: float) -> float:  # convex
        return sum(F.cross_entropy(scale * logits, labels, reduction="sum").item() for logits, labels in splits)

    found = minimize_scalar(loss, bounds=(0.01, 100), method="bounded", options={"xatol": 1e-7})
    return float(f"{1 / found.x:.4g}")


def predict(logits: Float[Tensor, "N C"], labels: Int[Tensor, "N"], temperature: float) -> Predictions:
    """Compute the predicted class and its probability for each image."""
    return single_state(labels, logits.argmax(-1), (logits / temperature).softmax(-1).amax(-1))


def reliability_picture(compared: Mapping[str, tuple[Predictions, Predictions]], bins: int = 15) -> Picture:
    """Draw accuracy over confidence (Guo et al., Fig. 1) of all images that select nothing, or of validation images."""
    splits = [split for split in compared if not split.startswith("validation/")] or list(compared)
    figure, (axes,) = new_axes(["accuracy (%)"], "mean probability of the predicted class (%)", ["before", "after"])
    for index, label in enumerate(("before", "after")):
        predictions = [compared[split][index] for split in splits]
        confidence = np.concatenate([part.confidence[0] for part in predictions])
        right = np.concatenate([part.predicted[0] == part.labels for part in predictions])
        numbers = np.minimum(confidence * bins, bins - 1).astype(int)
        points = 100 * pd.DataFrame({"confidence": confidence, "right": right}).groupby(numbers).mean()
        axes.plot(points["confidence"], points["right"], **series_style(index), markersize=4, label=label)
    axes.axline((0, 0), slope=1, color="0.4", linestyle=":")
    add_legend(figure, axes)
    caption = f"Accuracy in {bins} bins of probability, before and after calibration, on {', '.join(splits)}."
    return Picture(figure, "Reliability", caption, "Line chart of accuracy over the probability of a prediction.")

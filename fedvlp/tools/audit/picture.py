"""The picture of an inversion: true images, and what was recovered of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fedvlp.results.figures import SMALL_FONT_SIZE, Picture, escape_text
from fedvlp.tools.audit.attack import SOURCES, Inversion
from fedvlp.tools.audit.similarity import pictures

MAX_ROWS = 8


def inversion_picture(clip: Any, inversion: Inversion, class_names: Sequence[str], method: str) -> Picture:
    """Returns a row for each of the first images: the image, then what each gradient gave away."""
    rows: list[list[tuple[list[str], Tensor]]] = []
    for target, recovered in zip(inversion.targets, inversion.recovered, strict=True):
        shown = [each for each in recovered if each.source in SOURCES]
        for index, label in enumerate(target.labels.tolist()):
            row = [([f"true: {class_names[label]}", f"of {target.client.name}"], target.images[index])]
            for each in shown:
                score = each.scores[index]
                lines = [each.source, f"{score['psnr']:.1f} dB, SSIM {score['ssim']:.2f}"]
                row.append((lines, each.images[index].detach().cpu()))
            rows.append(row)
    rows = rows[:MAX_ROWS]
    columns = max(map(len, rows))
    figure = Figure(figsize=(1.6 * columns, 2.0 * len(rows)), dpi=200, layout="constrained")
    for all_axes, row in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for axes, (lines, image) in zip(all_axes, row, strict=False):
            _show(axes, pictures(clip, image[None])[0], lines)
        for axes in all_axes[len(row) :]:
            axes.set_axis_off()
    caption = (
        f"What gradients of {method} give away: for each true image, what was recovered from the gradient of the "
        "prompts, which clients send here, and of the image tower and the prompts together, by as many steps from the "
        "same start. "
        "Closed form: by linear equations, where the full gradient is of one image of a ViT."
    )
    described: list[str] = []
    for row in rows:
        described.append(", ".join(" ".join(lines) for lines, _ in row))
    return Picture(figure, f"Images recovered from gradients of {method}", caption, "; ".join(described))


def _show(axes: Axes, image: Tensor, lines: Sequence[str]) -> None:
    """Draws pixels [3, V, V] in [0, 1] under some lines."""
    axes.imshow(image.permute(1, 2, 0).numpy())
    axes.set_title("\n".join(map(escape_text, lines)), fontsize=SMALL_FONT_SIZE - 1, linespacing=1.3)
    axes.set_axis_off()

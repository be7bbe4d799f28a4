"""Draw the documentation's picture, with a few things in every style: ``python -m experiments.icon_domains.sheet``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.icon_domains.icons import DOMAINS
from fedvlp.data import IconDomains

THINGS = ("house", "car", "dog", "camera", "umbrella", "rocket", "fish", "bug", "tree", "cup of coffee")
_PICTURE = Path(__file__).parents[2] / "docs/icon_domains.png"


def main(path: Path = _PICTURE) -> None:
    """Write the picture: a row per domain, a column per thing, with the first image of each."""
    data = IconDomains()
    figure = Figure(figsize=(len(THINGS), len(DOMAINS)), dpi=100, layout="constrained")
    axes = figure.subplots(len(DOMAINS), len(THINGS))
    for row, domain in enumerate(DOMAINS):
        images = data.images[domain]
        for column, thing in enumerate(THINGS):
            first = int(np.flatnonzero(images.labels == data.class_names.index(thing))[0])
            axis = axes[row, column]
            axis.imshow(images[first])
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(thing, fontsize=9)
        axes[row, 0].set_ylabel(domain, fontsize=9)
    figure.savefig(path)


if __name__ == "__main__":
    main()

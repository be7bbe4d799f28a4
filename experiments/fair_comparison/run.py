"""Make the runs of the fair comparison with ``fedvlp tune``: each method with each learning rate.

``python -m experiments.fair_comparison.run`` uses StyledShapes with the bundled tiny CLIP, with each style held out in
turn, and ``--data FOLDER`` your own images. The first seed tries every rate, and the other seeds use the chosen rate.
Finished runs are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.fair_comparison.methods import METHODS, RATES, ROUNDS, Compared
from experiments.options import Choice, parse, shared_parser
from fedvlp.tools.tune.command import run_tune
from fedvlp.utils.digests import digest


def folder_of(method: Compared, choice: Choice) -> Path:
    """Name the folder of a method's search, by title, data, CLIP and further arguments."""
    setting = choice.setting
    name = re.sub(r"[^\w.-]+", "_", method.title)
    return setting.output / "fair_comparison" / f"{setting.name}-{digest(list(setting.more))[:8]}" / name


def content(method: Compared, choice: Choice) -> dict[str, Any]:
    """Make the file of a method's search."""
    held_out = ["none" if name is None else name for name in choice.held_out]
    config, *arguments = choice.setting.arguments
    return {
        "config": config.removeprefix("--config="),
        "models": [{"label": method.title, "config": method.config}],
        "held_out": held_out[0] if held_out == ["none"] else held_out,
        "seeds": list(choice.seeds if method.trains else choice.seeds[:1]),
        "arguments": [*arguments, *method.arguments(choice)],
    }


def search(method: Compared, choice: Choice) -> int:
    """Make the missing runs of a method, and return the exit code of ``fedvlp tune``."""
    output = folder_of(method, choice)
    output.mkdir(parents=True, exist_ok=True)
    file = output / "search.yaml"
    file.write_text(yaml.safe_dump(content(method, choice), sort_keys=False), encoding="utf-8")
    rates = ",".join(f"{rate:g}" for rate in sorted({*RATES, *method.more_rates}))
    own = [f"--file={file}", f"--output={output}", f"--workers={choice.workers}"]
    return run_tune([*own, f"--search=model.optimizer.lr={rates}"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs, one method after the other, and exit with 1 if some of them failed."""
    parser = shared_parser(__doc__, ROUNDS)
    parser.add_argument("--methods", default="", help="names of configs: a,b,c; default: all")
    choice = parse(parser, arguments)
    wanted = choice.options.methods.split(",") if choice.options.methods else [each.config for each in METHODS]
    codes = [search(method, choice) for method in METHODS if method.config in wanted]
    if any(codes):
        raise SystemExit(max(codes))


if __name__ == "__main__":
    main()

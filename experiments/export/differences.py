"""Write the README's table: the largest difference between the logits of exported files and of the methods.

Usage, in the repository's folder::

    python -m experiments.export.differences                  all rows, some minutes
    python -m experiments.export.differences trip cocoop      only the rows of these configs
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from docs._scripts.privacy import method
from fedvlp.clip import load_clip
from fedvlp.core.module import FederatedModule
from fedvlp.tools.export.export import FORMATS, ExportedClassifier, example_images, export_program, write_checked
from fedvlp.utils.config_files import configs_folder
from fedvlp.utils.text_table import markdown_table

PAGE = Path(__file__).resolve().parent / "README.md"
BEGIN = "<!-- differences: written by python -m experiments.export.differences -->"
END = "<!-- end of differences -->"
HEAD = ("config", "method", *(f"`{name}`" for name in FORMATS), "ONNX file")
ALIGN = ("---", "---", *("---:" for _ in FORMATS), "---:")


def main(names: Sequence[str]) -> int:
    """Write the rows of the given configs, or of all, one after another. The exit code is 0."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    for name in names or [path.stem for path in configs()]:
        row = make_row(name)
        text = PAGE.read_text(encoding="utf-8")
        rows = {**rows_in(text), name: row}
        PAGE.write_text(with_rows(text, rows), encoding="utf-8")
        sys.stdout.write(f"{' '.join(row)}\n")
        sys.stdout.flush()
    return 0


def configs() -> list[Path]:
    """List the configs of all methods."""
    return sorted((configs_folder() / "methods").glob("*.yaml"))


def rows_in(text: str) -> dict[str, list[str]]:
    """Read the table's rows by config name."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "`" in line]
    return {row[0].strip("`"): row for row in rows if row[0] != HEAD[0]}


def with_rows(text: str, rows: dict[str, list[str]]) -> str:
    """Insert the rows between the marks, sorted by name."""
    table = markdown_table(HEAD, ALIGN, [rows[name] for name in sorted(rows)])
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n\n{table}\n\n{END}{text.partition(END)[2]}"


def make_row(name: str) -> list[str]:
    """Measure a config's row: its method, the differences, and the size of the ONNX file."""
    module = trained(method(configs_folder() / "methods" / f"{name}.yaml", load_clip("fedvlp-tiny")))
    classifier = ExportedClassifier(module)
    program = export_program(classifier, example_images(module, 2))
    with TemporaryDirectory() as folder:
        differences = []
        for file_format in FORMATS:
            differences.append(f"{write_checked(classifier, program, file_format, Path(folder) / file_format):.1e}")
        size = (Path(folder) / "onnx").stat().st_size
    shown = [re.sub(r"^0\.0e\+00$", "0", difference) for difference in differences]
    return [f"`{name}`", type(module).__name__, *shown, f"{size / 1e6:.1f} MB"]


@torch.no_grad()
def trained(module: FederatedModule) -> FederatedModule:
    """Move a method's trainable parameters at random, so that none is zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

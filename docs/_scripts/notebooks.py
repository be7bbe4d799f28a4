"""Run the notebooks and store their outputs, without the parts that depend on the machine or the day.

Usage, in the repository's folder::

    python -m docs._scripts.notebooks                   run all of them
    python -m docs._scripts.notebooks sites             run one of them
    python -m docs._scripts.notebooks --check sites     compare its outputs with a new run
"""

from __future__ import annotations

import base64
import io
import math
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
COMMAND = "python -m docs._scripts.notebooks"
VARIES = "varies"
"""Tag of a cell with output that rounding can change, such as the predicted class of an image."""

TOLERANCE = 10.6
"""Largest difference of numbers with decimals, for accuracies in percent: two images of the smallest split, of 19."""

UNSTABLE = {
    r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d": "2026-01-31_12-00-00",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d": "2026-01-31T12:00",
    r" · [\d.]+ s, \d+ s left": "",
    r"; [\d.]+ s for \d+ rounds": "",
    r": done, .*elapsed.*$": ": done",
    r"^features of .*\n": "",
}
"""Patterns of printed times, dates and caches, and the text stored instead."""

COLOURS = 64
"""Number of colours of a stored picture, which makes it a quarter as large."""

NO_WIDGETS = "IProgress not found"
"""A message of tqdm in a Jupyter without widgets."""


def main(arguments: Sequence[str]) -> int:
    """Write or check notebooks, and return the exit code."""
    names = [argument for argument in arguments if not argument.startswith("--")]
    different = []
    for path in [FOLDER / f"{name}.ipynb" for name in names] or notebooks():
        with TemporaryDirectory(prefix="fedvlp-") as folder:
            made = executed(path, Path(folder))
        if "--check" in arguments:
            different += [f"{path.stem}: {what}" for what in differences(read(path), made)]
        else:
            nbformat.write(made, path)
    sys.stdout.writelines(f"{line}\n" for line in different)
    return int(bool(different))


def notebooks() -> list[Path]:
    """List all notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Read a stored notebook."""
    return nbformat.read(path, as_version=4)


def executed(path: Path, folder: Path, kernel: AsyncKernelManager | None = None) -> NotebookNode:
    """Run a notebook from top to bottom, and return it with the outputs to store.

    Args:
        path: The notebook.
        folder: Working folder; notebooks can share one.
        kernel: Kernel to use, started if necessary; a new one if not given. It keeps running with its imports.
    """
    notebook = read(path)
    start = nbformat.v4.new_code_cell(f"%reset -f\n%cd -q {folder}")
    notebook.cells.insert(0, start)
    waits = {"timeout": 600, "startup_timeout": 300}  # in seconds, for a cell and for the kernel
    client = NotebookClient(
        notebook, km=kernel, kernel_name="python3", record_timing=False, coalesce_streams=True, **waits
    )
    try:
        client.execute()
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
    notebook.cells.remove(start)
    return stable(notebook, folder)


def stable(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Remove the parts of a notebook's outputs that would differ in the next run."""
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    for count, cell in enumerate(code_cells(notebook), 1):
        cell.execution_count = count
        cell.outputs = [output for output in cell.outputs if NO_WIDGETS not in output.get("text", "")]
        for output in cell.outputs:
            if output.output_type == "stream":
                output.text = stable_text(output.text.replace(f"{folder}/", ""))
            if output.output_type == "execute_result":
                output.execution_count = count
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller_picture(output.data["image/png"])
    return notebook


def stable_text(text: str) -> str:
    """Remove times and dates from a cell's printed output.

    >>> stable_text("round 1/2 · validation 66.7 % · 1.5 s, 2 s left")
    'round 1/2 · validation 66.7 %'
    """
    for pattern, stored in UNSTABLE.items():
        text = re.sub(pattern, stored, text, flags=re.MULTILINE)
    return "\n".join(_without_seconds(text.split("\n")))


def _without_seconds(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines with a dash for each value of a table's last column, `seconds`."""
    in_table = False
    for line in lines:
        in_table = bool(line) and (in_table or line.endswith("  seconds"))
        yield re.sub(r"( +)\d+$", lambda cell: "-".rjust(len(cell[0])), line) if in_table else line


def smaller_picture(content: str) -> str:
    """Reduce the colours of a PNG in base64, and remove its metadata."""
    picture = Image.open(io.BytesIO(base64.b64decode(content))).convert("RGB").quantize(COLOURS)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """List the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def differences(stored: NotebookNode, made: NotebookNode) -> list[str]:
    """Describe the differences between two runs of a notebook that rounding does not explain."""
    found = []
    for one, other in zip(code_cells(stored), code_cells(made), strict=True):
        if _kinds(one) != _kinds(other):
            found.append(f"cell {one.id} has outputs {_kinds(other)} in place of {_kinds(one)}")
        elif VARIES not in one.metadata.get("tags", []):
            found += [f"cell {one.id}: {what}" for what in different_words(_printed(one), _printed(other))]
    return found


def _kinds(cell: NotebookNode) -> list[str]:
    """List the kinds of a cell's outputs, in order."""
    return [output.get("name") or ", ".join(sorted(output.get("data", {"error": ""}))) for output in cell.outputs]


def _printed(cell: NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def different_words(one: str, other: str) -> list[str]:
    """Describe the words in which two strings differ, except seconds, digests and similar numbers with decimals.

    >>> different_words("photo 61.1 of 72", "photo 59.7 of 71")
    ["'71' in place of '72'"]
    """
    first = _words(one)
    second = _words(other)
    if len(first) != len(second):
        return [f"{len(second)} words in place of {len(first)}"]
    return [f"{new!r} in place of {old!r}" for old, new in zip(first, second, strict=True) if not _are_near(old, new)]


def _words(printed: str) -> list[str]:
    # A line ends with the seconds that something took; a rule below a title is as wide as the table; rounding can
    # change which round is best.
    without_seconds = re.sub(r"[\d.]+ s(?=\)?$)", "s", printed, flags=re.MULTILINE)
    without_seconds = re.sub(r"best on source validation \(\d+\)", "best on source validation", without_seconds)
    return re.sub(r"-{3,}", "---", without_seconds).split()


def _are_near(one: str, other: str) -> bool:
    """Whether two words are equal, two digests, or two similar numbers with decimals."""
    digest = r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"
    if re.sub(digest, "", one) == re.sub(digest, "", other):
        return True
    number = r"[-+]?\d+\.\d+(?:e[-+]\d+)?"
    if re.sub(number, "", one) != re.sub(number, "", other):
        return False
    pairs = zip(re.findall(number, one), re.findall(number, other), strict=True)
    return all(math.isclose(float(old), float(new), abs_tol=TOLERANCE) for old, new in pairs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

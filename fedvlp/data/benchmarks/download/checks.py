"""What is checked before a download and after it, wherever it comes from."""

from __future__ import annotations

from pathlib import Path

from fedvlp.data.benchmarks.comparison import differences
from fedvlp.data.benchmarks.on_disk import OnDisk
from fedvlp.data.catalog import Description
from fedvlp.utils.errors import UserError


def check_target(description: Description, root: Path) -> None:
    """Raises UserError if there is something at the root that a download would overwrite."""
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise UserError(
            f"Expected no folder, or an empty one, to download {description.name} to; {root} holds other files. Name "
            "another folder, or take those away."
        )


def check_counts(found: OnDisk, description: Description, came_from: str, images: Path, folder: Path) -> None:
    """Raises UserError if what came is not what was published; it stays where it is.

    Args:
        found: what came.
        description: the data set.
        came_from: what messages call its source.
        images: where it lies.
        folder: what to remove to be rid of it.
    """
    problems = differences(found, description)
    if not problems:
        return
    more = f"; {len(problems) - 1} other domains differ, too" if len(problems) > 1 else ""
    raise UserError(
        f"{came_from} is not {description.name} as it was published: {problems[0]}{more}. What came is in {images}: "
        f"read it as images of your own (--config data/folders), or remove {folder} and get {description.name} from "
        f"{description.source}."
    )

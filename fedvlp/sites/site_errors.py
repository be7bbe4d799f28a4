"""What a site can't do, in words that may leave it."""

from __future__ import annotations


class SiteProblem(Exception):  # noqa: N818 (it becomes a reply and is no error of the program)
    """Why a site does not do what it was asked; the text follows on its name and tells nothing of images or files."""

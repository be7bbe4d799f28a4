"""The server of a federation of real sites."""

from __future__ import annotations

from pathlib import Path

from fedvlp.sites.transport import Transport


def serve(config: Path, transport: Transport, run_dir: Path, ckpt_path: str | None = None) -> int:
    """Trains a method on the sites that a transport reaches, and writes the usual run folder.

    Args:
        config: a fedvlp config with ``model``, ``trainer`` and ``data``, the latter of ``fedvlp.sites.SitesData``,
            which lists the sites by name.
        transport: reaches the sites.
        run_dir: folder under which ``<name>/<time>`` becomes the run's folder.
        ckpt_path: go on from this checkpoint or run folder; ``last`` takes the newest run of the same name, and starts
            anew if there is none.

    Returns:
        The exit code: 0 if the run came to its end, 1 if not; what went wrong was then printed.
    """
    raise NotImplementedError

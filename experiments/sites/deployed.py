"""A federation at sites on this machine: its app, server and sites, and observations of its run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from experiments.sites.comparison import newest_run
from experiments.sites.local_federation import LocalFederation
from experiments.sites.setting import Setting
from experiments.sites.times import Meter
from fedvlp.commands.cli import main
from fedvlp.runs.events import read_events


class Deployed:
    """A federation at sites on this machine.

    Args:
        setting: Method, images and options.
        folder: Folder for all files.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.app = folder / "app"
        self.runs = folder / "server"
        self.homes = setting.make_homes(folder / "sites")
        self.federation = LocalFederation(folder / "flower")
        self.meter = Meter(self.federation.relays)
        self.steps: dict[str, float] = {}

    def start(self, sites: Sequence[str] | None = None) -> None:
        """Write the app and start the server and some or all sites."""
        with redirect_stdout(sys.stderr):
            if code := main(["deploy", "init", str(self.app), *self.setting.server()]):
                raise RuntimeError(f"fedvlp deploy init ended with {code}.")
        with self._step("SuperLink"):
            self.federation.start_server()
        with self._step("keys"):
            self.federation.register(self.setting.sites)
        for name in self.setting.sites if sites is None else sites:
            self.federation.start_site(name, self.homes[name])

    def hand_over(self, name: str = "run", **config: str) -> None:
        """Submit the app to the SuperLink; the log of ``flwr run`` is ``name.log``."""
        self.steps["handed over"] = time.time()
        self.federation.start_run(self.app, name, run_dir=str(self.runs), **config)

    def end(self, seconds: float, name: str = "run") -> str:
        """Wait for the end of a run, and return its status in Flower."""
        self.federation.processes.wait(name, seconds)
        return str(self.federation.last_run().get("status", "never begun"))

    def stop(self) -> list[str]:
        """Stop everything; return the commands of processes that had to be killed."""
        self.meter.stop()
        return self.federation.stop()

    def last_message(self, name: str = "run") -> str:
        """Find the line with the reason for the end of a run; empty if there is none."""
        lines = self.federation.processes.text(name).splitlines()
        return next((line for line in lines if line.startswith("fedvlp: error:")), "")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Read the events of a kind in the newest run."""
        try:
            return [event for event in read_events(newest_run(self.runs)) if event["event"] == kind]
        except FileNotFoundError:
            return []

    def wait_for(self, kind: str, round: int, seconds: float = 240) -> None:
        """Wait for an event of a round.

        Raises:
            RuntimeError: If it does not arrive in time.
        """
        self.federation.wait_for(
            lambda: any(event.get("round") == round for event in self.events(kind)), seconds, f"{kind} {round}", "run"
        )

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Record the duration of a block."""
        began = time.monotonic()
        yield
        self.steps[name] = time.monotonic() - began

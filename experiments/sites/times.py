"""Start and end of a run's rounds, and the network traffic until then."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from experiments.sites.relay import Relay
from fedvlp.runs.events import read_events


@dataclass(frozen=True)
class RunTimes:
    """Times of a run, in seconds since the epoch.

    Attributes:
        begun: Start of training, after all preparation.
        rounds: Start and end of each round.
    """

    begun: float
    rounds: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> list[float]:
        """Duration of each round."""
        return [end - start for start, end in self.rounds]

    @property
    def later(self) -> float:
        """Median over all rounds except the first; NaN if there is no other."""
        return statistics.median(self.seconds[1:] or [float("nan")])


def read_times(run: Path) -> RunTimes:
    """Read the start and end times of a finished run's rounds."""
    times: dict[str, list[float]] = {}
    for event in read_events(run):
        times.setdefault(event["event"], []).append(datetime.fromisoformat(event["time"]).timestamp())
    rounds = tuple(zip(times["round_started"], times["round_ended"], strict=True))
    return RunTimes(times["fit_started"][0], rounds)


@dataclass(frozen=True)
class Sample:
    """Traffic of a site's connections up to a time.

    Attributes:
        time: Seconds since the epoch.
        up: Bytes from the site.
        down: Bytes to the site.
    """

    time: float
    up: int
    down: int


class Meter:
    """Recorder of the traffic through the sites' relays, four times per second.

    Args:
        relays: Relays by site name; more may be added later.
    """

    def __init__(self, relays: Mapping[str, Relay]) -> None:
        self._relays = relays
        self.samples: dict[str, list[Sample]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop recording."""
        self._is_over.set()
        self._thread.join()

    def between(self, site: str, start: float, end: float) -> tuple[int, int]:
        """Compute the bytes from and to a site between two times."""
        first = self._at(site, start)
        last = self._at(site, end)
        return last.up - first.up, last.down - first.down

    def _at(self, site: str, time: float) -> Sample:
        """Find the last sample up to a time."""
        return [Sample(0, 0, 0), *takewhile(lambda sample: sample.time <= time, self.samples[site])][-1]

    def _measure(self) -> None:
        while not self._is_over.wait(0.25):
            now = datetime.now().timestamp()
            for name, relay in list(self._relays.items()):
                self.samples.setdefault(name, []).append(Sample(now, relay.up, relay.down))

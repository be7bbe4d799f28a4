"""Start and end of a run's rounds, and what its processes and its network used in them."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path

from experiments.sites.processes import Processes
from experiments.sites.relay import Relay
from fedvlp.runs.events import read_events
from fedvlp.utils.text_table import text_table

KINDS = {"SuperLink": "flower-superlink", "ServerApp": "flwr-serverapp", "site": "fedvlp site serve"}
TICKS = os.sysconf("SC_CLK_TCK")


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


class Recorder:
    """Base class that records four times per second, in a thread, until ``stop``."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop recording."""
        self._is_over.set()
        self._thread.join()

    def _record(self) -> None:
        while not self._is_over.wait(0.25):
            self._measure(time.time())

    def _measure(self, now: float) -> None:
        raise NotImplementedError


class Meter(Recorder):
    """Recorder of the traffic through the sites' relays, four times per second.

    Args:
        relays: Relays by site name; more may be added later.
    """

    def __init__(self, relays: Mapping[str, Relay]) -> None:
        self._relays = relays
        self.samples: dict[str, list[Sample]] = {}
        super().__init__()

    def between(self, site: str, start: float, end: float) -> tuple[int, int]:
        """Compute the bytes from and to a site between two times."""
        first = self._at(site, start)
        last = self._at(site, end)
        return last.up - first.up, last.down - first.down

    def _at(self, site: str, time: float) -> Sample:
        """Find the last sample up to a time."""
        return [Sample(0, 0, 0), *takewhile(lambda sample: sample.time <= time, self.samples[site])][-1]

    def _measure(self, now: float) -> None:
        for name, relay in list(self._relays.items()):
            self.samples.setdefault(name, []).append(Sample(now, relay.up, relay.down))


class Usage(Recorder):
    """Recorder of the processor seconds and the memory of all processes of a federation; only on Linux."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._samples: list[tuple[float, dict[int, float]]] = []
        self._kinds: dict[int, str] = {}
        self._megabytes: Counter[str] = Counter()
        super().__init__()

    def table(self, times: RunTimes) -> str:
        """Format the processor seconds of a round after the first, and the largest memory of a process of each kind."""
        start, end = self._at(times.rounds[0][1]), self._at(times.rounds[-1][1])
        seconds: dict[str, float] = dict.fromkeys(self._kinds.values(), 0.0)
        for pid, used in end.items():
            seconds[self._kinds[pid]] += used - start.get(pid, 0)
        rounds = len(times.rounds) - 1
        rows = [["processes", "number", "processor seconds of a round", "memory of one in MB"]]
        for kind, count in Counter(self._kinds.values()).items():
            each = f"{seconds[kind] / rounds:.2f}" if rounds else "-"
            rows.append([kind, str(count), each, str(self._megabytes[kind])])
        return text_table(rows)

    def _at(self, moment: float) -> dict[int, float]:
        """Look up the processor seconds that each process, ended or not, had used up to a time."""
        used: dict[int, float] = {}
        for sampled, seconds in self._samples:
            if sampled > moment:
                break
            used |= seconds
        return used

    def _measure(self, now: float) -> None:
        seconds: dict[int, float] = {}
        for pid, command in self._processes.living().items():
            with suppress(OSError, IndexError):  # it has ended meanwhile
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{pid}/status").read_text()
                kind = next((kind for kind, word in KINDS.items() if word in command), "others")
                seconds[pid] = (int(fields[11]) + int(fields[12])) / TICKS
                self._kinds[pid] = kind
                peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
                self._megabytes[kind] = max(self._megabytes[kind], peak)
        self._samples.append((now, seconds))

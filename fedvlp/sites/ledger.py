"""A site's ledger: one JSON line per message received or sent, chained by hashes so that changes can be detected."""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fedvlp.sites.wire import LENGTH_BYTES

FILE = "ledger/messages.jsonl"  # in the site's folder; only ever appended to
DELTA = 1e-5  # probability that the privacy bound epsilon fails
NAMED = ("run", "round", "phase", "step", "client", "factor", "share", "reason")
START = "0" * 64


class Ledger:
    """The only writer of a site's ledger."""

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.last = START
        self.spent: dict[str, float] = {}
        self.bytes: Counter[str] = Counter()  # sent, by run
        self.updates: Counter[tuple[str, int]] = Counter()  # sent, by run and phase
        self.evaluations: Counter[str] = Counter()  # sent, by run
        for _, entry in read_ledger(home):
            if entry is not None:
                self.last = entry["hash"]
                self._spend(entry)

    def add(self, way: str, kind: str, content: bytes, values: Mapping[str, Any], **more: Any) -> None:
        """Append a message's line and flush it to the disk, so that no crash loses the record of a sent message.

        Args:
            way: ``came`` for received and ``left`` for sent messages.
            kind: The message's kind; ``unreadable`` for bytes that are no message.
            content: The message's bytes.
            values: Values of the message and, for a reply, of its request. Only names in ``NAMED`` are written.
            **more: Other values, such as the ``norm`` of an update and its ``noise``.

        Raises:
            OSError: If the line can't be written. The message must not be sent then.
        """
        entry: dict[str, Any] = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}
        entry |= {"way": way, "kind": kind, **{name: values[name] for name in NAMED if name in values}}
        entry |= {"bytes": len(content), "tensors": {} if kind == "unreadable" else _tensors(content), **more}
        entry["epsilon"] = self._spend(entry)
        entry["previous"] = self.last
        entry["hash"] = _digest(entry)
        with open(self.path, "a+b") as file:
            # End the incomplete line of a killed process, whose message was not sent.
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            start = b"" if file.read() in (b"", b"\n") else b"\n"
            file.write(start + json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.last = entry["hash"]

    def _spend(self, entry: Mapping[str, Any]) -> float | None:
        """Compute epsilon of a run's uploads so far, for all data of the site; None if there is no bound.

        Two updates clipped to norm S differ by at most 2 S, so noise of z S costs rho = 2 / z^2. Costs add up, and
        epsilon = rho + 2 sqrt(rho log(1 / delta)) (Bun and Steinke 2016, Propositions 1.3, 1.6 and 1.7).
        """
        run = entry.get("run", "")
        self.bytes[run] += entry["bytes"] * (entry["way"] == "left")
        self.evaluations[run] += (entry["way"], entry["kind"]) == ("left", "evaluated")
        if (entry["way"], entry["kind"]) == ("left", "trained"):
            cost = 2 / entry["noise"] ** 2 if entry.get("noise") else math.inf
            self.spent[run] = self.spent.get(run, 0.0) + cost
            self.updates[run, entry.get("phase", 0)] += 1
        rho = self.spent.get(run, 0.0)
        return rho + 2 * math.sqrt(rho * math.log(1 / DELTA)) if rho < math.inf else None


def read_ledger(home: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number of each line of a site's ledger, from 1, and its content, or None if its hash is wrong.

    Lines that are no JSON were interrupted while being written, and are skipped. If a line was damaged later, the hash
    in the next line reveals it.
    """
    path = home / FILE
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        is_whole = isinstance(entry, dict) and entry.get("hash") == _digest(entry)
        yield number, entry if is_whole else None


def describe_ledger(home: Path) -> tuple[list[str], list[str]]:
    """Describe each run of a ledger, and list the breaks of its hash chain, both as lines of text.

    The chain reveals lines that were changed, removed or added, except lines removed from the end. The description
    ends with the last hash; comparing it with a copy stored elsewhere reveals those, too.
    """
    last = START
    broken: list[str] = []
    runs: dict[str, list[dict[str, Any]]] = {}
    for number, entry in read_ledger(home):
        if entry is None:
            broken.append(f"line {number} was changed")
            continue
        if entry["previous"] != last:
            broken.append(f"a line was changed or is missing before line {number}")
        last = entry["hash"]
        runs.setdefault(entry.get("run", ""), []).append(entry)
    lines = [line for run, entries in runs.items() for line in _run_lines(run, entries)]
    return [*lines, f"last hash: {last}"], broken


def _run_lines(run: str, entries: list[dict[str, Any]]) -> list[str]:
    received, sent = ([entry for entry in entries if entry["way"] == way] for way in ("came", "left"))
    counts = []
    for word, messages in (("received", received), ("sent", sent)):
        counts.append(f"{len(messages)} {word} with {sum(entry['bytes'] for entry in messages):,} bytes")
    lines = [f"run {run!r}, {entries[0]['time'][:16]} to {entries[-1]['time'][:16]}: {', '.join(counts)}"]
    if sent:
        largest = max(sent, key=lambda entry: entry["bytes"])
        where = f" in round {largest['round'] + 1}" if "round" in largest else ""
        lines.append(f"  largest sent: {largest['kind']}{where}, {largest['bytes']:,} bytes")
    if norms := [entry["norm"] for entry in sent if "norm" in entry]:
        epsilon = entries[-1]["epsilon"]
        bound = "no bound epsilon" if epsilon is None else f"epsilon {epsilon:.4g} at delta {DELTA:g}"
        lines.append(f"  {len(norms)} updates sent, largest norm {max(norms):.4g}; {bound}")
    refused = Counter(entry["reason"] for entry in sent if "reason" in entry and entry["kind"] != "waiting")
    return lines + [f"  refused {count} times: this site {reason}" for reason, count in refused.items()]


def _digest(entry: Mapping[str, Any]) -> str:
    content = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _tensors(content: bytes) -> dict[str, Any]:
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    tensors: dict[str, Any] = {}
    for name, tensor in json.loads(content[LENGTH_BYTES:start]).items():
        if name != "__metadata__":
            first, end = tensor["data_offsets"]
            digest = hashlib.sha256(content[start + first : start + end]).hexdigest()
            tensors[name] = {"shape": tensor["shape"], "bytes": end - first, "sha256": digest}
    return tensors

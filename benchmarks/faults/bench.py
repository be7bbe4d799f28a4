"""The environment of a row: commands in a separate folder, and notes of the findings."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.faults.clients import VARIABLE
from benchmarks.faults.commands import LIMIT, Finished, Running, other_program, several
from benchmarks.faults.fault import Outcome, Verdict
from benchmarks.faults.runs import differing, newest_run
from benchmarks.faults.workshop import Workshop

LONGEST_QUOTE = 160
ROOT = Path(__file__).parents[2]


class NotBuiltError(Exception):
    """A row needs something that is not implemented yet."""


class Bench:
    """The environment of one injected fault.

    Args:
        shop: Resources shared by all rows.
        name: Name of the row.
    """

    def __init__(self, shop: Workshop, name: str) -> None:
        self.shop = shop
        self.folder = shop.folder / "rows" / name
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)
        self.random = random.Random(zlib.crc32(name.encode()))
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._lost: list[str] = []
        self._logs = 0

    def start(
        self,
        arguments: Sequence[str] | Sequence[Sequence[str]],
        faults: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """Start a command.

        Args:
            arguments: Words after ``fedvlp``, or several lists of such words.
            faults: Faults for ``clients`` to inject; see there.
            environment: Additional environment variables.
        """
        self._logs += 1
        everything = {"OMP_NUM_THREADS": "1", VARIABLE: json.dumps(faults or {}), **(environment or {})}
        return Running(arguments, self.folder, self.folder / f"log-{self._logs:03d}.txt", everything)

    def finish(self, running: Running, limit: float = LIMIT) -> Finished:
        """Wait for a command, and note its exit code and whether it never ended."""
        finished = running.wait(limit)
        self.expect(not finished.hung, f"no end within {limit:.0f} s")
        return finished

    def command(self, *arguments: str, limit: float = LIMIT) -> Finished:
        """Run a command."""
        return self.finish(self.start(arguments), limit)

    def batch(self, commands: Sequence[Sequence[str]], limit: float = LIMIT) -> list[Finished]:
        """Run several short commands in one process, which is faster."""
        running = self.start(commands)
        left = several(running.wait(limit).output)
        self.expect(len(left) == len(commands), f"only {len(left)} of {len(commands)} commands ended")
        return left

    def program(self, *words: str, limit: float = LIMIT, **environment: str) -> Finished:
        """Run another program in the folder of the repository, and note its exit code."""
        finished = other_program(words, ROOT, {"OMP_NUM_THREADS": "1", **environment}, limit)
        self.expect(not finished.hung, f"no end within {limit:.0f} s")
        return finished

    def start_fit(
        self,
        *arguments: str,
        method: str = "promptfl",
        faults: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Running:
        """Start a short run."""
        return self.start([*self.shop.fit_options(method), *arguments], faults, environment)

    def fit(
        self,
        *arguments: str,
        method: str = "promptfl",
        faults: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        limit: float = LIMIT,
    ) -> Finished:
        """Make a short run."""
        running = self.start_fit(*arguments, method=method, faults=faults, environment=environment)
        return self.finish(running, limit)

    def run(self, name: str = "run") -> Path:
        """Find the newest run with a name."""
        return newest_run(self.folder / "runs" / name)

    def note(self, text: str) -> None:
        """Add to the findings, without the path of the row's folder, which differs each time."""
        self._notes.append(text.replace(f"{self.folder}/", ""))

    def lose(self, what: str) -> None:
        """Note a loss."""
        self._lost.append(what)

    def expect(self, claim: bool, problem: str) -> bool:
        """Note a problem unless a claim is true; return the claim."""
        if not claim:
            self._problems.append(problem)
        return claim

    def expect_success(self, finished: Finished, what: str = "the run") -> bool:
        """Check that a command succeeded."""
        return self.expect(finished.code == 0, f"{what} ended with {finished.code}: {tail(finished)}")

    def expect_refusal(self, finished: Finished, *words: str, what: str = "") -> bool:
        """Check that a command failed with a single line that contains these words."""
        name = what or "it"
        if not self.expect(finished.code in (1, 2), f"{name}: exit code {finished.code}: {tail(finished)}"):
            return False
        if not self.expect(not finished.has_traceback, f"{name}: a traceback: {tail(finished)}"):
            return False
        lacking = [word for word in words if word not in finished.error]
        return self.expect(
            not lacking, f"{name}: the error lacks {lacking}: {quote(finished.error) or 'no error line'}"
        )

    def expect_same(self, run: Path, expected: Path, what: str = "the run") -> bool:
        """Check that the files of two runs are equal byte for byte, except for times; count differences as losses."""
        different = differing(run, expected)
        if different:
            self.lose(f"{what} is another: {', '.join(different)}")
        return self.expect(not different, f"{what} differs from an uninterrupted one in {', '.join(different)}")

    def outcome(self, seconds: float) -> Outcome:
        """Make the outcome of the row."""
        verdict = Verdict.FAILS if self._problems else Verdict.HOLDS
        lost = "; ".join(dict.fromkeys(self._lost))
        return Outcome(verdict, "; ".join(self._notes), lost, tuple(self._problems), seconds)


def tail(finished: Finished) -> str:
    """Find the last line of a command's output."""
    lines = [line.strip() for line in finished.output.splitlines() if line.strip()]
    return quote(lines[-1]) if lines else "no output"


def quote(text: str, longest: int = LONGEST_QUOTE) -> str:
    """Shorten a text to its beginning in one line, for a table.

    >>> quote("one two", 3)
    'one...'
    """
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}..."

"""What stands in for Slurm in tests: its four commands on the path, which run jobs on this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

# Jobs wait while there is a file `held`. `refuse` and `silent` hold what sbatch and squeue say in place of an answer.
COMMANDS = r"""#!/bin/bash
cd "$SLURM_STUB" || exit 1
case "${0##*/}" in
sbatch)
    if [ -e refuse ]; then cat refuse >&2; exit 1; fi
    number=$(($(ls -1 | grep -c script) + 101))
    for argument in "$@"; do case "$argument" in --output=*) log=${argument#--output=} ;; esac; done
    log=${log//%%/%}
    printf '%s\n' "$@" > $number.arguments
    cat > $number.script
    echo PENDING > $number.state
    {
        while [ -e held ]; do sleep 0.02; done
        if [ "$(cat $number.state)" != PENDING ]; then exit; fi
        echo RUNNING > $number.state
        SLURM_JOB_ID=$number bash $number.script >> "$log" 2>&1 &
        echo $! > $number.process
        if wait $!; then ended=COMPLETED; else ended=FAILED; fi
        if [ "$(cat $number.state)" = RUNNING ]; then echo $ended > $number.state; fi
    } > /dev/null 2>&1 < /dev/null &
    echo "$number;cluster"
    ;;
squeue)
    if [ -e silent ]; then cat silent >&2; exit 1; fi
    for file in *.state; do if [ ! -e forgotten ]; then echo "${file%.state}|$(cat $file)|1:05"; fi; done
    ;;
sacct)
    for file in *.state; do echo "${file%.state}|$(cat $file) by 0|00:01:05"; done
    ;;
scancel)
    for number in "$@"; do
        echo CANCELLED > $number.state
        if [ -e $number.process ]; then kill $(cat $number.process); fi
    done
    ;;
esac
"""


class SlurmStub:
    """The cluster.

    Args:
        folder: of its files: ``<number>.script``, ``.arguments`` and ``.state``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def numbers(self) -> list[str]:
        """Those of all jobs that were ever submitted."""
        return sorted(path.stem for path in self.folder.glob("*.script"))

    def arguments(self, number: str) -> list[str]:
        """Those of ``sbatch`` for a job."""
        return (self.folder / f"{number}.arguments").read_text().splitlines()

    def end(self, number: str, state: str) -> None:
        """Ends a job as Slurm does."""
        subprocess.run(["scancel", number], check=False, stderr=subprocess.DEVNULL)
        (self.folder / f"{number}.state").write_text(f"{state}\n")


@contextmanager
def slurm(folder: Path) -> Iterator[SlurmStub]:
    """Lets the block call Slurm's commands; ends the jobs that are left."""
    commands = folder / "commands"
    commands.mkdir(parents=True)
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (commands / name).write_text(COMMANDS)
        (commands / name).chmod(0o755)
    stub = SlurmStub(folder)
    with patch.dict(os.environ, PATH=f"{commands}:{os.environ['PATH']}", SLURM_STUB=str(folder)):
        try:
            yield stub
        finally:
            subprocess.run(["scancel", *stub.numbers], check=False, stderr=subprocess.DEVNULL)
            (folder / "held").unlink(missing_ok=True)

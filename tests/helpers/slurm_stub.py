"""What stands in for Slurm in tests: its commands on the path, which run the tasks of an array on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

# Tasks wait while there is a file `held`. `refuse` and `silent` hold what sbatch and squeue say in place of an answer.
COMMANDS = r"""#!/bin/bash
cd "$SLURM_STUB" || exit 1
case "${0##*/}" in
sbatch)
    if [ -e refuse ]; then cat refuse >&2; exit 1; fi
    number=$(($(ls -1 | grep -c script) + 101))
    for argument in "$@"; do case "$argument" in
        --output=*) log=${argument#--output=} ;;
        --array=*) last=${argument#--array=0-}; last=${last%%%*} ;;
    esac; done
    log=${log//%%/%}
    printf '%s\n' "$@" > $number.arguments
    cat > $number.script
    for task in $(seq 0 $last); do
        id=${number}_$task
        echo PENDING > $id.state
        {
            while [ -e held ]; do sleep 0.02; done
            if [ "$(cat $id.state)" != PENDING ]; then exit; fi
            echo RUNNING > $id.state
            output=${log/\%A/$number}
            SLURM_ARRAY_TASK_ID=$task bash $number.script >> "${output/\%a/$task}" 2>&1
            echo COMPLETED > $id.state
        } > /dev/null 2>&1 < /dev/null &
    done
    echo "$number;cluster"
    ;;
squeue)
    if [ -e silent ]; then cat silent >&2; exit 1; fi
    for file in *.state; do if [ -e $file ]; then echo "${file%.state}|$(cat $file)"; fi; done
    ;;
esac
"""


class SlurmStub:
    """The cluster.

    Args:
        folder: of its files: ``<number>.script``, ``<number>.arguments`` and ``<number>_<task>.state``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def numbers(self) -> list[str]:
        """The numbers of all arrays that were ever submitted."""
        return sorted(path.stem for path in self.folder.glob("*.script"))

    def arguments(self, number: str) -> list[str]:
        """The arguments of ``sbatch`` for an array."""
        return (self.folder / f"{number}.arguments").read_text().splitlines()

    def script(self, number: str) -> str:
        """The script of an array."""
        return (self.folder / f"{number}.script").read_text()

    def end(self, task: str, state: str) -> None:
        """Ends a task that has not begun, as Slurm does."""
        (self.folder / f"{task}.state").write_text(f"{state}\n")


@contextmanager
def slurm(folder: Path) -> Iterator[SlurmStub]:
    """Puts Slurm's commands on the path of the block."""
    commands = folder / "commands"
    commands.mkdir(parents=True)
    for name in ("sbatch", "squeue"):
        (commands / name).write_text(COMMANDS)
        (commands / name).chmod(0o755)
    with patch.dict(os.environ, PATH=f"{commands}:{os.environ['PATH']}", SLURM_STUB=str(folder)):
        yield SlurmStub(folder)
    for state in folder.glob("*.state"):
        state.write_text("CANCELLED\n")
    (folder / "held").unlink(missing_ok=True)

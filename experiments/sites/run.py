"""Train a method at sites on 127.0.0.1, with TLS and registered keys, and compare it with the simulation.

``python -m experiments.sites.run --method promptfl --rounds 2`` draws images, makes certificates and keys, starts a
SuperLink and each site, and runs the app of ``fedvlp deploy init``. It prints ``equal`` or the
differences to ``Federation.fit``, with tables of times, processor seconds, memory and bytes, and ends every process
that it started.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.sites.comparison import differences, newest_run
from experiments.sites.deployed import Deployed
from experiments.sites.images import draw_domains
from experiments.sites.setting import Setting
from experiments.sites.times import RunTimes, Usage, read_times
from fedvlp.commands.cli import interrupt_on_sigterm
from fedvlp.tools.cost.counting import costs
from fedvlp.utils.text_table import text_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and compare both; return 0 if they are equal."""
    given = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fedvlp-sites-") as temporary:
        folder = Path(given.output or temporary).resolve()
        images = given.images or folder / "images"
        if given.images is None and not images.exists():
            draw_domains(images, given.sites)
        domains = sorted(path.name for path in images.iterdir() if path.is_dir())
        held_out = given.held_out or (domains[-1] if len(domains) > 3 else None)
        setting = Setting(given.method, given.rounds, images.resolve(), held_out, tuple(given.more))
        return compare(setting, folder, given.seconds)


def compare(setting: Setting, folder: Path, seconds: float) -> int:
    """Simulate and deploy one federation, and print the comparison.

    Args:
        setting: Method, images and options.
        folder: Folder for all files.
        seconds: Timeout of the deployed run.

    Returns:
        0 if both are equal, 1 if they differ, 2 if the deployed run failed.
    """
    print(f"{setting.method}: sites {', '.join(setting.sites)}, held out {setting.held_out}", flush=True)
    began = time.time()
    simulate(setting, folder / "simulation")
    simulated = newest_run(folder / "simulation")
    simulation_start = read_times(simulated).begun - began
    deployed = Deployed(setting, folder)
    usage = Usage(deployed.federation.processes)
    try:
        deployed.start()
        deployed.hand_over()
        ended = deployed.end(seconds)
    finally:
        usage.stop()
        left = deployed.stop()
    print(f"Flower reports {ended}; killed processes: {left or 'none'}", flush=True)
    if not ended.endswith("completed"):
        print(deployed.federation.processes.text("run"))
        return 2
    served = newest_run(folder / "server")
    print(times(deployed, read_times(simulated), simulation_start, read_times(served)), end="\n\n")
    print(usage.table(read_times(served)), end="\n\n")
    print(traffic(deployed, read_times(served)), end="\n\n")
    different = differences(simulated, served)
    print("\n".join(different) or "equal", flush=True)
    return 1 if different else 0


def simulate(setting: Setting, output: Path) -> None:
    """Run ``fedvlp fit`` in a separate process."""
    words = [sys.executable, "-m", "fedvlp", *setting.simulation(output)]
    subprocess.run(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.DEVNULL)


def times(deployed: Deployed, simulated: RunTimes, simulation_start: float, served: RunTimes) -> str:
    """Format the times of both runs as a table, in seconds."""
    steps = deployed.steps
    start = served.begun - steps["handed over"]
    rows = [
        ["seconds", "simulation", "sites"],
        ["SuperLink until it answers", "-", f"{steps['SuperLink']:.1f}"],
        ["keys of the sites registered", "-", f"{steps['keys']:.1f}"],
        ["start until the first round", f"{simulation_start:.1f}", f"{start:.1f}"],
        ["first round", f"{simulated.seconds[0]:.1f}", f"{served.seconds[0]:.1f}"],
        ["later rounds, median", f"{simulated.later:.1f}", f"{served.later:.1f}"],
    ]
    return text_table(rows)


def traffic(deployed: Deployed, served: RunTimes) -> str:
    """Format the bytes of each site on the wire, including TLS and Flower, next to ``fedvlp cost``."""
    setting = deployed.setting
    sizes = [f"--data.classes={len(setting.classes)}", f"--data.domains={len(setting.sites)}"]
    given = [f"--config=methods/{setting.method}", "--model.clip.name=fedvlp-tiny", *sizes]
    (cost,) = [row for row in costs(given) if row["phase"] == "all"]
    rows = [["bytes of a site", "up", "down"]]
    rows.append(["each round, fedvlp cost", f"{cost['upload_bytes']:,}", f"{cost['download_bytes']:,}"])
    for name in setting.sites:
        last = deployed.meter.between(name, *served.rounds[-1])
        every = deployed.meter.between(name, 0, float("inf"))
        rows.append([f"{name}, last round", f"{last[0]:,}", f"{last[1]:,}"])
        rows.append([f"{name}, start to end", f"{every[0]:,}", f"{every[1]:,}"])
    return text_table(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="promptfl", help="name of a method's config")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sites", type=int, default=3, help="number of sites with generated images")
    parser.add_argument("--images", type=Path, help="images, as DOMAIN/CLASS/image; default: generated")
    parser.add_argument("--held_out", help="domain of the server's images; default: the last of more than three")
    parser.add_argument("--output", type=Path, help="new folder for all files; default: a temporary folder")
    parser.add_argument("--seconds", type=float, default=400, help="timeout of the deployed run")
    parser.add_argument("more", nargs="*", help="after --: further arguments of fedvlp fit")
    return parser


if __name__ == "__main__":
    with interrupt_on_sigterm():  # including all processes that it started
        sys.exit(main())

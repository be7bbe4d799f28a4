"""Faults injected into federations at three sites on 127.0.0.1: effects, outcomes and losses.

``python -m experiments.sites.faults`` injects each fault into a separate federation, and writes a table;
``--only NAME ...`` selects faults.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Listener
from pathlib import Path
from typing import NamedTuple

from experiments.sites.comparison import differences, newest_run
from experiments.sites.credentials import make_certificates, make_node_key
from experiments.sites.deployed import Deployed
from experiments.sites.images import draw_domains
from experiments.sites.run import simulate
from experiments.sites.setting import Setting
from fedvlp.commands.cli import interrupt_on_sigterm
from fedvlp.sites.daemon import SOCKET, warm_folder
from fedvlp.sites.policy import APPROVALS

WARM = "fedvlp.sites.daemon"
CLIENT_APP = "flwr-clientapp"
REPLY_SECONDS = 30
ROUNDS = 4


class Fault(NamedTuple):
    """One row.

    Attributes:
        injected: Description of the fault.
        act: Inject the fault into a running federation, and describe effects that are not in the run's events.
        more: Further options of the run.
    """

    injected: str
    act: Callable[[Deployed], str]
    more: tuple[str, ...] = ()


def site_killed(deployed: Deployed) -> str:
    """Kill all processes of a site in round 2, and restart the site a round later."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    deployed.federation.processes.end(victim, signal.SIGKILL)
    kill(deployed, WARM, victim)
    deployed.wait_for("round_ended", 2)
    deployed.federation.start_site(victim, deployed.homes[victim])
    return f"{ending(deployed)}; restarted after round 2"


def warm_process_killed(deployed: Deployed) -> str:
    """Kill the warm process of a site at the start of a round."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 2)
    killed = kill(deployed, WARM, deployed.setting.sites[1])
    return f"{ending(deployed)}; {killed} process killed, and its replacement started automatically"


def client_app_killed(deployed: Deployed) -> str:
    """Kill Flower's processes for a site's messages in round 2, before they reply."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 2)
    processes = deployed.federation.processes
    ending_now = processes.living(CLIENT_APP).keys()  # processes of the previous round
    new: set[int] = set()
    began = time.monotonic()
    while not new and time.monotonic() - began < 30:
        new = processes.living(CLIENT_APP).keys() - ending_now
    for pid in new:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"{ending(deployed)}; {len(new)} processes killed"


def site_late(deployed: Deployed) -> str:
    """Stop a site's warm process in round 2, and continue it after its timeout."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    kill(deployed, WARM, victim, signal.SIGSTOP)
    deployed.wait_for("phase_ended", 2)
    kill(deployed, WARM, victim, signal.SIGCONT)
    return ending(deployed)


def rubbish(deployed: Deployed) -> str:
    """Let another process answer for a site from round 2 on, with random bytes."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    kill(deployed, WARM, victim)
    path = warm_folder(deployed.homes[victim]) / SOCKET
    path.unlink(missing_ok=True)
    # Close the listener while the folder exists, because closing removes the socket file.
    with Listener(str(path), family="AF_UNIX") as server:
        threading.Thread(target=babble, args=(server,), daemon=True).start()
        return ending(deployed)


def wrong_keys(deployed: Deployed) -> str:
    """Start one site with an unregistered key, and one that trusts another authority."""
    unregistered, misled, good = deployed.setting.sites
    deployed.start([good])
    folder = deployed.federation.folder
    make_node_key(folder / "unknown.key")
    deployed.federation.start_site(unregistered, deployed.homes[unregistered], key=folder / "unknown.key", retries=2)
    other = make_certificates(folder / "other authority")
    deployed.federation.start_site(misled, deployed.homes[misled], certificates=other, retries=2)
    deployed.hand_over()
    ended = ending(deployed)
    processes = deployed.federation.processes
    codes = [processes.wait(name, 60) for name in (unregistered, misled)]
    lines = [refusal(processes.text(name)) for name in (unregistered, misled)]
    return f"{ended}; unregistered: exit code {codes[0]}, “{lines[0]}”; other authority: {codes[1]}, “{lines[1]}”"


def server_killed(deployed: Deployed) -> str:
    """Kill SuperLink and ServerApp in round 3, restart the SuperLink, and resume with ``ckpt-path="last"``."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 3)
    deployed.federation.kill_server()
    kill(deployed, "flwr-serverapp")
    deployed.federation.start_server()
    deployed.hand_over("again", ckpt_path="last")
    ended = deployed.end(240, "again")
    begun = [event["after_round"] for event in deployed.events("fit_started")]
    return f"{ended}; started after rounds {begun}"


def too_few(deployed: Deployed) -> str:
    """Start two of three required sites, and the third once the run reports that it waits."""
    *first, late = deployed.setting.sites
    deployed.start(first)
    deployed.hand_over()
    federation = deployed.federation
    federation.wait_for(lambda: f"waiting for {late!r}" in federation.processes.text("run"), 120, "waiting", "run")
    federation.start_site(late, deployed.homes[late])
    return ending(deployed)


def operator_approval(deployed: Deployed) -> str:
    """Let a site wait for approval, and approve the run once the server reports that it waits."""
    home = deployed.homes[deployed.setting.sites[1]]
    set_policy(home, "{approve: ask}")
    deployed.start()
    deployed.hand_over()
    federation = deployed.federation
    federation.wait_for(lambda: "not approved" in federation.processes.text("run"), 300, "waiting", "run")
    digest = next((home / APPROVALS).glob("*.json")).stem
    words = [sys.executable, "-m", "fedvlp", "site", "approve", str(home), digest[:8]]
    print(subprocess.run(words, check=True, capture_output=True, text=True).stdout, file=sys.stderr)
    return f"{ending(deployed)}; approved once the run waited for it"


def policies(deployed: Deployed) -> str:
    """Let each site reject the run by another rule; one also reports a missing signature."""
    method, size, noise = deployed.setting.sites
    set_policy(deployed.homes[method], "{methods: [TRIP], approve: listed}")
    set_policy(deployed.homes[size], "{max_run_bytes: 10000}")
    set_policy(deployed.homes[noise], "{min_noise_multiplier: 1.0}")
    deployed.start()
    deployed.hand_over()
    return ending(deployed)


FAULTS = {
    "site_killed": Fault("SIGKILL for all processes of a site in round 2; restarted a round later", site_killed),
    "warm_process_killed": Fault("SIGKILL for a site's warm process between two rounds", warm_process_killed),
    "client_app_killed": Fault("SIGKILL for the process that Flower starts for a message", client_app_killed),
    "site_late": Fault(f"a site answers after more than data.reply_seconds={REPLY_SECONDS}", site_late),
    "rubbish": Fault("a site answers with random bytes from round 2 on", rubbish),
    "wrong_keys": Fault(
        "one site with an unregistered key, one that trusts another authority",
        wrong_keys,
        ("--data.arrival_seconds=30",),
    ),
    "server_killed": Fault("SIGKILL for SuperLink and ServerApp in round 3; restarted", server_killed),
    "too_few": Fault(
        "two sites with trainer.server.min_clients=3; the third starts once the run waits for it",
        too_few,
        ("--trainer.server.min_clients=3", "--data.arrival_seconds=30"),
    ),
    "operator_approval": Fault(
        "approve: ask in a site's policy; approved once the run waits for it",
        operator_approval,
        ("--trainer.server.min_clients=3",),
    ),
    "policies": Fault("each site's policy rejects the run", policies),
}


def set_policy(home: Path, policy: str) -> None:
    """Write a site's policy before its warm process starts."""
    with open(home / "site.yaml", "a", encoding="utf-8") as file:
        file.write(f"policy: {policy}\n")


def kill(deployed: Deployed, word: str, site: str = "", how: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to the processes of a command, of one site or all sites; return their number."""
    count = 0
    for pid, command in deployed.federation.processes.living(word).items():
        if not site or command.endswith(str(deployed.homes[site])):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
                count += 1
    return count


def babble(server: Listener) -> None:
    """Answer for a site with random bytes, until the listener is closed."""
    draws = random.Random(0)
    with suppress(OSError):
        while True:
            with server.accept() as connection, suppress(EOFError, ConnectionError):
                connection.recv_bytes()
                connection.send_bytes(draws.randbytes(1000))


def ending(deployed: Deployed) -> str:
    """Wait for the end of the run and describe it, with the last message if it failed."""
    ended = deployed.end(300)
    message = deployed.last_message()
    return f"{ended}: {message}" if message else ended


def refusal(log: str) -> str:
    """Find the line of a SuperNode with the reason for a failed connection."""
    lines = log.split("Failed to initialize the connection to the SuperLink.", 1)[-1].splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def try_fault(name: str, images: Path, folder: Path, simulated: Path) -> list[str]:
    """Make the row of a fault: the injected fault, its effect, equality with the undisturbed result, and losses."""
    fault = FAULTS[name]
    options = (f"--data.reply_seconds={REPLY_SECONDS}", *fault.more)
    deployed = Deployed(setting(images, options), folder)
    try:
        happened = fault.act(deployed)
    finally:
        killed = deployed.stop()
    skipped = [
        f"{each['name']} in round {each['round']}: it {each['reason']}" for each in deployed.events("client_left_out")
    ]
    happened += f"; skipped: {'; '.join(skipped) or 'none'}; processes left behind: {len(killed)}"
    rounds = len(deployed.events("round_ended"))
    equal = "not finished"
    if deployed.events("fit_ended"):
        equal = "no" if differences(simulated, newest_run(deployed.runs)) else "yes"
    return [name, fault.injected, happened, str(rounds), equal, f"{len(skipped)} updates"]


def setting(images: Path, more: tuple[str, ...] = ()) -> Setting:
    """Make the setting of PromptFL at three sites."""
    held_out = sorted(path.name for path in images.iterdir())[3]
    return Setting("promptfl", ROUNDS, images, held_out, more)


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject the faults and print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=[*FAULTS])
    parser.add_argument(
        "--images", type=Path, help="folder of four domains with folders of classes; default: generated images"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fedvlp-faults-") as temporary:
        folder = Path(temporary)
        images = given.images or folder / "images"
        if given.images is None:
            draw_domains(images)
        simulate(setting(images), folder / "simulation")
        simulated = newest_run(folder / "simulation")
        print("| fault | injected | outcome | rounds | equal to an undisturbed run | lost |")
        print("|---|---|---|---|---|---|", flush=True)
        for name in given.only:
            row = try_fault(name, images.resolve(), folder / name, simulated)
            print(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |", flush=True)
    return 0


if __name__ == "__main__":
    with interrupt_on_sigterm():  # including all processes that it started
        sys.exit(main())

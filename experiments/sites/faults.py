"""Faults put into federations at three sites on 127.0.0.1: what happens, how it ends, and what is lost.

``python -m experiments.sites.faults`` tries all, each in a federation of its own, and writes a table;
``--only NAME ...`` some of them.
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
        injected: what is done.
        act: does it to a federation whose server is up, and returns what happened besides what the run's events say.
        more: further options of the run.
    """

    injected: str
    act: Callable[[Deployed], str]
    more: tuple[str, ...] = ()


def site_killed(deployed: Deployed) -> str:
    """Kills all of a site in round 2, and starts it again a round later."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    deployed.federation.processes.end(victim, signal.SIGKILL)
    kill(deployed, WARM, victim)
    deployed.wait_for("round_ended", 2)
    deployed.federation.start_site(victim, deployed.homes[victim])
    return f"{ending(deployed)}; it was started again after round 2"


def warm_process_killed(deployed: Deployed) -> str:
    """Kills the warm process of a site as a round begins."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 2)
    killed = kill(deployed, WARM, deployed.setting.sites[1])
    return f"{ending(deployed)}; {killed} process killed, and another one started by itself"


def client_app_killed(deployed: Deployed) -> str:
    """Kills the processes that Flower starts for a site's messages in round 2, before they have replied."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 2)
    processes = deployed.federation.processes
    ending_now = processes.living(CLIENT_APP).keys()  # those of the round before
    new: set[int] = set()
    began = time.monotonic()
    while not new and time.monotonic() - began < 30:
        new = processes.living(CLIENT_APP).keys() - ending_now
    for pid in new:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"{ending(deployed)}; {len(new)} processes killed"


def site_late(deployed: Deployed) -> str:
    """Stops a site's warm process in round 2, and lets it go on after its time is over."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    kill(deployed, WARM, victim, signal.SIGSTOP)
    deployed.wait_for("phase_ended", 2)
    kill(deployed, WARM, victim, signal.SIGCONT)
    return ending(deployed)


def rubbish(deployed: Deployed) -> str:
    """Lets another process answer for a site from round 2 on, with random bytes."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    kill(deployed, WARM, victim)
    path = warm_folder(deployed.homes[victim]) / SOCKET
    path.unlink(missing_ok=True)
    # Closed while the folder is there, since that removes the socket's file.
    with Listener(str(path), family="AF_UNIX") as server:
        threading.Thread(target=babble, args=(server,), daemon=True).start()
        return ending(deployed)


def wrong_keys(deployed: Deployed) -> str:
    """Starts one site with a key that nobody registered, and one that trusts another authority."""
    stranger, misled, good = deployed.setting.sites
    deployed.start([good])
    folder = deployed.federation.folder
    make_node_key(folder / "unknown.key")
    deployed.federation.start_site(stranger, deployed.homes[stranger], key=folder / "unknown.key", retries=2)
    other = make_certificates(folder / "other authority")
    deployed.federation.start_site(misled, deployed.homes[misled], certificates=other, retries=2)
    deployed.hand_over()
    ended = ending(deployed)
    processes = deployed.federation.processes
    codes = [processes.wait(name, 60) for name in (stranger, misled)]
    lines = [refusal(processes.text(name)) for name in (stranger, misled)]
    return f"{ended}; unregistered: exit code {codes[0]}, “{lines[0]}”; other authority: {codes[1]}, “{lines[1]}”"


def server_killed(deployed: Deployed) -> str:
    """Kills SuperLink and ServerApp in round 3, starts the SuperLink again, and goes on with ``ckpt-path="last"``."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 3)
    deployed.federation.kill_server()
    kill(deployed, "flwr-serverapp")
    deployed.federation.start_server()
    deployed.hand_over("again", ckpt_path="last")
    ended = deployed.end(240, "again")
    begun = [event["after_round"] for event in deployed.events("fit_started")]
    return f"{ended}; begun after rounds {begun}"


def too_few(deployed: Deployed) -> str:
    """Starts two of three sites where three are needed, and the third once the run says that it waits."""
    *first, late = deployed.setting.sites
    deployed.start(first)
    deployed.hand_over()
    federation = deployed.federation
    federation.wait_for(lambda: f"waiting for {late!r}" in federation.processes.text("run"), 120, "waiting", "run")
    federation.start_site(late, deployed.homes[late])
    return ending(deployed)


def asks_its_keeper(deployed: Deployed) -> str:
    """Lets a site ask its keeper, who approves the run once the server says that it waits."""
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
    """Lets each site refuse the run by another rule; one says as well that nobody has signed it."""
    method, size, noise = deployed.setting.sites
    set_policy(deployed.homes[method], "{methods: [TRIP], approve: listed}")
    set_policy(deployed.homes[size], "{max_run_bytes: 10000}")
    set_policy(deployed.homes[noise], "{min_noise_multiplier: 1.0}")
    deployed.start()
    deployed.hand_over()
    return ending(deployed)


FAULTS = {
    "site_killed": Fault("SIGKILL for all processes of a site in round 2; started again a round later", site_killed),
    "warm_process_killed": Fault("SIGKILL for a site's warm process between two rounds", warm_process_killed),
    "client_app_killed": Fault("SIGKILL for the process that Flower starts for a message", client_app_killed),
    "site_late": Fault(f"a site answers after more than data.reply_seconds={REPLY_SECONDS}", site_late),
    "rubbish": Fault("a site answers with random bytes from round 2 on", rubbish),
    "wrong_keys": Fault(
        "one site with an unregistered key, one that trusts another authority",
        wrong_keys,
        ("--data.arrival_seconds=30",),
    ),
    "server_killed": Fault("SIGKILL for SuperLink and ServerApp in round 3; started again", server_killed),
    "too_few": Fault(
        "two sites where trainer.server.min_clients=3; the third started once the run waits for it",
        too_few,
        ("--trainer.server.min_clients=3", "--data.arrival_seconds=30"),
    ),
    "asks_its_keeper": Fault(
        "approve: ask in a site's policy; approved once the run waits for it",
        asks_its_keeper,
        ("--trainer.server.min_clients=3",),
    ),
    "policies": Fault("a policy at each site that does not allow the run", policies),
}


def set_policy(home: Path, policy: str) -> None:
    """Gives a site a policy, before its warm process starts."""
    with open(home / "site.yaml", "a", encoding="utf-8") as file:
        file.write(f"policy: {policy}\n")


def kill(deployed: Deployed, word: str, site: str = "", how: signal.Signals = signal.SIGKILL) -> int:
    """Sends a signal to the federation's processes of a command, of one site or all; returns to how many."""
    count = 0
    for pid, command in deployed.federation.processes.living(word).items():
        if not site or command.endswith(str(deployed.homes[site])):
            with suppress(ProcessLookupError):
                os.kill(pid, how)
                count += 1
    return count


def babble(server: Listener) -> None:
    """Answers for a site with random bytes, until the listener is closed."""
    draws = random.Random(0)
    with suppress(OSError):
        while True:
            with server.accept() as connection, suppress(EOFError, ConnectionError):
                connection.recv_bytes()
                connection.send_bytes(draws.randbytes(1000))


def ending(deployed: Deployed) -> str:
    """Waits for the run's end and returns how it ended, with its last words if it failed."""
    ended = deployed.end(300)
    said = deployed.said()
    return f"{ended}: {said}" if said else ended


def refusal(log: str) -> str:
    """Returns the line in which a SuperNode says why it could not connect."""
    lines = log.split("Failed to initialize the connection to the SuperLink.", 1)[-1].splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def try_fault(name: str, images: Path, folder: Path, simulated: Path) -> list[str]:
    """Returns a fault's row: what was injected, what happened, whether the result is as without it, what was lost."""
    fault = FAULTS[name]
    options = (f"--data.reply_seconds={REPLY_SECONDS}", *fault.more)
    deployed = Deployed(setting(images, options), folder)
    try:
        happened = fault.act(deployed)
    finally:
        by_force = deployed.stop()
    left_out = [
        f"{each['name']} in round {each['round']}, as it {each['reason']}"
        for each in deployed.events("client_left_out")
    ]
    happened += f"; left out: {'; '.join(left_out) or 'nobody'}; processes left behind: {len(by_force)}"
    rounds = len(deployed.events("round_ended"))
    equal = "not finished"
    if deployed.events("fit_ended"):
        equal = "no" if differences(simulated, newest_run(deployed.runs)) else "yes"
    return [name, fault.injected, happened, str(rounds), equal, f"{len(left_out)} updates"]


def setting(images: Path, more: tuple[str, ...] = ()) -> Setting:
    """Returns PromptFL at three sites."""
    held_out = sorted(path.name for path in images.iterdir())[3]
    return Setting("promptfl", ROUNDS, images, held_out, more)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries the faults and prints the table, a row as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=[*FAULTS])
    parser.add_argument(
        "--images", type=Path, help="folder of four domains with folders of classes; drawn if not given"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="fedvlp-faults-") as temporary:
        folder = Path(temporary)
        images = given.images or folder / "images"
        if given.images is None:
            draw_domains(images)
        simulate(setting(images), folder / "simulation")
        simulated = newest_run(folder / "simulation")
        print("| fault | injected | what happened | rounds | equal to an unbroken run | lost |")
        print("|---|---|---|---|---|---|", flush=True)
        for name in given.only:
            row = try_fault(name, images.resolve(), folder / name, simulated)
            print(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |", flush=True)
    return 0


if __name__ == "__main__":
    with interrupt_on_sigterm():  # with all that it has started
        sys.exit(main())

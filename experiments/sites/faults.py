"""Faults injected into federations at three sites on 127.0.0.1: effects, outcomes and losses.

``python -m experiments.sites.faults`` injects each fault into a separate federation, and writes a table;
``--only NAME ...`` selects faults.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from experiments.sites.comparison import differences, newest_run
from experiments.sites.credentials import make_certificates, make_node_key
from experiments.sites.deployed import Deployed
from experiments.sites.images import draw_domains
from experiments.sites.local_federation import LINK
from experiments.sites.run import simulate
from experiments.sites.setting import Setting
from fedvlp.commands.cli import interrupt_on_sigterm
from fedvlp.sites.policy import APPROVALS

REPLY_SECONDS = 30
ROUNDS = 4
LONG = ("--data.reply_seconds=200",)
FOREIGN_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "foreign"
version = "1.0.0"
description = "An app with its own code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "foreign"

[tool.flwr.app.components]
serverapp = "foreign:server"
clientapp = "foreign:client"
"""
FOREIGN_APP = """\
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.train()
def train(message, context):
    Path({proof!r}).write_text("ran at a site")
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    content = RecordDict({{"own": ConfigRecord({{"code": "print(1)"}})}})
    sent = [Message(content, node, "train", ttl=60) for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(sent, timeout=60):
        print("failed reply" if b"failed" in reply.content["fedvlp"]["bytes"] else "other reply", flush=True)
"""


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
    """Kill a site's process in round 2, and start it again at once."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    deployed.federation.processes.end(victim, signal.SIGKILL)
    deployed.federation.start_site(victim, deployed.homes[victim])
    return ending(deployed)


def site_away(deployed: Deployed) -> str:
    """Kill a site's process in round 2, and start it again a round later."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    deployed.federation.processes.end(victim, signal.SIGKILL)
    deployed.wait_for("round_ended", 2)
    deployed.federation.start_site(victim, deployed.homes[victim])
    return f"{ending(deployed)}; started again after round 2"


def site_ended(deployed: Deployed) -> str:
    """End a site's process with SIGTERM in round 2, and start it again at once."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    began = time.monotonic()
    deployed.federation.processes.end(victim, signal.SIGTERM, patience=15)
    seconds = time.monotonic() - began
    code = deployed.federation.processes.code(victim)
    deployed.federation.start_site(victim, deployed.homes[victim])
    return f"{ending(deployed)}; ended in {seconds:.1f} s with exit code {code}"


def site_late(deployed: Deployed) -> str:
    """Stop a site's process in round 2, before it trains for round 3, and continue it after its timeout."""
    deployed.start()
    deployed.hand_over()
    victim = deployed.setting.sites[1]
    deployed.wait_for("round_started", 2)
    deployed.federation.processes.send(victim, signal.SIGSTOP)
    deployed.wait_for("phase_ended", 3)
    deployed.federation.processes.send(victim, signal.SIGCONT)
    return ending(deployed)


def network(deployed: Deployed) -> str:
    """Let a site's relay drop all connections in rounds 2 and 3, then delay them, and answer 500 in round 4."""
    deployed.start()
    deployed.hand_over()
    relay = deployed.federation.relays[deployed.setting.sites[1]]
    for number in (2, 3):
        deployed.wait_for("round_started", number)
        for _ in range(3):
            relay.drop()
            time.sleep(0.3)
    relay.delay = 2.5  # in each direction
    deployed.wait_for("phase_ended", 4)
    relay.delay = 0.0
    relay.answer_error(deployed.federation.certificates)
    return f"{ending(deployed)}; {count_lost(deployed)} reconnections"


def full_disk(deployed: Deployed) -> str:
    """Fill the disk of a site's home, a small one in memory, in round 2, and free it 10 s later. Needs root."""
    victim = deployed.setting.sites[1]
    home = deployed.homes[victim]
    options = (home / "site.yaml").read_bytes()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", home], check=True)
    try:
        (home / "site.yaml").write_bytes(options)
        deployed.start()
        deployed.hand_over()
        deployed.wait_for("round_started", 2)
        with suppress(OSError), open(home / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(1000))
        time.sleep(10)
        (home / "filler").unlink()
        return ending(deployed)
    finally:
        deployed.federation.processes.end(victim)
        subprocess.run(["umount", "--lazy", home], check=True)


def wrong_clock(deployed: Deployed) -> str:
    """Start a site with a clock that is 10 minutes ahead. Needs the program faketime."""
    *good, victim = deployed.setting.sites
    deployed.start(good)
    deployed.federation.start_site(victim, deployed.homes[victim], prefix=("faketime", "-f", "+600s"))
    deployed.hand_over()
    ended = ending(deployed)
    code = deployed.federation.processes.wait(victim, 60)
    return f"{ended}; exit code {code}, “{last_line(deployed, victim)}”"


def foreign_app(deployed: Deployed) -> str:
    """Run a Flower app whose own code would write a file at each site, and then the usual run."""
    deployed.start()
    federation = deployed.federation
    proof = federation.folder / "proof"
    app = federation.folder / "foreign"
    app.mkdir()
    (app / "pyproject.toml").write_text(FOREIGN_PROJECT, encoding="utf-8")
    (app / "foreign.py").write_text(FOREIGN_APP.format(proof=str(proof)), encoding="utf-8")
    federation.wait_for(lambda: len(federation.nodes()) == 3, 120, "sites")
    federation.wait_for(lambda: {*federation.nodes()} == {"online"}, 120, "sites")
    federation.processes.start("foreign", ["flwr", "run", app, LINK, "--stream"])
    federation.processes.wait("foreign", 180)
    replies = federation.processes.text("foreign").count("failed reply")
    fetched = federation.processes.text("superlink").count("[Fleet.GetFab]")
    deployed.hand_over()
    return f"{ending(deployed)}; {replies} sites refused, {fetched} fetched the app, its file exists: {proof.exists()}"


def wrong_keys(deployed: Deployed) -> str:
    """Start one site with an unregistered key, and one that trusts another authority."""
    unregistered, misled, good = deployed.setting.sites
    deployed.start([good])
    folder = deployed.federation.folder
    make_node_key(folder / "unknown.key")
    deployed.federation.start_site(unregistered, deployed.homes[unregistered], key=folder / "unknown.key")
    other = make_certificates(folder / "other authority")
    deployed.federation.start_site(misled, deployed.homes[misled], certificates=other)
    deployed.hand_over()
    ended = ending(deployed)
    processes = deployed.federation.processes
    codes = [processes.wait(name, 60) for name in (unregistered, misled)]
    lines = [last_line(deployed, name) for name in (unregistered, misled)]
    return f"{ended}; unregistered: exit code {codes[0]}, “{lines[0]}”; other authority: {codes[1]}, “{lines[1]}”"


def server_killed(deployed: Deployed) -> str:
    """Kill SuperLink and ServerApp in round 3, restart the SuperLink, and resume with ``ckpt-path="last"``."""
    deployed.start()
    deployed.hand_over()
    deployed.wait_for("round_started", 3)
    deployed.federation.kill_server()
    for pid in deployed.federation.processes.living("flwr-serverapp"):
        os.kill(pid, signal.SIGKILL)
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
    "site_killed": Fault("SIGKILL for a site in round 2; started again at once", site_killed),
    "site_ended": Fault("SIGTERM for a site in round 2; started again at once", site_ended),
    "site_away": Fault("SIGKILL for a site in round 2; started again a round later", site_away),
    "site_late": Fault(f"a site answers after more than data.reply_seconds={REPLY_SECONDS}", site_late),
    "network": Fault("a site's connections dropped, delayed by 5 s, and answered with 500", network, LONG),
    "full_disk": Fault("the disk of a site's home is full for 10 s in round 2", full_disk),
    "foreign_app": Fault("a Flower app with its own code runs before the federation", foreign_app),
    "wrong_clock": Fault("a site's clock is 10 minutes ahead", wrong_clock, ("--data.arrival_seconds=30",)),
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
    """Write a site's policy before its process starts."""
    with open(home / "site.yaml", "a", encoding="utf-8") as file:
        file.write(f"policy: {policy}\n")


def ending(deployed: Deployed) -> str:
    """Wait for the end of the run and describe it, with the last message if it failed."""
    ended = deployed.end(300)
    message = deployed.last_message()
    return f"{ended}: {message}" if message else ended


def last_line(deployed: Deployed, name: str) -> str:
    """Find the last line that a site printed."""
    return deployed.federation.processes.text(name).splitlines()[-1]


def count_lost(deployed: Deployed) -> int:
    """Count the lost connections that the second site reported."""
    return deployed.federation.processes.text(deployed.setting.sites[1]).count("lost the connection")


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

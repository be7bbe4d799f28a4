"""Load tests of the server: exchanges with many stand-in sites on this machine, and the server's memory without Flower.

Stand-in sites answer each request with its own bytes. They connect to a SuperLink on 127.0.0.1, without TLS::

    python -m experiments.sites.load --sites 10 30 100 --bytes 8000 4000000

    python -m experiments.sites.load --memory --sites 30 --bytes 8000000
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from experiments.sites.credentials import HOST
from experiments.sites.local_federation import LINK, QUIET, free_port, is_listening
from experiments.sites.processes import Processes
from fedvlp.core.state import Client, ClientUpdate, weighted_mean
from fedvlp.sites.registry import SiteRegistry
from fedvlp.sites.wire import Message, Requests
from fedvlp.utils.memory import reuse_freed_memory

TRAINED = {"round": 0, "phase": 0, "num_examples": 1, "metrics": {}, "finite": True, "retried": ""}
EXCHANGES = 3
PER_PROCESS = 25  # stand-in sites
SERVER = """
from flwr.serverapp import ServerApp
from experiments.sites.load import measure

app = ServerApp()


@app.main()
def main(grid, context):
    measure(grid, context.run_config)
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "load"
version = "1.0.0"
description = "A load test."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedvlp"

[tool.flwr.app.components]
serverapp = "load_server:app"
clientapp = "load_server:app"

[tool.flwr.app.config]
sites = {sites}
bytes = {size}
seconds = {seconds}
"""


def answer_all(address: str, count: int) -> None:
    """Run stand-in sites in threads, until the process is ended. They connect and poll as real sites do."""
    from fedvlp.sites.flower.node import Link, answer_messages, load_key, own_key
    from fedvlp.sites.process import Status

    def answer() -> None:
        home = Path(tempfile.mkdtemp(prefix="load-site-"))
        link = Link(address, None, load_key(own_key(home)), Status(home))
        link.connect()
        answer_messages(home, link, lambda content: content, None)

    for _ in range(count):
        threading.Thread(target=answer, daemon=True).start()
    threading.Event().wait()


def measure(grid: Any, options: dict[str, Any]) -> None:
    """Exchange messages with all stand-in sites, in Flower's ServerApp, and print the seconds of each exchange."""
    from fedvlp.sites.flower.server_app import GridTransport

    transport = GridTransport(grid)
    deadline = time.monotonic() + float(options["seconds"])
    while len(transport.names()) < int(options["sites"]) and time.monotonic() < deadline:
        time.sleep(0.5)
    nodes = transport.names()
    content = os.urandom(int(options["bytes"]))
    for _ in range(EXCHANGES):
        began = time.monotonic()
        left = max(1.0, deadline - began)
        answered = sum(reply == content for _, reply in transport.exchange(((node, content) for node in nodes), left))
        result = {"nodes": len(nodes), "answered": answered, "seconds": time.monotonic() - began, "rss": _peak()}
        print(f"LOAD {json.dumps(result)}", flush=True)


def run(sites: int, size: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Start a SuperLink and stand-in sites, and yield the results of each exchange."""
    folder = Path(tempfile.mkdtemp(prefix="load-"))
    port = free_port()
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    python_path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    own = {"OMP_NUM_THREADS": "1", "PATH": paths, "PYTHONPATH": python_path, "FLWR_HOME": str(folder / "flwr")}
    processes = Processes(folder, {**QUIET, **own})
    address = f"{HOST}:{port}"
    (folder / "flwr").mkdir()
    connection = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\ninsecure = true\n'
    (folder / "flwr" / "config.toml").write_text(connection, encoding="utf-8")
    (folder / "app").mkdir()
    (folder / "app" / "load_server.py").write_text(SERVER, encoding="utf-8")
    project = PROJECT.format(sites=sites, size=size, seconds=seconds)
    (folder / "app" / "pyproject.toml").write_text(project, encoding="utf-8")
    began = time.monotonic()
    try:
        options = ["--insecure", "--host", HOST, "--port", str(port), "--disable-runtime-dependency-installation"]
        processes.start("superlink", ["flower-superlink", *options, "--database", folder / "state.db"])
        while not is_listening(port) and time.monotonic() - began < 60:
            time.sleep(0.2)
        for index, start in enumerate(range(0, sites, PER_PROCESS)):
            count = min(PER_PROCESS, sites - start)
            nodes = [sys.executable, "-m", "experiments.sites.load", "--answer", address, str(count)]
            processes.start(f"nodes{index}", nodes)
        processes.start("run", ["flwr", "run", folder / "app", LINK, "--stream"])
        seen = 0
        while seen < EXCHANGES and time.monotonic() - began < seconds + 60:
            time.sleep(0.5)
            text = processes.text("run") + processes.text("superlink")
            lines = [line.partition("LOAD ")[2] for line in text.splitlines() if "LOAD {" in line]
            results = list(dict.fromkeys(lines))
            for line in results[seen:]:
                yield json.loads(line[: line.index("}") + 1])
            seen = len(results)
    finally:
        processes.end_started()
        processes.end_left()


class StandIn:
    """Transport without network, with sites that answer with tensors of one size."""

    def __init__(self, sites: int, size: int) -> None:
        self.nodes = [f"node-{index}" for index in range(sites)]
        self.size = size

    def names(self) -> list[str]:
        """List the nodes."""
        return self.nodes

    def exchange(self, requests: Requests, timeout: float) -> Iterator[tuple[str, bytes]]:
        """Answer each request, after all were sent."""
        nodes = [node for node, _ in requests]
        tensors = {"prompt": torch.arange(self.size // 4, dtype=torch.float32)}
        content = bytearray(Message("trained", {**TRAINED, "personal": "", "optimizer": ""}, tensors).to_bytes())
        for node in nodes:
            yield node, bytes(content)  # a copy, as if it had just arrived


def peak_memory(sites: int, size: int) -> dict[str, float]:
    """Send a state to all sites, average their updates, and return the memory in MB before, and the largest after."""
    names = [f"site-{index:03d}" for index in range(sites)]
    folder = Path(tempfile.mkdtemp(prefix="load-"))
    data: Any = SimpleNamespace(reply_seconds=60.0)
    transport: Any = StandIn(sites, size)
    registry = SiteRegistry(
        transport, data, "run", {}, folder / "waiting", dict(zip(names, transport.nodes, strict=True))
    )
    shared = {"prompt": torch.zeros(size // 4)}
    before = _anonymous()
    stop = threading.Event()
    largest = [before]

    def watch() -> None:
        while not stop.wait(0.005):
            largest[0] = max(largest[0], _anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    values = {"run": "run", "client": 0, "domain": 0}
    replies: dict[str, Any] = registry.exchange({name: Message("train", values, shared) for name in names})
    updates = [ClientUpdate(Client(0, 0, 1), replies[name].tensors, 1) for name in names]
    mean = weighted_mean([update.state for update in updates], [1] * sites)
    stop.set()
    watcher.join()
    folder.rmdir()
    assert torch.allclose(mean["prompt"], torch.arange(size // 4, dtype=torch.float32))
    return {"before": before, "peak": largest[0], "added": largest[0] - before}


def _anonymous() -> float:
    """Read the megabytes of memory that the system can't take back, without files."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("RssAnon"))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    """Print a line for each number of sites and size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--bytes", type=int, nargs="+", default=[8_000, 4_000_000])
    parser.add_argument("--seconds", type=float, default=120.0, help="limit of each setting")
    parser.add_argument("--memory", action="store_true", help="measure only the server's memory, without Flower")
    parser.add_argument("--answer", nargs=2, metavar=("HOST:PORT", "SITES"), help="run stand-in sites")
    options = parser.parse_args()
    if options.answer:
        answer_all(options.answer[0], int(options.answer[1]))
    for size in options.bytes:
        for sites in options.sites:
            if options.memory:
                with reuse_freed_memory():  # as in a run
                    print(f"{sites} sites, {size:,} bytes: {peak_memory(sites, size)} MB", flush=True)
                continue
            for result in run(sites, size, options.seconds):
                print(f"{sites} sites, {size:,} bytes: {result}", flush=True)


if __name__ == "__main__":
    main()

"""Flower's SuperLink and SuperNodes on 127.0.0.1, with TLS and registered keys, and what is asked of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.sites.credentials import HOST, Certificates, make_certificates, make_node_key
from experiments.sites.processes import Processes
from experiments.sites.relay import Relay
from fedvlp.sites.daemon import stop_site

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""With these Flower needs no network."""
LINK = "local"


class LocalFederation:
    """One SuperLink, and SuperNodes that reach it through a relay each.

    Args:
        folder: for certificates, keys, logs and Flower's own files; not to be shared.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        beside_python = Path(sys.executable).parent  # where pip puts Flower's commands
        path = os.pathsep.join([str(beside_python), os.environ.get("PATH", "")])
        threads = {"OMP_NUM_THREADS": "1", "PATH": path}
        self.processes = Processes(folder, {**QUIET, **threads, "FLWR_HOME": str(folder / "flwr_server")})
        self.certificates = make_certificates(folder / "certificates")
        self.port = free_port()
        self.relays: dict[str, Relay] = {}
        self.homes: dict[str, Path] = {}
        self._write_connection()

    def start_server(self) -> None:
        """Starts the SuperLink and waits until it answers.

        Raises:
            RuntimeError: if it ends, or does not answer in a minute.
        """
        self.processes.start(
            "superlink",
            [
                "flower-superlink",
                *("--host", HOST, "--port", str(self.port)),
                *("--ssl-ca-certfile", self.certificates.authority),
                *("--ssl-certfile", self.certificates.server),
                *("--ssl-keyfile", self.certificates.server_key),
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
                *("--database", self.folder / "superlink.db"),
            ],
        )
        self.wait_for(lambda: is_listening(self.port), 60, "the SuperLink")

    def register(self, names: list[str]) -> None:
        """Makes a key for each site, and tells the SuperLink the public ones."""
        public = [make_node_key(self.folder / f"{name}.key") for name in names]
        started = [self._flwr("supernode", "register", str(path), LINK) for path in public]
        for process in started:
            output, _ = process.communicate(timeout=90)
            if process.returncode:
                raise RuntimeError(f"Flower did not register a key:\n{output}")

    def start_site(
        self,
        name: str,
        home: Path,
        key: Path | None = None,
        certificates: Certificates | None = None,
        retries: int = 20,
    ) -> None:
        """Starts a site's SuperNode; it is not waited for.

        Args:
            name: of the site; its log is ``name.log``.
            home: the site's folder.
            key: its private key; the registered one if not given.
            certificates: by whose authority it knows the server; the right one if not given.
            retries: how often it tries to reach the server before it gives up.
        """
        self.homes[name] = home
        if name not in self.relays:
            self.relays[name] = Relay(self.port)
        self.processes.start(
            name,
            [
                "flower-supernode",
                *("--superlink", f"{HOST}:{self.relays[name].port}"),
                *("--root-certificates", (certificates or self.certificates).authority),
                *("--auth-supernode-private-key", key or self.folder / f"{name}.key"),
                *("--host", HOST, "--port", str(free_port())),
                *("--node-config", f'home="{home}"'),
                *("--max-retries", str(retries)),
            ],
            {"FLWR_HOME": str(self.folder / f"flwr_{name}")},  # as on a machine of its own
        )

    def nodes(self) -> list[str]:
        """Returns the states of the registered sites, such as ``online``."""
        return [node["status"] for node in self.ask("supernode", "list", LINK)["nodes"]]

    def start_run(self, app: Path, name: str = "run", **config: str) -> None:
        """Hands an app to the SuperLink and follows its log, without waiting for its end."""
        words: list[str | Path] = ["flwr", "run", app, LINK, "--stream"]
        for key, value in config.items():
            words += ["--run-config", f'{key.replace("_", "-")}="{value}"']
        self.processes.start(name, words)

    def last_run(self) -> dict[str, Any]:
        """Returns what Flower says of the newest run; nothing if there is none."""
        runs: list[dict[str, Any]] = self.ask("list", LINK).get("runs", [])
        return max(runs, key=lambda run: str(run["pending-at"]), default={})

    def ask(self, *words: str) -> Any:
        """Returns the JSON that a ``flwr`` command prints."""
        process = self._flwr(*words, "--format", "json")
        output, _ = process.communicate(timeout=90)
        return json.loads(output[output.index("{") :])

    def wait_for(self, is_so: Callable[[], bool], seconds: float, what: str, process: str = "superlink") -> None:
        """Waits until something is so.

        Raises:
            RuntimeError: if it takes too long, or a process has ended meanwhile.
        """
        began = time.monotonic()
        while not is_so():
            if self.processes.code(process) is not None:
                raise RuntimeError(f"{process} has ended:\n{self.processes.text(process)[-2000:]}")
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"{what} took more than {seconds:g} s:\n{self.processes.text(process)[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> list[str]:
        """Ends Flower's processes, lets the sites' warm ones end, and then whatever is left.

        Returns:
            The commands of those that had to be ended by force.
        """
        for relay in self.relays.values():
            relay.close()
        self.processes.end_started()
        for home in self.homes.values():
            stop_site(home)
        return self.processes.end_left()

    def kill_server(self) -> None:
        """Ends the SuperLink and the ServerApp at once, as where the machine goes down."""
        self.processes.end("superlink", signal.SIGKILL)

    def _flwr(self, *words: str) -> subprocess.Popen[str]:
        """Starts a ``flwr`` command."""
        return self.processes.open(["flwr", *words])

    def _write_connection(self) -> None:
        """Writes where ``flwr`` finds the SuperLink."""
        home = self.folder / "flwr_server"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.certificates.authority}"\n',
            encoding="utf-8",
        )


def free_port() -> int:
    """Returns a port of 127.0.0.1 that is free now."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Returns whether something takes connections at a port."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True

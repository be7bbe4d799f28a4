"""Flower's SuperLink and sites on 127.0.0.1, with TLS and registered keys, and queries to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.sites.credentials import HOST, Certificates, make_certificates, make_node_key
from experiments.sites.processes import Processes
from experiments.sites.relay import Relay

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment with which Flower needs no network."""
LINK = "local"


class LocalFederation:
    """One SuperLink, and sites that connect through one relay each.

    Args:
        folder: Separate folder for certificates, keys, logs and Flower's own files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        commands_folder = Path(sys.executable).parent  # folder of Flower's commands
        path = os.pathsep.join([str(commands_folder), os.environ.get("PATH", "")])
        threads = {"OMP_NUM_THREADS": "1", "PATH": path}
        self.processes = Processes(folder, {**QUIET, **threads, "FLWR_HOME": str(folder / "flwr_server")})
        self.certificates = make_certificates(folder / "certificates")
        self.port = free_port()
        self.relays: dict[str, Relay] = {}
        self._write_connection()

    def start_server(self) -> None:
        """Start the SuperLink and wait until it answers.

        Raises:
            RuntimeError: If it ends, or does not answer within a minute.
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
        """Make a key for each site, and register the public keys at the SuperLink."""
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
        prefix: Sequence[str] = (),
    ) -> None:
        """Start a site without waiting for it.

        Args:
            name: Name of the site; its log is ``name.log``.
            home: Folder of the site.
            key: Private key; default: the registered key.
            certificates: Authority for verifying the server; default: the correct one.
            prefix: Words in front of the command.
        """
        if name not in self.relays:
            self.relays[name] = Relay(self.port)
        self.processes.start(
            name,
            [
                *prefix,
                *(sys.executable, "-m", "fedvlp", "site", "serve", str(home)),
                *("--superlink", f"{HOST}:{self.relays[name].port}"),
                *("--root-certificates", (certificates or self.certificates).authority),
                *("--key", key or self.folder / f"{name}.key"),
            ],
        )

    def nodes(self) -> list[str]:
        """List the states of the registered sites, such as ``online``."""
        return [node["status"] for node in self.ask("supernode", "list", LINK)["nodes"]]

    def start_run(self, app: Path, name: str = "run", **config: str) -> None:
        """Submit an app to the SuperLink and follow its log, without waiting for its end."""
        words: list[str | Path] = ["flwr", "run", app, LINK, "--stream"]
        for key, value in config.items():
            words += ["--run-config", f'{key.replace("_", "-")}="{value}"']
        self.processes.start(name, words)

    def last_run(self) -> dict[str, Any]:
        """Read Flower's description of the newest run; empty if there is none."""
        runs: list[dict[str, Any]] = self.ask("list", LINK).get("runs", [])
        return max(runs, key=lambda run: str(run["pending-at"]), default={})

    def ask(self, *words: str) -> Any:
        """Parse the JSON output of a ``flwr`` command."""
        process = self._flwr(*words, "--format", "json")
        output, _ = process.communicate(timeout=90)
        return json.loads(output[output.index("{") :])

    def wait_for(self, is_so: Callable[[], bool], seconds: float, what: str, process: str = "superlink") -> None:
        """Wait until a condition is true.

        Raises:
            RuntimeError: If it takes too long, or if a process has ended meanwhile.
        """
        began = time.monotonic()
        while not is_so():
            if self.processes.code(process) is not None:
                raise RuntimeError(f"{process} has ended:\n{self.processes.text(process)[-2000:]}")
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"{what} took more than {seconds:g} s:\n{self.processes.text(process)[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> list[str]:
        """Stop Flower's processes and the sites, and then kill the rest.

        Returns:
            The commands of processes that had to be killed.
        """
        for relay in self.relays.values():
            relay.close()
        self.processes.end_started()
        return self.processes.end_left()

    def kill_server(self) -> None:
        """Kill the SuperLink and the ServerApp at once, as if the machine went down."""
        self.processes.end("superlink", signal.SIGKILL)

    def _flwr(self, *words: str) -> subprocess.Popen[str]:
        """Start a ``flwr`` command."""
        return self.processes.open(["flwr", *words])

    def _write_connection(self) -> None:
        """Write the address of the SuperLink for ``flwr``."""
        home = self.folder / "flwr_server"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.certificates.authority}"\n',
            encoding="utf-8",
        )


def free_port() -> int:
    """Find a free port of 127.0.0.1."""
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Check whether a port accepts connections."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True

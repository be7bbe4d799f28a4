"""The files of a Flower app that trains one config. Written without Flower."""

from __future__ import annotations

import re
from pathlib import Path

from fedvlp.utils.errors import UserError
from fedvlp.utils.files import write_text

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{method} on real sites, by fedvlp."
license = "Apache-2.0"
dependencies = ["fedvlp[flower]"]

[tool.flwr.app]
publisher = "fedvlp"

[tool.flwr.app.components]
serverapp = "fedvlp_server:app"
clientapp = "fedvlp.sites.flower.client_app:app"

# Each can be set for one run: flwr run . SUPERLINK --run-config 'ckpt-path="last"'
[tool.flwr.app.config]
run-dir = "runs"    # on the server; below the folder in which its SuperLink was started, unless it begins with /
ckpt-path = ""      # go on from this checkpoint or run folder; "last" is the newest of the same name
homes = ""          # in Flower's simulation: the folder of the sites' homes, which its nodes take in order of name
"""

# What Flower sends to the sites holds no code that they would run: their part is installed with fedvlp.
SERVER = '''\
"""Tells fedvlp's ServerApp which config to train."""

from pathlib import Path

from fedvlp.sites.flower.server_app import make_server_app

app = make_server_app(Path(__file__).with_name("config.yaml"))
'''

README = """\
{method} on real sites: `config.yaml` is what is trained, and `pyproject.toml` says where runs are written.
Train it with `flwr run . SUPERLINK --stream`; go on after a stop with `--run-config 'ckpt-path="last"'`.
Exit codes of `flwr run` do not tell how a run ended: ask `flwr list SUPERLINK`, and `fedvlp status` for its folder.
"""


def write_app(folder: Path, method: str, config: str) -> list[Path]:
    """Writes an app that trains a config, into a folder that is new or empty; returns its files.

    Args:
        folder: the app's folder, made if it is missing.
        method: the name of the method's class.
        config: the config, as YAML.

    Raises:
        UserError: if there is something in the folder.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"Expected a new or empty folder for the app; {folder} is not. Name another.")
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", f"fedvlp-{method}".lower()).strip("-")
    contents = {
        "pyproject.toml": PYPROJECT.format(name=name, method=method),
        "fedvlp_server.py": SERVER,
        "config.yaml": config,
        "README.md": README.format(method=method),
    }
    for file, content in contents.items():
        write_text(folder / file, content)
    return [folder / file for file in contents]

"""The commands ``fedvlp site`` (at a site) and ``fedvlp deploy`` (at the server)."""

import argparse
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedvlp.sites.ledger import describe_ledger
from fedvlp.sites.policy import Proposal, record_decision, sign
from fedvlp.sites.process import site_status, stop_site
from fedvlp.sites.site_config import read_site_config
from fedvlp.utils.errors import UserError, to_one_line
from fedvlp.utils.files import write_text

MISSING = 'Deployment needs Flower, which is not installed. With Python 3.11 or later run: pip install "fedvlp[flower]"'
# Templates of an app's files. Sites run none of them.
APP_FOLDER = Path(__file__).parent / "flower" / "app"


def run_site(arguments: Sequence[str]) -> int:
    """Serve a site, end or show its process, print its ledger, or record a decision about a run.

    The exit code is 1 if ``status`` finds no process, or if ``ledger`` finds a broken chain.
    """
    if arguments[:1] == ["serve"]:
        if find_spec("flwr") is None:
            raise UserError(MISSING)
        from fedvlp.sites.flower.node import run_serve

        return run_serve(arguments[1:])
    parser = argparse.ArgumentParser(
        "fedvlp site",
        description="Manage a site. `serve` connects it to a server, until `stop` or Ctrl-C ends the process. `ledger` "
        "summarises the messages of each run and reports changed lines. `approve` and `refuse` decide on a run if the "
        "site's policy requires approval; without RUN they list the runs that wait.",
    )
    parser.add_argument("action", choices=("serve", "stop", "status", "ledger", "approve", "refuse"))
    parser.add_argument("home", type=Path, metavar="HOME", help="the site's folder, with site.yaml")
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="first characters of a run's digest")
    options = parser.parse_args(arguments)
    code = 0
    if options.action == "stop":
        lines = ["stopped" if stop_site(options.home) else "no process was running"]
    elif options.action == "status":
        status = site_status(options.home)
        lines = [", ".join(f"{name} {value}" for name, value in status.items())]
        code = int(status["state"] == "stopped")
    else:
        read_site_config(options.home)  # raises unless the folder is a site's home
        if options.action == "ledger":
            lines, broken = describe_ledger(options.home)
            lines += broken or ["no line was changed"]
            code = int(bool(broken))
        else:
            lines = record_decision(options.home, options.action, options.run)
    for line in lines:
        # The server chooses the names of runs, so escape control characters.
        print(to_one_line(line))
    return code


def run_deploy(arguments: Sequence[str]) -> int:
    """Write or sign a Flower app that trains a config, or check the setup of a site and its server."""
    if arguments[:1] == ["check"] and find_spec("flwr") is not None:
        from fedvlp.sites.flower.check import run_check

        return run_check(arguments[1:])
    parser = argparse.ArgumentParser("fedvlp deploy", description="Train on real sites with Flower.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="check the setup of a site and its server")
    init = commands.add_parser(
        "init",
        help="write a Flower app",
        description="Write a Flower app that trains a config. Accepts --config and dotted options like `fedvlp fit`.",
        allow_abbrev=False,
    )
    init.add_argument("folder", type=Path, metavar="DIR", help="the app's folder: new or empty")
    signing = commands.add_parser("sign", help="sign an app's run, for sites that require a signature")
    signing.add_argument("folder", type=Path, metavar="DIR", help="the app's folder")
    signing.add_argument("key", type=Path, metavar="KEY", help="private key of ssh-keygen, ed25519 or ECDSA")
    options, config_arguments = parser.parse_known_args(arguments)
    if find_spec("flwr") is None:
        raise UserError(MISSING)
    if options.command == "sign":
        parser.parse_args(arguments)  # rejects options of a config
        return sign_app(options.folder, options.key)
    method, config = parse_config(config_arguments)
    print(*write_app(options.folder, method, config), sep="\n")
    print(f"Train it: flwr run {options.folder} SUPERLINK --stream")
    return 0


def parse_config(arguments: Sequence[str]) -> tuple[str, str]:
    """Parse the options of ``fedvlp fit`` into the method's name and the complete config as YAML."""
    # Imported late, so that `fedvlp site` does not wait for PyTorch.
    from fedvlp.commands.lightning_cli import ParsingCLI
    from fedvlp.utils.config_files import option_values

    if not option_values(arguments, "--config"):
        raise UserError("Expected configs to train, such as --config methods/promptfl --config sites.yaml.")
    command = ParsingCLI.make(arguments, prog="fedvlp deploy init DIR")
    text: str = command.parser.dump(command.config, skip_unset=False)
    return command.config.model.class_path.rpartition(".")[-1], text


def sign_app(folder: Path, key: Path) -> int:
    """Sign the description of an app's run, and print its digest."""
    from fedvlp.sites.server import SIGNATURE, describe_for_sites, read_app

    run = Proposal("", describe_for_sites(read_app(folder / "config.yaml")))
    write_text(folder / SIGNATURE, sign(key, run.content))
    print(f"{folder / SIGNATURE}\nSigned the run with the digest {run.digest}")
    return 0


def write_app(folder: Path, method: str, config: str) -> list[Path]:
    """Write an app that trains a config (YAML text) into a new or empty folder, and return its files."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"Expected a new or empty folder for the app, got {folder}. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", f"fedvlp-{method}".lower()).strip("-")
    files = [folder / "config.yaml"]
    write_text(folder / "config.yaml", config)
    for template in sorted(APP_FOLDER.glob("*.template")):
        files.append(folder / template.stem)
        write_text(files[-1], template.read_text(encoding="utf-8").format(name=name, method=method))
    return files

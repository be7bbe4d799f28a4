"""The commands of the documentation, as tests carry them out: briefly, offline, or by their parsers alone."""

import argparse
import shlex
from pathlib import Path

import pytest

from fedvlp.commands import cli
from fedvlp.commands.lightning_cli import FederationParser
from fedvlp.sites import commands as deploy
from tests.helpers.desk import Desk, offline
from tests.helpers.documents import EXAMPLE_PAGES, PAGES, brief

TRAINING = ("fit", "validate", "test")
CONFIGS_WITH_IMAGES = ("quickstart", "configs/quickstart.yaml", "data/icon_domains")
PARSED_ALONE = {
    "BackdoorPatch": "tests/tools/attacks trains with it",
    "audit runs": "it takes minutes; tests/commands runs it on less",
    "--config centralised": "tests/methods trains with it",
    "--config methods/fine_tuning": "tests/methods trains it",
    "cost --config": "test_pages.py runs it",
    "deploy check": "tests/sites/flower checks a server",
    "deploy init": "test_sites.py writes the app",
    "deploy sign": "tests/sites signs an app",
    "export runs": "tests/tools/export exports, without the checks of shapes, which no graph can hold",
    "explain prompts.safetensors": "a run's folder is explained",
    "predict runs": "test_pages.py runs it",
    "site approve": "tests/sites approves a run",
    "--ckpt_path last": "test_pages.py runs it",
    "explain RUN": "other runs are explained, and this shows options",
    "--config loggers/wandb": "tests/commands runs it, in a process of its own",
    "--config data/icon_domains_30_clients": "test_pages.py runs it",
    "--trainer.local.schedule CosineDecay": "test_pages.py runs it",
    "--trainer.server.aggregation DPFedAvg": "tests/training accounts for it",
    "--trainer.devices": "tests/training has several processes",
    " ...": "what is left out is the reader's",
}
"""Parts of commands that are parsed and not run, and why."""

NETWORK = ("download", "push", "hf://")
"""Parts of commands that call a hub or a service."""


def lines() -> dict[str, list[str]]:
    """Returns the words of each distinct command line of all pages, by the line, without those of example pages."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        if page in EXAMPLE_PAGES:
            continue
        for code in page.blocks("bash"):
            for line in code.replace("\\\n", " ").splitlines():
                for part in line.split("&&"):
                    words = shlex.split(part, comments=True)
                    found |= {" ".join(words): words} if words else {}
    return found


def of_fedvlp() -> dict[str, list[str]]:
    """Returns the words behind ``fedvlp`` of each distinct command of ours."""
    return {line: words[words.index("fedvlp") + 1 :] for line, words in lines().items() if "fedvlp" in words}


def value_of(words: list[str], *options: str) -> str | None:
    """Returns the value that a command gives to one of these options; None if to none."""
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in options:
            return value or words[index + 1]
    return None


def is_run(words: list[str]) -> bool:
    """Whether a command can be run on the desk: its images are there, and so is its CLIP."""
    if any(part in " ".join(words) for part in (*PARSED_ALONE, *NETWORK)):
        return False
    if value_of(words, "--model.clip.name") not in (None, "fedvlp-tiny", "fedvlp-small"):
        return False
    root = value_of(words, "--data.root", "--root")
    if root is not None and root.startswith("/"):  # for a reader who has moved the images
        return False
    if words[0] in (*TRAINING, "sweep", "tune") and root is None and "--file" not in words:
        chosen = [word for word in words if word.startswith(CONFIGS_WITH_IMAGES) or word.endswith((".yaml", ".yml"))]
        return bool(chosen)
    return root is None or Path(root).is_dir()


def parses(words: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the command's own parser takes the words; nothing comes after it."""

    class Parsed(BaseException):
        """The parser has come to its end."""

    def stopping(kind: type) -> None:
        parse = kind.parse_args

        def parse_and_stop(self, *given, **options):
            parse(self, *given, **options)
            raise Parsed

        monkeypatch.setattr(kind, "parse_args", parse_and_stop)

    stopping(FederationParser)
    stopping(argparse.ArgumentParser)
    monkeypatch.setattr(deploy, "find_spec", lambda name: object())
    try:
        cli.main([word for word in words if word != "..."])
    except Parsed:
        return True
    return False


def run(words: list[str], desk: Desk) -> int:
    """Runs a command in the desk's folder, briefly, and returns its exit code."""
    desk.fetch_all(words)
    given = words
    if given[0] in TRAINING:
        if made := desk.made_by(given):
            return int(not any(desk.fetch(made).rglob("summary.json")))
        given = [*given, *offline(given), *brief(given)]
    if given[0] in ("sweep", "tune"):
        end = given.index("--") if "--" in given else len(given)
        given = [*given[:end], "--dry_run", *given[end:]]
    if given[0] == "explain":
        given = [*given, "--num_images=1"]
    return cli.main(given)

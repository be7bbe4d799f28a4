"""Run the documentation's commands in tests: briefly, offline, or only through their parsers."""

import argparse
import shlex
from pathlib import Path

import pytest

from fedvlp.commands import cli
from fedvlp.commands.lightning_cli import FederationParser
from fedvlp.sites import commands as deploy
from tests.helpers.desk import Desk, offline
from tests.helpers.documents import EXAMPLE_PAGES, NO_BASELINES, PAGES, brief

TRAINING = ("fit", "validate", "test")
CONFIGS_WITH_IMAGES = ("quickstart", "configs/quickstart.yaml", "data/icon_domains")
PARSED_ONLY = {
    "BackdoorPatch": "tests/tools/attacks trains with it",
    "audit runs": "it takes minutes; tests/commands runs it on less",
    "--config centralised": "tests/methods trains with it",
    "--config methods/fine_tuning": "tests/methods trains it",
    "cells.csv": "its images come from the package index",
    "cost --config": "test_pages.py runs it",
    "deploy check": "tests/sites/flower checks a server",
    "deploy init": "test_sites.py writes the app",
    "deploy sign": "tests/sites signs an app",
    "export runs": "tests/tools/export exports, without the checks of shapes, which a graph cannot contain",
    "explain prompts.safetensors": "tests explain a run's folder",
    "predict runs": "test_pages.py runs it",
    "site approve": "tests/sites approves a run",
    "site serve": "tests/sites/flower serves a site",
    "--ckpt_path last": "test_pages.py runs it",
    "explain RUN": "it only shows options, and tests explain other runs",
    "--config loggers/wandb": "tests/commands runs it, in a process of its own",
    "--config data/icon_domains_30_clients": "test_pages.py runs it",
    "--trainer.local.schedule CosineDecay": "test_pages.py runs it",
    "--trainer.server.aggregation DPFedAvg": "tests/training accounts for it",
    "--trainer.devices": "tests/training has several processes",
    " ...": "the reader completes it",
}
"""Parts of commands that are only parsed, with the reason."""

NETWORK = ("download", "push", "hf://")
"""Parts of commands that need a hub or a service."""


def lines() -> dict[str, list[str]]:
    """Map each distinct command line of all pages, except example pages, to its words."""
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


def fedvlp_lines() -> dict[str, list[str]]:
    """Map each distinct line with a ``fedvlp`` command to the words after ``fedvlp``."""
    return {line: words[words.index("fedvlp") + 1 :] for line, words in lines().items() if "fedvlp" in words}


def find_value(words: list[str], *options: str) -> str | None:
    """Find the value of one of these options in a command, or None."""
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in options:
            return value or words[index + 1]
    return None


def is_run(words: list[str]) -> bool:
    """Check whether the desk has the images and the CLIP of a command."""
    if any(part in " ".join(words) for part in (*PARSED_ONLY, *NETWORK)):
        return False
    if find_value(words, "--model.clip.name") not in (None, "fedvlp-tiny", "fedvlp-small"):
        return False
    root = find_value(words, "--data.root", "--root")
    if root is not None and root.startswith("/"):  # the reader's own path
        return False
    if words[0] in (*TRAINING, "sweep", "tune") and root is None and "--file" not in words:
        chosen = [word for word in words if word.startswith(CONFIGS_WITH_IMAGES) or word.endswith((".yaml", ".yml"))]
        return bool(chosen)
    return root is None or Path(root).is_dir()


def parses(words: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Check whether the command's parser accepts the words, without running the command."""

    class Parsed(BaseException):
        """Raised when the parser has accepted the words."""

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
    """Run a command in the desk's folder, briefly, and return its exit code."""
    desk.fetch_all(words)
    given = words
    if given[0] in TRAINING:
        if made := desk.find_run(given):
            return int(not any(desk.fetch(made).rglob("summary.json")))
        given = [*given, *offline(given), *brief(given), NO_BASELINES]
    if given[0] in ("sweep", "tune"):
        end = given.index("--") if "--" in given else len(given)
        given = [*given[:end], "--dry_run", *given[end:]]
    if given[0] == "explain":
        given = [*given, "--num_images=1"]
    return cli.main(given)

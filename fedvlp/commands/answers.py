"""One-line versions of the parser's messages, with the nearest valid name instead of a list of types."""

import re
from collections.abc import Iterable
from pydoc import locate
from typing import Any

import torch
from lightning.pytorch import callbacks, loggers

import fedvlp
from fedvlp.training.options import REPLACEMENTS
from fedvlp.utils.digests import constructor_arguments
from fedvlp.utils.errors import did_you_mean, nearest_names
from fedvlp.utils.plugins import registered_classes

LIGHTNING_OPTIONS = {
    "lr": "use --model.optimizer.lr",
    "learning_rate": "use --model.optimizer.lr",
    "optimizer": "use --model.optimizer, e.g. --model.optimizer AdamW --model.optimizer.lr 0.001",
    "lr_scheduler": "use --trainer.local.schedule, e.g. CosineDecay, to change the learning rate over rounds",
    "seed": "use --seed_everything",
    "batch_size": "use --data.batch_size",
    "epochs": "use --trainer.local.epochs for the epochs per round; --trainer.rounds sets the number of rounds",
}
"""Option names that Lightning users may try, and the options of fedvlp to use instead."""
UNKNOWN = re.compile(
    r"(?:Group '(?P<group>[^']+)' does not accept o|O|o)ption '(?P<key>[^']+)'(?:.+class_path='(?P<kind>[^']+))?"
    r"|unrecognized arguments: --(?P<word>[^= ]+)"
)
HEADINGS = ("Parser key", "Problem with", "Does not validate", "Subtypes:", "Errors:", "Given value", "Expected a None")
"""Beginnings of message lines that give no reason."""


def shorten(message: str, options: Iterable[str]) -> str:
    """Shorten a parser's message to one line: the option, the mistake, and a replacement.

    ``options`` are all options that belong to no class, such as ``seed_everything`` and ``trainer.local.epochs``.
    """
    path = ".".join(re.findall(r'Parser key "(.+)":', message))
    kinds = re.findall(r"class_path '(.+)':", message)
    if unknown := UNKNOWN.search(message):
        name = ".".join(filter(None, [path, *unknown.group("group", "key", "word")]))
        kinds += filter(None, [unknown["kind"]])
        return f"--{name}: {_suggest_option(name, locate(kinds[-1]) if kinds else None, options)}"
    if words := re.search("unrecognized arguments: (.+)", message):
        return f"Expected options, got {words[1]!r}. Pass a config with --config, e.g. --config promptfl."
    if missing := re.search("Expected a dot import path string: (.+)", message):
        packages = (fedvlp, torch.optim, callbacks, loggers)
        names = [name for package in packages for name in dir(package) if name[0].isupper()]
        hint = did_you_mean(missing[1], [*names, *registered_classes()])
        return f"--{path}: no class {missing[1]!r} was found. {hint}".rstrip()
    lines = [re.sub("<class '(.+?)'>", r"\1", line.strip(" -")) for line in message.splitlines()]
    reasons = dict.fromkeys(line for line in lines if not line.startswith(HEADINGS))
    value = re.search("Given value: (?!Namespace|NestedArg)(.+)", message)
    option = f"--{path}: " if path else ""
    return f"{option}{'; '.join(reasons)}{f'; got {value[1]}' if value else ''}."


def _suggest_option(option: str, kind: Any, options: Iterable[str]) -> str:
    path, _, name = option.rpartition(".")
    if kind is None:
        valid = {option.rpartition(".")[2]: option for option in options}
        fallback = "`--help` lists all options"
    else:
        names = constructor_arguments(kind).keys() - {"params"}  # a method passes `params` to its optimizer
        valid = {argument: f"{path}.{argument}" for argument in sorted(names)}
        fallback = f"Choose from {', '.join(valid)}"
    hint = LIGHTNING_OPTIONS.get(name) or REPLACEMENTS.get(name)
    if hint is None and (near := nearest_names(name, valid)):
        return f"there is no such option. Did you mean --{valid[near[0]]}?"
    owner = "fedvlp" if kind is None else kind.__name__
    hint = hint or fallback
    return f"{owner} has no such option. {hint[0].upper()}{hint[1:]}."

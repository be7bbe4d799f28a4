"""The parser's messages in one line, with the nearest name in place of lists of types."""

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

OF_LIGHTNING = {
    "lr": "it is --model.optimizer.lr",
    "learning_rate": "it is --model.optimizer.lr",
    "optimizer": "it is --model.optimizer, such as --model.optimizer AdamW --model.optimizer.lr 0.001",
    "lr_scheduler": "it is --trainer.local.schedule, such as CosineDecay: the learning rate over rounds",
    "seed": "it is --seed_everything",
    "batch_size": "it is --data.batch_size",
    "epochs": "it is --trainer.local.epochs, for each round; --trainer.rounds sets the number of rounds",
}
"""What a user of Lightning may write for an option of fedvlp."""
UNKNOWN = re.compile(
    r"(?:Group '(?P<group>[^']+)' does not accept o|O|o)ption '(?P<key>[^']+)'(?:.+class_path='(?P<kind>[^']+))?"
    r"|unrecognized arguments: --(?P<word>[^= ]+)"
)
HEADINGS = ("Parser key", "Problem with", "Does not validate", "Subtypes:", "Errors:", "Given value", "Expected a None")
"""How the lines of a message begin that give no reason."""


def shorten(message: str, options: Iterable[str]) -> str:
    """Shorten a parser's message to one line: the option, what is wrong, and what to write instead.

    ``options`` are all options outside of classes, such as ``seed_everything`` and ``trainer.local.epochs``.
    """
    path = ".".join(re.findall(r'Parser key "(.+)":', message))
    kinds = re.findall(r"class_path '(.+)':", message)
    if unknown := UNKNOWN.search(message):
        name = ".".join(filter(None, [path, *unknown.group("group", "key", "word")]))
        kinds += filter(None, [unknown["kind"]])
        return f"--{name}: {_no_option(name, locate(kinds[-1]) if kinds else None, options)}"
    if words := re.search("unrecognized arguments: (.+)", message):
        return f"Expected options, got {words[1]!r}. A config follows --config, such as --config promptfl."
    if missing := re.search("Expected a dot import path string: (.+)", message):
        packages = (fedvlp, torch.optim, callbacks, loggers)
        names = [name for package in packages for name in dir(package) if name[0].isupper()]
        hint = did_you_mean(missing[1], [*names, *registered_classes()])
        return f"--{path}: there is no {missing[1]!r}. {hint}".rstrip()
    lines = [re.sub("<class '(.+?)'>", r"\1", line.strip(" -")) for line in message.splitlines()]
    reasons = dict.fromkeys(line for line in lines if not line.startswith(HEADINGS))
    given = re.search("Given value: (?!Namespace|NestedArg)(.+)", message)
    option = f"--{path}: " if path else ""
    return f"{option}{'; '.join(reasons)}{f'; got {given[1]}' if given else ''}."


def _no_option(option: str, kind: Any, options: Iterable[str]) -> str:
    path, _, name = option.rpartition(".")
    if kind is None:
        known = {known.rpartition(".")[2]: known for known in options}
        otherwise = "`--help` lists all options"
    else:
        names = constructor_arguments(kind).keys() - {"params"}  # which an optimizer gets from the method
        known = {argument: f"{path}.{argument}" for argument in sorted(names)}
        otherwise = f"Choose from {', '.join(known)}"
    hint = OF_LIGHTNING.get(name) or REPLACEMENTS.get(name)
    if hint is None and (near := nearest_names(name, known)):
        return f"there is no such option. Did you mean --{known[near[0]]}?"
    owner = "fedvlp" if kind is None else kind.__name__
    hint = hint or otherwise
    return f"{owner} has no such option. {hint[0].upper()}{hint[1:]}."

"""Search spaces and their trials: a grid, or seeded random draws."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsonargparse import Namespace

from fedvlp.utils.config_files import read_yaml
from fedvlp.utils.errors import UserError

AUTO = "auto"
SPACES_FILE = Path(__file__).with_name("spaces.yaml")
LEARNING_RATE = "model.optimizer.lr"
_AUTO_FACTOR = 10.0  # maximum change of a learning rate
_DISTRIBUTION = re.compile(r"(loguniform|uniform|integer)\(([^,()]+),([^,()]+)\)")

Trial = Sequence[str]
"""Arguments of ``fedvlp fit`` for a trial of a method; empty for the unchanged config."""


@dataclass(frozen=True)
class Space:
    """Possible values of an option.

    Attributes:
        option: Name without dashes, such as ``model.optimizer.lr``.
        distribution: ``loguniform``, ``uniform`` or ``integer`` (uniform, limits included); empty for ``values``.
        low, high: Limits of the distribution.
        values: Equally likely values; a grid tries each.
    """

    option: str
    distribution: str = ""
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Space:
        """Parse a space such as ``model.prompt_length=4,16``; raise UserError if it is invalid."""
        option, _, content = text.partition("=")
        expected = "OPTION=loguniform(LOW,HIGH), uniform(LOW,HIGH), integer(LOW,HIGH) or values A,B,C"
        error = UserError(f"Expected --search auto or {expected}, with LOW below HIGH; got {text!r}.")
        if "." not in option or option.startswith("-") or not content:
            raise error
        match = _DISTRIBUTION.fullmatch(content.replace(" ", ""))
        if match is None:
            if "(" in content:
                raise error
            return cls(option, values=tuple(content.split(",")))
        try:
            low, high = float(match[2]), float(match[3])
        except ValueError:
            raise error from None
        is_wrong = match[1] == "integer" and not (low.is_integer() and high.is_integer())
        if is_wrong or not low < high or (match[1] == "loguniform" and low <= 0):
            raise error
        return cls(option, match[1], low, high)

    def __str__(self) -> str:
        """Format the space as ``parse`` reads it."""
        content = f"{self.distribution}({self.low:g},{self.high:g})" if self.distribution else ",".join(self.values)
        return f"{self.option}={content}"

    def draw(self, generator: random.Random) -> str:
        """Draw a value; values from intervals have four digits."""
        if self.distribution == "loguniform":
            return f"{math.exp(generator.uniform(math.log(self.low), math.log(self.high))):.4g}"
        if self.distribution == "uniform":
            return f"{generator.uniform(self.low, self.high):.4g}"
        if self.distribution == "integer":
            return str(generator.randint(int(self.low), int(self.high)))
        return generator.choice(self.values)


def select_spaces(config: Namespace, search: Sequence[str]) -> list[Space]:
    """Parse spaces, and select the spaces of a method's options; the last space of an option counts.

    ``auto`` is the learning rate from a tenth to ten times the config's value, and the method's entry in
    ``spaces.yaml``.
    """
    spaces: list[Space] = []
    for text in search:
        parsed = _automatic(config) if text == AUTO else [Space.parse(text)]
        spaces += [space for space in parsed if _has(config, space.option)]
    return list({space.option: space for space in spaces}.values())


def _has(config: Namespace, option: str) -> bool:
    part, name = option.split(".")[:2]
    return part != "model" or name in config.model.get("init_args", {})


def _automatic(config: Namespace) -> list[Space]:
    spaces = []
    rate = config.get("model.init_args.optimizer.init_args.lr")
    if rate is not None:
        spaces.append(Space(LEARNING_RATE, "loguniform", rate / _AUTO_FACTOR, rate * _AUTO_FACTOR))
    options = config.model.get("init_args", {})
    for space in automatic_spaces().get(config.model.class_path.removeprefix("fedvlp."), []):
        # In a config, null or 0 disables an option.
        if options[space.option.removeprefix("model.")]:
            spaces.append(space)
    return spaces


def automatic_spaces() -> dict[str, list[Space]]:
    """Read the spaces that ``auto`` adds to the learning rate, by class of the method."""
    return {name: list(map(Space.parse, texts)) for name, texts in read_yaml(SPACES_FILE).items()}


def make_trials(spaces: Sequence[Space], number: int | None, seed: int) -> list[Trial]:
    """Make the trials of a method: the grid of all values, or the unchanged config and ``number`` - 1 draws.

    A smaller ``number`` yields the first trials of a larger one.

    Raises:
        UserError: If a grid is requested for a distribution.
    """
    if not spaces:
        return [()]
    if number is None:
        if drawn := [space.option for space in spaces if space.distribution]:
            raise UserError(f"Pass --trials, the number of draws for {drawn[0]}. Only values A,B,C make a grid.")
        values = itertools.product(*(space.values for space in spaces))
        return [_arguments(spaces, each) for each in values]
    trials: list[Trial] = [()]
    for trial in range(1, number):
        # Each option has its own generator, so that adding an option does not change the draws of others.
        drawn_values = [space.draw(random.Random(f"{seed} {trial} {space.option}")) for space in spaces]
        trials.append(_arguments(spaces, drawn_values))
    return list(dict.fromkeys(trials))


def _arguments(spaces: Sequence[Space], values: Sequence[str]) -> Trial:
    return tuple(f"--{space.option}={value}" for space, value in zip(spaces, values, strict=True))

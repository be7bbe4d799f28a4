"""The values of options that are tried: a grid, or draws from a seed."""

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
_AUTO_FACTOR = 10.0  # by which a rate is at most changed
_DISTRIBUTION = re.compile(r"(loguniform|uniform|integer)\(([^,()]+),([^,()]+)\)")

Trial = Sequence[str]
"""Arguments of ``fedvlp fit`` that make a trial of a method; none for the method's config as it is."""


@dataclass(frozen=True)
class Space:
    """Possible values of an option.

    Attributes:
        option: Name without dashes, such as ``model.optimizer.lr``.
        distribution: ``loguniform``, ``uniform`` or ``integer`` (uniform, with both ends); empty for ``values``.
        low, high: Ends of the distribution.
        values: Equally likely values, which a grid tries in turn.
    """

    option: str
    distribution: str = ""
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Space:
        """Read a space such as ``model.prompt_length=4,16``, or raise UserError."""
        option, _, given = text.partition("=")
        expected = "OPTION=loguniform(LOW,HIGH), uniform(LOW,HIGH), integer(LOW,HIGH) or values A,B,C"
        error = UserError(f"Expected --search auto or {expected}, with LOW below HIGH; found {text!r}.")
        if "." not in option or option.startswith("-") or not given:
            raise error
        found = _DISTRIBUTION.fullmatch(given.replace(" ", ""))
        if found is None:
            if "(" in given:
                raise error
            return cls(option, values=tuple(given.split(",")))
        try:
            low, high = float(found[2]), float(found[3])
        except ValueError:
            raise error from None
        is_wrong = found[1] == "integer" and not (low.is_integer() and high.is_integer())
        if is_wrong or not low < high or (found[1] == "loguniform" and low <= 0):
            raise error
        return cls(option, found[1], low, high)

    def __str__(self) -> str:
        """The text that ``parse`` reads."""
        given = f"{self.distribution}({self.low:g},{self.high:g})" if self.distribution else ",".join(self.values)
        return f"{self.option}={given}"

    def draw(self, generator: random.Random) -> str:
        """Draw a value, with four digits if it is from an interval."""
        if self.distribution == "loguniform":
            return f"{math.exp(generator.uniform(math.log(self.low), math.log(self.high))):.4g}"
        if self.distribution == "uniform":
            return f"{generator.uniform(self.low, self.high):.4g}"
        if self.distribution == "integer":
            return str(generator.randint(int(self.low), int(self.high)))
        return generator.choice(self.values)


def spaces_of(config: Namespace, search: Sequence[str]) -> list[Space]:
    """Select the spaces of a method's own options from texts of spaces; the last one of an option counts.

    ``auto`` is the learning rate, from a tenth to ten times the config's, and the method's entry in ``spaces.yaml``.
    """
    spaces: list[Space] = []
    for text in search:
        given = _automatic(config) if text == AUTO else [Space.parse(text)]
        spaces += [space for space in given if _has(config, space.option)]
    return list({space.option: space for space in spaces}.values())


def _has(config: Namespace, option: str) -> bool:
    """Whether a method has an option; all have the options of data and trainer."""
    part, name = option.split(".")[:2]
    return part != "model" or name in config.model.get("init_args", {})


def _automatic(config: Namespace) -> list[Space]:
    spaces = []
    rate = config.get("model.init_args.optimizer.init_args.lr")
    if rate is not None:
        spaces.append(Space(LEARNING_RATE, "loguniform", rate / _AUTO_FACTOR, rate * _AUTO_FACTOR))
    options = config.model.get("init_args", {})
    for space in automatic_spaces().get(config.model.class_path.removeprefix("fedvlp."), []):
        # A config switches an option off by null or 0.
        if options[space.option.removeprefix("model.")]:
            spaces.append(space)
    return spaces


def automatic_spaces() -> dict[str, list[Space]]:
    """Read the spaces of ``auto`` besides the learning rate, by the methods' classes."""
    return {name: list(map(Space.parse, texts)) for name, texts in read_yaml(SPACES_FILE).items()}


def trials_of(spaces: Sequence[Space], number: int | None, seed: int) -> list[Trial]:
    """List the trials of a method: the grid of all values, or the unchanged config and draws, ``number`` in all.

    A smaller number makes the first trials of a larger one.

    Raises:
        UserError: If a grid is requested of a distribution.
    """
    if not spaces:
        return [()]
    if number is None:
        if drawn := [space.option for space in spaces if space.distribution]:
            raise UserError(f"Say by --trials how many values of {drawn[0]} are drawn; a grid needs values A,B,C.")
        values = itertools.product(*(space.values for space in spaces))
        return [_arguments(spaces, each) for each in values]
    drawn_trials: list[Trial] = [()]
    for trial in range(1, number):
        # A generator for each option, so that another option changes no draw.
        values_of_trial = [space.draw(random.Random(f"{seed} {trial} {space.option}")) for space in spaces]
        drawn_trials.append(_arguments(spaces, values_of_trial))
    return list(dict.fromkeys(drawn_trials))


def _arguments(spaces: Sequence[Space], values: Sequence[str]) -> Trial:
    return tuple(f"--{space.option}={value}" for space, value in zip(spaces, values, strict=True))

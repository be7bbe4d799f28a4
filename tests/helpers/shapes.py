"""Checks every annotated type and tensor shape of the package while tests run; off in production, at no cost.

Axis names are those of `fedvlp`'s docstring. An axis has one size within a call: `Float[Tensor, "B d"]` beside
`Float[Tensor, "B C"]` fails if the two batches differ.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning

# A check of a list looks at one item, drawn at random: from a generator of its own, or code that draws from Python's
# global generator would see other numbers in tests than in production.
for name, module in list(sys.modules.items()):
    if name.startswith("beartype.") and hasattr(module, "getrandbits"):
        module.getrandbits = random.Random(0).getrandbits

# Lightning writes some of its types, such as `OptimizerCallable`, in the older spelling.
warnings.filterwarnings("ignore", category=BeartypeDecorHintPep585DeprecationWarning)

check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int may stand for a float, as PEP 484 has it


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns one of the two functions that jaxtyping makes of each, with its checks.

    The first looks at the arguments and has Any as its result; the second is called after it, and would look at the
    arguments again to know their axes, which are still known. Without that, checks take a quarter less time.
    """
    result = function.__annotations__.get("return", Any)
    if result is not Any:
        function.__annotations__ = {"return": result}
    return check(function)


jaxtyping.install_import_hook("fedvlp", "tests.helpers.shapes.checked")


@contextmanager
def unchecked() -> Iterator[None]:
    """Lets a block pass what annotations forbid, to see how the package itself refuses it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

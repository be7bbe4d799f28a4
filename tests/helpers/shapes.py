"""Checks every annotated type and tensor shape of the package while tests run; off in production, at no cost.

Axis names are those of `fedvlp`'s docstring. An axis has one size within a call: `Float[Tensor, "B d"]` beside
`Float[Tensor, "B C"]` fails if the two batches differ.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int may stand for a float, as PEP 484 has it

jaxtyping.install_import_hook("fedvlp", "tests.helpers.shapes.checked")


@contextmanager
def unchecked() -> Iterator[None]:
    """Lets a block pass what annotations forbid, to see how the package itself refuses it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

"""Checks every annotated type and tensor shape of the package while tests run; off in production, at no cost.

Axis names are those of `fedvlp`'s docstring. An axis has one size within a call: `Float[Tensor, "B d"]` beside
`Float[Tensor, "B C"]` fails if the two batches differ.

Within a test the first calls of a function are checked, up to `CHECKED_CALLS`: more of the same cost a tenth of the
time.
"""

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from types import FunctionType, SimpleNamespace
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import jaxtyping
from beartype import BeartypeConf, FrozenDict, beartype
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning
from jaxtyping import _import_hook

from fedvlp.utils import ranges  # the only module that is not checked, since its types are needed for the checks

# A check of a list looks at one item, drawn at random: from a generator of its own, or code that draws from Python's
# global generator would see other numbers in tests than in production.
for name, module in list(sys.modules.items()):
    if name.startswith("beartype.") and hasattr(module, "getrandbits"):
        module.getrandbits = random.Random(0).getrandbits

# Lightning writes some of its types, such as `OptimizerCallable`, in the older spelling.
warnings.filterwarnings("ignore", category=BeartypeDecorHintPep585DeprecationWarning)

CHECKED_CALLS = 10
"""How many calls of a function are checked in a test, and how many before the first test."""

_current = 0  # the test whose calls are counted

PLAIN_NUMBERS = {
    kind: int if issubclass(kind, int) else float | int
    for kind in vars(ranges).values()
    if isinstance(kind, type) and issubclass(kind, (int, float))
}
"""What Python callers pass where an annotation is one of the parser's number types."""

CONSTRUCTORS_AS_THEY_ARE = ("fedvlp.methods.", "fedvlp.core.module")
"""Where Lightning collects hyperparameters from the frames of constructors, among which there may be no other."""

check = beartype(
    conf=BeartypeConf(
        hint_overrides=FrozenDict(PLAIN_NUMBERS),
        is_pep484_tower=True,
        violation_type=jaxtyping.TypeCheckError,
    )
)
"""Checks a function's arguments and result; an int may stand for a float, as PEP 484 has it."""

same_axes = partial(jaxtyping.jaxtyped, "context")
"""Opens a block in which an axis has one size."""


def checked(function: Any) -> Any:
    """Returns a function with its checks, which are made at its first call: a process calls a few of thousands.

    By then all names in annotations are defined. Of a class, the constructor that a dataclass was given is checked;
    its other functions are handed over one by one.
    """
    if isinstance(function, type):
        if is_dataclass(function) and "__init__" in vars(function) and not hasattr(function.__init__, "__wrapped__"):
            function.__init__ = checked(function.__init__)
        return function
    if function.__name__ == "__init__" and function.__module__.startswith(CONSTRUCTORS_AS_THEY_ARE):
        return function
    checks = None
    test = None
    left = 0

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal checks, test, left
        if test != _current:
            test = _current
            left = CHECKED_CALLS
        if left == 0 or jaxtyping.config.jaxtyping_disable:
            return function(*arguments, **options)
        left -= 1
        if checks is None:
            checks = _with_checks(function)
        return checks(*arguments, **options)

    return call


def _with_checks(function: FunctionType) -> Callable[..., Any]:
    """Returns a copy of a function that checks its arguments and its result."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    copy.__annotations__ = {name: _resolved(hint, function) for name, hint in function.__annotations__.items()}
    checks = check(copy)
    if not any(map(_has_axes, copy.__annotations__.values())):
        return checks

    def call(*arguments: Any, **options: Any) -> Any:
        with same_axes():
            return checks(*arguments, **options)

    return call


def _resolved(hint: Any, function: FunctionType) -> Any:
    """Returns the type that is meant by an annotation; Any where it names what exists for type checkers alone."""
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"hint": hint}), function.__globals__, None, True)["hint"]
    except Exception:
        return Any


def _has_axes(hint: Any) -> bool:
    """Whether a shape stands anywhere in a type."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_axes, hint if isinstance(hint, list) else get_args(hint)))


def _jaxtyped(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Stands in for the decorator that jaxtyping's import hook puts on everything.

    Its own makes two functions of source text for each function when a module is imported, leaves out annotations that
    name what is defined below, and takes 15 microseconds a call where nothing has a shape.
    """
    return typechecker


def _get_code(loader: SourceFileLoader, name: str) -> Any:
    """Returns a module's code with decorators, whose bytecode has a name of its own.

    jaxtyping gives that name to all bytecode while the module runs, that of PyTorch and others which it imports, too:
    they would be compiled for tests once more.
    """
    name_of_bytecode = partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with patch("importlib._bootstrap_external.cache_from_source", name_of_bytecode):
        return SourceFileLoader.get_code(loader, name)


_import_hook._JaxtypingLoader.get_code = _get_code
_import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module
jaxtyping.jaxtyped = _jaxtyped
jaxtyping.install_import_hook("fedvlp", "tests.helpers.shapes.checked")


def begin_test() -> None:
    """Lets the first calls of every function be checked again."""
    global _current
    _current += 1


@contextmanager
def unchecked() -> Iterator[None]:
    """Lets a block pass what annotations forbid, to see how the package itself refuses it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

"""Check every annotated type and tensor shape of the package during tests, at no cost in production.

`fedvlp`'s docstring explains the axis names. An axis has one size within a call: `Float[Tensor, "B d"]` together with
`Float[Tensor, "B C"]` fails if the two batches differ.

Each test checks only the first `CHECKED_CALLS` calls of a function. Checking all calls would cost a tenth of the time.
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

# beartype checks one random item of a list. A separate generator keeps Python's global random numbers the same in tests
# and in production.
for name, module in list(sys.modules.items()):
    if name.startswith("beartype.") and hasattr(module, "getrandbits"):
        module.getrandbits = random.Random(0).getrandbits

# Lightning writes some types, such as `OptimizerCallable`, in the older spelling.
warnings.filterwarnings("ignore", category=BeartypeDecorHintPep585DeprecationWarning)

CHECKED_CALLS = 10
"""Number of checked calls per function in each test, and before the first test."""

_current = 0  # number of the running test

PLAIN_NUMBERS = {
    kind: int if issubclass(kind, int) else float | int
    for kind in vars(ranges).values()
    if isinstance(kind, type) and issubclass(kind, (int, float))
}
"""Types that Python callers pass for the parser's number types."""

UNCHECKED_CONSTRUCTORS = ("fedvlp.methods.", "fedvlp.core.module")
"""Modules whose constructors Lightning reads hyperparameters from. A wrapper's frame would break that."""

check = beartype(
    conf=BeartypeConf(
        hint_overrides=FrozenDict(PLAIN_NUMBERS),
        is_pep484_tower=True,
        violation_type=jaxtyping.TypeCheckError,
    )
)
"""Checks a function's arguments and result. As in PEP 484, an int is accepted as a float."""

same_axes = partial(jaxtyping.jaxtyped, "context")
"""Opens a block in which an axis has one size."""


def checked(function: Any) -> Any:
    """Wrap a function in checks, which are built at its first call, because a process calls few of its functions.

    At that time, all names in annotations are defined. For a class, only a dataclass's generated constructor is
    wrapped; the import hook passes all other functions one by one.
    """
    if isinstance(function, type):
        if is_dataclass(function) and "__init__" in vars(function) and not hasattr(function.__init__, "__wrapped__"):
            function.__init__ = checked(function.__init__)
        return function
    if function.__name__ == "__init__" and function.__module__.startswith(UNCHECKED_CONSTRUCTORS):
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
    """Copy a function and add checks of its arguments and its result."""
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
    """Resolve an annotation to a type, or to Any if its names exist only for type checkers."""
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"hint": hint}), function.__globals__, None, True)["hint"]
    except Exception:
        return Any


def _has_axes(hint: Any) -> bool:
    """Check whether a type contains a tensor shape."""
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_axes, hint if isinstance(hint, list) else get_args(hint)))


def _jaxtyped(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Replace the decorator that jaxtyping's import hook applies.

    The original compiles two functions from source text per function at import, skips annotations with names that are
    defined later, and takes 15 microseconds per call even without shapes.
    """
    return typechecker


def _get_code(loader: SourceFileLoader, name: str) -> Any:
    """Compile a module with decorators, and cache its bytecode under a separate name.

    jaxtyping also uses that name for all modules imported meanwhile, such as PyTorch, so tests would recompile them.
    """
    name_of_bytecode = partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with patch("importlib._bootstrap_external.cache_from_source", name_of_bytecode):
        return SourceFileLoader.get_code(loader, name)


_import_hook._JaxtypingLoader.get_code = _get_code
_import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module
jaxtyping.jaxtyped = _jaxtyped
jaxtyping.install_import_hook("fedvlp", "tests.helpers.shapes.checked")


def begin_test() -> None:
    """Check the first calls of every function again."""
    global _current
    _current += 1


@contextmanager
def unchecked() -> Iterator[None]:
    """Disable the checks within a block, to test how the package itself rejects wrong types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)

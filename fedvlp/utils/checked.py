"""Holds arguments to their annotations, before a constructor does anything with them."""

from __future__ import annotations

import inspect
import math
import sys
from abc import ABCMeta
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import Constraint

Made = TypeVar("Made")


class Checked(ABCMeta):
    """Metaclass of classes whose arguments are checked: numbers, words of a ``Literal``, and what ranges say.

    A metaclass sees the arguments of the outermost constructor, before any constructor runs, and adds no frame between
    constructors, in which Lightning looks for hyperparameters.
    """

    def __call__(cls: type[Made], *arguments: Any, **options: Any) -> Made:
        """Makes an instance.

        Raises:
            UserError: for the first argument that the class says it does not take, or its annotation does not allow.
        """
        check_known(cls, options)
        check_arguments(cls, _by_name(cls, arguments, options))
        made: Made = ABCMeta.__call__(cls, *arguments, **options)
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's, which Python would not look for behind ``__call__``."""
        parameters = list(inspect.signature(cls.__init__).parameters.values())  # type: ignore[misc]
        return inspect.Signature(parameters[1:])  # without self


def check_known(kind: type, options: Mapping[str, Any]) -> None:
    """Checks that a class is given no option of which ``instead_of_options`` says what to use in place.

    Raises:
        UserError: if it is.
    """
    for name, text in getattr(kind, "instead_of_options", {}).items():
        if name in options:
            raise UserError(f"{kind.__name__} has no {name}: {text}.")


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass, in its ``__post_init__``.

    Raises:
        UserError: for the first that its annotation does not allow.
    """
    check_arguments(type(instance), {field.name: getattr(instance, field.name) for field in fields(instance)})


def check_arguments(kind: type, arguments: Mapping[str, Any]) -> None:
    """Checks arguments of a class by name; those that it does not annotate are left alone.

    Raises:
        UserError: for the first that its annotation does not allow.
    """
    hints = annotations_of(kind)
    for name, value in arguments.items():
        if name in hints:
            check_value(name, hints[name], value)


def check_value(name: str, hint: Any, value: Any) -> None:
    """Checks one value.

    Raises:
        UserError: if the annotation does not allow it.
    """
    problem = refusal(hint, value)
    if problem:
        raise UserError(f"Expected {name} {problem}, got {shown(value)}.")


def shown(value: Any, longest: int = 80) -> str:
    """Returns a value as a message shows it: its beginning, where it is long.

    >>> shown(0), shown("x" * 99, 5)
    ('0', "'xxxx...")
    """
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


@cache
def annotations_of(kind: type) -> dict[str, Any]:
    """Returns the annotations of a class's arguments by name, those of its bases included."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base is object or "__init__" not in vars(base):
            continue
        try:
            hints |= get_type_hints(vars(base)["__init__"], include_extras=True)
        except (NameError, TypeError):  # names that exist for type checkers alone
            continue
    hints.pop("return", None)
    hints.pop("self", None)  # torch.compile puts a constructor in place of nn.Module's in which it has a type
    return hints


def constraints_of(hint: Any) -> list[Constraint]:
    """Returns the constraints anywhere in an annotation.

    >>> from fedvlp.utils.ranges import PositiveInt
    >>> [constraint.text for constraint in constraints_of(PositiveInt | None)]
    ['at least 1']
    """
    return list(_constraints(hint))


def refusal(hint: Any, value: Any) -> str:
    """Returns what was expected of a value that an annotation does not allow; empty if it does.

    Of types that are no numbers, words, or lists, mappings and unions of these nothing is known, so they are allowed.
    """
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return refusal(inner[0], value) or _refusal_of_constraints(inner[1:], value)
    if origin in (Union, UnionType):
        return _refusal_of_union(inner, value)
    if origin is Literal:
        known = any(value is choice or (type(value) is type(choice) and value == choice) for choice in inner)
        return "" if known else f"to be one of {', '.join(map(str, inner))}"
    if origin in (list, tuple, Sequence):
        return _refusal_of_items(inner, value)
    if origin in (dict, Mapping):
        return _refusal_of_mapping(inner, value)
    return _refusal_of_type(hint, value)


def _by_name(kind: type, arguments: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name; those of a wrong call by keyword alone, as Python will refuse it."""
    try:
        bound = inspect.signature(kind).bind_partial(*arguments, **options)
    except TypeError:
        return dict(options)
    return {**bound.arguments, **options}


def _constraints(hint: Any) -> Iterator[Constraint]:
    if get_origin(hint) is Literal:
        return
    for part in get_args(hint):
        if isinstance(part, Constraint) and not isinstance(part, type):
            yield part
        else:
            yield from _constraints(part)


def _refusal_of_constraints(constraints: Sequence[Any], value: Any) -> str:
    return next((text for each in constraints if isinstance(each, Constraint) and (text := each.refusal(value))), "")


def _refusal_of_union(members: Sequence[Any], value: Any) -> str:
    """Returns nothing if a member allows the value, else what the member says that knows most of it."""
    problems = [refusal(member, value) for member in members]
    if "" in problems:
        return ""
    # Of 0 for `PositiveInt | None` the first says more than that it is not null.
    by_member = [text for member, text in zip(members, problems, strict=True) if member is not NoneType]
    most = next((text for text in by_member if not text.startswith("to be ")), "")
    text = most or " or ".join(dict.fromkeys(by_member))
    return f"{text}, or null" if NoneType in members else text


def _refusal_of_items(inner: Sequence[Any], value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return "to be a list"
    of_items = inner[0] if inner else Any
    return next((f"to have items {text}" for item in value if (text := refusal(of_items, item))), "")


def _refusal_of_mapping(inner: Sequence[Any], value: Any) -> str:
    """Returns what is wrong with a mapping or one of its values; its keys are not looked at."""
    if not isinstance(value, Mapping):
        return "to be a mapping"
    return next((f"to have values {text}" for each in value.values() if (text := refusal(inner[1], each))), "")


def _refusal_of_type(hint: Any, value: Any) -> str:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if hint is int:
        return "" if is_number and isinstance(value, Integral) else "to be a whole number"
    if hint is float:
        return "" if is_number and _is_finite(value) else "to be a finite number"
    if hint is bool:
        return "" if isinstance(value, bool) else "to be true or false"
    if hint is str:
        return "" if isinstance(value, (str, PathLike)) else "to be text"
    if hint is NoneType:
        return "" if value is None else "to be null"
    return ""


def _is_finite(value: Any) -> bool:
    """Whether a number is one that floats can hold."""
    return abs(int(value)) <= sys.float_info.max if isinstance(value, Integral) else math.isfinite(value)

"""Which arguments a class refuses before its constructor runs."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from fedvlp.utils.checked import Checked, annotations_of, check_fields, shown
from fedvlp.utils.errors import UserError
from fedvlp.utils.ranges import NonNegativeFloat, PositiveInt, Range


class Base(metaclass=Checked):
    """Takes numbers and words."""

    def __init__(self, count: PositiveInt = 3, weight: NonNegativeFloat | None = 0.5, name: str | int = "x") -> None:
        self.seen = (count, weight, name)


class Derived(Base):
    """Takes more, and hands the rest on."""

    def __init__(
        self,
        rows: list[PositiveInt],
        kind: Literal["a", "b"] = "b",
        flag: bool = False,
        other: Any = None,
        share: Annotated[float, Range(above=0, most=1)] = 1,
        **options: Any,
    ) -> None:
        assert inspect.currentframe().f_back.f_code.co_name == "__call__"
        super().__init__(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": [1], "count": 0}, "Expected count of at least 1, got 0."),
        ({"rows": [1], "count": True}, "Expected count to be a whole number, got True."),
        ({"rows": [1], "count": 2.0}, "Expected count to be a whole number, got 2.0."),
        ({"rows": [1], "count": 10**12}, "Expected count of at most 1e+06, got 1000000000000."),
        ({"rows": [1], "weight": -1}, "Expected weight of at least 0, or null, got -1."),
        ({"rows": [1], "weight": math.nan}, "Expected weight to be a finite number, or null, got nan."),
        ({"rows": [1], "weight": -math.inf}, "Expected weight to be a finite number, or null, got -inf."),
        ({"rows": [1], "weight": "x"}, "Expected weight to be a finite number, or null, got 'x'."),
        ({"rows": [1], "name": None}, "Expected name to be text or to be a whole number, got None."),
        ({"rows": [5, 0]}, "Expected rows to have items of at least 1, got [5, 0]."),
        ({"rows": 5}, "Expected rows to be a list, got 5."),
        ({"rows": "12"}, "Expected rows to be a list, got '12'."),
        ({"rows": [1], "kind": "c"}, "Expected kind to be one of a, b, got 'c'."),
        ({"rows": [1], "flag": 1}, "Expected flag to be true or false, got 1."),
        ({"rows": [1], "share": 2}, "Expected share in (0, 1], got 2."),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        Derived(**options)


def test_positional_arguments_are_known_by_name():
    with pytest.raises(UserError, match="kind"):
        Derived([1], "c")


def test_right_arguments():
    made = Derived((2, 1), "a", True, object(), np.float32(0.5), count=np.int64(7), weight=None, name="y")
    assert made.seen == (7, None, "y")


def test_a_wrong_call_is_refused_by_python():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'rows'"):
        Derived(flag=True)


def test_the_signature_is_the_constructors():
    assert list(inspect.signature(Derived).parameters) == ["rows", "kind", "flag", "other", "share", "options"]
    assert "count" in annotations_of(Derived)


def test_fields_of_a_dataclass():
    @dataclass(frozen=True)
    class Pair:
        first: PositiveInt
        second: PositiveInt = 1

        def __post_init__(self) -> None:
            check_fields(self)

    assert Pair(2).second == 1
    with pytest.raises(UserError, match="second of at least 1, got -4"):
        Pair(2, -4)


def test_long_values_are_cut():
    assert len(shown("x" * 10_000)) < 100


def test_an_instance_is_no_argument():
    class Module:
        def __init__(self: object, depth: int) -> None: ...

    assert annotations_of(Module) == {"depth": int}

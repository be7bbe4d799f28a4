"""The measures of small made-up packages, worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from docs.counts import Counts
from docs.graphs import circles, components, floors, without_shortcuts
from docs.source_tree import read_package
from docs.structure import ROOT, main, measures, table

# `low` is imported by all; `a` and `b` import each other, once lazily; `high/deep` stands on both.
HOUSE = {
    "__init__.py": "",
    "version.py": '__version__ = "1"\n',
    "loose.py": "from house import version\n",
    "low/__init__.py": "",
    "low/tools.py": "import math\nfrom numpy import low\n",
    "a/__init__.py": "from house.a.part import thing\n",
    "a/part.py": "from house.low.tools import hammer\nfrom house.b import other\nthing = 1\n",
    "b/__init__.py": "import house.low.tools as tools\n\n\ndef other():\n    from house.a import part\n",
    "high/__init__.py": "",
    "high/deep/__init__.py": "",
    "high/deep/top.py": (
        "from typing import TYPE_CHECKING\n\nfrom ...a.part import thing\nfrom . import side\n"
        "if TYPE_CHECKING:\n    from house.loose import version\n"
    ),
    "high/deep/side.py": "from house.high.deep import top\n",
}

SOURCE = '''\
"""Says what it is.

In three lines."""

# A comment.
import math

SIZE = 3  # not on a line of its own
"""What the size is of."""
TEXT = """
# no comment
"""


class Room:
    # Another comment.
    def first(self, a: int, *rest: int, key: str = "") -> int:
        """Adds."""

        x, y = a, len(rest)
        one, two, three = rest
        left, right = divmod(a, 2)
        p = q = (1, 2)

        def inner(b):
            # A third one.
            return b

        return x + y

    @property
    def second(self) -> list[int]:
        pairs = [i * j for i in range(2) for j in range(2)]
        rows = [[i for i in range(j)] for j in range(2)]
        return [1 if x else 2 if x > 3 else 4 for x in pairs + rows] if rows else []
'''


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """The made-up package."""
    for name, text in HOUSE.items():
        file = tmp_path / "house" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path / "house"


def test_imports_of_every_kind_are_found(house):
    imports = read_package(house).imports
    assert imports["house.loose"] == {"house.version"}
    assert imports["house.low.tools"] == set()
    assert imports["house.a"] == {"house.a.part"}
    assert imports["house.a.part"] == {"house.low.tools", "house.b"}
    assert imports["house.b"] == {"house.low.tools", "house.a.part"}
    assert imports["house.high.deep.top"] == {"house.a.part", "house.high.deep.side", "house.loose"}


def test_rooms_arrows_floors_and_circles(house):
    package = read_package(house)
    rooms = package.room_imports
    assert rooms == {
        "__init__": set(),
        "version": set(),
        "loose": {"version"},
        "low": set(),
        "a": {"low", "b"},
        "b": {"low", "a"},
        "high": set(),
        "high/deep": {"a", "loose"},
    }
    assert floors(rooms) == 3  # high/deep, then a with b, then low
    assert circles(package.imports) == [
        frozenset({"house.a.part", "house.b"}),
        frozenset({"house.high.deep.side", "house.high.deep.top"}),
    ]
    printed = measures(package)
    assert printed["files"] == "12"
    assert printed["loose modules"] == "1"
    assert printed["rooms (folders with code, and files directly in the package)"] == "8"
    assert printed["arrows (imports between rooms)"] == "7"
    assert printed["floors (rooms on the longest path of imports)"] == "3"
    assert printed["circles of modules"] == "2"


def test_lines_are_told_apart():
    counts = Counts(SOURCE)
    assert counts.lines == 35
    assert counts.comments == {5, 16, 26}
    assert counts.docstrings == {1, 2, 3, 9, 18}
    assert len(counts.code) == 19  # 35 less 3 comments, 5 lines of docstrings and 8 that are blank


def test_functions_are_measured_by_their_code():
    counts = Counts(SOURCE)
    assert [function.name for function in counts.functions] == ["first", "second", "inner"]
    assert counts.function_lines == [8, 4, 2]
    assert counts.typed_functions == 2


def test_what_is_dense_is_counted():
    counts = Counts(SOURCE)
    assert counts.tuple_assignments == 2  # neither a call's pair nor a tuple under one name
    assert counts.nested_comprehensions == 2
    assert counts.nested_conditionals == 2  # the inner one is in the other, and both are in the last


def test_shares_are_of_lines_of_code(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "__init__.py").write_text(SOURCE, encoding="utf-8")
    printed = measures(read_package(tmp_path / "one"))
    assert printed["lines of a file: median / 90th percentile / largest"] == "35 / 35 / 35"
    assert printed["lines of code of a function: median / 90th percentile / largest"] == "4 / 8 / 8"
    assert printed["lines of code"] == "19"
    assert printed["tuple assignments per 100 lines of code"] == "10.53"
    assert printed["whole-line comments"] == "3"
    assert printed["whole-line comments per line of code"] == "0.1579"
    assert printed["docstring lines per line of code"] == "0.26"
    assert printed["typed functions in %"] == "66.7"


def test_graphs():
    graph = {"top": {"left", "right", "low"}, "left": {"low"}, "right": {"left"}, "low": set()}
    assert components(graph) == [frozenset({name}) for name in ("left", "low", "right", "top")]
    assert circles(graph) == []
    assert floors(graph) == 4
    assert without_shortcuts(graph) == {"top": {"right"}, "left": {"low"}, "right": {"left"}, "low": set()}
    assert floors({}) == 0


def test_trees_stand_beside_each_other(house, capsys):
    text = table({"before": {"files": "12"}, "now": {"files": "7"}})
    assert text == "|       | before | now |\n| ----- | -----: | --: |\n| files |     12 |   7 |\n"
    main([str(house), f"{house}/"])
    printed = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in printed[0].strip("|").split("|")][1:] == [str(house), f"{house}/"]
    assert all(line.count("|") == 4 for line in printed)


def test_this_package_is_measured_without_an_argument(capsys):
    main([])
    printed = capsys.readouterr().out
    assert printed.startswith("| ")
    assert "| fedvlp |" in printed.splitlines()[0].replace("  ", "")
    assert read_package(ROOT).modules.keys() == read_package(ROOT / "fedvlp").modules.keys()


def test_what_is_no_package_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a package nor a checkout"):
        read_package(tmp_path)


def test_nothing_is_imported(house):
    (house / "broken.py").write_text("raise RuntimeError\n", encoding="utf-8")
    read_package(house).imports  # noqa: B018
    assert "house" not in sys.modules

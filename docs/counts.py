"""What one module is made of, counted in its source.

A line of code is neither blank nor a whole-line comment nor part of a docstring; every statement that is nothing but a
string counts as a docstring.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Counts:
    """The counts of one module.

    Attributes:
        text: its source.
    """

    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the parsed source."""
        return list(ast.walk(ast.parse(self.text)))

    @property
    def lines(self) -> int:
        """All lines."""
        return len(self.text.splitlines())

    @cached_property
    def comments(self) -> set[int]:
        """The lines that hold nothing but a comment."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        found = [token for token in tokens if token.type == tokenize.COMMENT]
        return {token.start[0] for token in found if token.line.lstrip().startswith("#")}

    @cached_property
    def docstrings(self) -> set[int]:
        """The lines of docstrings."""
        found: set[int] = set()
        for node in self.nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                found.update(_lines_of(node) if isinstance(node.value.value, str) else ())
        return found

    @cached_property
    def code(self) -> set[int]:
        """The lines of code."""
        written = {number for number, line in enumerate(self.text.splitlines(), 1) if line.strip()}
        return written - self.comments - self.docstrings

    @cached_property
    def functions(self) -> list[Function]:
        """Every function and method, those inside others too."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @property
    def function_lines(self) -> list[int]:
        """The lines of code of each function, without its decorators."""
        return [len(self.code.intersection(_lines_of(function))) for function in self.functions]

    @property
    def typed_functions(self) -> int:
        """The functions whose parameters and results are all annotated."""
        return sum(_is_typed(function) for function in self.functions)

    @property
    def tuple_assignments(self) -> int:
        """Assignments of a written tuple to names, ``a, b = x, y``, and those to three and more names."""
        return sum(_is_packed(target, value) for target, value in self._assignments())

    @property
    def nested_comprehensions(self) -> int:
        """Comprehensions with another one inside, or with two loops."""
        found = [node for node in self.nodes if isinstance(node, COMPREHENSIONS)]
        return sum(len(node.generators) > 1 or _holds(node, COMPREHENSIONS) for node in found)

    @property
    def nested_conditionals(self) -> int:
        """Conditional expressions with another one inside."""
        return sum(_holds(node, (ast.IfExp,)) for node in self.nodes if isinstance(node, ast.IfExp))

    def _assignments(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        """Yields each target with the value that it is assigned."""
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    yield target, node.value


def _lines_of(node: ast.stmt) -> range:
    """The numbers of a statement's lines."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _holds(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Whether a node of one of these kinds lies inside another."""
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def _is_packed(target: ast.expr, value: ast.expr) -> bool:
    """Whether an assignment packs several things into a line."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return False
    return len(target.elts) > 2 or isinstance(value, ast.Tuple)


def _is_typed(function: Function) -> bool:
    """Whether a function's result and all of its parameters but ``self`` and ``cls`` are annotated."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args]
    if named and named[0].arg in ("self", "cls"):
        named = named[1:]
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    every = [*named, *arguments.kwonlyargs, *rest]
    return function.returns is not None and all(argument.annotation is not None for argument in every)

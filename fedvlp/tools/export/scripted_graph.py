"""Runs an exported graph operator by operator, so that TorchScript can trace it with free batch size and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter

WHILE_LOOP = torch.ops.higher_order.while_loop
SAME_AS = {"_unsafe_view": "reshape"}
"""Operators that only graphs have, and PyTorch's function that does the same."""


class ScriptedGraph(nn.Module):
    """An exported graph, to be traced once its loops are scripted.

    Tracing follows one way through a loop, so loops are TorchScript's own; it cannot be nested, so they come first.

    Args:
        graph: as ``ExportedProgram.module()`` returns it.
    """

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph
        self.loops = nn.ModuleDict()

    def script_loops(self, *examples: Tensor) -> None:
        """Makes the loops that running the graph on examples meets."""
        _Runner(self, self._make_loop).run(*examples)

    def forward(self, *inputs: Tensor) -> Any:
        """Returns what the graph computes."""
        return _Runner(self, self._known_loop).run(*inputs)

    def _make_loop(self, body: GraphModule, goes_on: GraphModule, values: list[Tensor]) -> nn.Module:
        examples = ([value.clone() for value in values],)
        jit: Any = torch.jit  # whose functions have no types
        parts = [jit.trace(_OfList(each), examples, strict=False, check_trace=False) for each in (goes_on, body)]
        self.loops[_key(body)] = jit.script(_Loop(*parts))
        return self.loops[_key(body)]

    def _known_loop(self, body: GraphModule, goes_on: GraphModule, values: list[Tensor]) -> nn.Module:
        return self.loops[_key(body)]


Loop = Callable[[GraphModule, GraphModule, list[Tensor]], nn.Module]


class _Runner(Interpreter):
    """Runs a graph, with its loops made by others.

    Args:
        module: whose graph it is.
        loop: gives the module of a loop, from its body, its condition and the values that it begins with.
    """

    def __init__(self, module: ScriptedGraph | _OfList, loop: Loop | None) -> None:
        super().__init__(module.graph)
        self._loop = loop

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leaves out the checks that `torch.export` adds; the graph calls no other module."""
        return None

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns what an operator returns, traced also where it takes sizes."""
        if target is WHILE_LOOP and self._loop is not None:
            goes_on, body, carried, others = args
            values = [*carried, *others]
            return tuple(self._loop(body, goes_on, values)(list(carried), list(others)))
        if target is torch.ops.aten.sym_size.int:
            return args[0].size(args[1])
        return _traceable(target, args)(*args, **kwargs)


class _OfList(nn.Module):
    """A loop's body or condition as a function of one list."""

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, values: list[Tensor]) -> Any:
        """Returns the next values, or whether the loop goes on."""
        found = _Runner(self, None).run(*values)
        return found if isinstance(found, Tensor) else list(found)


class _Loop(nn.Module):
    """A loop of TorchScript, whose source PyTorch compiles."""

    def __init__(self, goes_on: nn.Module, body: nn.Module) -> None:
        super().__init__()
        self.goes_on = goes_on
        self.body = body

    def forward(self, carried: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Returns the values at the end; `others` are the same in each step."""
        while bool(self.goes_on(carried + others)):
            carried = self.body(carried + others)
        return carried


def _key(body: GraphModule) -> str:
    return f"loop_{id(body)}"


def _traceable(target: Any, args: tuple[Any, ...]) -> Any:
    """Returns an operator as a function that tracing follows.

    Sizes are tensors while a trace is made. PyTorch's own functions take them so; the bare operators would take their
    present values as constants.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return target
    types = [str(argument.type) for argument in target._schema.arguments]
    takes_size = any(_holds_tensor(value) for kind, value in zip(types, args, strict=False) if "Tensor" not in kind)
    if not takes_size:
        return target
    name = str(target.overloadpacket.__name__)
    name = SAME_AS.get(name, name)
    return getattr(torch.Tensor if types[0] == "Tensor" else torch, name)


def _holds_tensor(value: Any) -> bool:
    return any(isinstance(each, Tensor) for each in (value if isinstance(value, (list, tuple)) else [value]))

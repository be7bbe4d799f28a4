"""From a classifier to one graph of tensor operators with a free batch size, from which both formats are written."""

from __future__ import annotations

import operator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fedvlp.utils.errors import UserError

LARGEST_BATCH = 2**31 - 1


@torch.no_grad()
def exported_program(classifier: nn.Module, examples: Float[Tensor, "B 3 V V"]) -> ExportedProgram:
    """Returns the classifier's graph, in which all that does not depend on the images is a constant.

    Args:
        classifier: on the CPU and in evaluation mode.
        examples: images to trace it with, at least two; a batch of one looks like no batch.

    Raises:
        UserError: If this PyTorch cannot export loops.
    """
    if not hasattr(torch, "while_loop"):
        raise UserError(f"Export needs a PyTorch with torch.while_loop; this is {torch.__version__}. Update torch.")
    classifier(examples)  # what is computed when it is first asked for, such as a teacher's texts, is known afterwards
    traced = _export(classifier, examples).run_decompositions({})
    return _export(fold_constants(traced.module()), examples)


def _export(module: nn.Module, examples: Tensor) -> ExportedProgram:
    # PyTorch 2.7 takes no dimension without an upper bound
    shapes = ({0: Dim("batch", max=LARGEST_BATCH)},)
    return torch.export.export(module, (examples,), dynamic_shapes=shapes, strict=False)


@torch.no_grad()
def fold_constants(traced: GraphModule) -> GraphModule:
    """Returns a graph in which all that depends on no input is a constant, and of the weights only what is still used.

    Args:
        traced: of functional operators, as ``run_decompositions`` makes them; changed.
    """
    graph = traced.graph
    values = _constant_values(traced)
    constants = _Constants(traced, graph, values)
    for node in graph.nodes:
        if node not in values:
            node.args = map_arg(node.args, constants.substitute)
            node.kwargs = map_arg(node.kwargs, constants.substitute)
    # Checks that tracing adds go, too; so does attention, which by itself counts as random, for it may have dropout.
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return GraphModule(traced, graph)  # takes along what the graph still names, and nothing else


def _constant_values(traced: GraphModule) -> dict[Node, Any]:
    """Returns the values of all nodes that depend on constants alone."""
    values: dict[Node, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            found = operator.attrgetter(str(node.target))(traced)
            if isinstance(found, Tensor):
                values[node] = found
        elif _is_pure(node) and all(each in values for each in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    return values


def _is_pure(node: Node) -> bool:
    return node.target is operator.getitem or isinstance(node.target, torch._ops.OpOverload)


class _Constants:
    """Gives what stands in a graph for the constants of it.

    Args:
        owner: gets the new constants.
        graph: its graph.
        values: by node.
    """

    def __init__(self, owner: nn.Module, graph: Graph, values: dict[Node, Any]) -> None:
        self._owner = owner
        self._graph = graph
        self._values = values
        self._made: dict[Node, Any] = {}
        self._first = next(node for node in graph.nodes if node.op != "placeholder")

    def substitute(self, node: Node) -> Any:
        """Returns the node itself, if it depends on an input or is a weight; a number; or a node of a new constant.

        A weight that is a part of another tensor becomes a constant, too: torch.export would store it with all of that.
        """
        if node not in self._values or (node.op == "get_attr" and _is_whole(self._values[node])):
            return node
        if node not in self._made:
            self._made[node] = self._make(self._values[node])
        return self._made[node]

    def _make(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        name = f"constant_{len(self._made)}"
        self._owner.register_buffer(name, value.detach().clone(memory_format=torch.contiguous_format))
        with self._graph.inserting_before(self._first):
            return self._graph.get_attr(name)


def _is_whole(tensor: Tensor) -> bool:
    """Whether a tensor is all that its memory holds."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes

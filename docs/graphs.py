"""Directed graphs: circles, floors, and the arrows without which nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter

Graph = dict[str, set[str]]
"""From each node to those that its arrows point to; every node is a key."""


def reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Returns every node to which arrows lead from a start; the start itself only if it lies on a circle."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(graph[node])
    return found


def components(graph: Graph) -> list[frozenset[str]]:
    """Returns the strongly connected components: nodes between which arrows lead in both directions."""
    reach = {node: reachable(graph, node) for node in graph}
    found: set[frozenset[str]] = set()
    for node in graph:
        mutual = {other for other in reach[node] if node in reach[other]}
        found.add(frozenset({node, *mutual}))
    return sorted(found, key=sorted)


def circles(graph: Graph) -> list[frozenset[str]]:
    """Returns the components of more than one node."""
    return [component for component in components(graph) if len(component) > 1]


def floors(graph: Graph) -> int:
    """Returns the number of components on the longest path; a circle is one of them."""
    home: dict[str, frozenset[str]] = {}
    for component in components(graph):
        home |= dict.fromkeys(component, component)
    below: dict[frozenset[str], set[frozenset[str]]] = {component: set() for component in home.values()}
    for node, others in graph.items():
        below[home[node]] |= {home[other] for other in others} - {home[node]}
    height: dict[frozenset[str], int] = {}
    for component in TopologicalSorter(below).static_order():
        height[component] = 1 + max((height[other] for other in below[component]), default=0)
    return max(height.values(), default=0)


def without_shortcuts(graph: Graph) -> Graph:
    """Returns a graph without circles less the arrows that a longer way stands for."""
    kept: Graph = {}
    for node, others in graph.items():
        farther: set[str] = set()
        for other in others:
            farther |= reachable(graph, other)
        kept[node] = others - farther
    return kept

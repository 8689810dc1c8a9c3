"""Draws a flow's graph. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from streams.state.graph import Edge, Graph

_NO_WORD = re.compile(r"\W")


def mermaid(graph: Graph, edges: Iterable[Edge], labels: Mapping[Edge, str]) -> str:
    """A Mermaid flowchart of `edges`; those of forks and calls are thick, those that `graph` does
    not declare are dotted.

    An edge is labelled with its topic, and with its line of `labels` if it has one.
    """
    drawn = list(edges)
    lines = ["flowchart LR"]
    nodes = dict.fromkeys(node for edge in drawn for node in edge)
    lines += [f"    {_id(graph, node)}{_shape(graph, node)}" for node in nodes]
    lines += [_arrow(graph, edge, labels.get(edge, "")) for edge in drawn]
    return "\n".join(lines)


def _arrow(graph: Graph, edge: Edge, label: str) -> str:
    text = "<br/>".join(_label(graph, edge, label)).replace('"', "#quot;")
    arrow = "==>" if edge in graph.children else "-->" if edge in graph.edges else "-.->"
    named = f'|"{text}"|' if text else ""
    return f"    {_id(graph, edge.source)} {arrow}{named} {_id(graph, edge.target)}"


def _label(graph: Graph, edge: Edge, label: str) -> Iterator[str]:
    if not edge.target.startswith("("):
        yield f"{graph.flow}.{edge.target}"
    if label:
        yield label


def _id(graph: Graph, node: str) -> str:
    # Some names, as `end`, are words of Mermaid's own.
    kind = "at" if node.startswith("(") else "sink" if node in graph.sinks else "stage"
    return f"{kind}_{_NO_WORD.sub('_', node.strip('()'))}"


def _shape(graph: Graph, node: str) -> str:
    # What is not declared may have any name.
    name = node.strip("()").replace('"', "#quot;")
    if node.startswith("("):
        return f'(["{name}"])'
    return f'[("{name}")]' if node in graph.sinks else f'["{name}"]'

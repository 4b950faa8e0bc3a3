"""Tops: what is lent, used and free, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kubeocean.view.model import OceanView, Resources
from kubeocean.view.tables import Cell, Line, Tone, line, table
from kubeocean.view.words import amount

__all__ = ["top_page"]

_FIRST: Final = ("cpu", "memory", "pods")
_DOMAIN: Final = "/"  # what names of devices have, and those of Kubernetes' own do not


def top_page(view: OceanView, *, nodes: bool = False, wide: bool = False) -> list[Line]:
    """One row for each cluster (or each node), and one for all."""
    if not view.clusters:
        return [line("No cluster is bound.")]
    names = _resources(view.resources, wide)
    rows: list[list[Cell]] = []
    for cluster in view.clusters:
        if nodes:
            rows += [
                [Cell(node.name), Cell(cluster.name), *_cells(node.resources, names)]
                for node in cluster.nodes
            ]
        else:
            count = Cell(str(len(cluster.nodes)))
            rows.append([Cell(cluster.name), count, *_cells(cluster.resources, names)])
    all_nodes = sum(len(cluster.nodes) for cluster in view.clusters)
    last = Cell("" if nodes else str(all_nodes))
    rows.append([Cell("total", Tone.HEAD), last, *_cells(view.resources, names)])
    head = ["NODE", "CLUSTER"] if nodes else ["CLUSTER", "NODES"]
    return table([*head, *_heads(names)], rows)


def _resources(total: Resources, wide: bool) -> list[str]:
    """The usual ones, then devices; all others only if asked for."""
    there = sorted({**total.lent, **total.used})
    others = [name for name in there if name not in _FIRST and (wide or _DOMAIN in name)]
    return [*_FIRST, *others]


def _heads(names: Iterable[str]) -> list[str]:
    return [word for name in names for word in (f"{name.upper()} LENT", "USED", "FREE")]


def _cells(resources: Resources, names: Sequence[str]) -> list[Cell]:
    found = []
    for name in names:
        free = resources.free.get(name)
        found += [
            Cell(amount(name, resources.lent.get(name))),
            Cell(amount(name, resources.used.get(name))),
            Cell(amount(name, free), Tone.WARN if free is not None and not free else Tone.PLAIN),
        ]
    return found

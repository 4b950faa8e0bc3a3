"""Documents: a view for programs.

Keys are the fields of the model, as Kubernetes writes names; none is ever left out. Quantities are
texts as an API server prints them, times are in UTC but for what is called local, and what is not
known is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime

from kubeocean.leasing.instants import text_of
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity
from kubeocean.view.model import OceanView, Resources

__all__ = ["document", "top_document"]


def document(view: OceanView) -> Json:
    """All of it."""
    return _of_fields(view)


def top_document(view: OceanView, *, nodes: bool) -> Json:
    """What is lent, used and free, of each cluster (or each node), and of all."""
    clusters = [
        {"name": cluster.name, "nodes": len(cluster.nodes), **_amounts(cluster.resources)}
        | (
            {"perNode": [{"name": each.name, **_amounts(each.resources)} for each in cluster.nodes]}
            if nodes
            else {}
        )
        for cluster in view.clusters
    ]
    return {"at": text_of(view.at), "clusters": clusters, "total": _amounts(view.resources)}


def _amounts(resources: Resources) -> Json:
    return _of_fields(resources)


def _of_fields(value: object) -> Json:
    assert is_dataclass(value)
    return {_camel(each.name): _plain(getattr(value, each.name)) for each in fields(value)}


def _plain(value: object) -> object:
    if isinstance(value, Quantity):
        return value.canonical()
    if is_dataclass(value):
        return _of_fields(value)
    if isinstance(value, datetime):
        return text_of(value) if value.tzinfo is UTC else value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, str) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in others)

"""Select: which objects the resource selectors of a placement select.

`queries` turns selectors into reads of the hub, and `selected` turns the objects that were read
into the content of a snapshot.

A ClusterResourcePlacement selects cluster-scoped objects. A namespace is placed with all objects in
it (`NamespaceWithResources`, the default), alone (`NamespaceOnly`), or with the objects that the
other selectors name in it (`NamespaceWithResourceSelectors`). A ResourcePlacement selects in its
own namespace.

Some selections are mistakes, which raise a ConfigError: a namespace by its reserved name, objects
of a reserved namespace, an object twice, a kind of the wrong scope. Others select nothing: a name
that no object has, a kind that is never placed or that the hub does not serve yet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api.fleet.placements import SelectionScope
from kubeocean.errors import ConfigError
from kubeocean.fleet.selection.cleaning import clean
from kubeocean.fleet.selection.order import in_order
from kubeocean.fleet.selection.rules import ApiFilter, NamespaceFilter, is_placeable
from kubeocean.runtime.objects import GroupVersionKind, Json, Key
from kubeocean.runtime.selectors import EVERYTHING, LabelSelector

__all__ = ["HubKinds", "Query", "queries", "selected"]

NAMESPACE: Final = GroupVersionKind("", "v1", "Namespace")


@dataclass(frozen=True, slots=True)
class Query:
    """Objects of one kind to read: one by its name, or all that the labels select."""

    kind: GroupVersionKind
    namespace: str = ""  # empty for kinds that are cluster-scoped
    name: str = ""
    labels: LabelSelector = EVERYTHING


@dataclass(frozen=True, slots=True)
class HubKinds:
    """The kinds that the hub serves, and its namespaces (not being deleted) with labels."""

    kinds: Mapping[GroupVersionKind, bool]  # whether the kind is namespaced
    preferred: Container[GroupVersionKind]  # of each kind one version
    namespaces: Mapping[str, Mapping[str, str]]
    apis: ApiFilter = field(default_factory=ApiFilter)
    allowed_namespaces: NamespaceFilter = field(default_factory=NamespaceFilter)


def queries(selectors: Iterable[Json], placement: Key, hub: HubKinds) -> tuple[Query, ...]:
    """Return the reads for a placement; `placement` with a namespace is a ResourcePlacement.

    :raises ConfigError: the selectors contradict each other, the scope, or a reserved name.
    """
    selectors = list(selectors)
    if placement.namespace and not hub.allowed_namespaces.allows_objects(placement.namespace):
        raise ConfigError(
            f"namespace {placement.namespace} is not allowed to propagate: it begins with kube- or"
            " fleet-, or is in --skipped-propagating-namespaces; create the ResourcePlacement in"
            " another namespace"
        )
    namespace = placement.namespace or _chosen_namespace(selectors, hub)
    wanted: list[Query] = []
    for selector in selectors:
        kind = _kind(selector)
        if not hub.apis.allows(kind):
            continue
        if kind == NAMESPACE and not placement.namespace:
            wanted += _namespace_queries(selector, hub)
            continue
        namespaced = hub.kinds.get(kind)
        if namespaced is None:
            continue
        _check_scope(kind, namespaced, placement, namespace)
        name, labels = _which(selector)
        if not namespaced:
            wanted.append(Query(kind, "", name, labels))
        elif namespace in hub.namespaces:
            wanted.append(Query(kind, namespace, name, labels))
    return tuple(wanted)


def _kind(selector: Json) -> GroupVersionKind:
    texts = (selector.get(name) or "" for name in ("group", "version", "kind"))
    return GroupVersionKind(*texts)


def _which(selector: Json) -> tuple[str, LabelSelector]:
    """Return the name ("" if none) and the label selector of a resource selector."""
    if name := selector.get("name"):
        return name, EVERYTHING
    labels = selector.get("labelSelector")
    return "", EVERYTHING if labels is None else LabelSelector.from_document(labels)


def _check_scope(kind: GroupVersionKind, namespaced: bool, placement: Key, namespace: str) -> None:
    if placement.namespace and not namespaced:
        raise ConfigError(f"a ResourcePlacement cannot select the cluster-scoped kind {kind.kind}")
    if namespaced and not namespace:
        raise ConfigError(
            f"a ClusterResourcePlacement cannot select the namespaced kind {kind.kind} without"
            f" a namespace selected by the mode {SelectionScope.NAMESPACE_WITH_RESOURCE_SELECTORS}"
        )


def _chosen_namespace(selectors: Iterable[Json], hub: HubKinds) -> str:
    """Return the namespace selected with NamespaceWithResourceSelectors; empty if none is."""
    for selector in selectors:
        if (
            _kind(selector) == NAMESPACE
            and selector.get("selectionScope") == SelectionScope.NAMESPACE_WITH_RESOURCE_SELECTORS
        ):
            name, labels = _which(selector)
            names = [each for each in _matching(name, labels, hub) if _is_allowed(each, hub)]
            if len(names) != 1:
                count = f"{len(names)} namespaces" if names else "no namespaces"
                raise ConfigError(
                    f"{SelectionScope.NAMESPACE_WITH_RESOURCE_SELECTORS} mode requires exactly one"
                    f" namespace, but {count} were selected"
                )
            return names[0]
    return ""


def _namespace_queries(selector: Json, hub: HubKinds) -> Iterator[Query]:
    name, labels = _which(selector)
    if name and not _is_allowed(name, hub):
        raise ConfigError(f"namespace {name} is not allowed to propagate")
    for namespace in filter(lambda each: _is_allowed(each, hub), _matching(name, labels, hub)):
        yield Query(NAMESPACE, name=namespace)
        if selector.get("selectionScope") in (
            SelectionScope.NAMESPACE_ONLY,
            SelectionScope.NAMESPACE_WITH_RESOURCE_SELECTORS,
        ):
            continue
        for kind, namespaced in hub.kinds.items():
            if namespaced and kind in hub.preferred and hub.apis.allows(kind):
                yield Query(kind, namespace)


def _matching(name: str, labels: LabelSelector, hub: HubKinds) -> list[str]:
    if name:
        return [name] if name in hub.namespaces else []
    return sorted(each for each, own in hub.namespaces.items() if labels.matches(own))


def _is_allowed(namespace: str, hub: HubKinds) -> bool:
    return hub.allowed_namespaces.allows(namespace)


def selected(
    objects: Iterable[Json], *, hub_runs_workloads: bool, services: Container[Key]
) -> list[Json]:
    """Return the content of a snapshot from all objects that the queries have read.

    :raises ConfigError: two selectors select the same object.
    """
    chosen: dict[tuple[GroupVersionKind, str, str], Json] = {}
    for obj in objects:
        if not is_placeable(obj, hub_runs_workloads=hub_runs_workloads, services=services):
            continue
        metadata = obj["metadata"]
        kind, namespace, name = (
            GroupVersionKind.of(obj),
            metadata.get("namespace", ""),
            metadata["name"],
        )
        if (kind, namespace, name) in chosen:
            raise ConfigError(f"{kind.kind} {Key(namespace, name)} is selected more than once")
        chosen[kind, namespace, name] = clean(obj)
    return in_order(chosen.values())

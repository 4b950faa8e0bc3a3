"""Pages of status and top for people, and their documents for programs.

The page of status shows 20 nodes, those that are not Ready first, and the number of the others.

The keys of documents are the fields of the model in camelCase; none is ever left out. Quantities
are texts as an API server prints them, times are in UTC except `local`, unknown values are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Final

from kubeocean.api.bindings import BindingPhase
from kubeocean.api.conditions import CONNECTION_FAILED, CONNECTION_LOST
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.format import (
    Cell,
    Line,
    Tone,
    ago,
    amount,
    edge,
    line,
    span,
    table,
    used_of,
)
from kubeocean.inspect.pod_counts import PodCounts
from kubeocean.inspect.snapshot import NotRead, WorkerState
from kubeocean.inspect.status.model import (
    ClusterView,
    ConnectionState,
    InstallationView,
    LeaseState,
    LeaseView,
    NodeState,
    NodeView,
    ProgramState,
    ProgramView,
    Resources,
)
from kubeocean.leasing.report import counted
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity

__all__ = ["NODES_SHOWN", "document", "health_line", "status_page", "top_document", "top_page"]

NODES_SHOWN: Final = 20

_PROGRAM_TONES: Final = {
    ProgramState.RUNNING: Tone.GOOD,
    ProgramState.DEGRADED: Tone.WARN,
    ProgramState.DOWN: Tone.BAD,
}
_LEASE_TONES: Final = {
    LeaseState.OPEN: Tone.GOOD,
    LeaseState.CLOSED: Tone.DIM,
    LeaseState.INVALID: Tone.BAD,
    LeaseState.DELETING: Tone.WARN,
    LeaseState.UNKNOWN: Tone.WARN,
}
_DEVICE: Final = "/"  # in the names of devices; names of Kubernetes' own resources have none
_USUAL: Final = ("cpu", "memory", "pods")
_NONE_BOUND: Final = "No cluster is bound. Bind one with: kubeocean join NAME --kubeconfig FILE"
_NO_ANSWER: Final = (CONNECTION_FAILED.reason, CONNECTION_LOST.reason)
_PHASES: Final = ("running", "pending", "succeeded", "failed", "unknown", "terminating", "refused")


def status_page(
    view: InstallationView, *, wide: bool = False, rows: int = NODES_SHOWN
) -> list[Line]:
    """Return the page of status: clusters, nodes, policies, pods, findings, and the health."""
    if not view.clusters:
        return [line(_NONE_BOUND), *_findings(view), health_line(view)]
    shown = [
        *_clusters(view, wide),
        line(""),
        *_nodes(view, wide, rows),
        line(""),
        *_leases(view, wide),
        line(""),
        *_pods(view),
        line(""),
        *_findings(view),
    ]
    return [*shown, health_line(view)]


def health_line(view: InstallationView) -> Line:
    """Return the health of the installation in one line."""
    if unread := view.why_not_read("nodes", "pods"):
        summary = f"{counted(len(view.clusters), 'cluster')}; nodes or pods could not be read"
        summary += f": {unread}"
    elif view.clusters:
        nodes = sum(len(cluster.nodes) for cluster in view.clusters)
        ready = sum(cluster.ready_nodes for cluster in view.clusters)
        summary = f"{counted(len(view.clusters), 'cluster')}, {ready} of {counted(nodes, 'node')}"
        summary += f" Ready, {counted(view.pods.running, 'pod')} running"
    else:
        summary = "nothing is lent"
    if view.health.healthy:
        return line(f"healthy: {summary}", Tone.GOOD)
    if view.health.healthy is None:
        return line(f"health unknown; {summary}", Tone.BAD)
    problems = counted(len(view.health.problems), "problem")
    return line(f"not healthy: {problems}; {summary}", Tone.BAD)


def _findings(view: InstallationView) -> Iterator[Line]:
    for problem in view.health.problems:
        yield (Cell("problem: ", Tone.BAD), Cell(str(problem)))
    for note in view.health.notes:
        yield (Cell("note: ", Tone.WARN), Cell(str(note)))


# Clusters


def _clusters(view: InstallationView, wide: bool) -> list[Line]:
    head = ["CLUSTER", "PHASE", "WORKER", "SYNCER", "PROXIER", "NODES", "LEASES"]
    more = ["ID", "SYNCER LEADER"] if wide else []
    rows = []
    for cluster in view.clusters:
        row = [
            Cell(cluster.name),
            _phase(cluster),
            _worker(cluster, view.at),
            _program(cluster.syncer),
            _program(cluster.proxier),
            Cell("-", Tone.DIM) if view.why_not_read("nodes") else _ready(cluster),
            Cell(_lease_counts(cluster.leases) or ("none" if _answered(cluster) else "-")),
        ]
        if wide:
            row += [Cell(cluster.cluster_id), Cell(cluster.syncer.leader or "-")]
        rows.append(row)
    return table([*head, *more], rows)


def _phase(cluster: ClusterView) -> Cell:
    if cluster.deleting:
        return Cell("Deleting", Tone.WARN)
    if cluster.phase == BindingPhase.READY:
        return Cell(cluster.phase, Tone.GOOD)
    return Cell(
        cluster.phase or "new", Tone.BAD if cluster.phase == BindingPhase.FAILED else Tone.WARN
    )


def _worker(cluster: ClusterView, now: datetime) -> Cell:
    """Return the table cell about a worker: the syncer's report, or this read's if worse."""
    reported, since = cluster.connection, ago(cluster.connection.since, now)
    if reported.state is ConnectionState.NOT_CONNECTED:
        word = "no answer" if reported.reason in _NO_ANSWER else "not usable"
        return Cell(f"{word} {since}".rstrip(), Tone.BAD)
    if cluster.worker.state is WorkerState.SILENT:
        return Cell("no answer here", Tone.WARN)
    if reported.state is ConnectionState.CONNECTED:
        return Cell(f"connected {since}".rstrip(), Tone.GOOD)
    if cluster.worker.state is WorkerState.ANSWERED:
        return Cell("answers", Tone.WARN)
    return Cell("unknown", Tone.DIM)


def _program(program: ProgramView) -> Cell:
    if program.state is ProgramState.UNKNOWN:
        return Cell("-", Tone.DIM)
    text = f"{program.serving}/{program.wanted}" if program.wanted else program.state.lower()
    return Cell(text, _PROGRAM_TONES[program.state])


def _ready(cluster: ClusterView) -> Cell:
    ready, all_ = cluster.ready_nodes, len(cluster.nodes)
    return Cell(f"{ready}/{all_}", Tone.PLAIN if ready == all_ else Tone.BAD)


def _lease_counts(leases: Iterable[LeaseView]) -> str:
    counts: dict[str, int] = {}
    for lease in leases:
        counts[lease.state.lower()] = counts.get(lease.state.lower(), 0) + 1
    return ", ".join(f"{number} {state}" for state, number in counts.items())


def _answered(cluster: ClusterView) -> bool:
    return cluster.worker.state is WorkerState.ANSWERED


# Nodes


def _nodes(view: InstallationView, wide: bool, rows: int) -> list[Line]:
    if unread := view.why_not_read("nodes"):
        return [line(f"Nodes are not shown: {unread}", Tone.WARN)]
    clusters = view.clusters
    nodes = [(cluster, node) for cluster in clusters for node in cluster.nodes]
    head = ["NODE", "CLUSTER", "READY", "LEASE", "CPU", "MEMORY", "PODS", "POLICY"]
    if not wide:
        # Sorting keeps the order of equals.
        nodes = sorted(nodes, key=lambda pair: pair[1].is_ready)[:rows]
    more = ["PHYSICAL NODE", "REASON"] if wide else []
    total = sum(len(cluster.nodes) for cluster in clusters)
    if not total:
        return [line("No node is lent.", Tone.DIM)]
    shown = table(
        [*head, *more], [_node(cluster, node)[: len(head) + len(more)] for cluster, node in nodes]
    )
    if len(nodes) < total:
        shown.append(line(f"… {total - len(nodes)} more; -o wide shows all", Tone.DIM))
    return shown


def _node(cluster: ClusterView, node: NodeView) -> list[Cell]:
    used, lent = node.resources.used, node.resources.lent
    words = {"True": "yes", "False": "no"}
    ready = words.get(node.ready, node.ready.lower())
    return [
        Cell(node.name),
        Cell(cluster.name),
        Cell(ready, Tone.GOOD if node.is_ready else Tone.BAD),
        Cell(node.state.lower(), Tone.PLAIN if node.state is NodeState.LENT else Tone.WARN),
        *(Cell(used_of(name, used, lent)) for name in ("cpu", "memory", "pods")),
        Cell(node.policy or "-"),
        Cell(node.physical or "-"),
        Cell(node.reason or "-"),
    ]


# Leases


def _leases(view: InstallationView, wide: bool) -> list[Line]:
    pairs = [(cluster, lease) for cluster in view.clusters for lease in cluster.leases]
    if not pairs:
        read = all(_answered(cluster) for cluster in view.clusters)
        return [line("No policy lends anything." if read else "No policy was read.", Tone.DIM)]
    head = ["POLICY", "CLUSTER", "LEASE", "NODES", "NEXT EDGE", "RECLAIM"]
    more = ["WINDOWS", "ZONE", "LIMITS"] if wide else []
    rows = [_lease(cluster, lease, view)[: len(head) + len(more)] for cluster, lease in pairs]
    return table([*head, *more], rows)


def _lease(cluster: ClusterView, lease: LeaseView, view: InstallationView) -> list[Cell]:
    now = view.at
    return [
        Cell(lease.policy),
        Cell(cluster.name),
        Cell(lease.state.lower(), _LEASE_TONES[lease.state]),
        Cell("-" if view.why_not_read("nodes") else str(lease.nodes)),
        _edge(lease, now),
        _reclaim(lease, now),
        Cell("; ".join(lease.windows) or ("always" if lease.seen else "-")),
        Cell(lease.zone or "-"),
        Cell(",".join(lease.limits) or ("all" if lease.seen else "-")),
    ]


def _edge(lease: LeaseView, now: datetime) -> Cell:
    if not lease.seen:
        return Cell("not seen", Tone.DIM)
    return Cell(edge(lease.next_edge, now), Tone.WARN if lease.overdue else Tone.PLAIN)


def _reclaim(lease: LeaseView, now: datetime) -> Cell:
    reclaim = lease.reclaim
    if reclaim is None:
        return Cell("-")
    left = ""
    if reclaim.evicts_from is not None and now < reclaim.evicts_from:
        left = f", evicts in {span(reclaim.evicts_from - now)}"
    elif reclaim.deadline is not None and now < reclaim.deadline:
        left = f", deadline in {span(reclaim.deadline - now)}"
    pods, nodes = counted(reclaim.pods, "pod"), counted(reclaim.nodes, "node")
    return Cell(f"{reclaim.reason}: {pods} on {nodes}{left}", Tone.WARN)


# Pods


def _pods(view: InstallationView) -> list[Line]:
    if unread := view.why_not_read("pods", "nodes"):
        return [line(f"Pods are not shown: {unread}", Tone.WARN)]
    head = ["PODS", *(phase.upper() for phase in _PHASES)]
    rows = [[Cell(cluster.name), *_counts(cluster.pods)] for cluster in view.clusters]
    if len(rows) > 1:
        rows.append([Cell("total", Tone.DIM), *_counts(view.pods)])
    return table(head, rows)


def _counts(pods: PodCounts) -> Iterator[Cell]:
    for phase in _PHASES:
        number = getattr(pods, phase)
        bad = number and phase in ("failed", "unknown", "refused")
        yield Cell(str(number), Tone.WARN if bad else Tone.PLAIN if number else Tone.DIM)


# The page of top


def top_page(view: InstallationView, *, nodes: bool = False, wide: bool = False) -> list[Line]:
    """Return the page of top: a row for each cluster or node, a sum, and unread parts."""
    if not view.clusters:
        return [line("No cluster is bound.")]
    unread = view.why_not_read("nodes")
    names = _resource_names(view.resources, wide)
    rows: list[list[Cell]] = []
    for cluster in view.clusters:
        if nodes:
            rows += [
                [Cell(node.name), Cell(cluster.name), *_amounts(node.resources, names)]
                for node in cluster.nodes
            ]
        else:
            count = Cell("-" if unread else str(len(cluster.nodes)))
            rows.append([Cell(cluster.name), count, *_amounts(cluster.resources, names)])
    all_nodes = sum(len(cluster.nodes) for cluster in view.clusters)
    count = Cell("" if nodes else "-" if unread else str(all_nodes))
    rows.append([Cell("total", Tone.HEAD), count, *_amounts(view.resources, names)])
    head = ["NODE", "CLUSTER"] if nodes else ["CLUSTER", "NODES"]
    titles = [title for name in names for title in (f"{name.upper()} LENT", "USED", "FREE")]
    missing = [
        line(f"{part} are not shown: {reason}", Tone.WARN)
        for part in ("nodes", "pods")
        if (reason := view.why_not_read(part))
    ]
    return [*table([*head, *titles], rows), *missing]


def _resource_names(total: Resources, wide: bool) -> list[str]:
    """Return the resources to show: cpu, memory, pods and devices; with `wide` all."""
    names = sorted({**total.lent, **total.used})
    others = [name for name in names if name not in _USUAL and (wide or _DEVICE in name)]
    return [*_USUAL, *others]


def _amounts(resources: Resources, names: Sequence[str]) -> list[Cell]:
    cells = []
    for name in names:
        free = resources.free.get(name)
        cells += [
            Cell(amount(name, resources.lent.get(name))),
            Cell(amount(name, resources.used.get(name))),
            Cell(amount(name, free), Tone.WARN if free is not None and not free else Tone.PLAIN),
        ]
    return cells


# Documents


def document(view: InstallationView) -> Json:
    """Return the whole view of an installation as a JSON document."""
    return _of_fields(view)


def top_document(view: InstallationView, *, nodes: bool) -> Json:
    """Return the resources of each cluster, with `nodes` also of each node, and their sums."""
    clusters = [
        {"name": cluster.name, "nodes": len(cluster.nodes), **_of_fields(cluster.resources)}
        | ({"perNode": [_node_document(each) for each in cluster.nodes]} if nodes else {})
        for cluster in view.clusters
    ]
    return {
        "at": text_of(view.at),
        "clusters": clusters,
        "total": _of_fields(view.resources),
        "notRead": [str(each) for each in view.not_read if each.what in ("nodes", "pods")],
    }


def _node_document(node: NodeView) -> Json:
    return {"name": node.name, **_of_fields(node.resources)}


def _of_fields(value: object) -> Json:
    assert is_dataclass(value)
    return {_camel(each.name): _value(getattr(value, each.name)) for each in fields(value)}


def _value(value: object) -> object:
    if isinstance(value, Quantity):
        return value.canonical()
    if isinstance(value, Finding):
        bad = value.severity is Severity.ERROR
        return {"cluster": value.subject, "message": value.message, "bad": bad}
    if isinstance(value, NotRead):
        return str(value)
    if is_dataclass(value):
        return _of_fields(value)
    if isinstance(value, datetime):
        return text_of(value) if value.tzinfo is UTC else value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _value(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_value(each) for each in value]
    return str(value) if isinstance(value, str) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join("ID" if word == "id" else word.capitalize() for word in others)

"""Pages: a view for people, as lines of text.

What is shown of nodes is bounded unless it is asked for: those that are not well come first, and a
last line says how many there are besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from kubeocean.api.binding import BindingPhase
from kubeocean.api.conditions import CONNECTION_FAILED, CONNECTION_LOST
from kubeocean.leasing.report import counted
from kubeocean.view.model import (
    ClusterView,
    ConnectionState,
    LeaseState,
    LeaseView,
    NodeState,
    NodeView,
    OceanView,
    PodCounts,
    ProgramState,
    ProgramView,
    WorkerState,
)
from kubeocean.view.tables import Cell, Line, Tone, line, table
from kubeocean.view.words import ago, edge, span, used_of

__all__ = ["NODES_SHOWN", "health_line", "status_page"]

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
_NONE_BOUND: Final = "No cluster is bound. Bind one with: kubeocean join NAME --kubeconfig FILE"
_NO_ANSWER: Final = (CONNECTION_FAILED.reason, CONNECTION_LOST.reason)
_PHASES: Final = ("running", "pending", "succeeded", "failed", "unknown", "terminating", "refused")


def status_page(view: OceanView, *, wide: bool = False, rows: int = NODES_SHOWN) -> list[Line]:
    """Clusters, nodes, leases, pods, and at the end whether all is well."""
    if not view.clusters:
        return [line(_NONE_BOUND), *_remarks(view), health_line(view)]
    shown = [
        *_clusters(view, wide),
        line(""),
        *_nodes(view.clusters, wide, rows),
        line(""),
        *_leases(view, wide),
        line(""),
        *_pods(view),
        line(""),
        *_remarks(view),
    ]
    return [*shown, health_line(view)]


def health_line(view: OceanView) -> Line:
    """Whether all is well, in a line."""
    nodes = sum(len(cluster.nodes) for cluster in view.clusters)
    ready = sum(cluster.ready_nodes for cluster in view.clusters)
    there = (
        f"{counted(len(view.clusters), 'cluster')}, {ready} of {counted(nodes, 'node')} Ready, "
        f"{counted(view.pods.running, 'pod')} running"
    )
    if not view.clusters:
        there = "nothing is lent"
    if view.health.healthy:
        return line(f"healthy: {there}", Tone.GOOD)
    problems = counted(len(view.health.problems), "problem")
    return line(f"not healthy: {problems}; {there}", Tone.BAD)


def _remarks(view: OceanView) -> Iterator[Line]:
    for problem in view.health.problems:
        yield (Cell("problem: ", Tone.BAD), Cell(str(problem)))
    for note in view.health.notes:
        yield (Cell("note: ", Tone.WARN), Cell(str(note)))


# Clusters


def _clusters(view: OceanView, wide: bool) -> list[Line]:
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
            _ready(cluster),
            Cell(_lease_counts(cluster.leases)),
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
    """What its syncer says of it; and what we heard ourselves, if that is worse."""
    said, since = cluster.connection, ago(cluster.connection.since, now)
    if said.state is ConnectionState.NOT_CONNECTED:
        word = "no answer" if said.reason in _NO_ANSWER else "not usable"
        return Cell(f"{word} {since}".rstrip(), Tone.BAD)
    if cluster.worker.state is WorkerState.SILENT:
        return Cell("no answer to us", Tone.WARN)
    if said.state is ConnectionState.CONNECTED:
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
    return ", ".join(f"{number} {state}" for state, number in counts.items()) or "none"


# Nodes


def _nodes(clusters: Sequence[ClusterView], wide: bool, rows: int) -> list[Line]:
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


def _leases(view: OceanView, wide: bool) -> list[Line]:
    pairs = [(cluster, lease) for cluster in view.clusters for lease in cluster.leases]
    if not pairs:
        return [line("No policy lends anything.", Tone.DIM)]
    head = ["POLICY", "CLUSTER", "LEASE", "NODES", "NEXT EDGE", "TAKING BACK"]
    more = ["WINDOWS", "ZONE", "LIMITS"] if wide else []
    rows = [_lease(cluster, lease, view.at)[: len(head) + len(more)] for cluster, lease in pairs]
    return table([*head, *more], rows)


def _lease(cluster: ClusterView, lease: LeaseView, now: datetime) -> list[Cell]:
    return [
        Cell(lease.policy),
        Cell(cluster.name),
        Cell(lease.state.lower(), _LEASE_TONES[lease.state]),
        Cell(str(lease.nodes)),
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


def _pods(view: OceanView) -> list[Line]:
    head = ["PODS", *(phase.upper() for phase in _PHASES)]
    rows = [[Cell(cluster.name), *_counts(cluster.pods)] for cluster in view.clusters]
    if len(rows) > 1:
        rows.append([Cell("total", Tone.DIM), *_counts(view.pods)])
    return table(head, rows)


def _counts(pods: PodCounts) -> Iterator[Cell]:
    for phase in _PHASES:
        number = getattr(pods, phase)
        sad = number and phase in ("failed", "unknown", "refused")
        yield Cell(str(number), Tone.WARN if sad else Tone.PLAIN if number else Tone.DIM)

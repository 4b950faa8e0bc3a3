"""Health: what is not well in what can be seen.

A problem is something that somebody should look at. What only the viewer may not see, or cannot
from where he is, is a note: whether a worker answers is for its syncer to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kubeocean.api.binding import BindingPhase
from kubeocean.leasing.report import counted
from kubeocean.view.model import (
    ClusterView,
    ConnectionState,
    Health,
    LeaseState,
    LeaseView,
    NodeState,
    ProgramState,
    ProgramView,
    Remark,
    WorkerState,
)

__all__ = ["health_of"]

_NAMED: Final = 3  # so many names a remark has; of the others, the number
_UNHEARD: Final = (WorkerState.SILENT, WorkerState.REFUSED)
_SICK: Final = {ProgramState.DEGRADED: "works in part", ProgramState.DOWN: "does not work"}


def health_of(
    manager: ProgramView,
    clusters: Iterable[ClusterView],
    *,
    strays: Sequence[str] = (),
    unseen: Iterable[str] = (),
) -> Health:
    """All remarks; `strays` are virtual nodes that no binding knows."""
    remarks = list(_of_ocean(manager, strays, unseen))
    for cluster in clusters:
        remarks += _of_cluster(cluster)
    problems = tuple(each for each in remarks if each.bad)
    return Health(not problems, problems, tuple(each for each in remarks if not each.bad))


def _of_ocean(
    manager: ProgramView, strays: Sequence[str], unseen: Iterable[str]
) -> Iterator[Remark]:
    if manager.state in _SICK:
        yield Remark("", f"the manager {_SICK[manager.state]}: {manager.message}")
    if strays:
        nodes = counted(len(strays), "virtual node")
        yield Remark("", f"{nodes} without a binding: {_first(strays)}")
    for each in unseen:
        yield Remark("", each, bad=False)


def _of_cluster(cluster: ClusterView) -> Iterator[Remark]:
    name = cluster.name
    for message in _of_binding(cluster):
        yield Remark(name, message)
    if cluster.deleting:
        said = f"is being deleted. {cluster.waits_for}".rstrip(". ")
        yield Remark(name, said, bad=False)
    yield from _of_worker(cluster)
    for what, program in (("syncer", cluster.syncer), ("proxier", cluster.proxier)):
        if program.state in _SICK:
            yield Remark(name, f"the {what} {_SICK[program.state]}: {program.message}")
    unready = [
        node.name
        for node in cluster.nodes
        if not node.is_ready and node.state is not NodeState.LEAVING
    ]
    if unready:
        of = f"{len(unready)} of {counted(len(cluster.nodes), 'node')}"
        yield Remark(name, f"{of} not Ready: {_first(unready)}")
    for lease in cluster.leases:
        yield from _of_lease(name, lease)
    if cluster.pods.late:
        pods = counted(cluster.pods.late, "pod")
        said = f"{pods} behind for minutes: neither started nor removed as it should be"
        yield Remark(name, f"{said}; kubeocean doctor {name}")
    if cluster.pods.refused:
        pods = counted(cluster.pods.refused, "pod")
        said = f"{pods} could not be made in the worker; kubeocean explain pod says why"
        yield Remark(name, said, bad=False)


def _of_binding(cluster: ClusterView) -> Iterator[str]:
    connection = cluster.connection
    lost = connection.state is ConnectionState.NOT_CONNECTED
    if lost:
        yield connection.message
    if cluster.deleting:
        return  # what else is said of it is about its end
    if cluster.phase in (BindingPhase.FAILED, BindingPhase.PENDING):
        if not (lost and connection.message == cluster.message):
            yield f"the binding is {cluster.phase}: {cluster.message}".rstrip(": ")
    elif not cluster.phase and connection.state is ConnectionState.UNKNOWN:
        yield "the binding is new: neither a manager nor a syncer has said anything of it"
    yield from cluster.troubles


def _of_worker(cluster: ClusterView) -> Iterator[Remark]:
    name, worker, said = cluster.name, cluster.worker, cluster.connection.state
    if worker.state is WorkerState.SILENT and said is ConnectionState.CONNECTED:
        message = "the worker does not answer us; its syncer says that it does"
        yield Remark(name, f"{message}: {worker.message}", bad=False)
    elif worker.state in _UNHEARD and said is ConnectionState.NOT_CONNECTED:
        return  # its syncer has said so, and knows more
    elif worker.state is WorkerState.SILENT:
        yield Remark(name, f"the worker does not answer us: {worker.message}")
    elif worker.state in (WorkerState.REFUSED, WorkerState.UNUSABLE):
        yield Remark(name, f"the worker cannot be read: {worker.message}")
    elif worker.state is WorkerState.NOT_ALLOWED:
        yield Remark(name, f"the worker was not asked: {worker.message}", bad=False)
    elif worker.state is WorkerState.ANSWERED and not cluster.leases and not cluster.deleting:
        yield Remark(name, "lends nothing: no policy of the worker names this binding", bad=False)


def _of_lease(cluster: str, lease: LeaseView) -> Iterator[Remark]:
    if lease.state is LeaseState.INVALID:
        yield Remark(cluster, f"policy {lease.policy} is invalid: {lease.message}")
    elif lease.state is LeaseState.UNKNOWN:
        yield Remark(cluster, f"policy {lease.policy}: {lease.message}")
    elif lease.overdue:
        yield Remark(
            cluster, f"policy {lease.policy} should have opened or closed; no syncer has seen to it"
        )
    if lease.reclaim is not None:
        yield Remark(cluster, f"policy {lease.policy} takes back: {lease.reclaim.message}", False)


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

"""Builds the view of an installation from a snapshot.

Pure. Whether a program works is taken from its Deployment; without one, from the Lease that its
replicas compete for; without that, from the binding's conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api import conditions, naming
from kubeocean.api.bindings import BindingPhase, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.inspect.format import few
from kubeocean.inspect.pod_counts import STAYING, NodeUse, PodCounts, merge_names, sum_counts
from kubeocean.inspect.policy_findings import policy_warnings
from kubeocean.inspect.snapshot import NotRead, Snapshot, WorkerSnapshot, WorkerState, known
from kubeocean.inspect.status.leases import lease_view, unseen_leases
from kubeocean.inspect.status.model import (
    ClusterView,
    Connection,
    ConnectionState,
    InstallationHealth,
    InstallationView,
    LeaseState,
    LeaseView,
    NodeState,
    NodeView,
    ProgramState,
    ProgramView,
    ReclaimView,
    Resources,
    WorkerView,
)
from kubeocean.install.wait import rollout
from kubeocean.leasing.amounts import Amounts, read_amounts
from kubeocean.leasing.report import counted
from kubeocean.runtime.clock import instant_of, text_of
from kubeocean.runtime.kinds import Deployment, Lease, Node
from kubeocean.runtime.objects import Condition, find_condition
from kubeocean.runtime.quantity import ZERO, Quantity

__all__ = ["installation_view"]

_TROUBLES: Final = {
    conditions.PERMITTED: "False",
    conditions.CONFLICTED: "True",
    conditions.CREDENTIAL_VALID: "False",
}
_NOT_REPORTED: Final = Condition(conditions.READY, "Unknown")
_SILENT: Final = timedelta(seconds=60)  # leaders renew every few seconds
_OVERDUE: Final = timedelta(seconds=60)  # a deletion takes its time
_NAMED: Final = 3  # names in a message; of the others, the number
_NO_ANSWER: Final = (WorkerState.SILENT, WorkerState.REFUSED)
_FAILURES: Final = {ProgramState.DEGRADED: "works in part", ProgramState.DOWN: "does not work"}


def installation_view(snapshot: Snapshot) -> InstallationView:
    """Return the view of an installation, built from a snapshot."""
    nodes = _nodes_by_binding(snapshot)
    bindings = sorted(known(snapshot.bindings, ()), key=lambda binding: binding.name)
    clusters = tuple(
        _cluster(binding, nodes.pop(naming.label_value(binding.name), []), snapshot)
        for binding in bindings
    )
    # With one binding read, nothing follows from the absence of another.
    without_binding = (
        [node.name for group in nodes.values() for node in group] if not snapshot.only else []
    )
    elections = (naming.manager_election(snapshot.domain),)
    manager = _program(snapshot, snapshot.domain.manager, elections)
    return InstallationView(
        at=snapshot.at,
        manager=manager,
        clusters=clusters,
        pods=sum_counts(cluster.pods for cluster in clusters),
        resources=_sum_resources(cluster.resources for cluster in clusters),
        health=_health(manager, clusters, sorted(without_binding), snapshot),
        not_read=snapshot.unread,
    )


# Bindings


def _cluster(binding: ClusterBinding, nodes: Iterable[NodeView], snapshot: Snapshot) -> ClusterView:
    shown = tuple(sorted(nodes, key=lambda node: node.name))
    worker = snapshot.workers.get(binding.name) or WorkerSnapshot(binding=binding)
    spec, status, domain = binding.spec, binding.status, snapshot.domain
    ready = find_condition(status.conditions, conditions.READY)
    drained = find_condition(status.conditions, conditions.DRAINED)
    syncer = naming.syncer_deployment(spec.cluster_id, domain)
    elections = (naming.syncer_election(binding.name, domain), syncer)
    proxier = naming.proxier_deployment(spec.cluster_id, domain)
    return ClusterView(
        name=binding.name,
        cluster_id=spec.cluster_id,
        phase=status.phase,
        message=ready.message if ready is not None and ready.status != "True" else "",
        deleting=binding.deleting,
        waits_for=drained.message if drained is not None and binding.deleting else "",
        troubles=_troubles(binding),
        connection=_connection(binding),
        worker=WorkerView(worker.state, worker.message),
        syncer=_program(
            snapshot, syncer, elections, find_condition(status.conditions, conditions.SYNCER_READY)
        ),
        proxier=_program(
            snapshot, proxier, (), find_condition(status.conditions, conditions.PROXIER_READY)
        ),
        nodes=shown,
        leases=_leases(worker, shown, snapshot.at),
        pods=sum_counts(node.pods for node in shown),
        resources=_sum_resources(node.resources for node in shown),
    )


def _troubles(binding: ClusterBinding) -> tuple[str, ...]:
    present = (find_condition(binding.status.conditions, type_) for type_ in _TROUBLES)
    return tuple(
        each.message for each in present if each is not None and each.status == _TROUBLES[each.type]
    )


def _connection(binding: ClusterBinding) -> Connection:
    connected = find_condition(binding.status.conditions, conditions.CONNECTED)
    if connected is None:
        return Connection()
    good = connected.status == "True"
    state = ConnectionState.CONNECTED if good else ConnectionState.NOT_CONNECTED
    since = instant_of(connected.last_transition_time)
    return Connection(state, since, connected.reason, connected.message)


def _leases(
    worker: WorkerSnapshot, nodes: tuple[NodeView, ...], now: datetime
) -> tuple[LeaseView, ...]:
    own = (each for each in known(worker.policies, ()) if each.spec.cluster == worker.name)
    seen = [lease_view(policy, nodes, now) for policy in own]
    return tuple(sorted([*seen, *unseen_leases(nodes, seen)], key=lambda lease: lease.policy))


# Virtual nodes


def _nodes_by_binding(snapshot: Snapshot) -> dict[str, list[NodeView]]:
    views: dict[str, list[NodeView]] = {}
    runs_daemons = {
        naming.label_value(binding.name)
        for binding in known(snapshot.bindings, ())
        if binding.spec.running_daemonset_by_default
    }
    for node in known(snapshot.nodes, ()):
        usage = snapshot.usage
        use = None if isinstance(usage, NotRead) else usage.get(node.name, NodeUse())
        binding = node.labels.get(snapshot.domain.cluster_binding, "")
        if use is not None and binding in runs_daemons:
            use = use.with_daemons()
        views.setdefault(binding, []).append(_node(node, use, snapshot.domain))
    return views


def _node(node: Node, use: NodeUse | None, domain: Domain) -> NodeView:
    """Return the view of a virtual node; `use` is None where pods could not be read."""
    ready = find_condition(node.status.conditions, conditions.READY) or _NOT_REPORTED
    state = _node_state(node, domain)
    offered = read_amounts(node.status.allocatable, field="status.allocatable")
    takes_pods = state is NodeState.LENT and ready.status == "True"
    return NodeView(
        name=node.name,
        physical=node.annotations.get(domain.physical_node_name, ""),
        ready=ready.status,
        since=instant_of(ready.last_transition_time),
        reason=ready.reason,
        state=state,
        policy=node.annotations.get(domain.policies_applied, ""),
        offered=offered,
        resources=_node_resources(
            offered,
            use,
            lends=state not in (NodeState.CLOSED, NodeState.LEAVING),
            takes_pods=takes_pods,
        ),
        pods=use.pods if use is not None else PodCounts(),
        pod_names=use.shown_names if use is not None else {},
    )


def _node_state(node: Node, domain: Domain) -> NodeState:
    keys = {taint.key for taint in node.spec.taints or ()}
    if node.deleting or domain.taint_vnode_deleting in keys:
        return NodeState.LEAVING
    if domain.taint_out_of_time_windows in keys:
        return NodeState.CLOSED
    if node.spec.unschedulable or domain.taint_physical_unschedulable in keys:
        return NodeState.CORDONED
    return NodeState.LENT


def _node_resources(
    offered: Amounts, use: NodeUse | None, *, lends: bool, takes_pods: bool
) -> Resources:
    nothing = dict.fromkeys(offered, ZERO)
    lent = offered if lends else nothing
    if use is None:
        return Resources(lent)
    used = {name: use.used.get(name, ZERO) for name in {**offered, **use.used}}
    left = {name: max(amount - used[name], ZERO) for name, amount in offered.items()}
    return Resources(lent, used, left if takes_pods else nothing)


def _sum_resources(resources: Iterable[Resources]) -> Resources:
    """Return the sums of resources; a resource of which nothing is lent now is still named."""
    several = list(resources)
    return Resources(
        _sum(each.lent for each in several),
        _sum(each.used for each in several),
        _sum(each.free for each in several),
    )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total: dict[str, Quantity] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total[name] + amount if name in total else amount
    return total


# Programs


def _program(
    snapshot: Snapshot,
    name: str,
    elections: tuple[str, ...],
    condition: Condition | None = None,
) -> ProgramView:
    deployments: Mapping[str, Deployment] = known(snapshot.deployments, {})
    leases: Mapping[str, Lease] = known(snapshot.elections, {})
    own = [leases[each] for each in elections if each in leases]
    lease = max(own, key=lambda each: each.spec.renew_time or "", default=None)
    if name in deployments:
        return _deployed(deployments[name], lease, snapshot.at)
    if lease is not None:
        return _elected(lease, snapshot.at)
    if condition is None:
        return ProgramView()
    state = ProgramState.RUNNING if condition.status == "True" else ProgramState.DOWN
    return ProgramView(state, message=condition.message)


def _deployed(deployment: Deployment, lease: Lease | None, now: datetime) -> ProgramView:
    desired, serving = deployment.desired, deployment.status.available_replicas
    update = rollout(deployment.content())
    leader = _elected(lease, now) if lease is not None else ProgramView()
    state, message = ProgramState.RUNNING, ""
    if not desired:
        state, message = ProgramState.DOWN, f"Deployment {deployment.key} is scaled to 0"
    elif serving < desired:
        state = ProgramState.DEGRADED if serving else ProgramState.DOWN
        message = f"{serving} of {desired} replicas of Deployment {deployment.key} serve"
    elif leader.state is ProgramState.DOWN:
        state, message = ProgramState.DOWN, leader.message
    elif not update.done:
        state = ProgramState.DEGRADED
        message = f"Deployment {deployment.key} is being updated: {update.message}"
    return ProgramView(state, desired, serving, leader.leader, message)


def _elected(lease: Lease, now: datetime) -> ProgramView:
    holder, renewed = lease.spec.holder_identity or "", instant_of(lease.spec.renew_time)
    if holder and renewed is not None and now - renewed < _SILENT:
        return ProgramView(ProgramState.RUNNING, leader=holder)
    since = f" since {text_of(renewed)}" if renewed is not None else ""
    return ProgramView(ProgramState.DOWN, message=f"no replica leads{since} (Lease {lease.key})")


# Health


def _health(
    manager: ProgramView,
    clusters: Iterable[ClusterView],
    without_binding: Sequence[str],
    snapshot: Snapshot,
) -> InstallationHealth:
    """Return the health of an installation; `without_binding` are virtual nodes whose binding does
    not exist.

    Parts that the user may not read, and workers that only this machine does not reach, are notes:
    the syncer reports whether a worker answers. Without the nodes or the pods, an installation is
    not called healthy.
    """
    findings = list(_installation_findings(manager, without_binding, snapshot.unread))
    findings += _misnamed_policies(snapshot)
    findings += _mistaken_policies(snapshot)
    for cluster in clusters:
        findings += _cluster_findings(cluster, snapshot.at)
    problems = tuple(each for each in findings if each.severity is Severity.ERROR)
    notes = tuple(each for each in findings if each.severity is Severity.NOTE)
    blind = isinstance(snapshot.nodes, NotRead) or isinstance(snapshot.usage, NotRead)
    return InstallationHealth(None if blind and not problems else not problems, problems, notes)


def _installation_findings(
    manager: ProgramView, without_binding: Sequence[str], unread: Iterable[NotRead]
) -> Iterator[Finding]:
    if manager.state in _FAILURES:
        message = f"the manager {_FAILURES[manager.state]}: {manager.message}"
        yield Finding(Severity.ERROR, "", message)
    if without_binding:
        nodes = counted(len(without_binding), "virtual node")
        message = f"{nodes} without a binding: {few(without_binding, shown=_NAMED)}"
        yield Finding(Severity.ERROR, "", message)
    for part in sorted(unread, key=str):
        yield Finding(Severity.NOTE, "", f"{part.what} are not shown: {part.refusal}")


def _misnamed_policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield a note for each policy whose binding does not exist and that no syncer has claimed."""
    if snapshot.only:
        return
    names = {binding.name for binding in known(snapshot.bindings, ())}
    policies = {
        policy.uid or policy.name: (policy, worker.name)
        for worker in snapshot.workers.values()
        for policy in known(worker.policies, ())
        if policy.spec.cluster not in names
        and snapshot.domain.finalizer_policy not in (policy.metadata.finalizers or ())
    }
    for policy, worker in policies.values():
        message = f"policy {policy.name} of this worker lends nothing: its spec.cluster names the"
        message += f" binding {policy.spec.cluster!r}, which does not exist here"
        yield Finding(Severity.NOTE, worker, message)


def _mistaken_policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield a note for each probable mistake in a policy that names the binding of its worker."""
    for worker in snapshot.workers.values():
        if worker.binding.deleting:
            continue
        own = (each for each in known(worker.policies, ()) if each.spec.cluster == worker.name)
        for warning in (warning for policy in own for warning in policy_warnings(policy)):
            yield Finding(Severity.NOTE, worker.name, f"{warning}; {warning.remedy}")


def _cluster_findings(cluster: ClusterView, now: datetime) -> Iterator[Finding]:
    name = cluster.name
    for message in _binding_problems(cluster):
        yield Finding(Severity.ERROR, name, message)
    if cluster.deleting:
        message = f"is being deleted. {cluster.waits_for}".rstrip(". ")
        yield Finding(Severity.NOTE, name, message)
    yield from _worker_findings(cluster)
    for what, program in (("syncer", cluster.syncer), ("proxier", cluster.proxier)):
        if program.state in _FAILURES:
            message = f"the {what} {_FAILURES[program.state]}: {program.message}"
            yield Finding(Severity.ERROR, name, message)
    unready = [
        node.name
        for node in cluster.nodes
        if not node.is_ready and node.state is not NodeState.LEAVING
    ]
    if unready:
        nodes = f"{len(unready)} of {counted(len(cluster.nodes), 'node')}"
        message = f"{nodes} not Ready: {few(unready, shown=_NAMED)}"
        yield Finding(Severity.ERROR, name, message)
    for lease in cluster.leases:
        yield from _lease_findings(cluster, lease, now)
    yield from _pod_findings(cluster)


def _pod_findings(cluster: ClusterView) -> Iterator[Finding]:
    name, pods = cluster.name, cluster.pods

    def some(count: str) -> str:
        names = merge_names(node.pod_names.get(count, ()) for node in cluster.nodes)
        return _some(getattr(pods, count), names)

    if pods.late:
        message = f"{some('late')} behind for minutes: neither started nor removed as it should be"
        yield Finding(Severity.ERROR, name, f"{message}; kubeocean doctor {name}")
    why = "kubeocean explain pod shows why"
    if pods.refused:
        message = f"{some('refused')} could not be created in the worker; {why}"
        yield Finding(Severity.NOTE, name, message)
    if pods.waiting:
        message = f"{some('waiting')} in the worker for minutes without running; {why}"
        yield Finding(Severity.NOTE, name, message)
    if pods.unreplicated:
        message = f"{some('unreplicated')} of a DaemonSet or a system namespace, not run in workers"
        yield Finding(Severity.NOTE, name, message)


def _some(count: int, names: Sequence[str]) -> str:
    """Return a number of pods as text, with the names of the first pods."""
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{counted(count, 'pod')} ({', '.join(names)}{more})"


def _binding_problems(cluster: ClusterView) -> Iterator[str]:
    connection = cluster.connection
    lost = connection.state is ConnectionState.NOT_CONNECTED
    if lost:
        yield connection.message
    if cluster.deleting:
        return  # the other conditions are about its end
    if cluster.phase in (BindingPhase.FAILED, BindingPhase.PENDING):
        if not (lost and connection.message == cluster.message):
            yield f"the binding is {cluster.phase}: {cluster.message}".rstrip(": ")
    elif not cluster.phase and connection.state is ConnectionState.UNKNOWN:
        yield "the binding is new: neither a manager nor a syncer has reported on it"
    yield from cluster.troubles


def _worker_findings(cluster: ClusterView) -> Iterator[Finding]:
    name, worker, reported = cluster.name, cluster.worker, cluster.connection.state
    if worker.state is WorkerState.SILENT and reported is ConnectionState.CONNECTED:
        message = "the worker does not answer this machine, but answers its syncer"
        yield Finding(Severity.NOTE, name, f"{message}: {worker.message}")
    elif worker.state in _NO_ANSWER and reported is ConnectionState.NOT_CONNECTED:
        return  # the syncer's report is among the problems of the binding
    elif worker.state is WorkerState.SILENT:
        message = f"the worker does not answer this machine: {worker.message}"
        yield Finding(Severity.ERROR, name, message)
    elif worker.state in (WorkerState.REFUSED, WorkerState.UNUSABLE):
        yield Finding(Severity.ERROR, name, f"the worker cannot be read: {worker.message}")
    elif worker.message:  # the Secret could not be read
        yield Finding(Severity.NOTE, name, f"the worker was not read: {worker.message}")
    elif worker.state is WorkerState.ANSWERED and not cluster.leases and not cluster.deleting:
        message = "lends nothing: no policy of the worker names this binding"
        yield Finding(Severity.NOTE, name, message)


def _lease_findings(cluster: ClusterView, lease: LeaseView, now: datetime) -> Iterator[Finding]:
    name = cluster.name
    if lease.state is LeaseState.INVALID:
        message = f"policy {lease.policy} is invalid: {lease.message}"
        yield Finding(Severity.ERROR, name, message)
    elif lease.state is LeaseState.UNKNOWN:
        yield Finding(Severity.ERROR, name, f"policy {lease.policy}: {lease.message}")
    elif lease.overdue:
        message = f"policy {lease.policy} should have opened or closed; no syncer has acted on it"
        yield Finding(Severity.ERROR, name, message)
    if lease.reclaim is not None:
        yield _reclaim_finding(cluster, lease, lease.reclaim, now)


def _reclaim_finding(
    cluster: ClusterView, lease: LeaseView, reclaim: ReclaimView, now: datetime
) -> Finding:
    """Return an error if pods run longer than their policy lends, else a note."""
    own = (node for node in cluster.nodes if node.policy == lease.policy)
    outside = (node for node in own if node.state in (NodeState.CLOSED, NodeState.LEAVING))
    names = merge_names(node.pod_names.get(STAYING, ()) for node in outside)
    pods = _some(reclaim.pods, names) if names else counted(reclaim.pods, "pod")
    if reclaim.pods and not lease.force_reclaim and lease.seen:
        message = (
            f"policy {lease.policy}: its nodes are still used by {pods} outside of its windows,"
        )
        message += " and it evicts no pods; set its spec.forceReclaim, or delete the pods"
        return Finding(Severity.ERROR, cluster.name, message)
    if reclaim.pods and reclaim.deadline is not None and reclaim.deadline + _OVERDUE < now:
        message = f"policy {lease.policy}: {pods} still run after the deadline of their eviction"
        message += f" at {text_of(reclaim.deadline)}; kubeocean explain node shows why"
        return Finding(Severity.ERROR, cluster.name, message)
    message = f"policy {lease.policy} reclaims: {reclaim.message}"
    return Finding(Severity.NOTE, cluster.name, message)

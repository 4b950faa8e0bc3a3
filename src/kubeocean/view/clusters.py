"""Clusters: how a binding and its worker are shown, and all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from kubeocean.api import conditions as said
from kubeocean.api import naming
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.leasing.instants import instant_of
from kubeocean.runtime.objects import find_condition
from kubeocean.view.counting import sum_counts, sum_resources
from kubeocean.view.facts import Below, Facts, NodeUse
from kubeocean.view.health import health_of
from kubeocean.view.leases import lease_view, unseen_leases
from kubeocean.view.model import (
    ClusterView,
    Connection,
    ConnectionState,
    LeaseView,
    NodeView,
    OceanView,
    ProgramView,
    WorkerView,
)
from kubeocean.view.nodes import node_view
from kubeocean.view.programs import program_view

__all__ = ["ocean_view"]

_TROUBLES: Final = {said.PERMITTED: "False", said.CONFLICTED: "True"}  # where it is bad


def ocean_view(facts: Facts, *, now: datetime, domain: Domain = DEFAULT) -> OceanView:
    """What was read, as it is shown."""
    nodes = _nodes_by_binding(facts, domain)
    bindings = sorted(facts.bindings, key=lambda binding: binding.name)
    clusters = tuple(
        _cluster(binding, nodes.pop(naming.label_value(binding.name), []), facts, now, domain)
        for binding in bindings
    )
    strays = [node.name for group in nodes.values() for node in group] if facts.all_bindings else []
    manager = _program(facts, domain.manager, (naming.manager_election(domain),), now)
    return OceanView(
        at=now,
        manager=manager,
        clusters=clusters,
        pods=sum_counts(cluster.pods for cluster in clusters),
        resources=sum_resources(cluster.resources for cluster in clusters),
        health=health_of(manager, clusters, strays=sorted(strays), unseen=facts.unseen),
    )


def _nodes_by_binding(facts: Facts, domain: Domain) -> dict[str, list[NodeView]]:
    found: dict[str, list[NodeView]] = {}
    for node in facts.nodes:
        use = None if facts.uses is None else facts.uses.get(node.name, NodeUse())
        view = node_view(node, use, domain)
        found.setdefault(node.labels.get(domain.cluster_binding, ""), []).append(view)
    return found


def _cluster(
    binding: ClusterBinding, nodes: Iterable[NodeView], facts: Facts, now: datetime, domain: Domain
) -> ClusterView:
    shown = tuple(sorted(nodes, key=lambda node: node.name))
    below = facts.workers.get(binding.name, Below())
    spec, told = binding.spec, binding.status.conditions
    ready, drained = find_condition(told, said.READY), find_condition(told, said.DRAINED)
    syncer = naming.syncer_deployment(spec.cluster_id, domain)
    elections = (naming.syncer_election(binding.name, domain), syncer)
    proxier = naming.proxier_deployment(spec.cluster_id, domain)
    return ClusterView(
        name=binding.name,
        cluster_id=spec.cluster_id,
        phase=binding.status.phase,
        message=ready.message if ready is not None and ready.status != "True" else "",
        deleting=binding.deleting,
        waits_for=drained.message if drained is not None and binding.deleting else "",
        troubles=_troubles(binding),
        connection=_connection(binding),
        worker=WorkerView(below.state, below.message),
        syncer=_program(facts, syncer, elections, now, binding, said.SYNCER_READY),
        proxier=_program(facts, proxier, (), now, binding, said.PROXIER_READY),
        nodes=shown,
        leases=tuple(_leases(binding.name, below, shown, now)),
        pods=sum_counts(node.pods for node in shown),
        resources=sum_resources(node.resources for node in shown),
    )


def _troubles(binding: ClusterBinding) -> tuple[str, ...]:
    found = (find_condition(binding.status.conditions, type_) for type_ in _TROUBLES)
    return tuple(
        each.message for each in found if each is not None and each.status == _TROUBLES[each.type]
    )


def _connection(binding: ClusterBinding) -> Connection:
    told = find_condition(binding.status.conditions, said.CONNECTED)
    if told is None:
        return Connection()
    state = ConnectionState.CONNECTED if told.status == "True" else ConnectionState.NOT_CONNECTED
    since = instant_of(told.last_transition_time)
    return Connection(state, since, told.reason, told.message)


def _leases(
    binding: str, below: Below, nodes: tuple[NodeView, ...], now: datetime
) -> list[LeaseView]:
    ours = (policy for policy in below.policies if policy.spec.cluster == binding)
    seen = [lease_view(policy, nodes, now) for policy in ours]
    return sorted([*seen, *unseen_leases(nodes, seen)], key=lambda lease: lease.policy)


def _program(
    facts: Facts,
    name: str,
    elections: tuple[str, ...],
    now: datetime,
    binding: ClusterBinding | None = None,
    condition: str = "",
) -> ProgramView:
    conditions = binding.status.conditions if binding is not None else None
    return program_view(
        next((each for each in facts.deployments if each.name == name), None),
        [each for each in facts.elections if each.name in elections],
        find_condition(conditions, condition),
        now=now,
    )

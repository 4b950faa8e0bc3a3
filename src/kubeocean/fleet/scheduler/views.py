"""Views of stored objects: the fields of the API's structs that the scheduler reads.

ClusterResourcePlacements and ResourcePlacements have the same structs, so one function serves both.
A controller makes the view of a MemberCluster once for each change of the MemberCluster.

Values of the API that cannot be read are kept as they are or count as missing: a label selector
that an API server would refuse selects no cluster, an unreadable time is infinitely long ago.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import AgentCondition, MemberCondition
from kubeocean.api.fleet.policies import ClusterAffinity, ClusterSelectorTerm
from kubeocean.api.fleet.snapshots import ClusterDecision, PolicySnapshot
from kubeocean.fleet.health import member_agent, stored_instant
from kubeocean.fleet.scheduler.model import (
    AgentView,
    BindingView,
    ClusterTerm,
    MemberView,
    PolicyView,
    PreferredTerm,
    read_term_selector,
)
from kubeocean.runtime.objects import find_condition

__all__ = ["view_binding", "view_member", "view_policy"]


def view_member(cluster: MemberCluster) -> MemberView:
    """Return the fields of a MemberCluster that the scheduler reads."""
    status, usage = cluster.status, cluster.status.resource_usage
    return MemberView(
        cluster.name,
        labels=cluster.labels,
        taints=cluster.spec.taints,
        deleting=cluster.deleting,
        agent=_view_agent(cluster),
        properties={name: reported.value for name, reported in status.properties.items()},
        capacity=_texts(usage.capacity),
        allocatable=_texts(usage.allocatable),
        available=_texts(usage.available),
        namespaces=status.namespaces,
        collects_namespaces=(
            find_condition(status.conditions, MemberCondition.NAMESPACES_COLLECTED) is not None
        ),
    )


def _view_agent(cluster: MemberCluster) -> AgentView | None:
    agent = member_agent(cluster.status.agent_status)
    if agent is None:
        return None
    joined = find_condition(agent.conditions, AgentCondition.JOINED)
    healthy = find_condition(agent.conditions, AgentCondition.HEALTHY)
    return AgentView(
        heartbeat=stored_instant(agent.last_received_heartbeat),
        joined=joined.status if joined else None,
        healthy=healthy.status if healthy else None,
        healthy_since=stored_instant(healthy.last_transition_time) if healthy else None,
    )


def _texts(quantities: Mapping[str, int | str]) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in quantities.items()}


def view_policy(snapshot: PolicySnapshot) -> PolicyView:
    """Return the fields of a policy snapshot that the scheduler reads.

    The number of clusters and the generation of the placement are annotations of the snapshot.
    """
    policy, annotations = snapshot.spec.policy, snapshot.annotations
    affinity = (policy.affinity and policy.affinity.cluster_affinity) or ClusterAffinity()
    required = affinity.required_during_scheduling_ignored_during_execution
    return PolicyView(
        snapshot.name,
        namespace=snapshot.namespace,
        generation=snapshot.metadata.generation,
        placement_generation=(
            names.parse_index(annotations, names.ANNOTATION_PLACEMENT_GENERATION) or 0
        ),
        placement_type=policy.placement_type,
        number_of_clusters=names.parse_index(annotations, names.ANNOTATION_NUMBER_OF_CLUSTERS),
        cluster_names=policy.cluster_names,
        required=tuple(
            _view_term(term) for term in (required.cluster_selector_terms if required else ())
        ),
        preferred=tuple(
            PreferredTerm(
                preferred.weight,
                read_term_selector(preferred.preference.label_selector),
                preferred.preference.property_sorter,
            )
            for preferred in affinity.preferred_during_scheduling_ignored_during_execution
        ),
        tolerations=policy.tolerations,
        spread=policy.topology_spread_constraints,
        decisions=snapshot.status.target_clusters,
    )


def _view_term(term: ClusterSelectorTerm) -> ClusterTerm:
    selector = term.property_selector
    return ClusterTerm(
        read_term_selector(term.label_selector), selector.match_expressions if selector else ()
    )


def view_binding(binding: Binding) -> BindingView:
    """Return the fields of a binding that the scheduler reads."""
    spec, decision = binding.spec, binding.spec.cluster_decision
    return BindingView(
        binding.name,
        spec.target_cluster,
        spec.state,
        spec.scheduling_policy_snapshot_name,
        deleting=binding.deleting,
        previous_state=binding.annotations.get(names.ANNOTATION_PREVIOUS_STATE),
        decision=None if decision == ClusterDecision() else decision,
        uid=binding.uid,
        resource_version=binding.resource_version,
        finalizers=binding.metadata.finalizers or (),
    )

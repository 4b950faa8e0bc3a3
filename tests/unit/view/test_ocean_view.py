"""What is made of what was read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeocean.runtime.objects import Json
from kubeocean.view.clusters import ocean_view
from kubeocean.view.counting import Tally
from kubeocean.view.facts import Below, Facts
from kubeocean.view.model import (
    ConnectionState,
    NodeState,
    OceanView,
    ProgramState,
    WorkerState,
)
from seascapes import NOW, a_binding, a_deployment, a_lease, a_node, a_pod, a_policy, condition

ANSWERED = Below(WorkerState.ANSWERED, policies=(a_policy(),))
NODE = "vnode-berlin-n1"
WINDOWS = [{"start": "20:00", "end": "05:59"}]


def well() -> Facts:
    """A binding with a node and a pod, and nothing to complain about."""
    tally = Tally()
    tally.count([a_pod(NODE), a_pod("some-other-node")])
    return Facts(
        bindings=(a_binding(),),
        nodes=(a_node(),),
        uses=tally.uses(),
        workers={"berlin": ANSWERED},
    )


def seen(facts: Facts) -> OceanView:
    return ocean_view(facts, now=NOW)


def problems(facts: Facts) -> list[str]:
    return [str(each) for each in seen(facts).health.problems]


def notes(facts: Facts) -> list[str]:
    return [str(each) for each in seen(facts).health.notes]


def test_what_is_well_is_healthy_and_adds_up() -> None:
    view = seen(well())
    assert view.health.healthy
    assert notes(well()) == []
    (cluster,) = view.clusters
    (node,) = cluster.nodes
    assert (cluster.name, cluster.phase, cluster.ready_nodes) == ("berlin", "Ready", 1)
    assert cluster.connection.state is ConnectionState.CONNECTED
    assert (node.physical, node.policy, node.state) == ("n1", "night", NodeState.LENT)
    assert str(node.resources.lent["cpu"]) == "4"
    assert str(node.resources.used["cpu"]) == "500m"
    assert str(node.resources.free["cpu"]) == "3500m"
    assert str(view.resources.free["memory"]) == "15Gi"
    assert str(view.resources.used["pods"]) == "1"
    assert view.pods.running == view.pods.total == 1


def test_an_empty_ocean_is_healthy() -> None:
    view = seen(Facts(uses={}))
    assert (view.clusters, view.health.healthy) == ((), True)


@pytest.mark.parametrize(
    ("changes", "state", "lent", "free"),
    [
        ({}, NodeState.LENT, "4", "3500m"),
        ({"ready": "Unknown"}, NodeState.LENT, "4", "0"),
        ({"unschedulable": True}, NodeState.CORDONED, "4", "0"),
        ({"taints": ["kubeocean.io/out-of-time-windows"]}, NodeState.CLOSED, "0", "0"),
        ({"taints": ["kubeocean.io/vnode-deleting"]}, NodeState.LEAVING, "0", "0"),
    ],
)
def test_a_node_offers_only_what_a_pod_could_have(
    changes: dict[str, object], state: NodeState, lent: str, free: str
) -> None:
    view = seen(replace(well(), nodes=(a_node(**changes),)))
    node = view.clusters[0].nodes[0]
    resources = node.resources
    assert (node.state, str(resources.lent["cpu"])) == (state, lent)
    assert str(resources.free["cpu"]) == free
    assert str(resources.used["cpu"]) == "500m"
    assert str(node.offered["cpu"]) == "4"


def test_a_node_that_is_used_beyond_its_lease_has_nothing_free() -> None:
    node = a_node(amounts={"cpu": "250m", "pods": "1"})
    free = seen(replace(well(), nodes=(node,))).resources.free
    assert (str(free["cpu"]), str(free["pods"])) == ("0", "0")


def test_pods_that_nobody_sees_to_are_a_problem() -> None:
    bound = condition("PodScheduled", "True")
    long_ago, soon = {"creationTimestamp": "2026-11-16T10:00:00Z"}, {"creationTimestamp": None}
    gone = {"deletionTimestamp": "2026-11-16T10:00:00Z"}
    tally = Tally(NOW)
    begun = [bound, condition("Initialized", "True")]
    tally.count(
        [
            a_pod(NODE, "Pending", metadata=long_ago),
            a_pod(NODE, metadata=gone),
            a_pod(NODE, "Pending", metadata=soon),
            a_pod(NODE, "Pending", metadata=long_ago, conditions=begun),
            a_pod(NODE, metadata=long_ago),
        ]
    )
    (said,) = problems(replace(well(), uses=tally.uses()))
    assert said.startswith("berlin: 2 pods behind for minutes")


def test_pods_are_counted_by_phase_and_by_what_troubles_them() -> None:
    refused = condition("PhysicalPodCreated", "False")
    deleted = {"deletionTimestamp": "2026-11-16T20:59:00Z"}
    tally = Tally()
    tally.count(
        [
            a_pod(NODE),
            a_pod(NODE, "Pending", conditions=[refused]),
            a_pod(NODE, metadata=deleted),
            a_pod(NODE, "Succeeded", cpu="64"),
            a_pod(NODE, "Failed"),
            a_pod(NODE, ""),
        ]
    )
    facts = replace(well(), uses=tally.uses())
    pods = seen(facts).pods
    assert (pods.running, pods.pending, pods.succeeded, pods.failed, pods.unknown) == (
        (2, 1, 1, 1, 1)
    )
    assert (pods.terminating, pods.refused, pods.total) == (1, 1, 6)
    assert str(seen(facts).resources.used["cpu"]) == "2"
    assert notes(facts) == [
        "berlin: 1 pod could not be made in the worker; kubeocean explain pod says why"
    ]
    assert problems(facts) == []


def test_a_list_that_starts_over_is_counted_once() -> None:
    tally = Tally()
    tally.count([a_pod(NODE)])
    tally.clear()
    tally.count([a_pod(NODE)])
    assert tally.uses()[NODE].pods.running == 1


def test_without_a_right_to_see_pods_nothing_is_said_of_them() -> None:
    facts = replace(well(), uses=None, unseen=("pods are not shown: not allowed to list them",))
    resources = seen(facts).resources
    assert str(resources.lent["cpu"]) == "4"
    assert (resources.used, resources.free) == ({}, {})
    assert notes(facts) == ["pods are not shown: not allowed to list them"]
    assert problems(facts) == []


# --- the worker


def test_a_worker_that_its_syncer_lost_is_a_problem() -> None:
    lost = condition("Connected", "False", "WorkerUnreachable", "has not answered")
    facts = replace(
        well(),
        bindings=(a_binding(conditions=[lost]),),
        workers={"berlin": Below(WorkerState.SILENT, "no answer within 5 s")},
    )
    assert problems(facts) == ["berlin: has not answered"]


def test_a_worker_that_nobody_has_heard_of_is_a_problem() -> None:
    silent = Below(WorkerState.SILENT, "no answer within 5 s")
    facts = replace(well(), bindings=(a_binding(conditions=[]),), workers={"berlin": silent})
    assert problems(facts) == ["berlin: the worker does not answer us: no answer within 5 s"]


def test_a_worker_that_only_we_do_not_reach_is_a_note() -> None:
    silent = Below(WorkerState.SILENT, "no answer within 5 s")
    facts = replace(well(), workers={"berlin": silent})
    assert problems(facts) == []
    assert notes(facts) == [
        "berlin: the worker does not answer us; its syncer says that it does: no answer within 5 s"
    ]


def test_who_may_not_read_the_secret_sees_the_leases_of_nodes() -> None:
    closed = a_node("n2", policy="day", taints=["kubeocean.io/out-of-time-windows"])
    facts = replace(
        well(),
        nodes=(a_node(), a_node("n3"), closed),
        workers={"berlin": Below(WorkerState.NOT_ALLOWED, "not allowed to read Secret a/b")},
    )
    leases = seen(facts).clusters[0].leases
    assert [(each.policy, str(each.state), each.nodes, each.seen) for each in leases] == [
        ("day", "Closed", 1, False),
        ("night", "Open", 2, False),
    ]
    assert notes(facts) == ["berlin: the worker was not asked: not allowed to read Secret a/b"]
    assert problems(facts) == []


@pytest.mark.parametrize("state", [WorkerState.REFUSED, WorkerState.UNUSABLE])
def test_a_worker_that_cannot_be_read_is_a_problem(state: WorkerState) -> None:
    facts = replace(well(), workers={"berlin": Below(state, "why")})
    assert problems(facts) == ["berlin: the worker cannot be read: why"]


def test_a_policy_of_another_binding_is_not_shown() -> None:
    other = a_policy("other", "munich")
    facts = replace(well(), nodes=(), workers={"berlin": Below(WorkerState.ANSWERED, "", (other,))})
    assert seen(facts).clusters[0].leases == ()
    assert notes(facts) == ["berlin: lends nothing: no policy of the worker names this binding"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timeZone": "Nowhere"}, "policy night is invalid: spec.timeZone: "),
        ({"timeWindows": WINDOWS}, "policy night: no syncer has looked at it yet"),
        (
            {"status": {"nextTransitionTime": "2026-11-16T20:00:00Z"}},
            "policy night should have opened or closed; no syncer has seen to it",
        ),
    ],
)
def test_a_policy_that_is_not_well_is_a_problem(changes: Json, message: str) -> None:
    below = Below(WorkerState.ANSWERED, policies=(a_policy(**changes),))
    (problem,) = problems(replace(well(), workers={"berlin": below}))
    assert problem.startswith(f"berlin: {message}")


# --- the binding and its programs


def test_a_binding_that_nobody_looked_at_is_a_problem() -> None:
    facts = replace(well(), bindings=(a_binding(phase="", conditions=[]),))
    assert problems(facts) == [
        "berlin: the binding is new: neither a manager nor a syncer has said anything of it"
    ]


def test_a_binding_that_only_a_syncer_looks_after_is_well() -> None:
    facts = replace(well(), bindings=(a_binding(phase="", conditions=[condition("Connected")]),))
    assert problems(facts) == []


def test_a_failed_binding_says_why_once() -> None:
    failed = condition("Ready", "False", "ValidationFailed", "not well-formed")
    facts = replace(well(), bindings=(a_binding(phase="Failed", conditions=[failed]),))
    assert problems(facts) == ["berlin: the binding is Failed: not well-formed"]
    same = [
        condition("Ready", "False", "ConnectivityFailed", "cannot be reached"),
        condition("Connected", "False", "ConnectivityFailed", "cannot be reached"),
    ]
    facts = replace(well(), bindings=(a_binding(phase="Failed", conditions=same),))
    assert problems(facts) == ["berlin: cannot be reached"]


def test_what_else_conditions_complain_about_is_a_problem() -> None:
    told = [
        condition("Connected"),
        condition("Permitted", "False", "PermissionsMissing", "may not list pods"),
        condition("Conflicted", "True", "PolicyClaimed", "another cluster claimed night"),
    ]
    facts = replace(well(), bindings=(a_binding(conditions=told),))
    assert problems(facts) == [
        "berlin: may not list pods",
        "berlin: another cluster claimed night",
    ]


def test_a_binding_that_is_deleted_says_what_it_waits_for() -> None:
    drained = condition("Drained", "False", "Draining", "Still there: 2 nodes")
    metadata = {"deletionTimestamp": "2026-11-16T20:59:00Z"}
    binding = a_binding(metadata=metadata, conditions=[condition("Connected"), drained])
    facts = replace(well(), bindings=(binding,))
    assert notes(facts) == ["berlin: is being deleted. Still there: 2 nodes"]


def test_programs_are_known_by_their_deployments() -> None:
    facts = replace(
        well(),
        deployments=(
            a_deployment("kubeocean-manager"),
            a_deployment("kubeocean-syncer-berlin", serving=1),
            a_deployment("kubeocean-proxier-berlin", serving=0),
        ),
    )
    view = seen(facts)
    cluster = view.clusters[0]
    assert view.manager.state is ProgramState.RUNNING
    assert (cluster.syncer.state, cluster.proxier.state) == (
        ProgramState.DEGRADED,
        ProgramState.DOWN,
    )
    assert problems(facts) == [
        "berlin: the syncer works in part: 1 of 2 replicas of Deployment "
        "kubeocean-system/kubeocean-syncer-berlin serve",
        "berlin: the proxier does not work: 0 of 2 replicas of Deployment "
        "kubeocean-system/kubeocean-proxier-berlin serve",
    ]


def test_a_syncer_without_a_deployment_is_known_by_its_election() -> None:
    lease = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:59:55.000000Z")
    syncer = seen(replace(well(), elections=(lease,))).clusters[0].syncer
    assert (syncer.state, syncer.leader) == (ProgramState.RUNNING, "pod-1")
    stale = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:00:00.000000Z")
    assert problems(replace(well(), elections=(stale,))) == [
        "berlin: the syncer does not work: nobody leads since 2026-11-16T20:00:00Z "
        "(Lease kubeocean-system/kubeocean-syncer-berlin)"
    ]


def test_a_program_that_is_scaled_away_or_that_nobody_leads_is_a_problem() -> None:
    stale = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:00:00Z", holder="")
    facts = replace(
        well(),
        deployments=(
            a_deployment("kubeocean-manager", wanted=0),
            a_deployment("kubeocean-syncer-berlin"),
        ),
        elections=(stale,),
    )
    assert problems(facts) == [
        "the manager does not work: Deployment kubeocean-system/kubeocean-manager is scaled to 0",
        "berlin: the syncer does not work: nobody leads since 2026-11-16T20:00:00Z "
        "(Lease kubeocean-system/kubeocean-syncer-berlin)",
    ]


def test_a_deployment_whose_change_nobody_has_seen_serves_as_before() -> None:
    old = a_deployment("kubeocean-syncer-berlin", generation=2)
    facts = replace(well(), deployments=(old,))
    assert seen(facts).clusters[0].syncer.state is ProgramState.DEGRADED
    assert problems(facts) == [
        "berlin: the syncer works in part: 0 of 2 replicas of Deployment "
        "kubeocean-system/kubeocean-syncer-berlin are new, the others serve as before"
    ]


def test_where_nothing_else_is_seen_conditions_are_believed() -> None:
    told = [condition("Connected"), condition("SyncerReady", "False", "SyncerFailed", "no image")]
    facts = replace(well(), bindings=(a_binding(conditions=told),))
    assert problems(facts) == ["berlin: the syncer does not work: no image"]
    assert seen(well()).clusters[0].syncer.state is ProgramState.UNKNOWN


# --- nodes


def test_nodes_that_are_not_ready_are_named_up_to_three() -> None:
    nodes = tuple(a_node(f"n{number}", ready="False") for number in range(5))
    assert problems(replace(well(), nodes=nodes)) == [
        "berlin: 5 of 5 nodes not Ready: vnode-berlin-n0, vnode-berlin-n1, vnode-berlin-n2 "
        "and 2 more"
    ]


def test_a_node_that_leaves_need_not_be_ready() -> None:
    node = a_node(ready="False", taints=["kubeocean.io/vnode-deleting"])
    assert problems(replace(well(), nodes=(node,))) == []


def test_a_node_without_a_binding_is_a_stray_if_all_bindings_were_read() -> None:
    nodes = (a_node(), a_node("lost", "gone"))
    said = ["1 virtual node without a binding: vnode-gone-lost"]
    assert problems(replace(well(), nodes=nodes)) == said
    assert problems(replace(well(), nodes=nodes, all_bindings=False)) == []


def test_as_long_as_nothing_happens_views_differ_in_their_time_alone() -> None:
    lease = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:59:55.000000Z")
    later = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:59:59.000000Z")
    one = ocean_view(replace(well(), elections=(lease,)), now=NOW)
    two = ocean_view(replace(well(), elections=(later,)), now=NOW.replace(second=10))
    assert one != two
    assert one == replace(two, at=one.at)

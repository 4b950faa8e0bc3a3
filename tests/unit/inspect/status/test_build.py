"""Tests of the view that is built from a snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.inspect.pod_counts import PodCounter
from kubeocean.inspect.snapshot import NotRead, Snapshot, WorkerState
from kubeocean.inspect.status.build import installation_view
from kubeocean.inspect.status.model import (
    ConnectionState,
    InstallationView,
    NodeState,
    ProgramState,
)
from kubeocean.runtime.objects import Json
from support.objects import (
    NOW,
    a_binding,
    a_deployment,
    a_lease,
    a_node,
    a_pod,
    a_policy,
    a_worker,
    by_name,
    condition,
)

ANSWERED = a_worker("berlin", WorkerState.ANSWERED, "", a_policy())
NODE = "vnode-berlin-n1"
WINDOWS = [{"start": "20:00", "end": "05:59"}]


def well() -> Snapshot:
    """Return a snapshot of a binding with a node and a pod, without problems."""
    counter = PodCounter()
    counter.count([a_pod(NODE), a_pod("some-other-node")])
    return Snapshot(
        at=NOW,
        bindings=(a_binding(),),
        nodes=(a_node(),),
        usage=counter.usage(),
        workers={"berlin": ANSWERED},
    )


def view_of(snapshot: Snapshot) -> InstallationView:
    return installation_view(snapshot)


def problems(snapshot: Snapshot) -> list[str]:
    return [str(each) for each in view_of(snapshot).health.problems]


def notes(snapshot: Snapshot) -> list[str]:
    return [str(each) for each in view_of(snapshot).health.notes]


def test_an_installation_without_problems_is_healthy_and_its_sums_are_right() -> None:
    view = view_of(well())
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


def test_an_installation_without_bindings_is_healthy() -> None:
    view = view_of(Snapshot(at=NOW, nodes=(), usage={}))
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
    view = view_of(replace(well(), nodes=(a_node(**changes),)))
    node = view.clusters[0].nodes[0]
    resources = node.resources
    assert (node.state, str(resources.lent["cpu"])) == (state, lent)
    assert str(resources.free["cpu"]) == free
    assert str(resources.used["cpu"]) == "500m"
    assert str(node.offered["cpu"]) == "4"


def test_a_node_that_is_used_beyond_its_lease_has_nothing_free() -> None:
    node = a_node(amounts={"cpu": "250m", "pods": "1"})
    free = view_of(replace(well(), nodes=(node,))).resources.free
    assert (str(free["cpu"]), str(free["pods"])) == ("0", "0")


def test_pods_that_no_syncer_acts_on_are_a_problem() -> None:
    bound = condition("PodScheduled", "True")
    long_ago, soon = {"creationTimestamp": "2026-11-16T10:00:00Z"}, {"creationTimestamp": None}
    gone = {"deletionTimestamp": "2026-11-16T10:00:00Z"}
    counter = PodCounter(NOW)
    begun = [bound, condition("Initialized", "True")]
    counter.count(
        [
            a_pod(NODE, "Pending", metadata=long_ago | {"name": "unstarted"}),
            a_pod(NODE, metadata=gone | {"name": "unremoved"}),
            a_pod(NODE, "Pending", metadata=soon),
            a_pod(NODE, "Pending", metadata=long_ago | {"name": "pulling"}, conditions=begun),
            a_pod(NODE, metadata=long_ago),
        ]
    )
    snapshot = replace(well(), usage=counter.usage())
    (problem,) = problems(snapshot)
    late = "berlin: 2 pods (team/unstarted, team/unremoved) behind for minutes"
    assert problem.startswith(late)
    (note,) = notes(snapshot)
    assert note.startswith("berlin: 1 pod (team/pulling) in the worker for minutes without running")


def test_of_many_pods_the_first_three_are_named() -> None:
    refused = condition("PhysicalPodCreated", "False")
    counter = PodCounter()
    counter.count(
        a_pod(NODE, "Pending", metadata={"name": f"p{n}"}, conditions=[refused]) for n in range(5)
    )
    (note,) = notes(replace(well(), usage=counter.usage()))
    assert note.startswith("berlin: 5 pods (team/p0, team/p1, team/p2 and 2 more) could not be")


DAEMON = {"kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}


@pytest.mark.parametrize(
    ("metadata", "conditions"),
    [
        ({"ownerReferences": [DAEMON]}, []),
        ({"namespace": "kube-system"}, []),
        ({}, [condition("PhysicalPodExpected", "False", "NotReplicated")]),
    ],
    ids=["daemon", "system", "reported"],
)
def test_pods_that_workers_do_not_run_are_no_problem(
    metadata: dict[str, object], conditions: list[Json]
) -> None:
    counter = PodCounter(NOW)
    long_ago = {"creationTimestamp": "2026-11-16T10:00:00Z", "name": "agent-1"}
    counter.count([a_pod(NODE, "Pending", metadata=long_ago | metadata, conditions=conditions)])
    snapshot = replace(well(), usage=counter.usage())
    assert problems(snapshot) == []
    (note,) = notes(snapshot)
    assert "agent-1) of a DaemonSet or a system namespace, not run in workers" in note


@pytest.mark.parametrize("by_default", [True, False])
def test_a_daemon_pod_that_its_worker_should_run_is_late(by_default: bool) -> None:
    requested = {} if by_default else {"kubeocean.io/running-daemonset": "true"}
    created = {"creationTimestamp": "2026-11-16T10:00:00Z", "annotations": requested}
    counter = PodCounter(NOW)
    counter.count([a_pod(NODE, "Pending", metadata=created | {"ownerReferences": [DAEMON]})])
    binding = a_binding(spec={"runningDaemonsetByDefault": by_default})
    snapshot = replace(well(), bindings=(binding,), usage=counter.usage())
    (problem,) = problems(snapshot)
    assert problem.startswith("berlin: 1 pod (team/p) behind for minutes")


CLOSED_WINDOW = {"timeWindows": [{"start": "08:00", "end": "17:59"}], "timeZone": "UTC"}


def reclaiming(**policy: object) -> Snapshot:
    """Return a snapshot in which one pod is left on a node whose window is closed."""
    reclaim = {
        "startTime": "2026-11-16T18:00:00Z",
        "deadlineTime": policy.pop("deadline", None),
        "pending": 1,
        "pendingNodes": 1,
    }
    night = a_policy(status={"reclaim": reclaim}, **CLOSED_WINDOW, **policy)
    closed = a_node(taints=["kubeocean.io/out-of-time-windows"])
    worker = a_worker("berlin", WorkerState.ANSWERED, "", night)
    return replace(well(), nodes=(closed,), workers={"berlin": worker})


def test_pods_that_outstay_a_window_of_a_policy_without_force_are_a_problem() -> None:
    (problem,) = problems(reclaiming())
    assert problem.startswith(
        "berlin: policy night: its nodes are still used by 1 pod (team/p) outside"
    )
    assert "spec.forceReclaim" in problem


def test_a_forced_reclaim_is_a_note_until_its_deadline_and_then_a_problem() -> None:
    snapshot = reclaiming(forceReclaim=True, deadline="2026-11-16T21:05:00Z")
    assert problems(snapshot) == []
    (note,) = notes(snapshot)
    assert note.startswith("berlin: policy night reclaims")
    (problem,) = problems(reclaiming(forceReclaim=True, deadline="2026-11-16T20:05:00Z"))
    assert "1 pod (team/p) still run after the deadline" in problem


def test_pods_are_counted_by_phase_and_by_their_troubles() -> None:
    refused = condition("PhysicalPodCreated", "False")
    deleted = {"deletionTimestamp": "2026-11-16T20:59:00Z"}
    counter = PodCounter()
    counter.count(
        [
            a_pod(NODE),
            a_pod(NODE, "Pending", conditions=[refused]),
            a_pod(NODE, metadata=deleted),
            a_pod(NODE, "Succeeded", cpu="64"),
            a_pod(NODE, "Failed"),
            a_pod(NODE, ""),
        ]
    )
    snapshot = replace(well(), usage=counter.usage())
    pods = view_of(snapshot).pods
    assert (pods.running, pods.pending, pods.succeeded, pods.failed, pods.unknown) == (
        (2, 1, 1, 1, 1)
    )
    assert (pods.terminating, pods.refused, pods.total) == (1, 1, 6)
    assert str(view_of(snapshot).resources.used["cpu"]) == "2"
    assert notes(snapshot) == [
        "berlin: 1 pod (team/p) could not be created in the worker; kubeocean explain pod shows why"
    ]
    assert problems(snapshot) == []


def test_without_the_right_to_list_pods_used_and_free_amounts_are_unknown() -> None:
    unread = NotRead("pods", "pods is forbidden", forbidden=True)
    snapshot = replace(well(), usage=unread, unread=(unread,))
    resources = view_of(snapshot).resources
    assert str(resources.lent["cpu"]) == "4"
    assert (resources.used, resources.free) == ({}, {})
    assert notes(snapshot) == ["pods are not shown: not allowed to list them"]
    assert problems(snapshot) == []


@pytest.mark.parametrize("part", ["nodes", "usage"])
def test_health_is_unknown_without_nodes_or_pods(part: str) -> None:
    unread = NotRead("pods" if part == "usage" else part, "503")
    view = view_of(replace(well(), **{part: unread}, unread=(unread,)))
    assert (view.health.healthy, view.health.problems) == (None, ())
    lost = a_binding(conditions=[condition("Connected", "False", "WorkerUnreachable", "silent")])
    view = view_of(replace(well(), bindings=(lost,), **{part: unread}, unread=(unread,)))
    assert view.health.healthy is False


@pytest.mark.parametrize("part", ["deployments", "elections"])
def test_health_is_known_without_deployments_or_leases(part: str) -> None:
    unread = NotRead(part, "503")
    assert view_of(replace(well(), **{part: unread}, unread=(unread,))).health.healthy is True


# The worker


def test_a_worker_that_its_syncer_lost_is_a_problem() -> None:
    lost = condition("Connected", "False", "WorkerUnreachable", "has not answered")
    snapshot = replace(
        well(),
        bindings=(a_binding(conditions=[lost]),),
        workers={"berlin": a_worker("berlin", WorkerState.SILENT, "no answer within 5 s")},
    )
    assert problems(snapshot) == ["berlin: has not answered"]


def test_a_silent_worker_without_a_report_of_its_syncer_is_a_problem() -> None:
    silent = a_worker("berlin", WorkerState.SILENT, "no answer within 5 s")
    snapshot = replace(well(), bindings=(a_binding(conditions=[]),), workers={"berlin": silent})
    assert problems(snapshot) == [
        "berlin: the worker does not answer this machine: no answer within 5 s"
    ]


def test_a_silent_worker_that_answers_its_syncer_is_a_note() -> None:
    silent = a_worker("berlin", WorkerState.SILENT, "no answer within 5 s")
    snapshot = replace(well(), workers={"berlin": silent})
    assert problems(snapshot) == []
    assert notes(snapshot) == [
        "berlin: the worker does not answer this machine, but answers its syncer:"
        " no answer within 5 s"
    ]


def test_without_the_right_to_read_the_secret_policies_are_those_of_nodes() -> None:
    closed = a_node("n2", policy="day", taints=["kubeocean.io/out-of-time-windows"])
    snapshot = replace(
        well(),
        nodes=(a_node(), a_node("n3"), closed),
        workers={
            "berlin": a_worker("berlin", WorkerState.NOT_ALLOWED, "not allowed to read Secret a/b")
        },
    )
    leases = view_of(snapshot).clusters[0].leases
    assert [(each.policy, str(each.state), each.nodes, each.seen) for each in leases] == [
        ("day", "Closed", 1, False),
        ("night", "Open", 2, False),
    ]
    assert notes(snapshot) == ["berlin: the worker was not read: not allowed to read Secret a/b"]
    assert problems(snapshot) == []


@pytest.mark.parametrize("state", [WorkerState.REFUSED, WorkerState.UNUSABLE])
def test_a_worker_that_cannot_be_read_is_a_problem(state: WorkerState) -> None:
    snapshot = replace(well(), workers={"berlin": a_worker("berlin", state, "why")})
    assert problems(snapshot) == ["berlin: the worker cannot be read: why"]


def test_a_policy_that_names_no_binding_is_a_note_with_its_name() -> None:
    misspelt = a_policy("day", "berln")
    worker = a_worker("berlin", WorkerState.ANSWERED, "", a_policy(), misspelt)
    snapshot = replace(well(), workers={"berlin": worker})
    assert [lease.policy for lease in view_of(snapshot).clusters[0].leases] == ["night"]
    (note,) = notes(snapshot)
    assert note.startswith("berlin: policy day of this worker lends nothing: its spec.cluster")
    assert "'berln', which does not exist here" in note
    assert notes(replace(snapshot, only="berlin")) == []  # other bindings were not read


def test_a_policy_of_another_binding_is_not_shown() -> None:
    # The syncer of a binding in another computing cluster holds it.
    other = a_policy("other", "munich", metadata={"finalizers": [DEFAULT.finalizer_policy]})
    snapshot = replace(
        well(), nodes=(), workers={"berlin": a_worker("berlin", WorkerState.ANSWERED, "", other)}
    )
    assert view_of(snapshot).clusters[0].leases == ()
    assert notes(snapshot) == ["berlin: lends nothing: no policy of the worker names this binding"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timeZone": "Nowhere"}, "policy night is invalid: spec.timeZone: "),
        ({"timeWindows": WINDOWS}, "policy night: no syncer has reported on it yet"),
        (
            {"status": {"nextTransitionTime": "2026-11-16T20:00:00Z"}},
            "policy night should have opened or closed; no syncer has acted on it",
        ),
    ],
)
def test_a_policy_that_is_invalid_unreported_or_overdue_is_a_problem(
    changes: Json, message: str
) -> None:
    worker = a_worker("berlin", WorkerState.ANSWERED, "", a_policy(**changes))
    (problem,) = problems(replace(well(), workers={"berlin": worker}))
    assert problem.startswith(f"berlin: {message}")


# The binding and its programs


def test_a_binding_without_any_report_is_a_problem() -> None:
    snapshot = replace(well(), bindings=(a_binding(phase="", conditions=[]),))
    assert problems(snapshot) == [
        "berlin: the binding is new: neither a manager nor a syncer has reported on it"
    ]


def test_a_binding_with_a_report_of_its_syncer_only_is_healthy() -> None:
    snapshot = replace(well(), bindings=(a_binding(phase="", conditions=[condition("Connected")]),))
    assert problems(snapshot) == []


def test_a_failed_binding_has_its_reason_once() -> None:
    failed = condition("Ready", "False", "ValidationFailed", "not well-formed")
    snapshot = replace(well(), bindings=(a_binding(phase="Failed", conditions=[failed]),))
    assert problems(snapshot) == ["berlin: the binding is Failed: not well-formed"]
    same = [
        condition("Ready", "False", "ConnectivityFailed", "cannot be reached"),
        condition("Connected", "False", "ConnectivityFailed", "cannot be reached"),
    ]
    snapshot = replace(well(), bindings=(a_binding(phase="Failed", conditions=same),))
    assert problems(snapshot) == ["berlin: cannot be reached"]


def test_further_conditions_that_report_a_problem_are_problems() -> None:
    reported = [
        condition("Connected"),
        condition("Permitted", "False", "PermissionsMissing", "may not list pods"),
        condition("Conflicted", "True", "PolicyClaimed", "another cluster claimed night"),
    ]
    snapshot = replace(well(), bindings=(a_binding(conditions=reported),))
    assert problems(snapshot) == [
        "berlin: may not list pods",
        "berlin: another cluster claimed night",
    ]


def test_a_deleted_binding_has_a_note_of_what_it_waits_for() -> None:
    drained = condition("Drained", "False", "Draining", "Still there: 2 nodes")
    metadata = {"deletionTimestamp": "2026-11-16T20:59:00Z"}
    binding = a_binding(metadata=metadata, conditions=[condition("Connected"), drained])
    snapshot = replace(well(), bindings=(binding,))
    assert notes(snapshot) == ["berlin: is being deleted. Still there: 2 nodes"]


def test_programs_are_known_by_their_deployments() -> None:
    snapshot = replace(
        well(),
        deployments=by_name(
            a_deployment("kubeocean-manager"),
            a_deployment("kubeocean-syncer-berlin", serving=1),
            a_deployment("kubeocean-proxier-berlin", serving=0),
        ),
    )
    view = view_of(snapshot)
    cluster = view.clusters[0]
    assert view.manager.state is ProgramState.RUNNING
    assert (cluster.syncer.state, cluster.proxier.state) == (
        ProgramState.DEGRADED,
        ProgramState.DOWN,
    )
    assert problems(snapshot) == [
        "berlin: the syncer works in part: 1 of 2 replicas of Deployment "
        "kubeocean-system/kubeocean-syncer-berlin serve",
        "berlin: the proxier does not work: 0 of 2 replicas of Deployment "
        "kubeocean-system/kubeocean-proxier-berlin serve",
    ]


def test_a_syncer_without_a_deployment_is_known_by_its_election() -> None:
    lease = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:59:55.000000Z")
    syncer = view_of(replace(well(), elections=by_name(lease))).clusters[0].syncer
    assert (syncer.state, syncer.leader) == (ProgramState.RUNNING, "pod-1")
    stale = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:00:00.000000Z")
    assert problems(replace(well(), elections=by_name(stale))) == [
        "berlin: the syncer does not work: no replica leads since 2026-11-16T20:00:00Z "
        "(Lease kubeocean-system/kubeocean-syncer-berlin)"
    ]


def test_a_program_scaled_to_0_or_without_a_leader_is_a_problem() -> None:
    stale = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:00:00Z", holder="")
    snapshot = replace(
        well(),
        deployments=by_name(
            a_deployment("kubeocean-manager", wanted=0),
            a_deployment("kubeocean-syncer-berlin"),
        ),
        elections=by_name(stale),
    )
    assert problems(snapshot) == [
        "the manager does not work: Deployment kubeocean-system/kubeocean-manager is scaled to 0",
        "berlin: the syncer does not work: no replica leads since 2026-11-16T20:00:00Z "
        "(Lease kubeocean-system/kubeocean-syncer-berlin)",
    ]


def test_a_deployment_with_an_unobserved_generation_is_degraded() -> None:
    old = a_deployment("kubeocean-syncer-berlin", generation=2)
    snapshot = replace(well(), deployments=by_name(old))
    assert view_of(snapshot).clusters[0].syncer.state is ProgramState.DEGRADED
    assert problems(snapshot) == [
        "berlin: the syncer works in part: Deployment kubeocean-system/kubeocean-syncer-berlin "
        "is being updated: 0 of 2 replicas available"
    ]


def test_a_deployment_is_degraded_while_old_pods_remain() -> None:
    """The pods that are available may be the old ones, and the new ones may never start."""
    updating = a_deployment("kubeocean-syncer-berlin", serving=1, wanted=1, old=1)
    snapshot = replace(well(), deployments=by_name(updating))
    assert view_of(snapshot).clusters[0].syncer.state is ProgramState.DEGRADED
    assert problems(snapshot) == [
        "berlin: the syncer works in part: Deployment kubeocean-system/kubeocean-syncer-berlin "
        "is being updated: 1 of 1 replicas available, 1 old one remains"
    ]


def test_a_program_without_deployment_and_lease_is_known_by_a_condition() -> None:
    reported = [
        condition("Connected"),
        condition("SyncerReady", "False", "SyncerFailed", "no image"),
    ]
    snapshot = replace(well(), bindings=(a_binding(conditions=reported),))
    assert problems(snapshot) == ["berlin: the syncer does not work: no image"]
    assert view_of(well()).clusters[0].syncer.state is ProgramState.UNKNOWN


# Nodes


def test_nodes_that_are_not_ready_are_named_up_to_three() -> None:
    nodes = tuple(a_node(f"n{number}", ready="False") for number in range(5))
    assert problems(replace(well(), nodes=nodes)) == [
        "berlin: 5 of 5 nodes not Ready: vnode-berlin-n0, vnode-berlin-n1, vnode-berlin-n2 "
        "and 2 more"
    ]


def test_a_leaving_node_that_is_not_ready_is_no_problem() -> None:
    node = a_node(ready="False", taints=["kubeocean.io/vnode-deleting"])
    assert problems(replace(well(), nodes=(node,))) == []


def test_a_node_without_a_binding_is_a_stray_if_all_bindings_were_read() -> None:
    nodes = (a_node(), a_node("lost", "gone"))
    stray = ["1 virtual node without a binding: vnode-gone-lost"]
    assert problems(replace(well(), nodes=nodes)) == stray
    assert problems(replace(well(), nodes=nodes, only="berlin")) == []


def test_views_differ_in_their_time_alone_while_nothing_changes() -> None:
    lease = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:59:55.000000Z")
    later = a_lease("kubeocean-syncer-berlin", renewed="2026-11-16T20:59:59.000000Z")
    one = installation_view(replace(well(), elections=by_name(lease), at=NOW))
    two = installation_view(replace(well(), elections=by_name(later), at=NOW.replace(second=10)))
    assert one != two
    assert one == replace(two, at=one.at)

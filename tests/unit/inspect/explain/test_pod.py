"""Tests of explanations of pods."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kubeocean.api import naming
from kubeocean.api.policies import Eviction
from kubeocean.inspect.explain.pod import explain_pod
from kubeocean.inspect.explain.report import ExplanationRule
from kubeocean.inspect.explain.snapshots import EvictionRecord, PodSnapshot
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.kinds import Event, Node
from kubeocean.runtime.objects import Json
from support.explain_objects import (
    CLOSED,
    NIGHT,
    TOLERANT,
    UNREAD,
    VIRTUAL,
    VNODE,
    binding,
    counted,
    lease,
    node,
    pnode,
    pod,
    policy,
    ppod,
    vpod,
)
from support.explain_objects import bound as a_binding
from support.explain_objects import vnode as virtual

HALF = [{"resource": "cpu", "percent": 50}]
NOT_REPLICATED = {
    "type": "PhysicalPodExpected",
    "status": "False",
    "reason": "NotReplicated",
    "message": "it is of a DaemonSet",
}
FIRST = naming.physical_name("web", "team")
SECOND = naming.second_physical_name("web", "team", uid="u-web")


def asking(**requests: str) -> list[Json]:
    return [{"name": "c", "image": "i", "resources": {"requests": requests}}]


def waiting(**more: object) -> PodSnapshot:
    spec = {"tolerations": TOLERANT} | more.pop("spec", {})
    return pod(vpod(**spec), nodes=(virtual(),), **more)


def bound(*ppods: object, status: Json | None = None, **more: object) -> PodSnapshot:
    known = {"node": node(policy()), "ppods": ppods} | more
    return pod(vpod(on=VNODE, status=status), **known)


def refused(message: str, reason: str = "FailedCreatePod") -> Json:
    condition = {
        "type": "PhysicalPodCreated",
        "status": "False",
        "reason": reason,
        "message": f"could not create pods m/web: {message}",
    }
    return {"phase": "Pending", "conditions": [condition]}


def container(reason: str, message: str = "") -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "c", "state": state}]}


# Pods without a node


def test_a_request_above_the_lent_amount_is_explained_by_the_limit() -> None:
    known = {VNODE: node(policy(resourceLimits=HALF))}
    taken = {VNODE: (counted("x", node=VNODE, cpu="1"),)}
    spec = {"containers": asking(cpu="6")}
    explanation = explain_pod(waiting(spec=spec, closest=known, node_pods=taken))
    assert explanation.rule is ExplanationRule.TOO_LITTLE
    assert "it requests cpu 6, and no virtual node has more free than 3" in explanation.verdict
    assert "cpu 4 of 8 (policy p lends 50 % of the 8 that are left)" in explanation.verdict
    assert "1 virtual node; 1 matches its selectors; 1 is tolerated" in explanation.reasons[1]


@pytest.mark.parametrize(
    ("used", "offered"),
    [
        (None, "cpu 0 of 8 (policy p limits cpuu, which no node has)"),
        (
            "1",
            "cpu 1 of 8 (pods of the binding request that much already; policy p limits cpuu,"
            " which no node has, so no more is lent)",
        ),
    ],
)
def test_a_request_for_a_resource_of_a_misspelled_limit_is_explained_by_the_name(
    used: str | None, offered: str
) -> None:
    limits = [{"resource": "cpuu", "percent": 50}]
    worker_pods = (counted("x", ours=True, cpu=used),) if used else ()
    closest = node(policy(resourceLimits=limits), worker_nodes=(pnode(),), worker_pods=worker_pods)
    taken = {VNODE: (counted("x", node=VNODE, cpu=used),)} if used else {}
    snapshot = waiting(
        spec={"containers": asking(cpu="2")}, closest={VNODE: closest}, node_pods=taken
    )
    snapshot = replace(snapshot, nodes=(virtual(cpu=used or "0"),))
    explanation = explain_pod(snapshot)
    assert explanation.rule is ExplanationRule.TOO_LITTLE
    assert explanation.verdict.endswith(f"that one offers {offered}")
    assert explanation.remedies == ("a correct name instead of cpuu in policy p",)


def test_a_request_that_is_too_large_is_explained_with_closed_windows() -> None:
    known = {VNODE: node(policy(resourceLimits=HALF))}
    shut = virtual("shut", taints=(VIRTUAL, CLOSED))
    tolerant = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]
    spec = {"containers": asking(cpu="6"), "tolerations": tolerant}
    snapshot = waiting(spec=spec, closest=known)
    explanation = explain_pod(replace(snapshot, nodes=(*snapshot.nodes, shut)))
    assert explanation.rule is ExplanationRule.TOO_LITTLE
    assert explanation.remedies[-1].startswith(
        "more nodes, at the next edge of a window: the window of"
    )


def test_a_closed_window_is_explained_with_the_time_when_it_opens() -> None:
    known = {VNODE: node(policy(timeWindows=NIGHT), vnode=virtual(taints=(VIRTUAL, CLOSED)))}
    tolerant = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]
    snapshot = pod(
        vpod(tolerations=tolerant),
        nodes=(virtual(taints=(VIRTUAL, CLOSED)),),
        closest=known,
    )
    explanation = explain_pod(snapshot)
    assert explanation.rule is ExplanationRule.WINDOW_CLOSED
    assert "policy p is closed until Mon 2026-11-16 20:00:00 UTC" in explanation.verdict


@pytest.mark.parametrize(
    ("snapshot", "rule", "text"),
    [
        (pod(vpod()), ExplanationRule.NO_NODE, "there is no virtual node at all"),
        (
            pod(vpod(), nodes=(virtual(),)),
            ExplanationRule.NOT_TOLERATED,
            "kubeocean.io/vnode:NoSchedule",
        ),
        (
            waiting(spec={"nodeSelector": {"a": "b"}}),
            ExplanationRule.NOT_SELECTED,
            "match none of 1",
        ),
        (waiting(spec={"schedulingGates": [{"name": "g"}]}), ExplanationRule.GATED, "gates: g"),
        (waiting(), ExplanationRule.FITS, f"it fits on {VNODE}"),
    ],
)
def test_the_first_filter_that_no_node_passes_decides(
    snapshot: PodSnapshot, rule: ExplanationRule, text: str
) -> None:
    explanation = explain_pod(snapshot)
    assert (explanation.rule, text in explanation.verdict) == (rule, True), explanation.verdict


NOT_READY = {"type": "Ready", "status": "False"}
CORDONED = {"key": "kubeocean.io/physical-node-unschedulable", "effect": "NoSchedule"}
VNODE_ONLY = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]
BUILT_IN = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("vnode", "reason"),
    [
        (virtual(taints=(VIRTUAL, CORDONED)), "the worker's node is cordoned"),
        (virtual(cordoned=True), "it is cordoned"),
        (virtual(taints=(VIRTUAL, BUILT_IN), ready=NOT_READY), "it is not Ready"),
    ],
)
def test_a_node_that_takes_no_pods_is_no_matter_of_tolerations(vnode: Node, reason: str) -> None:
    explanation = explain_pod(pod(vpod(tolerations=VNODE_ONLY), nodes=(vnode,)))
    assert explanation.rule is ExplanationRule.CLOSED_TO_PODS, explanation.verdict
    assert explanation.verdict.endswith(f"takes new pods: {reason}")
    assert not any("toleration" in each for each in explanation.remedies)


def test_a_pod_that_tolerates_everything_fits_on_a_node_that_is_not_ready() -> None:
    vnode = virtual(taints=(VIRTUAL, BUILT_IN), cordoned=True, ready=NOT_READY)
    assert explain_pod(pod(vpod(tolerations=TOLERANT), nodes=(vnode,))).rule is ExplanationRule.FITS


def test_a_deleted_pod_without_a_node_does_not_wait_for_one() -> None:
    metadata = {"deletionTimestamp": "2026-11-16T11:00:00Z", "finalizers": ["example.com/hold"]}
    explanation = explain_pod(pod(vpod(metadata=metadata), nodes=(virtual(),)))
    assert explanation.rule is ExplanationRule.LEAVING
    assert explanation.reasons == ("it is held by finalizers: example.com/hold",)


# Pods with a node

OWN = 'admission webhook "no.example.com" denied the request: not here'
QUOTA = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'


@pytest.mark.parametrize(
    ("snapshot", "rule", "text"),
    [
        (
            bound(absent=("ConfigMap team/a",)),
            ExplanationRule.MISSING,
            "refers to ConfigMap team/a",
        ),
        (bound(status=refused(QUOTA)), ExplanationRule.QUOTA, "q, requested: pods=1, used: pods=1"),
        (
            bound(status=refused(OWN)),
            ExplanationRule.ADMISSION,
            "no.example.com of worker b does not admit",
        ),
        (
            bound(status=refused("spec: bad")),
            ExplanationRule.REFUSED,
            "cannot be created in worker b: spec: bad",
        ),
        (bound(), ExplanationRule.STARTS, "which has not refused it"),
        (
            bound(node=node(policy(), heartbeat=lease("2026-11-16T10:00:00Z"))),
            ExplanationRule.SYNCER_SILENT,
            "is not at work",
        ),
        (
            bound(ppod(FIRST, ours=False), ppod(SECOND, ours=False)),
            ExplanationRule.NAME_TAKEN,
            "belong to other owners",
        ),
        (bound(ppod(FIRST)), ExplanationRule.RUNS, f"it runs in worker b on node n1 as m/{FIRST}"),
        (
            bound(ppod(FIRST, status=container("ImagePullBackOff", "no such image"))),
            ExplanationRule.IMAGE,
            "cannot get the image of c: ImagePullBackOff",
        ),
        (
            bound(ppod(FIRST, status=container("CrashLoopBackOff"))),
            ExplanationRule.CONTAINER,
            "does not start: CrashLoopBackOff",
        ),
        (
            bound(node=node(binding=a_binding(problem="down"))),
            ExplanationRule.WORKER_UNREAD,
            "cannot be read",
        ),
        (bound(node=None), ExplanationRule.NODE_GONE, "which does not exist"),
        (
            bound(status={"phase": "Failed", "reason": "PhysicalPodLost", "message": "gone"}),
            ExplanationRule.LOST,
            "it was lost: gone",
        ),
        (
            bound(status={"phase": "Failed", "reason": "NodeClosed", "message": "closed"}),
            ExplanationRule.NODE_CLOSED,
            f"it was rejected: node {VNODE} started no pods when it arrived",
        ),
        (
            bound(status={"phase": "Failed", "reason": "NodePorts", "message": "80 is taken"}),
            ExplanationRule.PORT_TAKEN,
            "it was rejected: another pod on the worker's node",
        ),
        (
            bound(
                status={"phase": "Pending", "conditions": [NOT_REPLICATED]},
                node=node(binding=a_binding(worker=UNREAD)),
            ),
            ExplanationRule.STAYS_ABOVE,
            "it does not run in the worker: it is of a DaemonSet",
        ),
        (
            bound(status={"phase": "Failed", "reason": "OutOfcpu", "message": "too much"}),
            ExplanationRule.TOO_LITTLE,
            "it was rejected",
        ),
        (bound(status={"phase": "Succeeded"}), ExplanationRule.ENDED, "Succeeded"),
        (
            bound(ppod(FIRST, status={"phase": "Failed"})),
            ExplanationRule.ENDED,
            f"pod m/{FIRST} of worker b",
        ),
        (
            pod(
                vpod(on=VNODE, metadata={"annotations": {"kubeocean.io/physical-pod-uid": "u"}}),
                node=node(policy()),
            ),
            ExplanationRule.LOST,
            "its pod is gone from worker b",
        ),
        (pod(None), ExplanationRule.NOT_FOUND, "there is no such pod"),
    ],
)
def test_the_first_rule_with_an_answer_decides(
    snapshot: PodSnapshot, rule: ExplanationRule, text: str
) -> None:
    explanation = explain_pod(snapshot)
    assert (explanation.rule, text in explanation.verdict) == (rule, True), explanation.verdict


@pytest.mark.parametrize(
    ("known", "part"),
    [
        (pod(NotRead("pod team/web", "403")), "pod team/web"),
        (pod(vpod(), nodes=NotRead("nodes", "403")), "nodes"),
        (waiting(node_pods=NotRead("pods on nodes", "403")), "pods on nodes"),
        (bound(node=NotRead(f"node {VNODE}", "403")), f"node {VNODE}"),
        (bound(node=node(binding=a_binding(worker=NotRead("binding b", "503")))), "binding b"),
        (
            bound(node=node(binding=a_binding(parts={"ids": NotRead("kube-system", "403")}))),
            "kube-system",
        ),
        (pod(vpod(on=VNODE), node=node(policy()), ppods=NotRead("pod m/web", "403")), "pod m/web"),
    ],
)
def test_a_part_that_was_not_read_is_not_taken_for_absent(known: PodSnapshot, part: str) -> None:
    explanation = explain_pod(known)
    assert explanation.rule is ExplanationRule.NOT_READ, explanation.verdict
    assert explanation.verdict.endswith(f"could not read {part}")
    assert any(each.startswith(f"{part}: ") for each in explanation.unread)


def test_pods_on_nodes_that_were_not_read_do_not_hide_another_reason() -> None:
    known = pod(vpod(), nodes=(virtual(),), node_pods=NotRead("pods on nodes", "403"))
    assert explain_pod(known).rule is ExplanationRule.NOT_TOLERATED


def test_a_lease_that_was_not_read_is_no_silent_syncer() -> None:
    unread = NotRead("lease of the node", "403")
    assert explain_pod(bound(node=node(policy(), heartbeat=unread))).rule is ExplanationRule.STARTS


@pytest.mark.parametrize(
    ("namespace", "remedies"),
    [
        (
            "kube-system",
            (
                "move the Secret from kube-system to team, the namespace of the pod, and name it"
                " there in the volume",
                "see what is refused; it is tried again every 5 min",
            ),
        ),
        ("team", ("see what is refused; it is tried again every 5 min",)),
    ],
)
def test_a_secret_that_is_refused_in_another_namespace_should_be_moved(
    namespace: str, remedies: tuple[str, ...]
) -> None:
    why = "the namespace holds Secrets of Kubernetes or of Kubeocean"
    refusals = {"secretNamespaces": {"refused": [{"namespace": namespace, "reason": why}]}}
    known = a_binding(policy(), binding=binding(status={"phase": "Ready", **refusals}))
    message = f"the syncer may not read Secrets in namespace {namespace}: {why}"
    snapshot = bound(status=refused(message), node=node(binding=known))
    explanation = explain_pod(snapshot)
    assert explanation.rule is ExplanationRule.REFUSED, explanation.verdict
    assert explanation.remedies == remedies


def test_a_pod_that_the_worker_does_not_schedule_has_the_message_of_its_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    physical = ppod(FIRST, status={"phase": "Pending", "conditions": [condition]}, node="")
    explanation = explain_pod(bound(physical))
    assert explanation.rule is ExplanationRule.UNSCHEDULED
    assert "0/3 nodes are available" in explanation.verdict


def test_other_reasons_of_the_scheduler_are_quoted() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "volume node affinity conflict",
    }
    status = {"phase": "Pending", "conditions": [condition]}
    explanation = explain_pod(pod(vpod(status=status, tolerations=TOLERANT), nodes=(virtual(),)))
    assert explanation.rule is ExplanationRule.FITS
    assert "the scheduler has other reasons" in explanation.verdict
    assert "the scheduler reports: volume node affinity conflict" in explanation.reasons


def test_the_second_name_of_a_physical_pod_is_explained() -> None:
    explanation = explain_pod(bound(ppod(FIRST, ours=False), ppod(SECOND)))
    assert explanation.rule is ExplanationRule.RUNS
    assert any(f"m/{FIRST} belongs to another owner" in each for each in explanation.reasons)


def test_an_eviction_names_the_policy_and_the_time() -> None:
    eviction = Eviction("team", "web", VNODE, "2026-11-16T11:00:00Z", "Due", "taken back")
    explanation = explain_pod(pod(None, evictions=(EvictionRecord("p", "b", eviction),)))
    assert explanation.rule is ExplanationRule.EVICTED
    evicted = f"evicted at 2026-11-16T11:00:00Z: policy p reclaimed node {VNODE}"
    assert explanation.verdict.endswith(evicted)
    assert explanation.reasons == ("binding b: taken back",)


def test_an_eviction_of_months_ago_does_not_explain_a_missing_pod() -> None:
    eviction = Eviction("team", "web", VNODE, "2026-08-01T11:00:00Z", "Due", "reclaimed")
    explanation = explain_pod(pod(None, evictions=(EvictionRecord("p", "b", eviction),)))
    assert explanation.rule is ExplanationRule.NOT_FOUND
    assert "a pod of this name was evicted at 2026-08-01T11:00:00Z" in explanation.verdict


def test_an_eviction_does_not_explain_a_later_pod_of_that_name() -> None:
    eviction = Eviction("team", "web", VNODE, "2026-11-16T11:30:00Z", "Due", "reclaimed")
    later = event("Scheduled", "bound", at="2026-11-16T11:40:00Z", uid="u-again")
    known = pod(None, evictions=(EvictionRecord("p", "b", eviction),), events=(later,))
    assert explain_pod(known).rule is ExplanationRule.NOT_FOUND
    own = event("Reclaimed", "Node x is reclaimed", at="2026-11-16T11:30:00Z")
    ended = event("Killing", "Stopping container c", at="2026-11-16T11:31:00Z")
    assert explain_pod(replace(known, events=(own, ended))).rule is ExplanationRule.EVICTED


def event(reason: str, message: str, *, at: str, uid: str = "u-web") -> Event:
    body = {"involvedObject": {"uid": uid}, "reason": reason, "message": message}
    return msgspec.convert(body | {"lastTimestamp": at}, Event)


def test_an_event_alone_explains_an_eviction() -> None:
    message = "Node x is reclaimed since 2026-11-16T11:00:00Z"
    reclaimed = event("Reclaimed", message, at="2026-11-16T11:30:00Z")
    explanation = explain_pod(pod(None, events=(reclaimed,)))
    assert f"evicted at 2026-11-16T11:30:00Z: {message}" in explanation.verdict
    assert explanation.reasons == ()

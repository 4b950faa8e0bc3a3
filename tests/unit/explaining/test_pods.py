"""What is said of pods, and which rule decides."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from explained import (
    CLOSED,
    NIGHT,
    TOLERANT,
    VIRTUAL,
    VNODE,
    counted,
    lease,
    node,
    pod,
    policy,
    ppod,
    side,
    vpod,
)
from explained import vnode as virtual
from kubeocean.api import naming
from kubeocean.api.policy import Eviction
from kubeocean.explaining.facts import Evicted, PodFacts
from kubeocean.explaining.pods import explain_pod
from kubeocean.explaining.story import Rule
from kubeocean.runtime.kinds import Event
from kubeocean.runtime.objects import Json

HALF = [{"resource": "cpu", "percent": 50}]
FIRST = naming.physical_name("web", "team")
SECOND = naming.second_physical_name("web", "team", uid="u-web")


def asking(**requests: str) -> list[Json]:
    return [{"name": "c", "image": "i", "resources": {"requests": requests}}]


def waiting(**more: object) -> PodFacts:
    spec = {"tolerations": TOLERANT} | more.pop("spec", {})
    return pod(vpod(**spec), nodes=(virtual(),), **more)


def bound(*ppods: object, status: Json | None = None, **more: object) -> PodFacts:
    known = {"node": node(policy()), "ppods": ppods} | more
    return pod(vpod(on=VNODE, status=status), **known)


def refused(message: str, reason: str = "FailedCreatePod") -> Json:
    said = {
        "type": "PhysicalPodCreated",
        "status": "False",
        "reason": reason,
        "message": f"could not create pods m/web: {message}",
    }
    return {"phase": "Pending", "conditions": [said]}


def container(reason: str, message: str = "") -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "c", "state": state}]}


# Pods without a node


def test_a_pod_that_asks_for_more_than_is_lent_is_told_the_limit() -> None:
    known = {VNODE: node(policy(resourceLimits=HALF))}
    taken = {VNODE: (counted("x", node=VNODE, cpu="1"),)}
    spec = {"containers": asking(cpu="6")}
    story = explain_pod(waiting(spec=spec, bindings=known, taken=taken))
    assert story.rule is Rule.TOO_LITTLE
    assert "it requests cpu 6, and no virtual node has more free than 3" in story.verdict
    assert "cpu 4 of 8 (policy p lends 50 % of the 8 that are left)" in story.verdict
    assert "1 virtual node; 1 matches its selectors; 1 is tolerated" in story.reasons[1]


def test_a_pod_that_asks_for_too_much_is_told_of_windows_that_are_closed() -> None:
    known = {VNODE: node(policy(resourceLimits=HALF))}
    shut = virtual("shut", taints=(VIRTUAL, CLOSED))
    tolerant = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]
    spec = {"containers": asking(cpu="6"), "tolerations": tolerant}
    facts = waiting(spec=spec, bindings=known)
    story = explain_pod(replace(facts, nodes=(*facts.nodes, shut)))
    assert story.rule is Rule.TOO_LITTLE
    assert story.remedies[-1].startswith("more nodes, at the next edge of a window: the window of")


def test_a_pod_that_waits_for_a_window_is_told_when_it_opens() -> None:
    known = {VNODE: node(policy(timeWindows=NIGHT), vnode=virtual(taints=(VIRTUAL, CLOSED)))}
    tolerant = [{"key": "kubeocean.io/vnode", "operator": "Exists"}]
    facts = pod(
        vpod(tolerations=tolerant),
        nodes=(virtual(taints=(VIRTUAL, CLOSED)),),
        bindings=known,
    )
    story = explain_pod(facts)
    assert story.rule is Rule.WINDOW_CLOSED
    assert "policy p is closed until Mon 2026-11-16 20:00:00 UTC" in story.verdict


@pytest.mark.parametrize(
    ("facts", "rule", "said"),
    [
        (pod(vpod()), Rule.NO_NODE, "there is no virtual node at all"),
        (pod(vpod(), nodes=(virtual(),)), Rule.NOT_TOLERATED, "kubeocean.io/vnode:NoSchedule"),
        (waiting(spec={"nodeSelector": {"a": "b"}}), Rule.NOT_SELECTED, "match none of 1"),
        (waiting(spec={"schedulingGates": [{"name": "g"}]}), Rule.GATED, "gates: g"),
        (waiting(), Rule.FITS, f"it fits on {VNODE}"),
    ],
)
def test_the_first_sieve_that_lets_none_through_decides(
    facts: PodFacts, rule: Rule, said: str
) -> None:
    story = explain_pod(facts)
    assert (story.rule, said in story.verdict) == (rule, True), story.verdict


# Pods with a node

OWN = 'admission webhook "no.example.com" denied the request: not here'
QUOTA = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1'


@pytest.mark.parametrize(
    ("facts", "rule", "said"),
    [
        (bound(absent=("ConfigMap team/a",)), Rule.MISSING, "refers to ConfigMap team/a"),
        (bound(status=refused(QUOTA)), Rule.QUOTA, "q, requested: pods=1, used: pods=1"),
        (bound(status=refused(OWN)), Rule.ADMISSION, "no.example.com of worker b does not admit"),
        (bound(status=refused("spec: bad")), Rule.REFUSED, "cannot be made in worker b: spec: bad"),
        (bound(), Rule.STARTS, "nobody has refused it"),
        (
            bound(node=node(policy(), heartbeat=lease("2026-11-16T10:00:00Z"))),
            Rule.SYNCER_SILENT,
            "is not at work",
        ),
        (
            bound(ppod(FIRST, ours=False), ppod(SECOND, ours=False)),
            Rule.NAME_TAKEN,
            "belong to somebody else",
        ),
        (bound(ppod(FIRST)), Rule.RUNS, f"it runs in worker b on node n1 as m/{FIRST}"),
        (
            bound(ppod(FIRST, status=container("ImagePullBackOff", "no such image"))),
            Rule.IMAGE,
            "cannot get the image of c: ImagePullBackOff",
        ),
        (
            bound(ppod(FIRST, status=container("CrashLoopBackOff"))),
            Rule.CONTAINER,
            "does not start: CrashLoopBackOff",
        ),
        (bound(node=node(side=side(problem="down"))), Rule.WORKER_UNREAD, "cannot be read"),
        (bound(node=None), Rule.NODE_GONE, "which does not exist"),
        (
            bound(status={"phase": "Failed", "reason": "PhysicalPodLost", "message": "gone"}),
            Rule.LOST,
            "it was lost: gone",
        ),
        (
            bound(status={"phase": "Failed", "reason": "OutOfcpu", "message": "too much"}),
            Rule.TOO_LITTLE,
            "it was turned away",
        ),
        (bound(status={"phase": "Succeeded"}), Rule.ENDED, "Succeeded"),
        (
            pod(
                vpod(on=VNODE, metadata={"annotations": {"kubeocean.io/physical-pod-uid": "u"}}),
                node=node(policy()),
            ),
            Rule.LOST,
            "its pod is gone from worker b",
        ),
        (pod(None), Rule.NOT_FOUND, "there is no such pod"),
    ],
)  # fmt: skip
def test_the_first_rule_with_an_answer_decides(facts: PodFacts, rule: Rule, said: str) -> None:
    story = explain_pod(facts)
    assert (story.rule, said in story.verdict) == (rule, True), story.verdict


def test_a_pod_that_no_node_of_the_worker_takes_is_told_what_its_scheduler_says() -> None:
    said = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    below = ppod(FIRST, status={"phase": "Pending", "conditions": [said]}, node="")
    story = explain_pod(bound(below))
    assert story.rule is Rule.UNSCHEDULED
    assert "0/3 nodes are available" in story.verdict


def test_what_only_the_scheduler_sees_is_left_to_its_word() -> None:
    said = {"type": "PodScheduled", "status": "False", "message": "volume node affinity conflict"}
    status = {"phase": "Pending", "conditions": [said]}
    story = explain_pod(pod(vpod(status=status, tolerations=TOLERANT), nodes=(virtual(),)))
    assert story.rule is Rule.FITS
    assert "the scheduler has other reasons" in story.verdict
    assert "the scheduler says: volume node affinity conflict" in story.reasons


def test_a_second_name_is_told() -> None:
    story = explain_pod(bound(ppod(FIRST, ours=False), ppod(SECOND)))
    assert story.rule is Rule.RUNS
    assert any(f"m/{FIRST} belongs to somebody else" in each for each in story.reasons)


def test_an_evicted_pod_is_told_by_which_policy_and_when() -> None:
    eviction = Eviction("team", "web", VNODE, "2026-11-16T11:00:00Z", "Due", "taken back")
    story = explain_pod(pod(None, evicted=(Evicted("p", "b", eviction),)))
    assert story.rule is Rule.EVICTED
    assert "evicted at 2026-11-16T11:00:00Z: policy p took back node" in story.verdict


def test_an_event_is_enough_to_tell_an_eviction() -> None:
    told = msgspec.convert(
        {
            "involvedObject": {"uid": "u-web"},
            "reason": "Reclaimed",
            "message": "Node x is taken back by its owner (policy p): Due",
            "lastTimestamp": "2026-11-16T11:00:00Z",
        },
        Event,
    )
    story = explain_pod(pod(None, events=(told,)))
    assert "evicted at 2026-11-16T11:00:00Z: Node x is taken back" in story.verdict
    assert story.reasons == ()  # the verdict has said it

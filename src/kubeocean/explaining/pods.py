"""Pods: why a pod of the computing cluster waits, runs where it does, or has gone.

Pure. The rules are asked in order, and the first one that has an answer decides. What runs below
is found by the same plan that the syncer makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubeocean.api.conditions import CONNECTED
from kubeocean.api.reasons import PHYSICAL_POD_LOST, PodEvent
from kubeocean.explaining.below import explain_creation, explain_following
from kubeocean.explaining.deal import strike
from kubeocean.explaining.facts import NodeFacts, PodFacts
from kubeocean.explaining.nodes import heartbeat, step_text
from kubeocean.explaining.story import Rule, Section, Story
from kubeocean.explaining.waiting import explain_waiting
from kubeocean.runtime.kinds import Event
from kubeocean.runtime.objects import controller_of, find_condition
from kubeocean.syncer.forge.podshown import is_copied
from kubeocean.syncer.podplan import Move, Plan, is_lent, is_wanted, plan
from kubeocean.syncer.podviews import VirtualPod

__all__ = ["explain_pod"]

_RECLAIMED: Final = (PodEvent.RECLAIMED, PodEvent.RECLAIM_FORCED)
_EVENTS: Final = 6
_NO_ROOM: Final = "OutOf"  # how the reason of a pod begins that did not fit its node


def explain_pod(facts: PodFacts) -> Story:
    """The page about a pod."""
    pod = facts.pod
    if (pod is None or pod.deleting) and (story := _evicted(facts)) is not None:
        return story
    if pod is None:
        said = "there is no such pod, and nothing tells that it was evicted"
        return Story(f"pod {facts.key}", Rule.NOT_FOUND, said, unread=facts.unread)
    if not pod.spec.node_name and not pod.finished:
        return explain_waiting(facts)
    verdict = _above(facts, pod) or _below(facts, pod)
    return Story(
        f"pod {facts.key}",
        verdict.rule,
        verdict.said,
        (*verdict.reasons, *_taking_back(facts)),
        sections=(Section("latest events", tuple(_events(facts))),),
        remedies=verdict.remedies,
        unread=facts.unread,
    )


@dataclass(frozen=True, slots=True)
class _Verdict:
    rule: Rule
    said: str
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


def _evicted(facts: PodFacts) -> Story | None:
    """By a policy, as it says itself; or as an event says."""
    pod = facts.pod
    told = [each for each in facts.events if each.reason in _RECLAIMED]
    if pod is not None:
        told = [each for each in told if each.involved_object.uid == pod.uid]
    known = [each for each in facts.evicted if pod is None or told]
    if not told and not known:
        return None
    if known:
        last = max(known, key=lambda each: each.eviction.time or "")
        at, node = last.eviction.time, last.eviction.node
        why = f"policy {last.policy} took back node {node} ({last.eviction.reason})"
        reasons = [f"binding {last.binding}: {last.eviction.message}"]
    else:
        latest = max(told, key=_when)
        at, why, reasons = _when(latest), latest.message, []
    said = " ".join((why, *reasons))  # what was said already is not said again
    reasons += _told(each for each in told[-_EVENTS:] if each.message not in said)
    going = f"it was evicted at {at}" if pod is None else f"it is leaving, evicted at {at}"
    remedies = ("a controller makes it again elsewhere; a bare pod is gone",)
    return Story(
        f"pod {facts.key}", Rule.EVICTED, f"{going}: {why}", tuple(reasons),
        remedies=remedies, unread=facts.unread,
    )  # fmt: skip


# What can be said without the worker


def _above(facts: PodFacts, pod: VirtualPod) -> _Verdict | None:
    node, name = facts.node, pod.spec.node_name
    if pod.finished:
        return _finished(pod)
    if node is None or node.vnode is None:
        said = f"it is bound to node {name}, which does not exist"
        return _Verdict(Rule.NODE_GONE, said, remedies=("Kubernetes removes such pods",))
    side, domain = node.side, facts.domain
    if node.vnode.labels.get(domain.managed_by) != domain.product:
        said = f"it is on node {name} of the computing cluster; Kubeocean has no part in it"
        return _Verdict(Rule.NOT_OURS, said)
    if side.binding is None:
        said = f"node {name} is left over of binding {side.name}, which does not exist"
        return _Verdict(Rule.BINDING_GONE, said)
    if not is_wanted(pod, side.binding, domain):
        return _stays(facts, pod)
    if side.problem:
        return _unread(node)
    return None


def _finished(pod: VirtualPod) -> _Verdict:
    status = pod.content().get("status") or {}
    message = status.get("message", "")
    if pod.status.reason == PHYSICAL_POD_LOST:
        said = f"it was lost: {message or 'its pod in the worker disappeared'}"
        reasons = ("somebody else removed what ran in the worker, or nobody scheduled it there",)
        return _Verdict(Rule.LOST, said, reasons, ("a controller makes it again",))
    if pod.status.reason.startswith(_NO_ROOM):
        said = f"it was turned away: node {pod.spec.node_name} had too little when it came"
        why = (message,) if message else ()
        return _Verdict(Rule.TOO_LITTLE, said, why, ("a controller makes it again",))
    how = f" ({pod.status.reason}: {message})" if pod.status.reason else ""
    return _Verdict(Rule.ENDED, f"it has ended: {pod.status.phase}{how}")


def _stays(facts: PodFacts, pod: VirtualPod) -> _Verdict:
    owner = controller_of(pod)
    if pod.namespace in facts.domain.system_namespaces:
        said = f"it does not run in the worker: pods of namespace {pod.namespace} stay here"
        return _Verdict(Rule.STAYS_ABOVE, said)
    kind = owner.kind if owner is not None else ""
    said = f"it does not run in the worker: it is a {kind}'s, and those are for real nodes"
    remedies = (
        f"the annotation {facts.domain.running_daemonset}: true in the pod template",
        "or runningDaemonsetByDefault: true in the binding",
    )
    return _Verdict(Rule.STAYS_ABOVE, said, remedies=remedies)


def _unread(node: NodeFacts) -> _Verdict:
    side = node.side
    assert side.binding is not None
    said = f"the worker of binding {side.name} cannot be read; it shows what was last known"
    reasons = [f"asked for the worker now: {side.problem}"]
    connected = find_condition(side.binding.status.conditions, CONNECTED)
    if connected is not None and connected.status != "True":
        reasons.append(f"the syncer says: {connected.message}")
    reasons += [*heartbeat(node), "nothing is deleted there meanwhile: the pod may well run"]
    return _Verdict(
        Rule.WORKER_UNREAD,
        said,
        tuple(reasons),
        ("an API server of the worker that runs, and answers here",),
    )


# What the worker shows


def _below(facts: PodFacts, pod: VirtualPod) -> _Verdict:
    assert facts.node is not None and facts.node.side.ids is not None
    node, side = facts.node, facts.node.side
    todo = _plan(facts, pod)
    match todo.move:
        case Move.CREATE:
            return _Verdict(*explain_creation(facts, pod))
        case Move.FOLLOW if todo.ppod is not None:
            return _Verdict(*explain_following(facts, pod, todo.ppod))
        case Move.STOP if todo.ppod is not None:
            ends = "terminating there" if todo.ppod.deleting else "about to be told to end there"
            said = f"it is leaving: pod {todo.ppod.key} of worker {side.name} is {ends}"
            grace = todo.ppod.metadata.deletion_grace_period_seconds
            reasons = (f"its containers have {grace} s to end",) if grace is not None else ()
            return _Verdict(Rule.LEAVING, said, reasons, ("the end of its containers below",))
        case Move.RELEASE:
            said = "it is leaving: nothing runs for it in the worker any more"
            held = ", ".join(pod.metadata.finalizers or ())
            reasons = (f"it is held by finalizers: {held}",) if held else ()
            return _Verdict(Rule.LEAVING, said, reasons, ("the syncer removes it",))
        case Move.MOURN:
            said = f"it is lost: its pod is gone from worker {side.name}"
            return _Verdict(Rule.LOST, said, tuple(heartbeat(node)), ("the syncer says so",))
        case _:
            said = f"node {pod.spec.node_name} is not one of binding {side.name}"
            return _Verdict(Rule.NOT_OURS, said)


def _plan(facts: PodFacts, pod: VirtualPod) -> Plan:
    assert facts.node is not None
    side, domain = facts.node.side, facts.domain
    assert side.ids is not None
    recorded = domain.physical_pod_uid in pod.annotations
    return plan(
        pod,
        facts.ppods,
        lent=is_lent(facts.node.vnode, side.ids, domain),
        wanted=True,
        had_one=lambda: recorded and not is_copied(pod.content(), domain),
        ids=side.ids,
        domain=domain,
    )


def _taking_back(facts: PodFacts) -> tuple[str, ...]:
    """What its node's way back means for this pod."""
    node = facts.node
    if node is None or node.side.binding is None or node.side.problem or facts.pod is None:
        return ()
    made = strike(node).plan
    if made is None:
        return ()
    steps = (step for step in made.steps if step.guest.uid == facts.pod.uid)
    return tuple(f"its node is taken back, and it {step_text(step, made)}" for step in steps)


def _events(facts: PodFacts) -> Iterable[str]:
    return _told(sorted((*facts.events, *facts.below), key=_when))[-_EVENTS:]


def _told(events: Iterable[Event]) -> list[str]:
    """A line each; of those that say the same, which both sides do, the last."""
    lines = {
        (each.reason, each.message): f"{_when(each)} {each.reason}: {each.message}"
        for each in events
    }
    return list(lines.values())


def _when(event: Event) -> str:
    """Newer events have no timestamps of their own."""
    known = event.last_timestamp or event.first_timestamp
    return known or event.metadata.creation_timestamp or ""

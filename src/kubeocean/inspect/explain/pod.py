"""Explains a pod of the computing cluster: why it waits, where it runs, or why it is gone.

Pure. The rules are applied in order; the first rule with an answer decides. The physical pod is
chosen by the same plan that the syncer makes. If the worker has no physical pod, the reason for
that is the answer; if it has one, the state of the physical pod is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from kubeocean.api import naming
from kubeocean.api.conditions import (
    NODE_PORTS,
    PHYSICAL_POD_LOST,
    POD_CREATED,
    POD_EXPECTED,
    POD_SYNCED,
    PodEvent,
)
from kubeocean.api.ownership import Ids, Ownership
from kubeocean.inspect.explain.node import (
    heartbeat_text,
    silent_worker,
    step_text,
    syncer_logs,
    syncer_text,
)
from kubeocean.inspect.explain.node_decision import evaluate
from kubeocean.inspect.explain.pending import explain_pending
from kubeocean.inspect.explain.report import Answer, Explanation, ExplanationRule, Section, not_read
from kubeocean.inspect.explain.snapshots import NodeSnapshot, PodSnapshot, is_fresh
from kubeocean.inspect.format import few
from kubeocean.inspect.snapshot import NotRead, known, require
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.kinds import Event
from kubeocean.runtime.objects import Json, controller_of, find_condition
from kubeocean.syncer.pods.metadata import is_copied
from kubeocean.syncer.pods.plan import (
    UNSCHEDULED_S,
    Action,
    Plan,
    is_own_node,
    may_run_in_worker,
    ownership_of,
    plan,
)
from kubeocean.syncer.pods.status import waits_for_node
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

__all__ = ["explain_pod"]

_RECLAIMED: Final = (PodEvent.RECLAIMED, PodEvent.RECLAIM_FORCED)
_EVENTS: Final = 6
_EVENT_LIFETIME: Final = timedelta(hours=1)  # the API server's default --event-ttl
_OUT_OF: Final = "OutOf"  # prefix of the reason of a pod that its node rejected
_IMAGES: Final = frozenset(
    {
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
    }
)
_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_DOING: Final = "could not "
_ADMISSION: Final = re.compile(
    r'admission webhook "(?P<hook>[^"]+)"|ValidatingAdmissionPolicy \'(?P<policy>[^\']+)\''
    r"|violates PodSecurity"
)
_AGAIN: Final = "a controller creates it again"
_REJECTIONS: Final = {  # by the reason of a pod that its virtual node rejected
    PodEvent.NODE_CLOSED: Answer(
        ExplanationRule.NODE_CLOSED,
        "node {node} started no pods when it arrived, whatever a pod tolerates",
        remedies=(
            f"{_AGAIN}; without spec.nodeName the scheduler chooses a node that is open",
            "see when the node opens: kubeocean explain node",
        ),
    ),
    NODE_PORTS: Answer(
        ExplanationRule.PORT_TAKEN,
        "another pod on the worker's node behind {node} has a host port that it requests",
        remedies=(_AGAIN, "or another hostPort, or another node"),
    ),
}
_CONTAINERS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def explain_pod(snapshot: PodSnapshot) -> Explanation:
    """Return the explanation of a pod."""
    about, pod = f"pod {snapshot.key}", snapshot.pod
    if isinstance(pod, NotRead):
        answer = not_read((pod,))
        assert answer is not None
        return Explanation.of(about, answer, unread=snapshot.unread)
    if (pod is None or pod.deleting) and (evicted := _evicted(snapshot, pod)) is not None:
        return Explanation.of(about, evicted, unread=snapshot.unread)
    if pod is None:
        absent = "there is no such pod, and no policy or event records its eviction"
        answer = Answer(ExplanationRule.NOT_FOUND, absent)
        return Explanation.of(about, answer, unread=snapshot.unread)
    if not pod.spec.node_name and not pod.finished:
        if pod.deleting:
            return Explanation.of(about, _deleted(pod), unread=snapshot.unread)
        return explain_pending(snapshot)
    return Explanation.of(
        about,
        _without_worker(snapshot, pod) or _in_worker(snapshot, pod),
        more=_reclaim_text(snapshot, pod),
        sections=(Section("latest events", tuple(_events(snapshot))),),
        unread=snapshot.unread,
    )


def _evicted(snapshot: PodSnapshot, pod: VirtualPod | None) -> Answer | None:
    """Return the answer that a pod was evicted, if a policy or an event records that."""
    events = [each for each in known(snapshot.events, ()) if each.reason in _RECLAIMED]
    if pod is not None:
        events = [each for each in events if each.involved_object.uid == pod.uid]
    records = snapshot.evictions if pod is None or events else ()
    if not events and not records:
        return None
    if records:
        last = max(records, key=lambda each: each.eviction.time or "")
        at, node = last.eviction.time, last.eviction.node
        why = f"policy {last.policy} reclaimed node {node}"
        reasons = [f"binding {last.binding}: {last.eviction.message}"]
    else:
        latest = max(events, key=_time)
        at, why, reasons = _time(latest), latest.message, []
    shown = " ".join((why, *reasons))
    reasons += _event_lines(each for each in events[-_EVENTS:] if each.message not in shown)
    if pod is None and _is_outdated(
        snapshot, at or "", {each.involved_object.uid for each in events}
    ):
        verdict = f"there is no such pod; a pod of this name was evicted at {at}: {why}"
        earlier = "that may have been an earlier pod: events are kept for an hour only"
        return Answer(ExplanationRule.NOT_FOUND, verdict, (*reasons, earlier))
    state = f"it was evicted at {at}" if pod is None else f"it is leaving, evicted at {at}"
    remedy = "a controller creates it again on another node; a bare pod is gone"
    return Answer(ExplanationRule.EVICTED, f"{state}: {why}", tuple(reasons), (remedy,))


def _is_outdated(snapshot: PodSnapshot, at: str, evicted: set[str]) -> bool:
    """Whether the eviction `at` that time may have been of an earlier pod of the same name.

    A StatefulSet creates a pod of the same name again. Events show that within their lifetime.
    """
    evicted_at = instant_of(at) if at else None
    if evicted_at is None or snapshot.now - evicted_at > _EVENT_LIFETIME:
        return True
    earliest: dict[str, str] = {}
    for event in known(snapshot.events, ()):
        uid = event.involved_object.uid
        earliest[uid] = min(earliest.get(uid, _time(event)), _time(event))
    return any(time > at for uid, time in earliest.items() if uid not in evicted)


def _deleted(pod: VirtualPod) -> Answer:
    """Return the answer for a pod that is being deleted and was never bound."""
    held = few(pod.metadata.finalizers or ())
    verdict = f"it is leaving: it is being deleted since {pod.metadata.deletion_timestamp}"
    verdict += ", and was never bound to a node"
    reasons = (f"it is held by finalizers: {held}",) if held else ()
    return Answer(ExplanationRule.LEAVING, verdict, reasons, ("the removal of its finalizers",))


# Answers that need no physical pod


def _without_worker(snapshot: PodSnapshot, pod: VirtualPod) -> Answer | None:
    if pod.finished:
        return _finished(pod)
    node, name = snapshot.node, pod.spec.node_name
    if node is None:
        verdict = f"it is bound to node {name}, which does not exist"
        return Answer(
            ExplanationRule.NODE_GONE, verdict, remedies=("Kubernetes removes such pods",)
        )
    if isinstance(node, NotRead) or node.virtual is None:
        return not_read((node,))
    binding, domain = node.binding, snapshot.domain
    if node.virtual.labels.get(domain.managed_by) != domain.product:
        verdict = f"it is on node {name} of the computing cluster; Kubeocean does not manage it"
        return Answer(ExplanationRule.NOT_OURS, verdict)
    if (answer := not_read((binding.worker,))) is not None:
        return _reported_unexpected(pod) or answer
    worker = binding.present
    if worker is None:
        verdict = f"node {name} is left over of binding {binding.name}, which does not exist"
        return Answer(ExplanationRule.BINDING_GONE, verdict)
    if not may_run_in_worker(pod, worker.binding, domain):
        return _stays(snapshot, pod)
    if binding.problem:
        answer = silent_worker(binding, "the pod shows its last known status")
        last = "nothing is deleted there meanwhile: the pod may well run"
        return answer._replace(reasons=(*answer.reasons, *heartbeat_text(node), last))
    return not_read((worker.ids, snapshot.ppods))


def _finished(pod: VirtualPod) -> Answer:
    status = pod.content().get("status") or {}
    message = status.get("message", "")
    if pod.status.reason == PHYSICAL_POD_LOST:
        verdict = f"it was lost: {message or 'its pod in the worker disappeared'}"
        reason = "its pod in the worker was deleted there, or was not scheduled there in time"
        return Answer(ExplanationRule.LOST, verdict, (reason,), ("a controller creates it again",))
    if (rejected := _REJECTIONS.get(pod.status.reason)) is not None:
        reasons = (message,) if message else ()
        verdict = f"it was rejected: {rejected.verdict.format(node=pod.spec.node_name)}"
        return rejected._replace(verdict=verdict, reasons=reasons)
    if pod.status.reason.startswith(_OUT_OF):
        verdict = f"it was rejected: node {pod.spec.node_name} had too little when it arrived"
        reasons = (message,) if message else ()
        return Answer(
            ExplanationRule.TOO_LITTLE, verdict, reasons, ("a controller creates it again",)
        )
    how = f" ({pod.status.reason}: {message})" if pod.status.reason else ""
    return Answer(ExplanationRule.ENDED, f"it has ended: {pod.status.phase}{how}")


def _reported_unexpected(pod: VirtualPod) -> Answer | None:
    """Return the answer that a pod is not replicated, if the syncer has reported that."""
    reported = find_condition(pod.status.conditions, POD_EXPECTED)
    if reported is None or reported.reason != PodEvent.NOT_REPLICATED:
        return None
    verdict = f"it does not run in the worker: {reported.message}"
    return Answer(ExplanationRule.STAYS_ABOVE, verdict, (_reported_text(pod),))


def _reported_text(pod: VirtualPod) -> str:
    reported = find_condition(pod.status.conditions, POD_EXPECTED)
    if reported is None or reported.reason != PodEvent.NOT_REPLICATED:
        return f"the syncer has not reported {PodEvent.NOT_REPLICATED} yet"
    return f"the syncer reported {PodEvent.NOT_REPLICATED} at {reported.last_transition_time}"


def _stays(snapshot: PodSnapshot, pod: VirtualPod) -> Answer:
    owner = controller_of(pod)
    reasons = (_reported_text(pod),)
    if pod.namespace in snapshot.domain.system_namespaces:
        verdict = f"it does not run in the worker: pods of namespace {pod.namespace} never do"
        return Answer(
            ExplanationRule.STAYS_ABOVE, verdict, reasons, ("the pod in another namespace",)
        )
    kind = owner.kind if owner is not None else ""
    verdict = f"it does not run in the worker: it is a {kind}'s, and those are for real nodes"
    remedies = (
        f"the annotation {snapshot.domain.running_daemonset}: true in the pod template",
        "or runningDaemonsetByDefault: true in the binding",
    )
    return Answer(ExplanationRule.STAYS_ABOVE, verdict, reasons, remedies)


# Answers from the worker


def _in_worker(snapshot: PodSnapshot, pod: VirtualPod) -> Answer:
    node = _node(snapshot)
    todo, worker = _plan(snapshot, pod), f"worker {node.binding.name}"
    match todo.action:
        case Action.CREATE:
            return _uncreated(snapshot, pod)
        case Action.SYNC if todo.ppod is not None:
            return _created(snapshot, pod, todo.ppod)
        case Action.DELETE if todo.ppod is not None:
            state = "terminating there" if todo.ppod.deleting else "about to be deleted there"
            verdict = f"it is leaving: pod {todo.ppod.key} of {worker} is {state}"
            grace = todo.ppod.metadata.deletion_grace_period_seconds
            reasons = (f"its containers have {grace} s to end",) if grace is not None else ()
            remedy = "the end of its containers in the worker"
            return Answer(ExplanationRule.LEAVING, verdict, reasons, (remedy,))
        case Action.FINALIZE:
            verdict = "it is leaving: no pod runs for it in the worker any more"
            held = ", ".join(pod.metadata.finalizers or ())
            reasons = (f"it is held by finalizers: {held}",) if held else ()
            return Answer(ExplanationRule.LEAVING, verdict, reasons, ("the syncer removes it",))
        case Action.REPORT_LOST:
            verdict = f"it is lost: its pod is gone from {worker}"
            return Answer(
                ExplanationRule.LOST,
                verdict,
                tuple(heartbeat_text(node)),
                ("the syncer reports it",),
            )
        case _:
            verdict = f"node {pod.spec.node_name} is not one of binding {node.binding.name}"
            return Answer(ExplanationRule.NOT_OURS, verdict)


def _plan(snapshot: PodSnapshot, pod: VirtualPod) -> Plan:
    ids, domain = _ids(snapshot), snapshot.domain
    recorded = domain.physical_pod_uid in pod.annotations
    return plan(
        pod,
        require(snapshot.ppods),
        own_node=is_own_node(_node(snapshot).virtual, ids, domain),
        may_run=True,
        had_physical=lambda: recorded and not is_copied(pod.content(), domain),
        ids=ids,
        domain=domain,
    )


def _node(snapshot: PodSnapshot) -> NodeSnapshot:
    assert isinstance(snapshot.node, NodeSnapshot)
    return snapshot.node


def _ids(snapshot: PodSnapshot) -> Ids:
    worker = _node(snapshot).binding.present
    assert worker is not None
    return require(worker.ids)


def _uncreated(snapshot: PodSnapshot, pod: VirtualPod) -> Answer:
    """Return the answer why a pod has no physical pod."""
    binding = _node(snapshot).binding
    refused = find_condition(pod.status.conditions, POD_CREATED)
    message = refused.message if refused is not None else ""
    reasons = (f"the syncer reports: {message}",) if message else ()
    if snapshot.absent:
        absent = few(snapshot.absent)
        verdict = f"it is pending: it refers to {absent}, which does not exist"
        return Answer(
            ExplanationRule.MISSING, verdict, reasons, (f"{absent}; the pod then starts by itself",)
        )
    if foreign := _foreign(snapshot, pod):
        names = few(str(each.key) for each in foreign)
        verdict = f"it is pending: in worker {binding.name} {names} belong to other owners"
        return Answer(
            ExplanationRule.NAME_TAKEN, verdict, reasons, ("remove those pods, or rename this one",)
        )
    if "exceeded quota" in message:
        quota = message.partition("exceeded quota: ")[2]
        verdict = f"it is pending: worker {binding.name} refuses it, its quota is exceeded: {quota}"
        remedy = f"a larger ResourceQuota in namespace {binding.mount} of the worker"
        return Answer(ExplanationRule.QUOTA, verdict, reasons, (remedy, "or the end of pods there"))
    if (admission := _ADMISSION.search(message)) is not None:
        name = admission["hook"] or admission["policy"] or "Pod Security"
        verdict = f"it is pending: {name} of worker {binding.name} does not admit it"
        remedy = "a pod that it admits, or another rule there"
        return Answer(
            ExplanationRule.ADMISSION, f"{verdict}: {_cause(message)}", reasons, (remedy,)
        )
    if message:
        verdict = f"it is pending: it cannot be created in worker {binding.name}: {_cause(message)}"
        remedy = "see what is refused; it is tried again every 5 min"
        remedies = (*_secret_remedy(snapshot, pod, message), remedy)
        return Answer(ExplanationRule.REFUSED, verdict, remedies=remedies)
    return _awaited(_node(snapshot))


def _secret_remedy(snapshot: PodSnapshot, pod: VirtualPod, message: str) -> tuple[str, ...]:
    """Return the remedy for a Secret in a namespace of which the syncer is refused all Secrets.

    Only volumes name Secrets in other namespaces than that of the pod. `message` is the syncer's.
    """
    binding = _node(snapshot).binding.binding
    refused = (binding.status.secret_namespaces.refused or ()) if binding is not None else ()
    for namespace in (each.namespace for each in refused):
        if namespace != pod.namespace and f"Secrets in namespace {namespace}:" in message:
            where = f"{pod.namespace}, the namespace of the pod"
            return (
                f"move the Secret from {namespace} to {where}, and name it there in the volume",
            )
    return ()


def _awaited(node: NodeSnapshot) -> Answer:
    """Return the answer for a pod whose physical pod is neither refused nor created yet."""
    reasons, name = (*heartbeat_text(node), syncer_text(node.binding)), node.binding.name
    if isinstance(node.heartbeat, NotRead) or is_fresh(node.heartbeat, node.binding.now):
        verdict = f"it is being created in worker {name}, which has not refused it"
        return Answer(ExplanationRule.STARTS, verdict, reasons, ("wait a second or two",))
    verdict = f"it is pending: the syncer of binding {name} is not at work"
    return Answer(ExplanationRule.SYNCER_SILENT, verdict, reasons, (syncer_logs(node.binding),))


def _foreign(snapshot: PodSnapshot, pod: VirtualPod) -> list[PhysicalPod]:
    """Return the worker's pods that have both names of the physical pod, if both are foreign."""
    ids, domain = _ids(snapshot), snapshot.domain
    names = {
        naming.physical_name(pod.name, pod.namespace),
        naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid),
    }
    foreign = [
        each
        for each in require(snapshot.ppods)
        if each.name in names
        and ownership_of(pod, each, ids=ids, domain=domain) is Ownership.FOREIGN
    ]
    return foreign if len(foreign) == len(names) else []


def _created(snapshot: PodSnapshot, pod: VirtualPod, ppod: PhysicalPod) -> Answer:
    """Return the answer about a pod by the state of its physical pod."""
    node, body = _node(snapshot), ppod.content()
    worker = f"worker {node.binding.name}"
    where = f"pod {ppod.key} of {worker}"
    reasons = (*_placement(snapshot, pod, ppod), *heartbeat_text(node))
    if ppod.finished:
        verdict = f"it has ended: {where} is {ppod.status.phase}"
        return Answer(ExplanationRule.ENDED, verdict, (*reasons, *_behind(pod, ppod)))
    waiting = waits_for_node(body)
    if waiting is not None:
        verdict = f"it is pending: the scheduler of {worker} has no node for it: {waiting}"
        limit = f"it is given up after {UNSCHEDULED_S:g} s without a node"
        remedy = "free resources on the worker's node"
        return Answer(ExplanationRule.UNSCHEDULED, verdict, (*reasons, limit), (remedy,))
    for container, reason, message in _waiting(body):
        why = (message, *reasons) if message else reasons
        if reason in _IMAGES:
            verdict = f"it is pending: {where} cannot get the image of {container}: {reason}"
            remedy = "an image that the worker's nodes can pull"
            return Answer(ExplanationRule.IMAGE, verdict, why, (remedy,))
        if reason not in _STARTING:
            verdict = f"container {container} of {where} does not start: {reason}"
            remedy = "see: kubectl logs, kubectl describe pod"
            return Answer(ExplanationRule.CONTAINER, verdict, why, (remedy,))
    if ppod.status.phase == "Running":
        verdict = f"it runs in {worker} on node {ppod.spec.node_name} as {ppod.key}"
        return Answer(ExplanationRule.RUNS, verdict, (*reasons, *_behind(pod, ppod)))
    phase = ppod.status.phase or "new"
    verdict = f"it starts in {worker} as {ppod.key}, which is {phase}"
    return Answer(ExplanationRule.STARTS, verdict, reasons)


def _placement(snapshot: PodSnapshot, pod: VirtualPod, ppod: PhysicalPod) -> list[str]:
    reasons = [f"it is bound to virtual node {pod.spec.node_name}"]
    first = naming.physical_name(pod.name, pod.namespace)
    if ppod.name == naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid):
        taken = any(each.name == first for each in require(snapshot.ppods))
        owner = "belongs to another owner" if taken else "belonged to another owner"
        reasons.append(f"it has its second name there: {ppod.namespace}/{first} {owner}")
    synced = find_condition(pod.status.conditions, POD_SYNCED)
    if synced is not None and synced.status == "False":
        reasons.append(f"some changes could not be made in the worker: {synced.message}")
    return reasons


def _behind(pod: VirtualPod, ppod: PhysicalPod) -> list[str]:
    if pod.status.phase == ppod.status.phase:
        return []
    shown = pod.status.phase or "nothing"
    return [f"the virtual pod still shows {shown}: the syncer is behind"]


def _waiting(body: Json) -> list[tuple[str, str, str]]:
    """Return name, reason and message of each container that is in the state waiting."""
    status: Json = body.get("status") or {}
    waiting = []
    for kind in _CONTAINERS:
        for each in status.get(kind) or ():
            state = (each.get("state") or {}).get("waiting")
            if state is not None:
                waiting.append((each["name"], state.get("reason", ""), state.get("message", "")))
    return waiting


def _cause(message: str) -> str:
    """Return a server's error message without the description of the failed request."""
    return message.partition(": ")[2] if message.startswith(_DOING) else message


# Reasons and sections that several answers share


def _reclaim_text(snapshot: PodSnapshot, pod: VirtualPod) -> tuple[str, ...]:
    """Return a text about the effect that the reclaim of its node has on a pod."""
    node = snapshot.node
    if not isinstance(node, NodeSnapshot) or node.binding.present is None or node.binding.problem:
        return ()
    worker = node.binding.present
    if any(isinstance(part, NotRead) for part in (node.pnode, worker.policies, worker.ids)):
        return ()
    reclaim = evaluate(node).plan
    if reclaim is None:
        return ()
    steps = (step for step in reclaim.steps if step.pod.uid == pod.uid)
    return tuple(
        f"its node is being reclaimed, and it {step_text(step, reclaim)}" for step in steps
    )


def _events(snapshot: PodSnapshot) -> list[str]:
    events = (*known(snapshot.events, ()), *known(snapshot.worker_events, ()))
    return _event_lines(sorted(events, key=_time))[-_EVENTS:]


def _event_lines(events: Iterable[Event]) -> list[str]:
    """Return a line for each event; for equal events, which both clusters may have, one line."""
    lines = {
        (each.reason, each.message): f"{_time(each)} {each.reason}: {each.message}"
        for each in events
    }
    return list(lines.values())


def _time(event: Event) -> str:
    """Return the last or first timestamp of an event, else its creationTimestamp: events of
    `events.k8s.io` may have no other."""
    timestamp = event.last_timestamp or event.first_timestamp
    return timestamp or event.metadata.creation_timestamp or ""

"""Below: what a worker makes of a pod that is bound to one of its virtual nodes.

Pure. Either it has no physical pod, and there is a reason; or it has one, which says the rest.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from kubeocean.api import naming
from kubeocean.api.ownership import Claim
from kubeocean.api.reasons import POD_CREATED, POD_SYNCED, PodEvent
from kubeocean.explaining.facts import NodeFacts, PodFacts, is_fresh
from kubeocean.explaining.nodes import heartbeat, silence
from kubeocean.explaining.story import Rule
from kubeocean.explaining.wording import few, logs_of_syncer
from kubeocean.runtime.objects import Json, find_condition
from kubeocean.syncer.forge.podstatus import waits_for_node
from kubeocean.syncer.podplan import claim_of
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod
from kubeocean.syncer.topdown.podfollowing import UNSCHEDULED_S

__all__ = ["Answer", "explain_creation", "explain_following"]

Answer: TypeAlias = tuple[Rule, str, tuple[str, ...], tuple[str, ...]]

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
_QUIET: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_SHOWN: Final = "could not "
_ADMISSION: Final = re.compile(
    r'admission webhook "(?P<hook>[^"]+)"|ValidatingAdmissionPolicy \'(?P<policy>[^\']+)\''
    r"|violates PodSecurity"
)
_KINDS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def explain_creation(facts: PodFacts, pod: VirtualPod) -> Answer:
    """Why there is no physical pod."""
    assert facts.node is not None
    side = facts.node.side
    refused = find_condition(pod.status.conditions, POD_CREATED)
    said = refused.message if refused is not None else ""
    told = (f"the syncer says: {said}",) if said else ()
    if facts.absent:
        missing = few(facts.absent)
        verdict = f"it is pending: it refers to {missing}, which does not exist"
        return Rule.MISSING, verdict, told, (f"{missing}; the pod then starts by itself",)
    if (foreign := _foreign(facts, pod)) or (refused and refused.reason == PodEvent.NAME_TAKEN):
        names = few(str(each.key) for each in foreign) or "both names that it may have"
        verdict = f"it is pending: in worker {side.name} {names} belong to somebody else"
        return Rule.NAME_TAKEN, verdict, told, ("remove those pods, or rename this one",)
    if "exceeded quota" in said:
        quota = said.partition("exceeded quota: ")[2]
        verdict = f"it is pending: worker {side.name} refuses it, its quota is exceeded: {quota}"
        where = f"a larger ResourceQuota in namespace {side.mount} of the worker"
        return Rule.QUOTA, verdict, told, (where, "or the end of pods there")
    if (admission := _ADMISSION.search(said)) is not None:
        who = admission["hook"] or admission["policy"] or "Pod Security"
        what = _reason(said)
        verdict = f"it is pending: {who} of worker {side.name} does not admit it: {what}"
        return Rule.ADMISSION, verdict, told, ("a pod that it admits, or another rule there",)
    if said:
        verdict = f"it is pending: it cannot be made in worker {side.name}: {_reason(said)}"
        return Rule.REFUSED, verdict, (), ("see what is refused; it is tried again every 5 min",)
    return _unmade(facts.node)


def _unmade(node: NodeFacts) -> Answer:
    reasons = (*heartbeat(node), silence(node))
    if is_fresh(node.heartbeat, node.side.now):
        said = f"it is being made in worker {node.side.name}; nobody has refused it"
        return Rule.STARTS, said, reasons, ("a second or two",)
    said = f"it is pending: the syncer of binding {node.side.name} is not at work"
    return Rule.SYNCER_SILENT, said, reasons, (logs_of_syncer(node.side),)


def _foreign(facts: PodFacts, pod: VirtualPod) -> list[PhysicalPod]:
    """Those that have both of its names, if somebody else has."""
    assert facts.node is not None and facts.node.side.ids is not None
    names = {
        naming.physical_name(pod.name, pod.namespace),
        naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid),
    }
    found = [
        each
        for each in facts.ppods
        if each.name in names and _claim(facts, pod, each) is Claim.FOREIGN
    ]
    return found if len(found) == len(names) else []


def _claim(facts: PodFacts, pod: VirtualPod, ppod: PhysicalPod) -> Claim:
    assert facts.node is not None and facts.node.side.ids is not None
    return claim_of(pod, ppod, ids=facts.node.side.ids, domain=facts.domain)


def explain_following(facts: PodFacts, pod: VirtualPod, ppod: PhysicalPod) -> Answer:
    """What the physical pod says."""
    assert facts.node is not None
    side, body = facts.node.side, ppod.content()
    where = f"pod {ppod.key} of worker {side.name}"
    reasons = (*_place(facts, pod, ppod), *heartbeat(facts.node))
    waiting = waits_for_node(body)
    if waiting is not None:
        said = f"it is pending: the scheduler of worker {side.name} has no node for it: {waiting}"
        more = f"it is given up after {UNSCHEDULED_S:g} s without a node"
        return Rule.UNSCHEDULED, said, (*reasons, more), ("room on the worker's node",)
    for container, reason, message in _waiting(body):
        if reason in _IMAGES:
            said = f"it is pending: {where} cannot get the image of {container}: {reason}"
            why = (message, *reasons) if message else reasons
            return Rule.IMAGE, said, why, ("an image that the worker's nodes can pull",)
        if reason not in _QUIET:
            said = f"container {container} of {where} does not start: {reason}"
            why = (message, *reasons) if message else reasons
            return Rule.CONTAINER, said, why, ("see: kubectl logs, kubectl describe pod",)
    if ppod.status.phase == "Running":
        said = f"it runs in worker {side.name} on node {ppod.spec.node_name} as {ppod.key}"
        return Rule.RUNS, said, (*reasons, *_behind(pod, ppod)), ()
    phase = ppod.status.phase or "new"
    said = f"it starts in worker {side.name} as {ppod.key}, which is {phase}"
    return Rule.STARTS, said, reasons, ()


def _place(facts: PodFacts, pod: VirtualPod, ppod: PhysicalPod) -> list[str]:
    said = [f"it is bound to virtual node {pod.spec.node_name}"]
    first = naming.physical_name(pod.name, pod.namespace)
    if ppod.name == naming.second_physical_name(pod.name, pod.namespace, uid=pod.uid):
        owners = [each for each in facts.ppods if each.name == first]
        whose = "belongs to somebody else" if owners else "belonged to somebody else"
        said.append(f"it has its second name there: {ppod.namespace}/{first} {whose}")
    trouble = find_condition(pod.status.conditions, POD_SYNCED)
    if trouble is not None and trouble.status == "False":
        said.append(f"not all of it could be carried down: {trouble.message}")
    return said


def _behind(pod: VirtualPod, ppod: PhysicalPod) -> list[str]:
    if pod.status.phase == ppod.status.phase:
        return []
    return [f"above it still shows {pod.status.phase or 'nothing'}: the syncer is behind"]


def _waiting(body: Json) -> list[tuple[str, str, str]]:
    """Containers that wait: name, reason, message."""
    status: Json = body.get("status") or {}
    found = []
    for kind in _KINDS:
        for each in status.get(kind) or ():
            state = (each.get("state") or {}).get("waiting")
            if state is not None:
                found.append((each["name"], state.get("reason", ""), state.get("message", "")))
    return found


def _reason(message: str) -> str:
    """What a server said, without what we were doing."""
    return message.partition(": ")[2] if message.startswith(_SHOWN) else message

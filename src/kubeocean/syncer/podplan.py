"""Plans for pods: what is to be done about one virtual pod, from what both sides show.

Pure: whoever asks has read both caches; whoever acts reads again where a plan says that something
seems to be gone, because a cache may be behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kubeocean.api import group
from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Claim, Ids, bears_ids, claim_pod
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import controller_of
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod

__all__ = [
    "FORCED_GRACE_S",
    "Move",
    "Plan",
    "claim_of",
    "grace_of",
    "is_due",
    "is_lent",
    "is_wanted",
    "plan",
]

FORCED_GRACE_S: Final = 1  # what containers are given where nobody waits for them any more


class Move(Enum):
    """What to do next."""

    LEAVE = auto()  # nothing
    CREATE = auto()  # it should run, and never did
    FOLLOW = auto()  # it runs: changes go down, its status goes up
    STOP = auto()  # it runs and should not: it was deleted above, or has ended there
    RELEASE = auto()  # it was deleted above and does not run: let it go, if that is so
    MOURN = auto()  # it ran and does not any more: say so, if that is so
    CLEAR = auto()  # it is not there above: what runs for it goes, if that is so


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one virtual pod.

    - `ppod`: the physical pod that runs for it.
    - `strays`: others of ours that say that they run for it; each goes, if that is so.
    """

    move: Move
    ppod: PhysicalPod | None = None
    strays: tuple[PhysicalPod, ...] = ()


def plan(
    vpod: VirtualPod | None,
    ppods: Iterable[PhysicalPod],
    *,
    lent: bool,
    wanted: bool,
    had_one: Callable[[], bool],
    ids: Ids,
    domain: Domain,
) -> Plan:
    """What to do.

    - `lent`: its node is one of this binding's.
    - `wanted`: it is a pod that may run in the worker.
    - `had_one`: whether there was a physical pod for this very virtual one.
    """
    known = list(ppods)
    if vpod is None:
        strays = tuple(p for p in known if bears_ids(p, ids=ids, domain=domain))
        return Plan(Move.CLEAR, strays=strays)
    claims = [(p, claim_of(vpod, p, ids=ids, domain=domain)) for p in known]
    ours = [p for p, claim in claims if claim in (Claim.OURS, Claim.TAKEABLE)]
    recorded = vpod.annotations.get(domain.physical_pod_uid)
    # Always the same one, whoever looks: the recorded one, else the oldest.
    ours.sort(key=lambda p: (p.uid != recorded, p.metadata.creation_timestamp or "", p.name))
    strays = tuple(p for p, claim in claims if claim is Claim.STALE) + tuple(
        p for p in ours[1:] if bears_ids(p, ids=ids, domain=domain)
    )
    if ours:
        ended = vpod.finished and not ours[0].finished
        return Plan(Move.STOP if vpod.deleting or ended else Move.FOLLOW, ours[0], strays)
    return Plan(_without_one(vpod, lent=lent, wanted=wanted, had_one=had_one), strays=strays)


def _without_one(
    vpod: VirtualPod, *, lent: bool, wanted: bool, had_one: Callable[[], bool]
) -> Move:
    if not lent:
        return Move.LEAVE  # somebody else's, or its node is gone: Kubernetes removes such pods
    if vpod.deleting:
        return Move.RELEASE
    if vpod.finished:
        return Move.LEAVE
    if had_one():
        return Move.MOURN
    return Move.CREATE if wanted else Move.LEAVE


def claim_of(vpod: VirtualPod, ppod: PhysicalPod, *, ids: Ids, domain: Domain) -> Claim:
    """What a virtual pod may say of a physical one."""
    recorded = vpod.annotations.get(domain.physical_pod_uid, "")
    return claim_pod(
        ppod, virtual=vpod.key, uid=vpod.uid, ids=ids, domain=domain, recorded=recorded
    )


def is_wanted(vpod: VirtualPod, binding: ClusterBinding | None, domain: Domain) -> bool:
    """Whether a pod may run in the worker: not what belongs to the computing cluster's nodes."""
    if binding is None or vpod.namespace in domain.system_namespaces:
        return False
    owner = controller_of(vpod)
    if owner is None or owner.kind != "DaemonSet":
        return True
    asked = vpod.annotations.get(domain.running_daemonset) == group.TRUE
    return asked or binding.spec.running_daemonset_by_default


def is_lent(vnode: Node | None, ids: Ids, domain: Domain) -> bool:
    """Whether a virtual node is one of this binding's."""
    return vnode is not None and vnode.labels.get(domain.physical_cluster_id) == ids.cluster_id


def grace_of(vpod: VirtualPod | None) -> int | None:
    """How long the containers have to end; None means as long as the physical pod itself says.

    It is the grace of the virtual pod's deletion, also if that was shortened later. A virtual pod
    that is gone was forced to go; even then the kubelet confirms the end, so it is never zero.
    """
    if vpod is None:
        return FORCED_GRACE_S
    grace_s = vpod.metadata.deletion_grace_period_seconds
    return None if grace_s is None else max(grace_s, FORCED_GRACE_S)


def is_due(ppod: PhysicalPod, grace_s: int | None) -> bool:
    """Whether a physical pod that has to go has yet to be told so, or to be told to hurry."""
    if not ppod.deleting:
        return True
    now_s = ppod.metadata.deletion_grace_period_seconds
    return grace_s is not None and now_s is not None and grace_s < now_s

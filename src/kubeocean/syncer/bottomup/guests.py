"""Guests: the pods on virtual nodes, and how they are made to leave.

`situation` collects what a plan of taking back is made from; `carry_out` does what the plan says
about pods, through the Eviction API where disruption budgets are to be asked. What was tried is
remembered for as long as the pod is there; forgetting it, in a restart, only makes the next try
come sooner.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Final

from kubeocean.api.policy import Eviction
from kubeocean.api.reasons import PodEvent
from kubeocean.errors import ApiError, Conflict, NotFound, TooManyRequests
from kubeocean.leasing.instants import instant_of
from kubeocean.leasing.plans import Plan, Step
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Answer, Attempt, Guest, Move, Situation
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, controller_of
from kubeocean.syncer.bottomup.drain import Unconfirmed
from kubeocean.syncer.bottomup.reclaims import Reclaims
from kubeocean.syncer.podviews import VIRTUAL_PODS, VirtualPod
from kubeocean.syncer.world import World

__all__ = ["Guests", "guest_of"]

_PACE_WINDOW: Final = timedelta(minutes=1)
_ACTIONS: Final = (Move.EVICT, Move.DELETE, Move.ABANDON)

_log = get_logger(__name__)


class Guests:
    """The pods of one binding's virtual nodes."""

    def __init__(self, world: World, reclaims: Reclaims, unconfirmed: Unconfirmed) -> None:
        self._world = world
        self._reclaims = reclaims
        self._unconfirmed = unconfirmed
        self._attempts: dict[str, Attempt] = {}
        self._evictions: dict[str, deque[datetime]] = {}  # by policy, the last minute's
        self._last: dict[str, datetime] = {}  # by virtual node

    def follow(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        """A handler for the informer of guests: what is gone is forgotten."""
        if new is None and old is not None:
            self._attempts.pop(old.uid, None)

    def forget(self, vnode: str) -> None:
        """The virtual node is gone."""
        self._last.pop(vnode, None)

    def situation(
        self,
        vnode: str,
        node: Node | None,
        *,
        cause: Cause | None,
        rules: Rules,
        policy: str,
        since: datetime | None = None,
    ) -> Situation:
        """All that a plan for the virtual node is made from, as of now."""
        world = self._world
        return Situation(
            now=world.clock.now(),
            cause=cause,
            rules=rules,
            taints=(node.spec.taints or ()) if node is not None else (),
            guests=tuple(guest_of(pod, self._attempts.get(pod.uid)) for pod in self._on(vnode))
            if cause
            else (),
            rules_since=since,
            evictions=tuple(self._recent(policy)),
            last_eviction=self._last.get(vnode),
            worker_answers=world.reach.answers,
            domain=world.domain,
        )

    async def carry_out(self, plan: Plan, vnode: str, policy: str) -> bool:
        """Do what is due with the pods; an answer that is a refusal is remembered, not raised.

        Whether anything was tried: then a plan that is made now says more than this one.
        """
        due = [step for step in plan.steps if step.move in _ACTIONS]
        for step in due:
            await self._do(step, vnode, policy)
        return bool(due)

    def _on(self, vnode: str) -> list[VirtualPod]:
        return self._world.vpods.by("node", vnode)

    def _recent(self, policy: str) -> deque[datetime]:
        recent = self._evictions.setdefault(policy, deque())
        while recent and recent[0] <= self._world.clock.now() - _PACE_WINDOW:
            recent.popleft()
        return recent

    async def _do(self, step: Step, vnode: str, policy: str) -> None:
        answer, retry_after_s = Answer.ACCEPTED, 0.0
        try:
            await self._send(step)
        except (NotFound, Conflict):
            # Gone, or another pod of that name: it is not our guest any more, nor our doing.
            self._remember(step, answer, retry_after_s)
            return
        except TooManyRequests as error:
            answer, retry_after_s = Answer.REFUSED, error.retry_after_s or 0.0
        except ApiError as error:
            answer, retry_after_s = Answer.FAILED, error.retry_after_s or 0.0
            _log.warning("Could not move pod", pod=str(step.guest.key), error=str(error))
        self._remember(step, answer, retry_after_s)
        if answer is Answer.ACCEPTED:
            now = self._world.clock.now()
            self._recent(policy).append(now)
            self._last[vnode] = now
            self._tell(step, vnode, policy)
            if not self._world.reach.answers:
                self._unconfirmed.pod(str(step.guest.key))

    async def _send(self, step: Step) -> None:
        key, uid, client = step.guest.key, step.guest.uid, self._world.computing
        if step.move is Move.EVICT:
            body: Json = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": key.name, "namespace": key.namespace},
                "deleteOptions": {"preconditions": {"uid": uid}},
            }
            await client.post(VIRTUAL_PODS, key.name, "eviction", body, key.namespace)
            return
        grace_s = 0 if step.move is Move.ABANDON else None
        await client.delete(VIRTUAL_PODS, key.name, key.namespace, uid=uid, grace_s=grace_s)

    def _remember(self, step: Step, answer: Answer, retry_after_s: float) -> None:
        there, before = self._world.vpods.get(step.guest.key), step.guest.attempt
        if there is None or there.uid != step.guest.uid:
            return  # it left before we were answered, and nobody would make us forget it
        again = before is not None and (before.move, before.answer) == (step.move, answer)
        self._attempts[step.guest.uid] = Attempt(
            move=step.move,
            at=self._world.clock.now(),
            answer=answer,
            count=before.count + 1 if before is not None and again else 1,
            retry_after_s=retry_after_s,
        )

    def _tell(self, step: Step, vnode: str, policy: str) -> None:
        pod = self._world.vpods.get(step.guest.key)
        forced = step.move is not Move.EVICT
        message = f"Node {vnode} is taken back by its owner (policy {policy}): {step.why}"
        key, now = step.guest.key, self._world.now_text()
        eviction = Eviction(key.namespace, key.name, vnode, now, str(step.why), message)
        self._reclaims.evicted(policy, eviction)
        _log.info(
            "Evicted pod", pod=str(step.guest.key), node=vnode, policy=policy, forced=forced,
            why=str(step.why),
        )  # fmt: skip
        if pod is not None and pod.uid == step.guest.uid:
            reason = PodEvent.RECLAIM_FORCED if forced else PodEvent.RECLAIMED
            self._world.events.emit(reference(VIRTUAL_PODS, pod), "Warning", reason, message)


def guest_of(pod: VirtualPod, attempt: Attempt | None = None) -> Guest:
    """What a plan has to know of a pod; `attempt` is the last one to make it go."""
    owner = controller_of(pod)
    return Guest(
        key=pod.key,
        uid=pod.uid,
        created=instant_of(pod.metadata.creation_timestamp) or datetime.min.replace(tzinfo=UTC),
        priority=pod.spec.priority or 0,
        tolerations=pod.spec.tolerations or (),
        finished=pod.finished,
        daemon=owner is not None and owner.kind == "DaemonSet",
        leaving_by=instant_of(pod.metadata.deletion_timestamp),
        attempt=attempt,
    )

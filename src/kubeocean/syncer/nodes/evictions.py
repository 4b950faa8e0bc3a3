"""Eviction of pods from virtual nodes that are being reclaimed.

`situation` collects everything that a reclaim plan is made from; `carry_out` evicts and deletes the
pods that are due, through the Eviction API where disruption budgets count. The last attempt on a
pod is remembered for as long as the pod exists; a restart forgets it, which only makes the next
attempt come sooner. Pace and cool-down survive a restart: the status of the policy has the latest
evictions, an annotation of the virtual node the time of its last one.
"""

from __future__ import annotations

from datetime import datetime

from kubeocean.api.conditions import PodEvent
from kubeocean.api.policies import Eviction, ReclaimStatus
from kubeocean.errors import ApiError, Conflict, NotFound, TooManyRequests, Unreachable
from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.reclaim import (
    EvictionAttempt,
    EvictionResult,
    EvictionSlots,
    Notice,
    PodAction,
    PodStep,
    ReclaimInput,
    ReclaimPlan,
    pod_on_node,
)
from kubeocean.leasing.report import eviction_message
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.cleanup.deletion_progress import Unconfirmed
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.reclaim_progress import ReclaimProgress
from kubeocean.syncer.pods.views import VIRTUAL_PODS, VirtualPod

__all__ = ["Evictor"]

_log = get_logger(__name__)


class Evictor:
    """Evicts the pods on one binding's virtual nodes."""

    def __init__(
        self, clusters: Clusters, progress: ReclaimProgress, unconfirmed: Unconfirmed
    ) -> None:
        self._clusters = clusters
        self._progress = progress
        self._unconfirmed = unconfirmed
        self._attempts: dict[str, EvictionAttempt] = {}  # by the pod's UID
        self._slots = EvictionSlots()

    def follow(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        """Forget the attempts on a pod that is gone; a handler for the informer of virtual pods."""
        if new is None and old is not None:
            self._attempts.pop(old.uid, None)

    def situation(
        self,
        name: str,
        vnode: Node | None,
        *,
        cause: ReclaimCause | None,
        rules: ReclaimRules,
        policy: str,
        since: datetime | None = None,
    ) -> ReclaimInput:
        """Return everything that the reclaim plan for virtual node `name` is made from."""
        clusters, now = self._clusters, self._clusters.clock.now()
        self._recover_slots(policy)
        pods = clusters.vpods.by("node", name) if cause else ()
        return ReclaimInput(
            now=now,
            cause=cause,
            rules=rules,
            taints=(vnode.spec.taints or ()) if vnode is not None else (),
            pods=tuple(pod_on_node(pod, self._attempts.get(pod.uid)) for pod in pods),
            rules_since=since,
            evictions=self._slots.recent(policy, now=now),
            last_eviction=self._last_eviction(name, vnode, now),
            worker_answers=clusters.worker_health.answers,
            domain=clusters.domain,
        )

    def _recover_slots(self, policy: str) -> None:
        """Count the evictions in the policy's status, by an earlier process, against its pace."""
        stored = self._clusters.policies.get(Key("", policy))
        if stored is not None:
            reclaim = stored.status.reclaim or ReclaimStatus()
            times = (instant_of(each.time) for each in reclaim.last_evictions or ())
            self._slots.recover(policy, [time for time in times if time is not None])

    def _last_eviction(self, name: str, vnode: Node | None, now: datetime) -> datetime | None:
        """Return when a pod was last evicted from the virtual node, by any process."""
        key = self._clusters.domain.last_eviction_time
        recorded = instant_of(vnode.annotations.get(key)) if vnode is not None else None
        known = self._progress.last_eviction(name)
        times = [min(time, now) for time in (recorded, known) if time is not None]
        return max(times, default=None)

    async def carry_out(
        self, plan: ReclaimPlan, rules: ReclaimRules, vnode: str, policy: str
    ) -> ReclaimPlan:
        """Evict and delete the pods of the plan that are due; return the plan with the results.

        If the API server refuses or fails, the attempt is remembered and no error is raised.
        """
        if plan.notice is None:
            return plan  # the node is lent: no pod has to leave
        attempts: dict[str, EvictionAttempt | None] = {}
        for step in plan.due:
            taken_at = self._clusters.clock.now()
            # The deadline is a promise: deletions count against the pace, and never wait for it.
            limit = rules.evictions_per_minute if step.action is PodAction.EVICT else None
            # No await between taking the slot and sending: other nodes of the policy act, too.
            if self._slots.take(policy, limit, now=taken_at):
                attempt = await self._attempt(step, plan.notice, vnode, policy, taken_at)
                attempts[step.pod.uid] = attempt
            # else another node took the slot since the plan was made; the next plan waits
        return plan.after(attempts)

    async def _attempt(
        self, step: PodStep, notice: Notice, vnode: str, policy: str, taken_at: datetime
    ) -> EvictionAttempt | None:
        """Evict or delete one pod; return the attempt, None if the pod is gone."""
        result, retry_after_s = EvictionResult.ACCEPTED, 0.0
        try:
            await self._send(step)
        except (NotFound, Conflict):
            # The pod is gone, or another pod has its name: Kubeocean evicted neither.
            self._slots.give_back(policy, taken_at)
            return self._remember(step, result, retry_after_s)
        except TooManyRequests as error:
            self._slots.give_back(policy, taken_at)
            result, retry_after_s = EvictionResult.REFUSED, error.retry_after_s or 0.0
        except ApiError as error:
            if not (isinstance(error, Unreachable) and error.sent):
                self._slots.give_back(policy, taken_at)  # else the server may have evicted the pod
            result, retry_after_s = EvictionResult.FAILED, error.retry_after_s or 0.0
            _log.warning("Could not evict pod", pod=str(step.pod.key), error=str(error))
        attempt = self._remember(step, result, retry_after_s)
        if result is EvictionResult.ACCEPTED:
            self._report(step, notice, vnode, policy)
            if not self._clusters.worker_health.answers:
                self._unconfirmed.pod(str(step.pod.key))
        return attempt

    async def _send(self, step: PodStep) -> None:
        key, uid, client = step.pod.key, step.pod.uid, self._clusters.computing
        if step.action is PodAction.EVICT:
            body: Json = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": key.name, "namespace": key.namespace},
                "deleteOptions": {"preconditions": {"uid": uid}},
            }
            if step.grace_s is not None:
                body["deleteOptions"]["gracePeriodSeconds"] = step.grace_s
            await client.post(VIRTUAL_PODS, key.name, "eviction", body, key.namespace)
            return
        await client.delete(VIRTUAL_PODS, key.name, key.namespace, uid=uid, grace_s=step.grace_s)

    def _remember(
        self, step: PodStep, result: EvictionResult, retry_after_s: float
    ) -> EvictionAttempt | None:
        pod, before = self._clusters.vpods.get(step.pod.key), step.pod.attempt
        if pod is None or pod.uid != step.pod.uid:
            return None  # gone before the answer came: no event would make us forget the attempt
        again = before is not None and (before.action, before.answer) == (step.action, result)
        attempt = EvictionAttempt(
            action=step.action,
            at=self._clusters.clock.now(),
            answer=result,
            count=before.count + 1 if before is not None and again else 1,
            retry_after_s=retry_after_s,
        )
        self._attempts[step.pod.uid] = attempt
        return attempt

    def _report(self, step: PodStep, notice: Notice, vnode: str, policy: str) -> None:
        """Record an evicted or deleted pod in the reclaim progress, the log and an event."""
        key, now = step.pod.key, self._clusters.clock.now()
        forced = step.action is not PodAction.EVICT
        binding = self._clusters.binding_name
        message = eviction_message(step, notice, node=vnode, policy=policy, binding=binding)
        eviction = Eviction(
            key.namespace, key.name, vnode, self._clusters.now_text(), str(step.reason), message
        )
        self._progress.record_eviction(policy, eviction, now)
        _log.info(
            "Evicted pod", pod=str(key), node=vnode, policy=policy, forced=forced,
            why=str(step.reason),
        )  # fmt: skip
        pod = self._clusters.vpods.get(key)
        if pod is not None and pod.uid == step.pod.uid:
            reason = PodEvent.RECLAIM_FORCED if forced else PodEvent.RECLAIMED
            self._clusters.events.emit(reference(VIRTUAL_PODS, pod), "Warning", reason, message)

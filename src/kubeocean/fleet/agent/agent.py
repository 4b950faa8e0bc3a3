"""The agent of one member: joins the fleet, sends heartbeats, and leaves, as the state of its
InternalMemberCluster requires.

While the state is Join, an applier writes the Works of the hub, and the agent writes one status
each period: a heartbeat, whether `/readyz` of the member answered, and its properties. The
heartbeat is written also if the member does not answer, because it shows the hub that the agent
runs. When the state becomes Leave, the applier stops, the finalizers of Works are removed, and the
agent reports that it has left; objects in the member stay. Without an InternalMemberCluster no Work
is applied.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeocean import __version__
from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    InternalMemberCluster,
    MembershipState,
    MemberStatus,
)
from kubeocean.api.fleet.conditions import AgentCondition
from kubeocean.api.fleet.names import (
    ANNOTATION_AGENT_VERSION,
    ANNOTATION_WORK_FINALIZER,
    member_namespace,
)
from kubeocean.errors import ApiError, Conflict, NotFound, Unauthorized
from kubeocean.fleet.agent import report
from kubeocean.fleet.agent.collector import Collector
from kubeocean.fleet.agent.metrics import AgentMetrics
from kubeocean.fleet.agent.protocols import MemberApplier, NewApplier
from kubeocean.fleet.health import member_agent
from kubeocean.fleet.writes import replace_status
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, text_of, within
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.events import EventRecorder, EventType, reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Condition, Key, find_condition

__all__ = ["MemberAgent"]

EVENT_SOURCE: Final = "internalmembercluster-controller"
_JITTER: Final = 0.05  # of a period, so that the members of a fleet do not report all at once
_PROBE_S: Final = 5.0
_RETRY_S: Final = 15.0
_RELEASE_S: Final = 60.0  # to remove the finalizers of all Works
_ATTEMPTS: Final = 3  # to write a status while other writers change the object
_PRESET: Final = "preset"

_log = get_logger(__name__)
_audit = get_logger("kubeocean.audit")


@dataclass(slots=True)
class _RunningApplier:
    """A started applier, its task, and the error that ended the task."""

    applier: MemberApplier
    task: asyncio.Task[None]
    error: str = ""


class MemberAgent:
    """Reconciles the InternalMemberCluster of the member `name`: joins, reports, and leaves.

    - `new_applier`: returns an applier of Works; None if Works are not applied.
    - `join_problem`: returns why Works cannot be applied, or an empty text. While there is a
      problem, no applier is started, and the condition Joined shows the problem.
    - `refused`: returns, for the log, which credential the hub refused at a time, and why.
    """

    def __init__(
        self,
        hub: Client,
        member: Client,
        name: str,
        collector: Collector,
        *,
        new_applier: NewApplier | None = None,
        join_problem: Callable[[], str] = lambda: "",
        refused: Callable[[datetime], str] | None = None,
        instance: str = "",
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        clock, metrics = clock or RealClock(), metrics or Metrics()
        self._hub, self._member, self._collector, self._clock = hub, member, collector, clock
        self._new_applier = new_applier
        self._join_problem = join_problem
        self._refused = refused
        self._key = Key(member_namespace(name), name)
        self._running: _RunningApplier | None = None
        self._group: asyncio.TaskGroup | None = None
        self._metrics = AgentMetrics(metrics)
        self._events = EventRecorder(
            hub, component=EVENT_SOURCE, instance=instance, clock=clock, metrics=metrics
        )
        self._internals: Informer[InternalMemberCluster] = Informer(
            hub,
            INTERNAL_MEMBER_CLUSTERS,
            namespace=self._key.namespace,
            fields=f"metadata.name={name}",
            clock=clock,
            metrics=metrics,
        )
        self.controller: Controller[Key] = Controller(
            "internalmembercluster", self.reconcile, clock=clock, metrics=metrics
        )
        self._internals.on_change(self._changed)

    @property
    def ready(self) -> bool:
        """Whether the cache of the InternalMemberCluster on the hub is filled."""
        return self._internals.has_synced

    def _changed(
        self, old: InternalMemberCluster | None, new: InternalMemberCluster | None
    ) -> None:
        """Enqueue the InternalMemberCluster when its generation changes; status writes do not
        count.
        """
        if old is None or new is None or old.metadata.generation != new.metadata.generation:
            self.controller.enqueue(self._key)

    async def run(self) -> None:
        """Run the agent until cancelled; then stop without leaving the fleet."""
        async with asyncio.TaskGroup() as self._group:
            for part in (self._events, self._collector, self._internals):
                self._group.create_task(part.run())
            await self._internals.synced()
            await self.controller.run()

    async def reconcile(self, key: Key) -> Outcome:
        """Join and send a heartbeat, or leave, as the InternalMemberCluster's state requires."""
        internal = self._internals.get(key)
        if internal is None or internal.deleting:
            await self._stop_applier()
            return Done()
        try:
            match internal.spec.state:
                case MembershipState.JOIN:
                    return await self._heartbeat(internal)
                case MembershipState.LEAVE:
                    return await self._leave(internal)
                case other:
                    await self._stop_applier()
                    return Stuck("UnknownState", f"the hub asks for the state {other!r}")
        except (ApiError, TimeoutError) as error:
            # No growing delay: a hub that answers again gets the next heartbeat at once.
            delay_s = min(float(internal.spec.heartbeat_period_seconds), _RETRY_S)
            fields = {"error": str(error), "retry_in_s": delay_s}
            if isinstance(error, Unauthorized) and self._refused is not None:
                fields["reason"] = self._refused(self._clock.now())
            _log.warning("Failed to report status of member to the hub", **fields)
            return After(delay_s)

    # Joining

    async def _heartbeat(self, internal: InternalMemberCluster) -> Outcome:
        began = self._clock.monotonic()
        period_s = float(internal.spec.heartbeat_period_seconds)
        joined = self._ensure_applier()
        async with asyncio.TaskGroup() as group:
            probe = group.create_task(self._probe(period_s))
            collect = group.create_task(self._collector.collect(period_s))
        health, collected = report.health_condition(probe.result()), collect.result()

        def status_of(stored: InternalMemberCluster) -> MemberStatus:
            return report.heartbeat_status(
                stored,
                (health, joined),
                collected.collection,
                collected.conditions,
                now=text_of(self._clock.now()),
            )

        with self._metrics.heartbeat():
            internal = await self._announce(internal)
            await self._write(internal, status_of)
        jitter = 1 + random.uniform(-_JITTER, _JITTER)  # noqa: S311 - not cryptography
        return After(max(period_s * jitter - (self._clock.monotonic() - began), 0.0))

    async def _announce(self, internal: InternalMemberCluster) -> InternalMemberCluster:
        """Annotate the InternalMemberCluster with the agent's version, unless already done.

        An agent that applies Works also asks, by annotation, that the hub creates Works with the
        agent's finalizer.
        """
        announced = {ANNOTATION_AGENT_VERSION: __version__}
        if self._new_applier is not None:
            announced[ANNOTATION_WORK_FINALIZER] = _PRESET
        if announced.items() <= internal.annotations.items():
            return internal
        patch = MergePatch({"metadata": {"uid": internal.uid, "annotations": announced}})
        return await self._hub.patch(
            INTERNAL_MEMBER_CLUSTERS, internal.name, patch, internal.namespace
        )

    async def _probe(self, period_s: float) -> str:
        """Return why the member's API server is not ready; empty if the server is ready."""
        limit_s = min(_PROBE_S, period_s / 2)
        try:
            await within(self._clock, limit_s, lambda: self._member.request("GET", "/readyz"))
        except TimeoutError:
            return f"/readyz did not answer within {limit_s:g} s"
        except ApiError as error:
            return str(error)
        return ""

    def _ensure_applier(self) -> Condition:
        """Start the applier unless it runs already; return the agent's condition Joined."""
        if self._new_applier is None:
            return report.joined()
        before = self._running
        if before is not None and not before.task.done():
            return report.joined()
        if problem := self._join_problem():
            return report.failed_to_join(problem)
        assert self._group is not None
        try:
            applier = self._new_applier()
        except Exception as error:  # heartbeats go on without an applier
            _log.error("Failed to create Work applier", error=str(error), exc_info=error)
            return report.failed_to_join(f"the applier could not be created: {error}")
        task = self._group.create_task(self._run_applier(applier))
        self._running = _RunningApplier(applier, task)
        if before is not None:
            return report.failed_to_join(f"the applier ended and was restarted: {before.error}")
        return report.joined()

    async def _run_applier(self, applier: MemberApplier) -> None:
        error = "it ended by itself"
        try:
            await applier.run()
        except Exception as raised:  # the next heartbeat starts another one
            error = str(raised) or type(raised).__name__
            _log.error("Work applier failed", error=error, exc_info=raised)
        running = self._running
        if running is not None and running.applier is applier:
            running.error = error

    async def _stop_applier(self) -> MemberApplier | None:
        """Cancel the applier and wait until it has ended; return None if no applier ran."""
        running, self._running = self._running, None
        if running is None:
            return None
        running.task.cancel()
        await asyncio.wait([running.task])
        return running.applier

    # Leaving

    async def _leave(self, internal: InternalMemberCluster) -> Outcome:
        applier = await self._stop_applier()
        if report.has_left(internal):
            return Done()
        if applier is None and self._new_applier is not None:
            applier = self._new_applier()  # a former run of this program may have left Works
        if applier is not None:
            try:
                await within(self._clock, _RELEASE_S, applier.release_works)
            except Exception as error:
                with suppress(ApiError):  # the first error counts, and leads to a retry
                    await self._write_condition(internal, report.failed_to_leave(str(error)))
                raise
        await self._write_condition(internal, report.left())
        _audit.info("Left the fleet", member=self._key.name)
        return Done()

    # Writing

    async def _write_condition(self, internal: InternalMemberCluster, condition: Condition) -> None:
        def status_of(stored: InternalMemberCluster) -> MemberStatus:
            now = text_of(self._clock.now())
            return report.status_with_condition(stored, condition, now=now)

        await self._write(internal, status_of)

    async def _write(
        self,
        internal: InternalMemberCluster,
        status_of: Callable[[InternalMemberCluster], MemberStatus],
    ) -> None:
        """Write the status of the InternalMemberCluster; after a conflict, read and try again."""
        generation = internal.metadata.generation
        for attempt in range(_ATTEMPTS):
            try:
                written = await replace_status(
                    self._hub, INTERNAL_MEMBER_CLUSTERS, internal, status_of(internal)
                )
            except NotFound:
                return  # the informer reports the deletion
            except Conflict:
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                self._internals.wrote(written)
                self._tell(internal, written)
                return
            uid = internal.uid
            internal = await self._hub.get(
                INTERNAL_MEMBER_CLUSTERS, internal.name, internal.namespace
            )
            if internal.uid != uid or internal.metadata.generation != generation:
                return  # the hub asks for another state, and an event of the change follows

    def _tell(self, before: InternalMemberCluster, after: InternalMemberCluster) -> None:
        """Emit an Event for each changed condition of the agent, and count joins and leaves."""
        for type_ in (AgentCondition.JOINED, AgentCondition.HEALTHY):
            old, new = _agent_condition(before, type_), _agent_condition(after, type_)
            if new is None or (old is not None and old.reason == new.reason):
                continue
            is_bad = new.status == "Unknown" or (
                type_ == AgentCondition.HEALTHY and new.status != "True"
            )
            kind: EventType = "Warning" if is_bad else "Normal"
            about = reference(INTERNAL_MEMBER_CLUSTERS, after)
            self._events.emit(about, kind, new.reason, new.message or new.reason)
            if type_ == AgentCondition.JOINED:
                self._metrics.joined_changed(new)


def _agent_condition(internal: InternalMemberCluster, type_: str) -> Condition | None:
    agent = member_agent(internal.status.agent_status)
    return find_condition(agent.conditions, type_) if agent is not None else None

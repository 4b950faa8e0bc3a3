"""Events: telling people, through the objects they look at, what happened to them.

`emit` is plain, takes microseconds and never fails or blocks: it hands what happened to the
`Correlator` and remembers which Events have news. `run` writes the news, one Event after the other;
what happens to an Event in the meantime goes out with it. If the server refuses an Event, or fails
too often, or too many wait, it is dropped and counted: Events are for people, not for programs.

When `run` is cancelled it writes what is left, within a deadline.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from datetime import datetime
from typing import Final, Protocol, TypeVar

import msgspec

from kubeocean.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    InternalError,
    NotFound,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.correlator import Correlator, EventType, Happening, Limits, Series
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.kinds import EVENTS, Event, ObjectReference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Object, Resource
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.redaction import redact_text
from kubeocean.runtime.retries import RetryPolicy

__all__ = ["EventRecorder", "EventSink", "reference"]

_ObjectT = TypeVar("_ObjectT", bound=Object)

_DROPS: Final = ("queue", "spam", "refused", "failed", "stopped")
_MESSAGE_LIMIT = 1024  # what the events.k8s.io API allows
_LONGEST_WAIT_S = 60.0  # other Events wait behind; a server may ask for an hour
_PASSING: Final = (
    Conflict,
    InternalError,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,  # a token that is being renewed
    Unreachable,
)

_log = get_logger(__name__)


class EventSink(Protocol):
    """The part of a `Client` that is needed here."""

    async def create(self, resource: Resource[Event], body: Json, *, namespace: str) -> Event:
        """A new Event."""

    async def patch(
        self, resource: Resource[Event], name: str, patch: MergePatch, namespace: str
    ) -> Event:
        """News of an Event that is there."""


class EventRecorder:
    """Writes Events in the name of `component` (a program) and `instance` (one run of it)."""

    def __init__(
        self,
        sink: EventSink,
        *,
        component: str,
        instance: str = "",
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        limits: Limits | None = None,
        retry: RetryPolicy | None = None,
        queue: int = 1000,
        flush_s: float = 5.0,
    ) -> None:
        self._sink = sink
        self._component = component
        self._instance = instance or component
        self._clock = clock or RealClock()
        self._retry = retry or RetryPolicy(attempts=5, base_s=1.0, cap_s=10.0)
        self._queue = queue
        self._flush_s = flush_s
        self._correlator = Correlator(source=f"{component}/{self._instance}", limits=limits)
        self._pending: OrderedDict[str, Series] = OrderedDict()
        self._news = asyncio.Event()
        metrics = metrics or Metrics()
        self._written = metrics.counter("kubeocean_events_written_total", "Events written")
        self._waiting = metrics.gauge("kubeocean_events_pending", "Events with unwritten news")
        dropped = metrics.counter(
            "kubeocean_events_dropped_total", "Events that were not written, by reason", ["reason"]
        )
        self._dropped = {reason: dropped.labels(reason) for reason in _DROPS}

    def emit(
        self,
        regarding: ObjectReference,
        type: EventType,
        reason: str,
        message: str,
        *,
        action: str = "",
    ) -> None:
        """Tell that something happened to `regarding`; never fails, never waits."""
        now = self._clock.now()
        happening = Happening(regarding, type, reason, _short(message), now, action)
        series = self._correlator.observe(happening, at_s=self._clock.monotonic())
        if series is None:
            self._dropped["spam"].inc()
        elif series.name not in self._pending and len(self._pending) >= self._queue:
            self._dropped["queue"].inc()
        else:
            self._pending.setdefault(series.name, series)
            self._waiting.set(len(self._pending))
            self._news.set()

    async def run(self) -> None:
        """Write what is emitted, until cancelled; then write what is left."""
        try:
            while True:
                await self._news.wait()
                await self._drain()
        finally:
            await self._flush()

    async def _flush(self) -> None:
        try:
            await within(self._clock, self._flush_s, self._drain)
        except TimeoutError:
            _log.warning("Events could not be written in time", deadline_s=self._flush_s)
        finally:
            self._dropped["stopped"].inc(len(self._pending))
            self._pending.clear()
            self._waiting.set(0)

    async def _drain(self) -> None:
        while self._pending:
            name, series = self._pending.popitem(last=False)
            try:
                await self._write(series)
            except asyncio.CancelledError:
                self._pending.setdefault(name, series)  # the news has not gone out
                raise
            self._waiting.set(len(self._pending))
        self._news.clear()

    async def _write(self, series: Series) -> None:
        for attempt in range(1, self._retry.attempts + 1):
            try:
                await self._send(series)
            except _PASSING as error:
                if attempt == self._retry.attempts:
                    self._drop("failed", series, error)
                else:
                    wait_s = min(self._retry.delay_s(attempt, error), _LONGEST_WAIT_S)
                    await self._clock.sleep(wait_s)
            except ApiError as error:
                self._drop("refused", series, error)
                return
            else:
                self._written.inc()
                return

    def _drop(self, why: str, series: Series, error: ApiError) -> None:
        self._dropped[why].inc()
        about = series.latest
        _log.warning("Dropped event", about=about.regarding.name, reason=about.reason, error=error)

    async def _send(self, series: Series) -> None:
        """Bring the server up to date: a patch if it has the Event, else a new one."""
        if series.stored:
            try:
                await self._patch(series)
                return
            except NotFound:  # Events expire
                series.stored = False
        try:
            await self._create(series)
        except AlreadyExists:  # the answer to an earlier attempt was lost
            await self._patch(series)
        series.stored = True

    async def _create(self, series: Series) -> None:
        body = self._body(series)
        await self._sink.create(EVENTS, body, namespace=body["metadata"]["namespace"])

    async def _patch(self, series: Series) -> None:
        told = series.latest
        news = {
            "count": series.count,
            "lastTimestamp": _time(told.at),
            "message": told.message,
        }
        await self._sink.patch(EVENTS, series.name, MergePatch(news), _namespace(told.regarding))

    def _body(self, series: Series) -> Json:
        told = series.latest
        regarding: Json = msgspec.to_builtins(told.regarding)
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": _namespace(told.regarding)},
            "involvedObject": regarding,
            "type": told.type,
            "reason": told.reason,
            "message": told.message,
            "action": told.action,
            "count": series.count,
            "firstTimestamp": _time(series.first),
            "lastTimestamp": _time(told.at),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def reference(
    resource: Resource[_ObjectT], obj: _ObjectT, *, field_path: str = ""
) -> ObjectReference:
    """A pointer to an object that was read."""
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=obj.namespace,
        name=obj.name,
        uid=obj.uid,
        resource_version=obj.resource_version,
        field_path=field_path,
    )


def _namespace(regarding: ObjectReference) -> str:
    # Events are namespaced; the server wants those about cluster-scoped objects in this one.
    return regarding.namespace or "default"


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _short(message: str) -> str:
    """Redacted, for tenants read Events, and within what the API allows."""
    text = redact_text(message)
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"

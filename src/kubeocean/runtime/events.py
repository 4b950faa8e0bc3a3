"""Event recorder: writes Kubernetes Events about objects, correlated as in client-go.

`emit` takes microseconds and never fails or blocks: `emit` passes the occurrence to the
`Correlator` and marks the Event as changed. `run` writes changed Events one after the other. An
Event that the server refuses, that fails too often, or that exceeds the queue is dropped and
counted. On cancellation `run` writes the remaining Events within a deadline.

The correlator follows client-go's rules:

- a repeated occurrence increments the count of its Event;
- from the tenth different message about one object and reason within ten minutes, the messages are
  aggregated into one Event that shows the last;
- at most 25 Events about one object are written in a burst, then one per five minutes. Suppressed
  occurrences are still counted, and the next written Event shows the count.

All memory is bounded: the least recently seen entries are evicted first. The correlator does no IO
and reads no clock.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

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
    printable,
)
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import Clock, RealClock, within
from kubeocean.runtime.kinds import EVENTS, Event, ObjectReference
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Object, Resource
from kubeocean.runtime.redaction import redact_text
from kubeocean.runtime.retries import RetryPolicy

__all__ = [
    "Correlator",
    "EventRecorder",
    "EventSink",
    "EventType",
    "Happening",
    "Limits",
    "Series",
    "StatusEvent",
    "reference",
]

EventType: TypeAlias = Literal["Normal", "Warning"]

COMBINED: Final = "(combined from similar events): "
_NAME_LIMIT = 253
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Happening:
    """An occurrence about an object, as the caller of `emit` describes it."""

    regarding: ObjectReference
    type: EventType
    reason: str
    message: str
    at: datetime
    action: str = ""


class StatusEvent(NamedTuple):
    """An event to emit because the status of an object changed."""

    type: EventType
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the correlation of Events; the defaults are those of client-go."""

    remembered: int = 4096
    similar: int = 10
    interval_s: float = 600
    burst: int = 25
    refill_s: float = 300


@dataclass(slots=True, eq=False)
class Series:
    """Occurrences that share one Event; `stored`: the server is known to have the Event."""

    name: str
    latest: Happening
    first: datetime
    count: int = 1
    stored: bool = False
    seen_s: float = 0.0


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    seen_s: float = 0.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float


class Correlator:
    """Combines repeated and similar occurrences into Events, with bounded memory; `source`
    identifies this reporter's Events."""

    def __init__(self, *, source: str = "", limits: Limits | None = None) -> None:
        self._source = source
        self._limits = limits or Limits()
        self._similar: _Recent[tuple[object, ...], _Similar] = _Recent(self._limits.remembered)
        self._series: _Recent[tuple[object, ...], Series] = _Recent(self._limits.remembered)
        self._buckets: _Recent[ObjectReference, _Bucket] = _Recent(self._limits.remembered)

    def observe(self, happening: Happening, *, at_s: float) -> Series | None:
        """Add an occurrence to its series; return the series, or None if no Event must be written.

        `at_s` is a monotonic time.
        """
        series = self._join(*self._combine(happening, at_s), at_s)
        return series if self._admit(happening.regarding, at_s) else None

    def _combine(self, happening: Happening, at_s: float) -> tuple[Happening, tuple[object, ...]]:
        """Return the occurrence to record and its key: alone, or aggregated with similar ones."""
        alike = (_identity(happening.regarding), happening.type, happening.reason)
        similar = self._similar.get(alike, _Similar)
        if at_s - similar.seen_s > self._limits.interval_s:
            similar.messages.clear()
        similar.seen_s = at_s
        similar.messages.add(happening.message)
        if len(similar.messages) < self._limits.similar:
            return happening, (*alike, happening.regarding.field_path, happening.message)
        # One too many: any message is dropped, so that the set stays the same until a quiet
        # interval.
        similar.messages.pop()
        return replace(happening, message=COMBINED + happening.message), alike

    def _join(self, happening: Happening, key: tuple[object, ...], at_s: float) -> Series:
        known = self._series.peek(key)
        if known is None or at_s - known.seen_s > self._limits.interval_s:
            name = _event_name(happening, self._source)
            known = Series(name, happening, first=happening.at)
            self._series.put(key, known)
        else:
            known.count += 1
            known.latest = happening
        known.seen_s = at_s
        return known

    def _admit(self, regarding: ObjectReference, at_s: float) -> bool:
        limits = self._limits
        bucket = self._buckets.get(_identity(regarding), lambda: _Bucket(limits.burst, at_s))
        gained = (at_s - bucket.at_s) / limits.refill_s
        bucket.tokens = min(limits.burst, bucket.tokens + gained)
        bucket.at_s = at_s
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True


class _Recent(Generic[_K, _V]):
    """Bounded dict that evicts the least recently used entry."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[_K, _V] = OrderedDict()

    def peek(self, key: _K) -> _V | None:
        """Return the value of a key, or None; the entry counts as used now."""
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: _K, value: _V) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """Return the value of a key; a missing value is created with `make`."""
        if (value := self.peek(key)) is None:
            value = make()
            self.put(key, value)
        return value


def _identity(regarding: ObjectReference) -> ObjectReference:
    """Return the reference without resourceVersion, which every write changes, and fieldPath."""
    if not (regarding.resource_version or regarding.field_path):
        return regarding
    return msgspec.structs.replace(regarding, resource_version="", field_path="")


def _event_name(happening: Happening, source: str) -> str:
    """Return the name of an Event: the object's name and a hash of series, time and source."""
    series = (source, happening.at, happening.type, happening.reason, happening.message)
    regarding = happening.regarding
    tag = hashlib.blake2b(repr((series, regarding)).encode("utf-8", "replace"), digest_size=8)
    # Some objects (roles) may have names that are invalid for an Event.
    stem = regarding.name[: _NAME_LIMIT - 17].rstrip("-.")
    if not _SUBDOMAIN.fullmatch(stem):
        stem = "event"
    return f"{stem}.{tag.hexdigest()}"


_ObjectT = TypeVar("_ObjectT", bound=Object)

_DROPS: Final = ("queue", "spam", "refused", "failed", "stopped")
_MESSAGE_LIMIT = 1024  # limit of the events.k8s.io API
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
    """The methods of a `Client` that an event recorder needs."""

    async def create(self, resource: Resource[Event], body: Json, *, namespace: str) -> Event:
        """Create an Event."""

    async def patch(
        self, resource: Resource[Event], name: str, patch: MergePatch, namespace: str
    ) -> Event:
        """Patch an existing Event."""


class EventRecorder:
    """Writes Events in the name of `component` (a program) and `instance` (one run of the
    program)."""

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
        self._waiting = metrics.gauge("kubeocean_events_pending", "Events with unwritten changes")
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
        """Record an occurrence about `regarding`; never fails, never waits."""
        now = self._clock.now()
        text = _short(printable(message))
        happening = Happening(regarding, type, reason, text, now, action)
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
        """Write emitted Events until cancelled, then write the remaining ones."""
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
            _log.warning("Could not write Events in time", deadline_s=self._flush_s)
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
                self._pending.setdefault(name, series)  # the last occurrence is not written yet
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
        _log.warning("Dropped Event", about=about.regarding.name, reason=about.reason, error=error)

    async def _send(self, series: Series) -> None:
        """Write the Event of a series: a patch if the server has the Event, else a create."""
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
        happening = series.latest
        news = {
            "count": series.count,
            "lastTimestamp": _time(happening.at),
            "message": happening.message,
        }
        await self._sink.patch(
            EVENTS, series.name, MergePatch(news), _namespace(happening.regarding)
        )

    def _body(self, series: Series) -> Json:
        happening = series.latest
        regarding: Json = msgspec.to_builtins(happening.regarding)
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": _namespace(happening.regarding)},
            "involvedObject": regarding,
            "type": happening.type,
            "reason": happening.reason,
            "message": happening.message,
            "action": happening.action,
            "count": series.count,
            "firstTimestamp": _time(series.first),
            "lastTimestamp": _time(happening.at),
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def reference(
    resource: Resource[_ObjectT], obj: _ObjectT, *, field_path: str = ""
) -> ObjectReference:
    """Return an ObjectReference to an object that was read."""
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
    # Events are namespaced; the server requires this namespace for those about cluster-scoped
    # objects.
    return regarding.namespace or "default"


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _short(message: str) -> str:
    """Return the message redacted, since tenants read Events, and cut to the API's limit."""
    text = redact_text(message)
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"

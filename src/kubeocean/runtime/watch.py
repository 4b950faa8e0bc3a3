"""Watch: a list of objects that is kept up to date.

`follow` yields without end: `Restarted` (a new list begins), `Changed` (objects that were added,
modified or deleted, many at a time), `Listed` (the list is complete: objects that it did not
contain are deleted), then more `Changed`. A watch survives everything that an API server does:

- A watch lists by a streaming watch if the server supports that, else in pages. A streaming list
  that does not end, or fails twice, is counted, and replaced by a list in pages that time.
- A watch resumes after the last version seen, which bookmarks keep fresh, and lists again on 410.
- Events that were seen already are dropped: a stream that repeats or rewinds changes nothing.
- `relist` makes a watch list again, whatever is under way.
- It cannot go silent: a server that sends nothing for `SILENCE_S`, not even the bookmark that is
  due every minute, counts as dead, and the watch is opened again on a new connection.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeAlias

import msgspec

from kubeocean.errors import (
    ApiError,
    BadRequest,
    Gone,
    InternalError,
    Invalid,
    ResponseTooLarge,
    ServerTimeout,
    Unreachable,
    api_error,
)
from kubeocean.runtime.answer_budget import SMALL, TOO_MANY_VALUES, has_too_many_values
from kubeocean.runtime.client import PAGE, Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import (
    Object,
    ObjectT,
    Resource,
    WatchEvent,
    decode_object,
    event_decoder,
    raw_event_decoder,
    require_names,
    shallow,
    whole,
    with_raw,
)
from kubeocean.runtime.retries import backoff_s, jittered
from kubeocean.runtime.transport import Stream

__all__ = ["Changed", "Listed", "ObjectEventType", "Restarted", "Scope", "Watch"]

# A bookmark is due every 60 s. With the reconnect this stays below the promised 70 s.
SILENCE_S: Final = 65.0
# The server ends each watch after a time between these two, so that not all watches reconnect at
# once. Servers choose the same by default (--min-request-timeout, and up to twice that). Not
# sooner: a dead watch is known by its silence, and reconnects of dozens of watches add up.
SHORTEST_S: Final = 1_800
LONGEST_S: Final = 3_600
BACKOFF_S: Final = (0.2, 5.0)
# A maintenance page may ask for a day with Retry-After, and the maintenance may end in a minute.
LONGEST_WAIT_S: Final = 30.0
# How long the end of a streaming list may take after its last object, and how often a streaming
# list may fail, before objects are listed in pages.
LISTING_S: Final = 30.0
LONGEST_LISTING_S: Final = 300.0  # objects that are created meanwhile come as ADDED, too
LISTING_FAILURES: Final = 2
REFUSAL_BYTES: Final = 1 << 16
LARGEST_EVENT: Final = 1 << 23  # bytes; API servers accept requests of 3 MiB
# Reasons why a stream starts again
_REASONS: Final = ("ended", "gone", "silent", "failed", "endless", "relisted")
_INITIAL_END: Final = "k8s.io/initial-events-end"
_DIGITS: Final = 20  # of the largest version that an API server can give

ObjectEventType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class Scope(Generic[ObjectT]):
    """Objects that a watch selects at the server, and the part of them that is kept."""

    resource: Resource[ObjectT]
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    keep_raw: bool = False
    metadata_only: bool = False

    @property
    def path(self) -> str:
        """URL path of the collection of objects."""
        return self.resource.path(self.namespace)


@dataclass(frozen=True, slots=True)
class Restarted:
    """Message of a watch: a new list begins; objects that are known stay valid until the list is
    complete."""


@dataclass(frozen=True, slots=True)
class Changed(Generic[ObjectT]):
    """Message of a watch: events in order, up to resourceVersion `version`.

    The list belongs to the consumer, who may clear it to free the objects.
    """

    events: list[tuple[ObjectEventType, ObjectT]]
    version: str


@dataclass(frozen=True, slots=True)
class Listed:
    """Message of a watch: the list is complete as of resourceVersion `version`."""

    version: str


class _Silence(Exception):
    """Raised when the server sent nothing for too long."""


class _Endless(Exception):
    """Raised when the server sent no bookmark at the end of a streaming list."""


class _Relist(Exception):
    """Raised when `relist` was called: all objects are listed again."""


class Watch(Generic[ObjectT]):
    """Watch of one selection of objects, restarted as needed until its consumer stops."""

    def __init__(
        self,
        client: Client,
        scope: Scope[ObjectT],
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        silence_s: float = SILENCE_S,
        page: int = PAGE,
        streaming: bool = True,
    ) -> None:
        self._client = client
        self._scope = scope
        self._clock = clock or RealClock()
        self._silence_s = silence_s
        self._page = page
        self._streaming = streaming
        self._version = ""
        self._number = 0  # the version as a number, for comparisons
        self._listed = False
        self._generation = 0  # of the server that issued the version
        self._failures = 0
        self._stream_failures = 0  # failed streaming lists in a row
        self._relisting = False  # requested, and not started yet
        self._reading: asyncio.Timeout | None = None  # timeout of the read under way
        resource = str(scope.resource)
        self._counts = _WatchMetrics(metrics or Metrics(), client.cluster, resource, self._clock)
        self._log = get_logger("watch").bind(cluster=client.cluster, resource=resource)

    def relist(self) -> None:
        """List all objects again; a stream or a list that is under way is aborted."""
        if self._relisting:
            return
        self._relisting = True
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def follow(self) -> AsyncGenerator[Restarted | Changed[ObjectT] | Listed, None]:
        """Yield lists and changes of the selected objects; ends only by `aclose`."""
        while True:
            delay_s = 0.0
            try:
                if not self._listed or self._relisting or self._moved():
                    self._listed = self._relisting = False
                    yield Restarted()
                    self._begin_at("")
                    self._generation = self._client.transport.generation
                async with aclosing(self._attempt()) as account:
                    async for news in account:
                        yield news
                self._note_listing()
                self._counts.restarts["ended"].inc()
            except _Relist:
                self._counts.restarts["relisted"].inc()
            except Gone as error:
                self._listed = False
                delay_s = self._delay_s("gone", error)
            except _Silence as error:
                self._note_listing()
                delay_s = self._delay_s("silent", error)
            except _Endless as error:
                self._stream_failures = LISTING_FAILURES
                delay_s = self._delay_s("endless", error)
            except ApiError as error:
                if not isinstance(error, Unreachable) or error.sent:
                    self._note_listing()
                delay_s = self._delay_s("failed", error)
            # Outside of the handlers: an error holds the answer that could not be read in memory.
            await self._clock.sleep(delay_s)

    def _note_listing(self) -> None:
        """Count a streaming list that ended before it was complete."""
        if not self._listed:
            self._stream_failures += 1

    def _attempt(self) -> AsyncGenerator[Restarted | Changed[ObjectT] | Listed, None]:
        if self._listed:
            return self._stream(initial=False)
        if self._streaming and self._stream_failures < LISTING_FAILURES:
            return self._stream(initial=True)
        if self._streaming:
            self._counts.fallbacks.inc()
        return self._paged()

    async def _paged(self) -> AsyncGenerator[Restarted | Changed[ObjectT] | Listed, None]:
        scope = self._scope
        version = ""
        async with aclosing(
            self._client.pages(
                scope.resource,
                scope.namespace,
                labels=scope.labels,
                fields=scope.fields,
                page=self._page,
                keep_raw=scope.keep_raw,
                metadata_only=scope.metadata_only,
            )
        ) as pages:
            async for part in pages:
                if part.begins and version:
                    yield Restarted()  # the continue token has expired
                if self._relisting:
                    raise _Relist
                version = part.version
                events: list[tuple[ObjectEventType, ObjectT]]
                events = [("ADDED", item) for item in part.items]
                part.items.clear()  # the consumer decides which of them stay in memory
                yield Changed(events, version)
        yield self._whole(version)

    async def _stream(
        self, *, initial: bool
    ) -> AsyncGenerator[Restarted | Changed[ObjectT] | Listed, None]:
        scope = self._scope
        query = [
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(random.randint(SHORTEST_S, LONGEST_S))),  # noqa: S311 - spreads load
        ]
        if initial:
            query += [("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]
        if self._version:
            query.append(("resourceVersion", self._version))
        async with self._client.watch(
            scope.resource,
            scope.namespace,
            labels=scope.labels,
            fields=scope.fields,
            query=query,
            metadata_only=scope.metadata_only,
        ) as stream:
            if initial:
                self._generation = self._client.transport.generation
            elif self._moved():
                raise Gone(
                    "the client uses another API server now, where the resourceVersion is not valid"
                )
            if stream.status != 200:
                await self._refused(stream, initial)
                return
            delivered = False
            began_at = added_at = self._clock.monotonic()
            try:
                async with aclosing(self._lines(stream)) as blocks:
                    async for block in blocks:
                        delivered = True
                        messages = self._read(block, initial=initial and not self._listed)
                        del block  # not in memory while the next one is read
                        for news in messages:
                            if isinstance(news, Changed) and _adds(news):
                                added_at = self._clock.monotonic()
                            yield news
                        if not self._listed:
                            self._check_listing(began_at, added_at)
            except _Silence as error:
                if initial and delivered and not self._listed:
                    raise _Endless(f"a streaming list did not end: {error}") from None
                # No data, not even a bookmark: the server may wait for a version in the far future,
                # as a server restored from a backup does.
                self._listed = self._listed and delivered
                raise
            if not delivered:
                raise Unreachable(
                    f"could not watch {scope.resource}: the server ended the watch without an event"
                )

    def _check_listing(self, began_at: float, added_at: float) -> None:
        """Abort a streaming list that takes too long, or whose last ADDED event is too long ago."""
        now = self._clock.monotonic()
        if now - added_at >= LISTING_S or now - began_at >= LONGEST_LISTING_S:
            raise _Endless(f"a streaming list did not end within {now - began_at:.0f} s")

    def _moved(self) -> bool:
        """Return whether requests go to another server than the one that issued the
        resourceVersion."""
        return self._generation != self._client.transport.generation

    async def _refused(self, stream: Stream, initial: bool) -> None:
        body = b""
        try:
            async with asyncio.timeout(self._silence_s):
                while len(body) < REFUSAL_BYTES and (more := await stream.read()):
                    body += more
        except TimeoutError:
            pass  # the status code is known; its text is not worth a longer wait
        after = stream.headers.get("Retry-After", "")
        error = api_error(
            stream.status, body, doing=f"watch {self._scope.resource}", retry_after=after
        )
        if initial and isinstance(error, Invalid | BadRequest):
            # The server does not support streaming lists: the next lists are in pages.
            self._streaming = False
            return
        if isinstance(error, ServerTimeout):
            # The server has not reached the version yet: another server, or one restored from a
            # backup.
            self._listed = False
        raise error

    async def _lines(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        """Yield blocks of whole lines of a stream, all that have arrived at a time.

        :raises ResponseTooLarge: a line has more than `LARGEST_EVENT` bytes.
        """
        lines = _LineBuffer()
        while await self._fill(lines, stream):
            yield lines.take()

    async def _fill(self, lines: _LineBuffer, stream: Stream) -> bool:
        """Read until whole lines have arrived; return False at the end of the stream."""
        while lines.size <= SMALL:
            chunk = await self._chunk(stream)
            if not chunk or lines.add(chunk):
                return bool(chunk)
        doing = f"watch {self._scope.resource}"
        async with self._client.answer_budget.reading(doing) as reservation:
            while lines.size <= LARGEST_EVENT:
                await reservation.grow(lines.size)
                chunk = await self._chunk(stream)
                if not chunk or lines.add(chunk):
                    return bool(chunk)
        raise ResponseTooLarge(f"could not {doing}: an event has more than {LARGEST_EVENT} bytes")

    async def _chunk(self, stream: Stream) -> bytes:
        """Return the next bytes of a stream; empty at its end."""
        silence_s = self._silence_s if self._listed else min(self._silence_s, LISTING_S)
        if self._relisting:
            raise _Relist
        try:
            async with asyncio.timeout(silence_s) as self._reading:
                chunk = await stream.read()
        except TimeoutError:
            if self._relisting:
                raise _Relist from None
            raise _Silence(f"the server sent nothing for {silence_s:g} s") from None
        finally:
            self._reading = None
        if chunk:
            self._counts.heard_at = self._clock.monotonic()
        return chunk

    def _read(self, block: bytes, *, initial: bool) -> list[Changed[ObjectT] | Listed]:
        """Return the messages for a block of lines. No await here: a block is processed whole or
        not at all."""
        news: list[Changed[ObjectT] | Listed] = []
        events: list[tuple[ObjectEventType, ObjectT]] = []
        listing, before = initial, self._version
        for event in self._decode(block):
            obj = event.object
            if event.type == "ERROR":
                # The events of this block are not delivered, so the server must send them again.
                self._begin_at(before)
                self._listed = self._listed and not listing
                raise api_error(0, obj.raw, doing=f"watch {self._scope.resource}")
            if event.type != "BOOKMARK":
                if initial or self._advance(obj.metadata.resource_version):
                    events.append((event.type, obj))
                else:
                    self._counts.stale.inc()
                continue
            self._advance(obj.metadata.resource_version)
            if initial and obj.annotations.get(_INITIAL_END) == "true":
                version = obj.resource_version
                news += [Changed(events, version), self._whole(version)]
                events, initial = [], False
        if events or not news:
            news.append(Changed(events, self._version))
        if not listing:
            # Not during a list: a list that breaks off, or expires at once, must keep its backoff.
            self._failures = 0
        return news

    def _decode(self, block: bytes) -> list[WatchEvent[ObjectT]]:
        if self._client.answer_budget.limited and has_too_many_values(block):
            raise ResponseTooLarge(
                f"could not watch {self._scope.resource}: a block of events has {TOO_MANY_VALUES}"
            )
        if not self._scope.keep_raw:
            try:
                # The fast way decodes all lines at once and fits all events but errors.
                events = event_decoder(self._scope.resource.type).decode_lines(block)
                if not any(event.type == "ERROR" for event in events):
                    require_names([each.object for each in events if each.type != "BOOKMARK"])
                    return events
            except (msgspec.ValidationError, RecursionError):
                pass
        try:
            return [self._decode_line(line) for line in block.split(b"\n") if line]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InternalError(
                f"could not watch {self._scope.resource}: an event cannot be read: {error}"
            ) from error

    def _decode_line(self, line: bytes) -> WatchEvent[ObjectT]:
        try:
            event = raw_event_decoder().decode(line)
        except RecursionError:
            event = raw_event_decoder().decode(shallow(line))
        raw = bytes(event.object)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            obj = decode_object(self._scope.resource.type, raw, keep_raw=False)
            if self._scope.keep_raw:
                obj = with_raw(obj, whole(raw))
            require_names([obj])
        else:
            # A Status or a bookmark: only the fields that all objects have.
            meta = decode_object(_Marker, raw, keep_raw=False).metadata
            obj = with_raw(self._scope.resource.type(metadata=meta), raw)
        return WatchEvent(event.type, obj)

    def _advance(self, version: str) -> bool:
        """Advance to this resourceVersion; return False if it is not newer than the present one.

        Versions of one resource only grow: a version that does not grow is a repetition.
        """
        try:
            number = int(version)
        except ValueError:  # a server with another numbering; versions cannot be compared
            number = self._number + 1
        if number <= self._number:
            return False
        self._version, self._number = version, number
        return True

    def _begin_at(self, version: str) -> None:
        self._version = version
        # A server may write any text; Python refuses numbers of thousands of digits.
        self._number = int(version) if version.isdecimal() and len(version) <= _DIGITS else 0

    def _whole(self, version: str) -> Listed:
        self._begin_at(version)
        self._listed = True
        self._stream_failures = 0
        return Listed(version)

    def _delay_s(self, why: str, error: Exception) -> float:
        """Count and log the end of a stream; return how long to wait before the next one."""
        self._counts.restarts[why].inc()
        self._failures += 1
        first, last = BACKOFF_S
        delay_s = jittered(backoff_s(self._failures, first, last))
        if isinstance(error, ApiError) and error.retry_after_s is not None:
            delay_s = max(delay_s, min(error.retry_after_s, LONGEST_WAIT_S))
        if why == "silent" or (why == "gone" and self._failures == 1):
            delay_s = 0.0
        self._log.info(
            "Watch ended, scheduled its restart",
            why=why,
            error=str(error),
            delay_s=round(delay_s, 3),
        )
        return delay_s


def _adds(news: Changed[ObjectT]) -> bool:
    return any(fate == "ADDED" for fate, _ in news.events)


class _LineBuffer:
    """Bytes of a stream: whole lines, and the beginning of the next line, of `size` bytes."""

    def __init__(self) -> None:
        self._lines = b""
        # Not a list of chunks: a server may send a large line in chunks of two bytes.
        self._begun = bytearray()

    @property
    def size(self) -> int:
        return len(self._begun)

    def add(self, chunk: bytes) -> bool:
        """Add the next bytes of the stream; return whether there are whole lines to take."""
        if not self._begun and chunk[-1:] == b"\n":
            self._lines = chunk  # the usual case: a server sends whole lines
            return True
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            self._begun += chunk
            return False
        self._lines = bytes(self._begun + head) if self._begun else head
        self._begun = bytearray(tail)
        return True

    def take(self) -> bytes:
        """Return the whole lines, which the buffer holds no longer."""
        lines, self._lines = self._lines, b""
        return lines


class _Marker(Object, frozen=True, gc=False):
    """Object of any kind with its metadata only, such as a bookmark."""


class _WatchMetrics:
    """Metrics of one watch."""

    def __init__(self, metrics: Metrics, cluster: str, resource: str, clock: Clock) -> None:
        labels = {"cluster": cluster, "resource": resource}
        restarts = metrics.counter(
            "kubeocean_watch_restarts_total",
            "Watches opened again, by cause: ended by the server, gone, silent, failed, endless,"
            " relisted",
            ["cluster", "resource", "why"],
        )
        self.restarts = {why: restarts.labels(**labels, why=why) for why in _REASONS}
        self.fallbacks = metrics.counter(
            "kubeocean_watch_list_fallbacks_total",
            "Lists in pages because a streaming list failed, or did not end",
            ["cluster", "resource"],
        ).labels(**labels)
        self.stale = metrics.counter(
            "kubeocean_watch_stale_events_total",
            "Events dropped because they, or newer ones, were seen before",
            ["cluster", "resource"],
        ).labels(**labels)
        self.heard_at = clock.monotonic()
        metrics.gauge(
            "kubeocean_watch_quiet_seconds",
            "Seconds since the server last sent data on this watch",
            ["cluster", "resource"],
        ).labels(**labels).set_function(lambda: clock.monotonic() - self.heard_at)

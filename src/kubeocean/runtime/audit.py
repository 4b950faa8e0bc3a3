"""Audit of writes: a transport that logs each request that may change an object.

A line of the logger `kubeocean.audit` names the actor (program and replica), the cluster, the verb,
the object with its UID, and the outcome. The reason is in the fields of the reconcile that sent the
request: its controller and key. Bodies are never logged. The logger keeps its level when the level
of the process is raised, so that no line is lost.

Not logged, because they change no object of users or are sent every few seconds: reviews of access
and tokens, dry runs, Leases, and Events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import msgspec

from kubeocean.errors import Unreachable
from kubeocean.runtime.logs import AUDIT_LOGGER, get_logger
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.tunnel import Tunnel

__all__ = ["AuditTransport", "Write", "write_of"]

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCE_VERBS: Final = {"eviction": "evict", "token": "request token"}
_SILENT_GROUPS: Final = ("authentication.k8s.io", "authorization.k8s.io")
_SILENT_RESOURCES: Final = (("coordination.k8s.io", "leases"), ("events.k8s.io", "events"))
_CORE_EVENTS: Final = ("", "events")
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Write:
    """A request that may change an object: verb and object, read from its method and path."""

    verb: str
    group: str
    resource: str  # with a subresource after a slash
    namespace: str = ""
    name: str = ""


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _Preconditions(msgspec.Struct, frozen=True):
    uid: str = ""


class _DeleteOptions(msgspec.Struct, frozen=True):
    preconditions: _Preconditions | None = None


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    """The parts of a request's or answer's body that identify its object."""

    metadata: _Metadata | None = None
    details: _Preconditions | None = None  # in a Status
    preconditions: _Preconditions | None = None  # in a delete
    delete_options: _DeleteOptions | None = None  # in an eviction
    reason: str | None = None  # in a Status

    @property
    def name(self) -> str:
        return self.metadata.name if self.metadata else ""

    @property
    def uid(self) -> str:
        options = self.delete_options.preconditions if self.delete_options else None
        parts = (self.preconditions, options, self.details, self.metadata)
        return next((part.uid for part in parts if part is not None and part.uid), "")


_NOTHING: Final = _Body()
_decode = msgspec.json.Decoder(_Body).decode


def write_of(request: Request) -> Write | None:
    """Return the write that a request makes; None for reads and for writes that are not audited."""
    verb = _VERBS.get(request.method)
    if verb is None or any(name == "dryRun" for name, _ in request.query):
        return None
    root, *words = request.path.strip("/").split("/")
    if "%" in request.path:
        words = [unquote(word) for word in words]
    group = words.pop(0) if root == "apis" and words else ""
    if root not in ("api", "apis") or len(words) < 2 or group in _SILENT_GROUPS:
        return None
    rest, namespace = words[1:], ""  # without the version
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    if (group, resource) in (*_SILENT_RESOURCES, _CORE_EVENTS):
        return None
    verb = _SUBRESOURCE_VERBS.get(subresource, verb)
    kind = f"{resource}/{subresource}" if subresource else resource
    return Write(verb, group, kind, namespace, name)


class AuditTransport:
    """Transport that logs each write and its outcome; `actor` names program and replica."""

    def __init__(self, inner: Transport, *, cluster: str, actor: str) -> None:
        self._inner = inner
        self._log = get_logger(AUDIT_LOGGER).bind(actor=actor, cluster=cluster)

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        write = write_of(request)
        if write is None:
            return await self._inner.send(request)
        try:
            response = await self._inner.send(request)
        except Unreachable as error:
            outcome = "not answered" if error.sent else "not sent"
            self._failed(write, request, outcome=outcome, error=str(error))
            raise
        except asyncio.CancelledError:
            # The server may have received the request.
            message = "the request was cancelled"
            self._failed(write, request, outcome="not answered", error=message)
            raise
        if 200 <= response.status < 300:
            self._done(write, request, response)
        else:
            reason = _read(response.body).reason or ""
            self._failed(write, request, outcome="refused", status=response.status, reason=reason)
        return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        async with self._inner.stream(request) as stream:
            yield stream

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()

    def _done(self, write: Write, request: Request, response: Response) -> None:
        body = _read(request.body or b"")
        name, uid = write.name, body.uid
        if not (name and uid):  # the answer is long, and read only if needed
            answer = _read(response.body)
            name, uid = name or answer.name or body.name, uid or answer.uid
        self._note("Wrote object", write, name, uid, outcome="done")

    def _failed(self, write: Write, request: Request, **more: object) -> None:
        body = _read(request.body or b"")
        self._note("Failed to write object", write, write.name or body.name, body.uid, **more)

    def _note(self, message: str, write: Write, name: str, uid: str, **more: object) -> None:
        self._log.info(
            message,
            verb=write.verb,
            group=write.group,
            resource=write.resource,
            namespace=write.namespace,
            name=name,
            uid=uid,
            **more,
        )


def _read(body: bytes) -> _Body:
    """Return the identifying parts of a body; empty for a body of another shape, such as a
    patch."""
    try:
        return _decode(body)
    except _UNREADABLE:
        return _NOTHING

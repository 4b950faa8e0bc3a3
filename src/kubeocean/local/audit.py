"""Audit: which requests an API server answered, read from its audit log.

The log has one line for each complete request; the line of a watch is written when the watch ends.
So the requests of each client are counted exactly, without measuring time.

The server writes the line before it ends its answer, so a client that has read a whole answer
(over HTTP/1.1, as `Client` does) finds the line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = ["Audit", "AuditedRequest"]


class _User(msgspec.Struct, frozen=True, gc=False):
    username: str = ""


class _Reference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""


class _Status(msgspec.Struct, frozen=True, gc=False):
    code: int = 0


class _Event(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    verb: str = ""
    request_uri: str = msgspec.field(default="", name="requestURI")
    user: _User = _User()
    user_agent: str = ""
    object_ref: _Reference = _Reference()
    response_status: _Status = _Status()


class AuditedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that an API server answered; `verb` is Kubernetes': get, list, watch, create …"""

    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    user: str
    user_agent: str
    uri: str


_decode = msgspec.json.Decoder(_Event).decode


class Audit:
    """Reader of an API server's audit log, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Return the present position in the audit log, for `requests(since=…)`."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def requests(
        self,
        *,
        user: str = "",
        user_agent: str = "",
        since: int = 0,
    ) -> list[AuditedRequest]:
        """Return the requests of a user, or of a user agent with this prefix, after a mark."""
        return [
            request
            for request in self._read(since)
            if request.user == (user or request.user) and request.user_agent.startswith(user_agent)
        ]

    def _read(self, since: int) -> Iterator[AuditedRequest]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(since, os.SEEK_SET)
            for line in file:
                if line.endswith(b"\n"):  # else the server has not written the whole line yet
                    yield _request(_decode(line))


def _request(event: _Event) -> AuditedRequest:
    about = event.object_ref
    return AuditedRequest(
        verb=event.verb,
        resource=about.resource,
        subresource=about.subresource,
        namespace=about.namespace,
        name=about.name,
        code=event.response_status.code,
        user=event.user.username,
        user_agent=event.user_agent,
        uri=event.request_uri,
    )

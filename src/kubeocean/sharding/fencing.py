"""Fencing: a replica writes only to slots that it owns.

All work for a slot runs under a *grant*: the slot, and the epoch at which this replica got it. The
grant is in the context of the task, so that it reaches every request of that task. A client made by
`fenced` checks before each write that the grant still holds; a write outside of a grant needs a
valid Lease.

A process that is frozen between the check and the request can still send it. So `stamped` puts the
epoch on the object, and an admission policy (`admission`) refuses an old epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from kubeocean.errors import KubeoceanError
from kubeocean.runtime.client import Client
from kubeocean.runtime.objects import Json
from kubeocean.runtime.transport_layers import FencedTransport
from kubeocean.sharding.names import Names

__all__ = ["Grant", "Holds", "NotOurs", "current_grant", "fenced", "stamped", "under"]


class NotOurs(KubeoceanError):
    """This replica may not, or no longer, work on this slot."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of one incarnation of a replica to work on a slot."""

    slot: int
    epoch: int
    member: str


class Holds(Protocol):
    """Checks whether a grant is valid at this instant."""

    def check(self, grant: Grant | None) -> None:
        """:raises NotOurs: the grant does not hold; with None, this replica holds no valid
        Lease."""


_CURRENT: ContextVar[Grant | None] = ContextVar("kubeocean_shard_grant", default=None)


def current_grant() -> Grant | None:
    """Under which grant this task works."""
    return _CURRENT.get()


@contextmanager
def under(grant: Grant) -> Iterator[Grant]:
    """Work under a grant until the block ends."""
    token = _CURRENT.set(grant)
    try:
        yield grant
    finally:
        _CURRENT.reset(token)


def fenced(client: Client, holds: Holds) -> Client:
    """Return the client with a fence: it writes only while the caller's grant holds."""

    def check() -> None:
        holds.check(_CURRENT.get())

    return Client(
        FencedTransport(client.transport, check),
        cluster=client.cluster,
        field_manager=client.field_manager,
    )


def stamped(body: Mapping[str, Any], names: Names, grant: Grant | None = None) -> Json:
    """Return the object or patch with the slot, the epoch and the writer of a grant on it.

    :raises NotOurs: there is no grant to stamp it with.
    """
    grant = grant or _CURRENT.get()
    if grant is None:
        raise NotOurs("could not stamp an object: nothing runs under a grant here")
    meta = dict(body.get("metadata") or {})
    labels = {**(meta.get("labels") or {}), names.slot_label: str(grant.slot)}
    annotations = {
        **(meta.get("annotations") or {}),
        names.epoch: str(grant.epoch),
        names.writer: grant.member,
    }
    return {**body, "metadata": {**meta, "labels": labels, "annotations": annotations}}

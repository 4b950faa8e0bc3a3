"""Fencing: a replica writes only to slots that it owns.

All work for a slot runs under a *grant*: the slot, and the epoch at which this replica got it. The
grant is in the context of the task, so that every request of that task carries the grant. A client
made by `fenced` checks before each write that the grant still holds; a write outside of a grant
needs a valid Lease.

A process that is frozen between the check and the request can still send the request. So `stamped`
puts the epoch on the object, and an admission policy (`admission`) refuses an old epoch.
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

__all__ = ["Grant", "GrantCheck", "NotOurs", "current_grant", "fenced", "stamped", "under"]


class NotOurs(KubeoceanError):
    """Raised when this replica may not, or no longer, work on a slot."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of one incarnation of a replica to work on a slot since an epoch."""

    slot: int
    epoch: int
    member: str


class GrantCheck(Protocol):
    """Interface of the check whether a grant is valid at this instant."""

    def check(self, grant: Grant | None) -> None:
        """Raise NotOurs if the grant does not hold or, with None, if this replica has no valid
        Lease."""


_CURRENT: ContextVar[Grant | None] = ContextVar("kubeocean_shard_grant", default=None)


def current_grant() -> Grant | None:
    """Return the grant under which the current task works; None if there is no grant."""
    return _CURRENT.get()


@contextmanager
def under(grant: Grant) -> Iterator[Grant]:
    """Run the block under a grant: writes of fenced clients in the block are checked against it."""
    token = _CURRENT.set(grant)
    try:
        yield grant
    finally:
        _CURRENT.reset(token)


def fenced(client: Client, grants: GrantCheck) -> Client:
    """Return a copy of the client that writes only while the grant of the calling task holds."""

    def check() -> None:
        grants.check(_CURRENT.get())

    return Client(
        FencedTransport(client.transport, check),
        cluster=client.cluster,
        field_manager=client.field_manager,
    )


def stamped(body: Mapping[str, Any], names: Names, grant: Grant | None = None) -> Json:
    """Return the object or patch `body` with the slot, the epoch and the writer of a grant.

    :raises NotOurs: `grant` is None and the task has no grant.
    """
    grant = grant or _CURRENT.get()
    if grant is None:
        raise NotOurs("could not stamp an object: the current task has no grant of a slot")
    meta = dict(body.get("metadata") or {})
    labels = {**(meta.get("labels") or {}), names.slot_label: str(grant.slot)}
    annotations = {
        **(meta.get("annotations") or {}),
        names.epoch: str(grant.epoch),
        names.writer: grant.member,
    }
    return {**body, "metadata": {**meta, "labels": labels, "annotations": annotations}}

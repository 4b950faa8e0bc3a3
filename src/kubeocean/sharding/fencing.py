"""Fencing: nobody writes on a slot that is not its own any more.

Whatever runs for a slot runs under a *grant*: the slot, and the epoch at which we got it. It is in
the context of the task, so that it reaches every request that is made on its behalf. A client that
went through `fenced` asks before each write whether the grant still holds; what is made outside of
a grant needs a valid Lease.

A process that was frozen between that question and the request can still send it. So `stamped`
puts the epoch on the object, and an admission policy (`admission`) can refuse an old one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from kubeocean.errors import KubeoceanError
from kubeocean.runtime.client import Client
from kubeocean.runtime.fencing import FencedTransport
from kubeocean.runtime.objects import Json
from kubeocean.sharding.names import Names

__all__ = ["Grant", "Holds", "NotOurs", "current_grant", "fenced", "stamped", "under"]


class NotOurs(KubeoceanError):
    """We may not work on this slot, or not any more."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of one incarnation of a replica to work on a slot."""

    slot: int
    epoch: int
    member: str


class Holds(Protocol):
    """Who knows whether a grant holds at this instant."""

    def check(self, grant: Grant | None) -> None:
        """:raises NotOurs: it does not; None asks whether we may do anything at all."""


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
    """The same client, which writes only while the grant of its caller holds."""

    def check() -> None:
        holds.check(_CURRENT.get())

    return Client(
        FencedTransport(client.transport, check),
        cluster=client.cluster,
        field_manager=client.field_manager,
    )


def stamped(body: Mapping[str, Any], names: Names, grant: Grant | None = None) -> Json:
    """The object or patch with the slot, the epoch and the writer of a grant on it.

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

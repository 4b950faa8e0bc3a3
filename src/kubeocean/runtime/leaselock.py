"""Lease lock: a Lease as a register that only one writer at a time can change.

Who reads it and who may write it is for `election` to decide; here every write succeeds only upon
the version that it was decided from. What else others keep on the Lease (labels, owners, fields
that we do not know) stays.
"""

from __future__ import annotations

from typing import Protocol

from kubeocean.errors import NotFound
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.leaserules import Entry, Record
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch

__all__ = ["LeaseLock", "Lock"]


class Lock(Protocol):
    """Where candidates meet."""

    async def read(self) -> Entry | None:
        """What it says now, None if it does not exist."""

    async def create(self, record: Record) -> Entry:
        """Make it.

        :raises AlreadyExists: somebody was quicker.
        """

    async def update(self, record: Record, version: str) -> Entry:
        """Change it, if it is still at `version`.

        :raises Conflict: it is not.
        :raises NotFound: it does not exist any more.
        """


class LeaseLock:
    """A `Lock` on a Lease in an API server."""

    def __init__(self, client: Client, *, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name

    async def read(self) -> Entry | None:
        try:
            return _entry(await self._client.get(LEASES, self._name, self._namespace))
        except NotFound:
            return None

    async def create(self, record: Record) -> Entry:
        body = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": _spec(record),
        }
        return _entry(await self._client.create(LEASES, body, namespace=self._namespace))

    async def update(self, record: Record, version: str) -> Entry:
        # A resourceVersion in a patch is a precondition, as in an update; but a patch does not
        # remove what we do not know.
        patch = MergePatch({"metadata": {"resourceVersion": version}, "spec": _spec(record)})
        return _entry(await self._client.patch(LEASES, self._name, patch, self._namespace))


def _entry(lease: Lease) -> Entry:
    spec = lease.spec
    record = Record(
        holder=spec.holder_identity or "",
        duration_s=spec.lease_duration_seconds or 0,
        acquired=spec.acquire_time or "",
        renewed=spec.renew_time or "",
        transitions=spec.lease_transitions or 0,
    )
    return Entry(record, lease.resource_version)


def _spec(record: Record) -> Json:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration_s,
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
        "leaseTransitions": record.transitions,
    }

"""Hollow members: one process that plays the agents of all members of a hub.

    python -m bench.hollow KUBECONFIG

For the hub nothing differs from real agents. Each InternalMemberCluster gets the annotation of an
agent that wants its finalizer preset, and a heartbeat each period, with properties and a usage that
differs each time. Each Work gets the status of a pass in which everything was applied and became
available. Works that are being deleted lose their finalizers, and a member that has to leave
reports that it has left.

There are no member clusters, so nothing is applied. Two watches serve all members, where real
agents have two watches each. The cost of this process is not measured, but it shares the machine.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from kubeocean.api.fleet.clusters import (
    INTERNAL_MEMBER_CLUSTERS,
    InternalMemberCluster,
    MembershipState,
    MemberStatus,
    PropertyValue,
    ResourceUsage,
)
from kubeocean.api.fleet.conditions import Availability, ManifestReason
from kubeocean.api.fleet.names import (
    ANNOTATION_WORK_FINALIZER,
    PROPERTY_CERTIFICATE_AUTHORITY,
    PROPERTY_KUBERNETES_VERSION,
    PROPERTY_NODE_COUNT,
)
from kubeocean.api.fleet.works import WORKS, Work
from kubeocean.errors import Conflict, NotFound
from kubeocean.fleet.agent.protocols import Collection
from kubeocean.fleet.agent.report import (
    has_left,
    health_condition,
    heartbeat_status,
    joined,
    left,
    status_with_condition,
)
from kubeocean.fleet.applier.manifests import Identifier
from kubeocean.fleet.applier.plan import Result
from kubeocean.fleet.applier.report import Processed, work_status
from kubeocean.fleet.writes import finalizers_patch, replace_status
from kubeocean.runtime.client import Client, MergePatch, connect
from kubeocean.runtime.clock import RealClock, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.service import run

__all__ = ["HollowMembers"]

_WORKERS: Final = 16
_JITTER: Final = 0.05  # of a period, as real agents have it
_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----\n" + "M" * 1200  # as long as a usual one


class HollowMembers:
    """The agents of all members of a hub."""

    def __init__(self, client: Client) -> None:
        self._client, self._clock = client, RealClock()
        self._beating: set[str] = set()  # UIDs of those whose first heartbeat was sent
        self._internals: Informer[InternalMemberCluster] = Informer(
            client, INTERNAL_MEMBER_CLUSTERS
        )
        self._works: Informer[Work] = Informer(client, WORKS)
        self._heartbeats: Controller[Key] = Controller(
            "hollow-heartbeats", self._beat, workers=_WORKERS, gate=self._internals.caught_up
        )
        self._passes: Controller[Key] = Controller(
            "hollow-works", self._apply, workers=_WORKERS, gate=self._works.caught_up
        )
        self._internals.on_change(self._internal_changed)
        self._works.on_change(lambda old, new: self._passes.enqueue((new or old).key))

    def _internal_changed(
        self, old: InternalMemberCluster | None, new: InternalMemberCluster | None
    ) -> None:
        """Requeue on a new generation, as an agent does; own status writes do not count."""
        if new is None and old is not None:
            self._beating.discard(old.uid)
        elif new is not None and (
            old is None or old.metadata.generation != new.metadata.generation
        ):
            self._heartbeats.enqueue(new.key)

    async def run(self) -> None:
        """Play all members until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._internals, self._works, self._heartbeats, self._passes):
                group.create_task(part.run())

    # Heartbeats

    async def _beat(self, key: Key) -> Outcome:
        internal = self._internals.get(key)
        if internal is None or internal.deleting:
            return Done()
        if internal.spec.state == MembershipState.LEAVE:
            if not has_left(internal):
                status = status_with_condition(internal, left(), now=self._now())
                await self._write(internal, status)
            return Done()
        if ANNOTATION_WORK_FINALIZER not in internal.annotations:
            metadata = {"uid": internal.uid, "annotations": {ANNOTATION_WORK_FINALIZER: "preset"}}
            patch = MergePatch({"metadata": metadata})
            internal = await self._client.patch(
                INTERNAL_MEMBER_CLUSTERS, key.name, patch, key.namespace
            )
        now = self._now()
        conditions = (health_condition(""), joined())
        status = heartbeat_status(internal, conditions, _collection(now), (), now=now)
        await self._write(internal, status)
        period_s = float(internal.spec.heartbeat_period_seconds)
        if internal.uid not in self._beating:
            self._beating.add(internal.uid)  # members that joined together must not beat together
            return After(random.uniform(0, period_s))
        return After(period_s * (1 + random.uniform(-_JITTER, _JITTER)))

    async def _write(self, internal: InternalMemberCluster, status: MemberStatus) -> None:
        with suppress(NotFound):
            self._internals.wrote(
                await replace_status(self._client, INTERNAL_MEMBER_CLUSTERS, internal, status)
            )

    def _now(self) -> str:
        return text_of(self._clock.now())

    # Works

    async def _apply(self, key: Key) -> Outcome:
        work = self._works.get(key)
        if work is None:
            return Done()
        with suppress(Conflict, NotFound):  # an event follows
            if work.deleting:
                if work.metadata.finalizers:
                    patch = finalizers_patch(work, ())
                    self._works.wrote(
                        await self._client.patch(WORKS, key.name, patch, key.namespace)
                    )
            elif not _is_processed(work):
                self._works.wrote(await self._report(work))
        return Done()

    async def _report(self, work: Work) -> Work:
        status = work_status(
            {"metadata": {"generation": work.metadata.generation}},
            _processed(work.spec.workload.manifests),
            reports_diff=False,
            now=self._now(),
        )
        body = {"metadata": {"resourceVersion": work.resource_version}, "status": status}
        return await self._client.patch(
            WORKS, work.name, MergePatch(body), work.namespace, subresource="status"
        )


def _processed(manifests: Iterable[Json]) -> list[Processed]:
    """Return the results of a pass in which all objects were applied and became available."""
    results = []
    for ordinal, manifest in enumerate(manifests):
        group, _, version = manifest["apiVersion"].rpartition("/")
        kind, metadata = manifest["kind"], manifest["metadata"]
        identifier = Identifier(
            ordinal,
            group,
            version,
            kind,
            f"{kind.lower()}s",  # true of the kinds that are placed here
            metadata.get("namespace", ""),
            metadata["name"],
        )
        result = Result(ManifestReason.APPLIED, live={"metadata": {"generation": 1}})
        results.append(Processed(identifier, result, Availability.AVAILABLE))
    return results


def _is_processed(work: Work) -> bool:
    generation = work.metadata.generation
    return any(each.observed_generation == generation for each in work.status.conditions)


def _collection(now: str) -> Collection:
    """Return properties that stay the same, and a usage that does not."""
    values = {
        PROPERTY_NODE_COUNT: "12",
        PROPERTY_KUBERNETES_VERSION: "v1.34.1",
        PROPERTY_CERTIFICATE_AUTHORITY: _CERTIFICATE,
    }
    total = {"cpu": "768", "memory": "3145728Mi"}
    available = {
        "cpu": f"{random.randrange(768_000)}m",
        "memory": f"{random.randrange(3_145_728)}Mi",
    }
    return Collection(
        {name: PropertyValue(value, now) for name, value in values.items()},
        ResourceUsage(total, total, available, now),
    )


async def _play(kubeconfig: Path) -> int:
    client = connect(kubeconfig, cluster="hub")
    try:
        await HollowMembers(client).run()
    finally:
        await client.close()
    return 0


if __name__ == "__main__":
    sys.exit(run(lambda: _play(Path(sys.argv[1]))))

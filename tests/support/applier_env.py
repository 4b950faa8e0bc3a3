"""A hub, a member and a Work applier between them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kubeocean.api.fleet.works import APPLIED_WORKS, WORKS
from kubeocean.errors import NotFound
from kubeocean.fleet.applier import Backoff, WorkApplier
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.background import running
from support.faults import Crashed, Faults
from support.fleet_kinds import install_fleet_kinds
from support.wait import until

__all__ = ["EVENTS_ONLY", "QUICK", "ApplierEnv", "Run", "config_map", "namespace_of", "untyped"]

# Retries often, so that a test never waits for the schedule
QUICK = Backoff(
    fixed_delay_s=0.5, slow_start_s=0.5, slow_factor=1.0, slow_limit_s=0.5, fast_limit_s=900.0
)
# Never retries, so that only events lead to passes
EVENTS_ONLY = Backoff(fixed_delay_s=3600.0)
QUIET_S = 2.5
REST_S = 1.0


def untyped(resource: Resource[Any]) -> Resource[Untyped]:
    """Return the resource with whole objects."""
    return Resource(
        resource.group,
        resource.version,
        resource.plural,
        resource.kind,
        resource.namespaced,
        Untyped,
    )


def config_map(name: str, namespace: str, **data: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def namespace_of(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@dataclass
class ApplierEnv:
    """A namespace of the hub, a namespace of the member, and Works of this test."""

    hub_cluster: Cluster
    member_cluster: Cluster
    hub: Client
    member: Client
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def hub_namespace(self) -> str:
        return f"fleet-member-{self.id}"

    @property
    def namespace(self) -> str:
        """Of the objects in the member."""
        return f"placed-{self.id}"

    def name(self, work: str = "work") -> str:
        """Return the name of a Work, unique to the test because AppliedWorks have no namespace."""
        return f"{self.id}-{work}"

    @asynccontextmanager
    async def with_member(self, member: Cluster) -> AsyncIterator[ApplierEnv]:
        """Yield the same hub with another member, which gets the kinds of a fleet."""
        client = member.client()
        try:
            await install_fleet_kinds(client)
            env = ApplierEnv(self.hub_cluster, member, self.hub, client)
            await env.set_up()
            yield env
        finally:
            await client.close()

    async def set_up(self) -> None:
        await self.hub.create(NAMESPACES, namespace_of(self.hub_namespace))
        await self.member.create(NAMESPACES, namespace_of(self.namespace))

    # The applier

    def applier(
        self, hub: Client | None = None, member: Client | None = None, **options: Any
    ) -> WorkApplier:
        settings = {"backoff": QUICK} | options
        return WorkApplier(
            hub or self.hub, member or self.member, namespace=self.hub_namespace, **settings
        )

    @asynccontextmanager
    async def running(self, faults: Faults | None = None, **options: Any) -> AsyncIterator[Run]:
        """Yield an applier over connections of its own, until the block ends."""
        faults = faults or Faults()
        hub = self.hub_cluster.client(wrap=faults.wrap)
        member = self.member_cluster.client(wrap=faults.wrap)
        applier = self.applier(hub, member, **options)
        try:
            async with running(applier):
                yield Run(applier, faults)
        finally:
            await hub.close()
            await member.close()

    async def run_until_crash(self, faults: Faults, **options: Any) -> None:
        """Run an applier whose requests meet these faults, until it crashes."""
        hub = self.hub_cluster.client(wrap=faults.wrap)
        member = self.member_cluster.client(wrap=faults.wrap)
        task = asyncio.create_task(self.applier(hub, member, **options).run())
        try:
            await until(lambda: faults.crashed or task.done(), waiting_for="the crash")
        finally:
            task.cancel()
            results = await asyncio.gather(task, return_exceptions=True)
            await hub.close()
            await member.close()
        for result in results:
            if isinstance(result, BaseException) and not _is_crash(result):
                raise result

    # Works

    def config_map(self, name: str = "settings", **data: str) -> Json:
        return config_map(name, self.namespace, **data)

    async def put_work(
        self,
        *manifests: Any,
        name: str = "work",
        strategy: Json | None = None,
        metadata: Json | None = None,
        **spec: Any,
    ) -> None:
        """Create a Work, or set its manifests and strategy."""
        body: Json = {
            "apiVersion": WORKS.api_version,
            "kind": WORKS.kind,
            "metadata": {
                "name": self.name(name),
                "namespace": self.hub_namespace,
                **(metadata or {}),
            },
            "spec": {"workload": {"manifests": list(manifests)}, **spec},
        }
        if strategy is not None:
            body["spec"]["applyStrategy"] = strategy
        try:
            await self.hub.get(WORKS, self.name(name), self.hub_namespace)
        except NotFound:
            await self.hub.create(WORKS, body)
            return
        change = {"spec": {"applyStrategy": None, "reportBackStrategy": None, **body["spec"]}}
        await self.hub.patch(WORKS, self.name(name), MergePatch(change), self.hub_namespace)

    async def delete_work(self, name: str = "work") -> None:
        await self.hub.delete(WORKS, self.name(name), self.hub_namespace, uid=None)

    async def work(self, name: str = "work") -> Json | None:
        return await self.read(self.hub, WORKS, self.name(name), self.hub_namespace)

    async def applied_work(self, name: str = "work") -> Json | None:
        return await self.read(self.member, APPLIED_WORKS, self.name(name))

    async def placed(self, name: str = "settings", resource: Any = CONFIG_MAPS) -> Json | None:
        """Return an object of the member, in the namespace of the test if its kind has one."""
        namespace = self.namespace if resource.namespaced else ""
        return await self.read(self.member, resource, name, namespace)

    async def edit(self, change: Json, name: str = "settings", resource: Any = CONFIG_MAPS) -> None:
        """Change an object of the member with another client than the applier's."""
        namespace = self.namespace if resource.namespaced else ""
        await self.member.patch(resource, name, MergePatch(change), namespace)

    async def another_owner(self) -> Json:
        """Return a reference to an owner that is not ours: the namespace."""
        namespace = await self.read(self.member, NAMESPACES, self.namespace)
        assert namespace is not None
        uid = namespace["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "Namespace", "name": self.namespace, "uid": uid}

    @staticmethod
    async def read(
        client: Client, resource: Resource[Any], name: str, namespace: str = ""
    ) -> Json | None:
        try:
            found = await client.get(untyped(resource), name, namespace, keep_raw=True)
        except NotFound:
            return None
        return found.content()

    # States

    async def conditions(self, name: str = "work") -> dict[str, tuple[str, str]]:
        """Return status and reason of the conditions of a Work that are not stale."""
        work = await self.work(name)
        assert work is not None
        generation = work["metadata"]["generation"]
        conditions = (work.get("status") or {}).get("conditions") or []
        assert all(each["observedGeneration"] == generation for each in conditions), conditions
        return {each["type"]: (each["status"], each["reason"]) for each in conditions}

    async def manifest_reasons(self, name: str = "work") -> list[str]:
        """Return the reason of the first condition of each manifest."""
        return [each["conditions"][0]["reason"] for each in await self.entries(name)]

    async def entries(self, name: str = "work") -> list[Json]:
        """Return the manifest conditions of a Work whose status is not stale."""
        assert await self.conditions(name)
        work = await self.work(name)
        assert work is not None
        return list(work["status"].get("manifestConditions") or [])

    async def until_reasons(self, *reasons: str, name: str = "work") -> list[Json]:
        """Wait until the manifests have these reasons; their conditions."""

        async def reached() -> bool:
            assert await self.manifest_reasons(name) == list(reasons)
            return True

        await until(reached, waiting_for=f"reasons {reasons}")
        return await self.entries(name)

    async def until_available(self, name: str = "work") -> None:
        async def available() -> bool:
            assert (await self.conditions(name)).get("Available", ("", ""))[0] == "True"
            return True

        await until(available, waiting_for=f"Work {name} to be available")

    async def until_gone(self, read: Callable[[], Any]) -> None:
        async def gone() -> bool:
            return await read() is None

        await until(gone, waiting_for="an object to be gone")


@dataclass(frozen=True)
class Run:
    """A running applier, and the requests that it sends."""

    applier: WorkApplier
    faults: Faults

    def writes(self) -> list[str]:
        """Return the writes that were sent, dry runs aside."""
        return [
            f"{request.method} {request.path}"
            for request in self.faults.requests
            if request.writes and ("dryRun", "All") not in request.query
        ]

    async def is_quiet(
        self, seconds: float = QUIET_S, *, retries: bool = False, rest_s: float = REST_S
    ) -> None:
        """Assert that nothing is written once events have been delivered and passes have ended.

        With `retries`, writes that the server refuses do not count. `rest_s` is how long an event
        may take from the server to the applier's queue.
        """
        counts = [-1]
        queue = self.applier._controller.queue

        async def rests() -> bool:
            await until(lambda: not queue._processing and not len(queue), every=0.01, within=60)
            before, counts[0] = counts[0], self.faults.writes
            return before == counts[0]

        await until(rests, every=rest_s)
        before, accepted = len(self.writes()), self.faults.writes
        await asyncio.sleep(seconds)
        if retries:
            assert self.faults.writes == accepted, self.writes()[before:]
        else:
            assert self.writes()[before:] == [], self.writes()[before:]


def _is_crash(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_crash(each) for each in error.exceptions)
    return isinstance(error, Crashed | asyncio.CancelledError)

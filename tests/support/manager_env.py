"""Support for tests of the manager: bindings in a computing cluster, and relays to workers."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Conflict, NotFound, Unreachable
from kubeocean.install.apply import FIELD_MANAGER, Applier
from kubeocean.install.object_parts import accounts, granted
from kubeocean.install.permissions import Rights, Rule
from kubeocean.install.roles import worker_rights
from kubeocean.local.cluster import Cluster
from kubeocean.manager.app import Manager
from kubeocean.manager.worker_probe import REVIEW_S
from kubeocean.runtime.client import Client, MergePatch, connect
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.kinds import (
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    SECRETS,
    Event,
    Node,
)
from kubeocean.runtime.objects import Condition, Json, Key, find_condition, set_condition
from support.background import running
from support.faults import Faults
from support.rollout_env import Mounted
from support.wait import until

__all__ = ["SYSTEM", "ManagerEnv", "Relay", "granted_kubeconfig", "relayed", "retried_after_outage"]

SYSTEM = "kubeocean-system"
DEADLINE_S = 2.0


class Relay:
    """A TCP relay to an API server that can be closed or stalled."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mute(self) -> None:
        """Stall all connections without closing them."""
        self._open.clear()

    def unmute(self) -> None:
        self._open.set()

    def kubeconfig(self, original: Path | None = None) -> bytes:
        """Return a kubeconfig of the cluster that connects through the relay."""
        text = (original or self._cluster.kubeconfig).read_text()
        return text.replace(self._cluster.server, f"https://127.0.0.1:{self.port}").encode()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        address = urlsplit(self._cluster.server)
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(address.hostname, address.port)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
        except (OSError, asyncio.CancelledError, BaseExceptionGroup):
            pass
        finally:
            self._tasks.discard(task)
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # ends the other direction, too


@asynccontextmanager
async def relayed(cluster: Cluster) -> AsyncIterator[Relay]:
    """Start a relay to an API server; stop it at the end."""
    relay = Relay(cluster)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.cut()


async def retried_after_outage(
    relay: Relay, client: Client, controllers: Iterable[Controller[Any]]
) -> list[str]:
    """Return the names of the controllers that retry a failed key once the relay works again."""
    failed, named = Key("", "failed"), {each.name: each.queue for each in controllers}
    await client.list(CLUSTER_BINDINGS)
    for queue in named.values():
        queue.retry(failed, at_least=3600.0)
    before = {name: len(queue) for name, queue in named.items()}
    await relay.cut()
    with pytest.raises(Unreachable):
        await client.list(CLUSTER_BINDINGS)
    await relay.start()
    await client.list(CLUSTER_BINDINGS)
    return [name for name, queue in named.items() if len(queue) > before[name]]


@dataclass
class ManagerEnv:
    """Bindings of one test in a computing cluster with Kubeocean installed."""

    computing_cluster: Cluster
    worker: Cluster
    computing_client: Client
    worker_client: Client
    account: Path  # the kubeconfig of the manager's own account
    root: Path
    name: str = field(default_factory=lambda: f"h{uuid.uuid4().hex[:8]}")
    made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not (self.root / "syncer").exists():
            self.syncers = Mounted.syncers(self.root / "syncer")
            self.proxiers = Mounted.proxiers(self.root / "proxier")

    @property
    def cluster_id(self) -> str:
        return f"id-{self.name}"

    def other_binding(self) -> ManagerEnv:
        """Return another binding of the same test."""
        return replace(self, name=f"h{uuid.uuid4().hex[:8]}")

    # The manager

    @property
    def templates(self) -> tuple[Path, Path]:
        return self.root / "syncer", self.root / "proxier"

    @asynccontextmanager
    async def managed(
        self,
        faults: Faults | None = None,
        *,
        review_s: float = REVIEW_S,
        clock: Clock | None = None,
    ) -> AsyncIterator[Manager]:
        """Run a manager under the account and the roles of an installation."""
        wrap = faults.wrap if faults is not None else None
        client = self.computing_cluster.client(kubeconfig=self.account, wrap=wrap)
        manager = Manager(
            client, self.templates, deadline_s=DEADLINE_S, review_s=review_s, clock=clock
        )
        try:
            async with running(manager):
                yield manager
        finally:
            await client.close()

    # Bindings

    async def write_secret(self, content: bytes, *, name: str = "") -> None:
        """Create or change the Secret with the kubeconfig."""
        name = name or self.name
        data = {"kubeconfig": base64.b64encode(content).decode()}
        try:
            await self.computing_client.patch(SECRETS, name, MergePatch({"data": data}), SYSTEM)
        except NotFound:
            body = {"metadata": {"name": name, "namespace": SYSTEM}, "data": data}
            await self.computing_client.create(SECRETS, body)

    async def bind(self, content: bytes | None = None, **spec: object) -> ClusterBinding:
        """Create a binding, and its Secret if `content` is given; return the binding."""
        if content is not None:
            await self.write_secret(content)
        body = {
            "apiVersion": CLUSTER_BINDINGS.api_version,
            "kind": "ClusterBinding",
            "metadata": {"name": self.name},
            "spec": {
                "clusterID": self.cluster_id,
                "secretRef": {"name": self.name, "namespace": SYSTEM},
                "mountNamespace": "default",
                **spec,
            },
        }
        self.made.append(self.name)
        return await self.computing_client.create(CLUSTER_BINDINGS, body)

    async def binding(self) -> ClusterBinding:
        return await self.computing_client.get(CLUSTER_BINDINGS, self.name)

    async def is_gone(self) -> bool:
        try:
            await self.binding()
        except NotFound:
            return True
        return False

    async def unbind(self) -> None:
        await self.computing_client.delete(
            CLUSTER_BINDINGS, self.name, uid=(await self.binding()).uid
        )

    async def change(self, **metadata: object) -> None:
        await self.computing_client.patch(
            CLUSTER_BINDINGS, self.name, MergePatch({"metadata": metadata})
        )

    async def condition(self, type_: str) -> tuple[str, str, str]:
        stored = find_condition((await self.binding()).status.conditions, type_)
        return (stored.status, stored.reason, stored.message) if stored else ("", "", "")

    async def wait_for_condition(
        self, type_: str, status: str, reason: str, *, within: float = 90.0
    ) -> str:
        """Wait until a condition has this status and reason; return its message."""

        async def reached() -> str:
            condition = await self.condition(type_)
            assert condition[:2] == (status, reason), condition
            return condition[2] or " "

        return await until(reached, within=within, waiting_for=f"{type_} {status} {reason}")

    async def wait_for_phase(self, phase: str, *, within: float = 90.0) -> None:
        async def reached() -> bool:
            status = (await self.binding()).status
            assert status.phase == phase, status
            return True

        await until(reached, within=within)

    async def events(self) -> list[Event]:
        fields = f"involvedObject.name={self.name}"
        return (await self.computing_client.list(EVENTS, "default", fields=fields)).items

    async def wait_for_event(self, reason: str) -> Event:
        """Wait for an event of the manager; return the last one."""

        async def last_event() -> Event | None:
            events = [each for each in await self.events() if each.reason == reason]
            return events[-1] if events else None

        event = await until(last_event, waiting_for=reason)
        assert event is not None
        assert event.reporting_component == "clusterbinding-controller"
        return event

    def deployment(self, component: str) -> str:
        return f"kubeocean-{component}-{self.cluster_id}"

    async def deployments(self) -> dict[str, str]:
        """Return the UIDs of this binding's Deployments, by name."""
        listing = await self.computing_client.list(DEPLOYMENTS, SYSTEM)
        names = (self.deployment("syncer"), self.deployment("proxier"))
        return {each.name: each.uid for each in listing.items if each.name in names}

    async def is_rolled_out(self) -> bool:
        return len(await self.deployments()) == 2

    async def run(self, *components: str, replicas: int = 2) -> None:
        """Write the status of Deployments, as their controller does."""
        for component in components or ("syncer", "proxier"):
            name = self.deployment(component)
            deployment = await self.computing_client.get(DEPLOYMENTS, name, SYSTEM)
            status = {
                "observedGeneration": deployment.metadata.generation,
                "replicas": 2,
                "updatedReplicas": 2,
                "readyReplicas": replicas,
                "availableReplicas": replicas,
            }
            patch = MergePatch({"status": status})
            await self.computing_client.patch(
                DEPLOYMENTS, name, patch, SYSTEM, subresource="status"
            )

    async def make_ready(self) -> None:
        """Wait for the rollout, make its Deployments available, and wait for phase Ready."""
        await until(self.is_rolled_out)
        await self.run()
        await self.wait_for_phase("Ready")

    async def lead(self, *, duration_s: int, renewed: str = "2026-01-01T00:00:00.000000Z") -> None:
        """Hold the Lease of this binding's syncers."""
        name = self.deployment("syncer")
        spec = {
            "holderIdentity": "somebody",
            "leaseDurationSeconds": duration_s,
            "renewTime": renewed,
        }
        try:
            await self.computing_client.patch(LEASES, name, MergePatch({"spec": spec}), SYSTEM)
        except NotFound:
            body = {"metadata": {"name": name, "namespace": SYSTEM}, "spec": spec}
            await self.computing_client.create(LEASES, body)

    async def stop_leading(self) -> None:
        """Release that Lease, as a terminating syncer does."""
        patch = MergePatch({"spec": {"holderIdentity": ""}})
        await self.computing_client.patch(LEASES, self.deployment("syncer"), patch, SYSTEM)

    async def has_lease(self) -> bool:
        """Whether that Lease exists."""
        leases = (await self.computing_client.list(LEASES, SYSTEM)).items
        return self.deployment("syncer") in {each.name for each in leases}

    async def set_syncer_finalizer(self, *, present: bool = True) -> None:
        """Add the syncer's finalizer to the binding, or remove it."""

        async def done() -> bool:
            binding = await self.binding()
            others = [
                each
                for each in binding.metadata.finalizers or ()
                if each != DEFAULT.finalizer_syncer
            ]
            finalizers = [*others, DEFAULT.finalizer_syncer] if present else others
            with suppress(Conflict):
                await self.change(finalizers=finalizers, resourceVersion=binding.resource_version)
                return True
            return False

        await until(done)

    async def write_condition(self, condition: Json) -> None:
        """Write a condition of the binding, as the syncer does."""

        async def written() -> bool:
            binding = await self.binding()
            condition_ = msgspec.convert(condition, Condition)
            now = "2026-01-01T00:00:00Z"
            conditions = set_condition(binding.status.conditions, condition_, now=now)
            body = {
                "metadata": {"resourceVersion": binding.resource_version},
                "status": {"conditions": msgspec.to_builtins(conditions)},
            }
            with suppress(Conflict):
                patch = MergePatch(body)
                await self.computing_client.patch(
                    CLUSTER_BINDINGS, self.name, patch, subresource="status"
                )
                return True
            return False

        await until(written)

    async def create_virtual_node(self, node: str) -> Node:
        """Create a virtual node of this binding."""
        labels = {
            DEFAULT.managed_by: "kubeocean",
            DEFAULT.cluster_binding: self.name,
            DEFAULT.physical_cluster_id: self.cluster_id,
        }
        metadata = {
            "name": f"vnode-{self.cluster_id}-{node}",
            "labels": labels,
            "finalizers": [DEFAULT.finalizer_vnode],
        }
        return await self.computing_client.create(NODES, {"metadata": metadata})

    async def vnodes(self) -> list[str]:
        labels = f"{DEFAULT.cluster_binding}={self.name}"
        return [
            each.name for each in (await self.computing_client.list(NODES, labels=labels)).items
        ]

    async def clear(self) -> None:
        """Delete all bindings of this test."""
        for name in self.made:
            with suppress(NotFound):
                await self.computing_client.delete(CLUSTER_BINDINGS, name, uid=None)
            with suppress(NotFound):
                patch = MergePatch({"metadata": {"finalizers": None}})
                await self.computing_client.patch(CLUSTER_BINDINGS, name, patch)


async def granted_kubeconfig(
    worker: Cluster,
    namespace: str,
    *,
    without: Iterable[str] = (),
    extra: Iterable[Rule] = (),
    make: bool = True,
) -> Path:
    """Return the kubeconfig of an account of the worker with the shipped role, but without some of
    it: `create pods`, `list nodes`; and with something on top."""
    rights = _fewer(worker_rights(namespace, ()), set(without))
    rights = replace(rights, everywhere=(*rights.everywhere, *extra))
    client = connect(worker.kubeconfig, cluster=worker.name, field_manager=FIELD_MANAGER)
    try:
        if make:
            await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        applier = Applier(client, domain=DEFAULT)
        objects = [
            *accounts(("syncer",), namespace, labels={}),
            *granted(
                f"{namespace}-syncer",
                rights,
                account="syncer",
                namespace=namespace,
                labels={},
            ),
        ]
        for body in objects:
            await applier.apply(body)
        return await worker.service_account(namespace, "syncer")
    finally:
        await client.close()


def _fewer(rights: Rights, left_out: set[str]) -> Rights:
    def kept(rules: Iterable[Rule]) -> tuple[Rule, ...]:
        kept_rules = []
        for rule in rules:
            for resource in rule.resources:
                verbs = tuple(v for v in rule.verbs if f"{v} {resource}" not in left_out)
                if verbs:
                    kept_rules.append(replace(rule, resources=(resource,), verbs=verbs))
        return tuple(kept_rules)

    within = {where: kept(rules) for where, rules in rights.within.items()}
    return Rights(kept(rights.everywhere), within)

"""Managers in tests: a computing cluster with everything installed, workers behind relays, and
bindings between them."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.errors import Conflict, NotFound
from kubeocean.installation.applying import FIELD_MANAGER, Applier
from kubeocean.installation.parts import accounts, granted
from kubeocean.installation.rights import Rights, Rule
from kubeocean.installation.roles import worker_rights
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults
from kubeocean.manager.app import Manager
from kubeocean.manager.pulses import REVIEW_S
from kubeocean.manager.rolloutviews import DEPLOYMENTS
from kubeocean.runtime.client import Client, connect
from kubeocean.runtime.kinds import EVENTS, LEASES, NAMESPACES, NODES, SECRETS, Event, Node
from kubeocean.runtime.objects import Condition, Json, find_condition, set_condition
from kubeocean.runtime.patches import MergePatch
from rollouts import Mounted
from running import running
from waiting import until

__all__ = ["SYSTEM", "Harbour", "Relay", "granted_kubeconfig", "relayed"]

SYSTEM = "kubeocean-system"
DEADLINE_S = 2.0


class Relay:
    """A way to a worker that can be cut, or fall silent."""

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
        """Nobody is there any more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def mute(self) -> None:
        """Connections stay, and nothing comes through."""
        self._open.clear()

    def unmute(self) -> None:
        self._open.set()

    def kubeconfig(self, original: Path | None = None) -> bytes:
        """A kubeconfig of the worker, by way of us."""
        text = (original or self._cluster.kubeconfig).read_text()
        return text.replace(self._cluster.server, f"https://127.0.0.1:{self.port}").encode()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there = urlsplit(self._cluster.server)
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(there.hostname, there.port)
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
        raise ConnectionResetError  # one way ends with the other


@asynccontextmanager
async def relayed(cluster: Cluster) -> AsyncIterator[Relay]:
    """A relay to a worker."""
    relay = Relay(cluster)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.cut()


@dataclass
class Harbour:
    """One test's bindings in a computing cluster where everything is installed."""

    home: Cluster
    worker: Cluster
    above: Client
    below: Client
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

    def neighbour(self) -> Harbour:
        """Another binding of the same test."""
        return replace(self, name=f"h{uuid.uuid4().hex[:8]}")

    # The manager

    @property
    def templates(self) -> tuple[Path, Path]:
        return self.root / "syncer", self.root / "proxier"

    @asynccontextmanager
    async def managed(
        self, faults: Faults | None = None, *, review_s: float = REVIEW_S
    ) -> AsyncIterator[Manager]:
        """A manager at work, under the account and the roles that it is installed with."""
        wrap = faults.wrap if faults is not None else None
        client = self.home.client(kubeconfig=self.account, wrap=wrap)
        manager = Manager(client, self.templates, deadline_s=DEADLINE_S, review_s=review_s)
        try:
            async with running(manager):
                yield manager
        finally:
            await client.close()

    # Bindings

    async def keep_secret(self, content: bytes, *, name: str = "") -> None:
        """The kubeconfig, new or changed."""
        name = name or self.name
        data = {"kubeconfig": base64.b64encode(content).decode()}
        try:
            await self.above.patch(SECRETS, name, MergePatch({"data": data}), SYSTEM)
        except NotFound:
            body = {"metadata": {"name": name, "namespace": SYSTEM}, "data": data}
            await self.above.create(SECRETS, body)

    async def bind(self, content: bytes | None = None, **spec: object) -> ClusterBinding:
        """A binding, and its Secret if there is something to be in it."""
        if content is not None:
            await self.keep_secret(content)
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
        return await self.above.create(CLUSTER_BINDINGS, body)

    async def binding(self) -> ClusterBinding:
        return await self.above.get(CLUSTER_BINDINGS, self.name)

    async def is_gone(self) -> bool:
        try:
            await self.binding()
        except NotFound:
            return True
        return False

    async def unbind(self) -> None:
        await self.above.delete(CLUSTER_BINDINGS, self.name, uid=(await self.binding()).uid)

    async def change(self, **metadata: object) -> None:
        await self.above.patch(CLUSTER_BINDINGS, self.name, MergePatch({"metadata": metadata}))

    async def condition(self, type_: str) -> tuple[str, str, str]:
        found = find_condition((await self.binding()).status.conditions, type_)
        return (found.status, found.reason, found.message) if found else ("", "", "")

    async def says(self, type_: str, status: str, reason: str, *, within: float = 90.0) -> str:
        """Wait until a condition says this; its message."""

        async def said() -> str:
            found = await self.condition(type_)
            assert found[:2] == (status, reason), found
            return found[2] or " "

        return await until(said, within=within, what=f"{type_} {status} {reason}")

    async def is_in(self, phase: str, *, within: float = 90.0) -> None:
        async def reached() -> bool:
            status = (await self.binding()).status
            assert status.phase == phase, status
            return True

        await until(reached, within=within)

    async def events(self) -> list[Event]:
        fields = f"involvedObject.name={self.name}"
        return (await self.above.list(EVENTS, "default", fields=fields)).items

    async def happened(self, reason: str) -> Event:
        """Wait for an event of the manager; the last one."""

        async def found() -> Event | None:
            there = [each for each in await self.events() if each.reason == reason]
            return there[-1] if there else None

        event = await until(found, what=reason)
        assert event is not None
        assert event.reporting_component == "clusterbinding-controller"
        return event

    # What was rolled out

    def deployment(self, component: str) -> str:
        return f"kubeocean-{component}-{self.cluster_id}"

    async def deployments(self) -> dict[str, str]:
        """Those of this binding that are there, with their UIDs."""
        found = await self.above.list(DEPLOYMENTS, SYSTEM)
        mine = (self.deployment("syncer"), self.deployment("proxier"))
        return {each.name: each.uid for each in found.items if each.name in mine}

    async def are_rolled_out(self) -> bool:
        return len(await self.deployments()) == 2

    async def run(self, *components: str, replicas: int = 2) -> None:
        """Play the controllers and kubelets of Deployments."""
        for component in components or ("syncer", "proxier"):
            name = self.deployment(component)
            there = await self.above.get(DEPLOYMENTS, name, SYSTEM)
            status = {
                "observedGeneration": there.metadata.generation,
                "replicas": 2,
                "updatedReplicas": 2,
                "readyReplicas": replicas,
                "availableReplicas": replicas,
            }
            patch = MergePatch({"status": status})
            await self.above.patch(DEPLOYMENTS, name, patch, SYSTEM, subresource="status")

    async def becomes_ready(self) -> None:
        """Bound, rolled out, run, and told so."""
        await until(self.are_rolled_out)
        await self.run()
        await self.is_in("Ready")

    # What a syncer would do

    async def lead(self, *, duration_s: int, renewed: str = "2026-01-01T00:00:00.000000Z") -> None:
        """Hold the Lease of this binding's syncers."""
        name = self.deployment("syncer")
        spec = {
            "holderIdentity": "somebody",
            "leaseDurationSeconds": duration_s,
            "renewTime": renewed,
        }
        try:
            await self.above.patch(LEASES, name, MergePatch({"spec": spec}), SYSTEM)
        except NotFound:
            body = {"metadata": {"name": name, "namespace": SYSTEM}, "spec": spec}
            await self.above.create(LEASES, body)

    async def stop_leading(self) -> None:
        """Release that Lease, as a syncer does that ends."""
        patch = MergePatch({"spec": {"holderIdentity": ""}})
        await self.above.patch(LEASES, self.deployment("syncer"), patch, SYSTEM)

    async def has_lease(self) -> bool:
        """Whether that Lease is there."""
        there = (await self.above.list(LEASES, SYSTEM)).items
        return self.deployment("syncer") in {each.name for each in there}

    async def hold(self, *, hold: bool = True) -> None:
        """Put the syncer's finalizer on the binding, or take it off."""

        async def done() -> bool:
            there = await self.binding()
            others = [
                each for each in there.metadata.finalizers or () if each != DEFAULT.finalizer_syncer
            ]
            wanted = [*others, DEFAULT.finalizer_syncer] if hold else others
            with suppress(Conflict):
                await self.change(finalizers=wanted, resourceVersion=there.resource_version)
                return True
            return False

        await until(done)

    async def tell(self, condition: Json) -> None:
        """Say something in the status, as the syncer does."""

        async def told() -> bool:
            there = await self.binding()
            condition_ = msgspec.convert(condition, Condition)
            now = "2026-01-01T00:00:00Z"
            conditions = set_condition(there.status.conditions, condition_, now=now)
            body = {
                "metadata": {"resourceVersion": there.resource_version},
                "status": {"conditions": msgspec.to_builtins(conditions)},
            }
            with suppress(Conflict):
                patch = MergePatch(body)
                await self.above.patch(CLUSTER_BINDINGS, self.name, patch, subresource="status")
                return True
            return False

        await until(told)

    async def lend(self, node: str) -> Node:
        """A virtual node of this binding."""
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
        return await self.above.create(NODES, {"metadata": metadata})

    async def vnodes(self) -> list[str]:
        labels = f"{DEFAULT.cluster_binding}={self.name}"
        return [each.name for each in (await self.above.list(NODES, labels=labels)).items]

    async def clear(self) -> None:
        """Let go of everything that this test bound."""
        for name in self.made:
            with suppress(NotFound):
                await self.above.delete(CLUSTER_BINDINGS, name, uid=None)
            with suppress(NotFound):
                patch = MergePatch({"metadata": {"finalizers": None}})
                await self.above.patch(CLUSTER_BINDINGS, name, patch)


async def granted_kubeconfig(
    worker: Cluster,
    namespace: str,
    *,
    without: Iterable[str] = (),
    extra: Iterable[Rule] = (),
    make: bool = True,
) -> Path:
    """The kubeconfig of an account of the worker with the shipped role, but without some of it:
    `create pods`, `list nodes`; and with something on top."""
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
        found = []
        for rule in rules:
            for resource in rule.resources:
                verbs = tuple(v for v in rule.verbs if f"{v} {resource}" not in left_out)
                if verbs:
                    found.append(replace(rule, resources=(resource,), verbs=verbs))
        return tuple(found)

    within = {where: kept(rules) for where, rules in rights.within.items()}
    return Rights(kept(rights.everywhere), within)

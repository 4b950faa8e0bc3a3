"""After any sequence of events, the informer has the same objects as the server.

Hypothesis makes the histories: writes, lost and repeated and late streams, refused watches, new
listings, new informers, and now and then a kube-apiserver that is killed and started again.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kubeocean.errors import AlreadyExists, NotFound
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, ConfigMap
from kubeocean.runtime.objects import Key
from kubeocean.runtime.watch import Scope, Watch
from support.background import running
from support.examples import examples
from support.faults import Faults, watches
from support.wait import until

NAMES = st.sampled_from(["a", "b", "c", "d"])
WRITES = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("update"), NAMES),
    st.tuples(st.just("enter"), NAMES),
    st.tuples(st.just("leave"), NAMES),
    st.tuples(st.just("delete"), NAMES),
)
TROUBLES = st.sampled_from(
    [
        "cut",
        "partition",
        "rejoin",
        "heal",
        "gone",
        "unavailable",
        "lag",
        "repeat",
        "rewind",
        "restart",
    ]
)
HISTORIES = st.lists(
    st.one_of(WRITES, WRITES, WRITES, TROUBLES.map(lambda t: (t, ""))), max_size=40
)


@pytest.fixture(scope="module")
async def own(assets: Programs, cluster_roots: object) -> AsyncIterator[Cluster]:
    """A control plane that may be killed."""
    root = cluster_roots / "property"
    async with Cluster(
        "property", root, assets, components=("etcd", "kube-apiserver"), ephemeral=True
    ) as cluster:
        yield cluster


@dataclass
class World:
    """A server, an informer that reads it through faults, and the calls of its handlers."""

    cluster: Cluster
    client: Client
    faults: Faults
    namespace: str
    streaming: bool
    received: dict[Key, ConfigMap] = field(default_factory=dict)
    newest: dict[Key, int] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)

    def look(self) -> Informer[ConfigMap]:
        """Return a new informer."""
        seen = self.cluster.client(wrap=self.faults.wrap)
        self.clients.append(seen)
        scope = Scope(CONFIG_MAPS, self.namespace, labels="app=in")
        watch = Watch(seen, scope, streaming=self.streaming, page=2)
        indexes = {"name": lambda o: [o.name]}
        self.informer = Informer(
            seen, CONFIG_MAPS, namespace=self.namespace, indexes=indexes, watch=watch
        )
        self.received, self.newest = {}, {}
        self.informer.on_change(self.hear)
        return self.informer

    def hear(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Check that a change follows from the changes before, and that its version is newer."""
        key = (new or old).key
        assert self.received.get(key) == old
        if new is not None:
            assert int(new.resource_version) > self.newest.get(key, 0)
            self.newest[key] = int(new.resource_version)
        if new is None:
            del self.received[key]
        else:
            self.received[key] = new

    async def act(self, what: str, name: str) -> None:
        with suppress(NotFound, AlreadyExists):
            await getattr(self, what)(name)

    async def create(self, name: str) -> None:
        body = {"metadata": {"name": name, "labels": {"app": "in"}}}
        await self.client.create(CONFIG_MAPS, body, namespace=self.namespace)

    async def update(self, name: str) -> None:
        await self.change(name, {"data": {"x": uuid.uuid4().hex}})

    async def enter(self, name: str) -> None:
        await self.change(name, {"metadata": {"labels": {"app": "in"}}})

    async def leave(self, name: str) -> None:
        await self.change(name, {"metadata": {"labels": {"app": "out"}}})

    async def change(self, name: str, body: dict[str, object]) -> None:
        await self.client.patch(CONFIG_MAPS, name, MergePatch(body), self.namespace)

    async def delete(self, name: str) -> None:
        await self.client.delete(CONFIG_MAPS, name, self.namespace, uid=None)

    async def cut(self, _: str) -> None:
        self.faults.cut()

    async def partition(self, _: str) -> None:
        self.faults.partition()

    async def rejoin(self, _: str) -> None:
        self.faults.rejoin()

    async def heal(self, _: str) -> None:
        self.faults.heal()

    async def gone(self, _: str) -> None:
        self.faults.answer(410, when=watches)
        self.faults.cut()

    async def unavailable(self, _: str) -> None:
        self.faults.answer(503, when=watches)
        self.faults.cut()

    async def lag(self, _: str) -> None:
        self.faults.lag(0.02)

    async def repeat(self, _: str) -> None:
        self.faults.repeat(1)

    async def rewind(self, _: str) -> None:
        self.faults.rewind(5)

    async def kill(self, _: str) -> None:
        await self.cluster.kill("kube-apiserver")
        await self.cluster.restart("kube-apiserver")

    async def settle(self, _: str) -> None:
        """Let the informer catch up, if it can, so that later events happen to a full cache."""
        if not self.faults.partitioned:
            await until(self.is_equal, within=20)

    async def is_equal(self) -> bool:
        assert self.informer.has_synced
        listing = await self.client.list(CONFIG_MAPS, self.namespace, labels="app=in")
        existing = {item.key: item for item in listing.items}
        assert {item.key: item for item in self.informer.items()} == existing
        assert self.received == existing
        assert {k for k in existing if self.informer.by("name", k.name)} == set(existing)
        return True


@settings(
    max_examples=examples(0.2, at_least=30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=HISTORIES, streaming=st.booleans())
@example(
    history=[
        ("create", "a"),
        ("create", "b"),
        ("kill", ""),
        ("delete", "a"),
        ("restart", ""),
        ("partition", ""),
        ("delete", "b"),
        ("create", "b"),
        ("kill", ""),
        ("gone", ""),
    ],
    streaming=True,
)
@example(
    history=[
        ("settle", ""),
        ("create", "a"),
        ("delete", "a"),
        ("create", "b"),
        ("settle", ""),
        ("rewind", ""),
        ("create", "c"),
    ],
    streaming=True,
)
@example(
    history=[("create", "a"), ("settle", ""), ("partition", ""), ("delete", "a"), ("gone", "")],
    streaming=False,
)
@example(
    history=[("create", "a"), ("partition", ""), ("kill", ""), ("leave", "a"), ("heal", "")],
    streaming=False,
)  # fmt: skip
async def test_any_history_ends_with_the_informer_equal_to_the_server(
    own: Cluster, history: list[tuple[str, str]], streaming: bool
) -> None:
    client = own.client()
    namespace = f"test-{uuid.uuid4().hex[:10]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    world = World(own, client, Faults(), namespace, streaming)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(world.look()))
        for what, name in history:
            if what == "restart":
                await stack.aclose()
                await stack.enter_async_context(running(world.look()))
            else:
                await world.act(what, name)
        world.faults.rejoin()
        await until(
            world.is_equal, within=20, waiting_for=f"the informer to be equal after {history}"
        )
    for each in (client, *world.clients):
        await each.close()

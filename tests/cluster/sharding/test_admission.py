"""The API server refuses writes of a replica that has lost the slot."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from kubeocean.errors import ConfigError, Forbidden
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.sharding.admission import admission_objects, guard
from kubeocean.sharding.fencing import Grant, stamped
from kubeocean.sharding.names import Names
from kubeocean.sharding.stores import TABLE, ConfigMapStore, LoadedTable, TableStore, admission_view
from kubeocean.sharding.table import SlotEntry
from support.wait import until

GROUP = "admissionregistration.k8s.io"
KINDS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


@dataclass
class Guarded:
    """A ring whose table is written by hand, and two replicas with different users."""

    namespace: str
    names: Names
    tables: TableStore
    loaded: LoadedTable
    clients: dict[str, Client]

    async def give(self, entry: SlotEntry) -> int:
        """Write the table with shard 3 so; its epoch."""
        principals = {f"{name}_1": self.user(name) for name in ("ann", "bob")}
        table = self.loaded.table.changed({3: entry})
        self.loaded = await self.tables.save(table, self.loaded, principals=principals)
        return table.epoch

    def user(self, name: str) -> str:
        return f"{self.names.ring}-{name}"

    def body(self, who: str, epoch: int, name: str) -> Json:
        body = {"metadata": {"name": name}}
        return stamped(body, self.names, Grant(3, epoch, f"{who}_1"))

    async def create(self, who: str, epoch: int, name: str, *, dry_run: bool = False) -> None:
        body = self.body(who, epoch, name)
        client = self.clients[who]
        await client.create(CONFIG_MAPS, body, namespace=self.namespace, dry_run=dry_run)

    async def patch(self, who: str, epoch: int, name: str, text: str) -> None:
        patch = MergePatch({**self.body(who, epoch, name), "data": {"by": text}})
        await self.clients[who].patch(CONFIG_MAPS, name, patch, self.namespace)

    async def refuses(self, who: str, epoch: int) -> bool:
        """Whether the server has noticed."""
        try:
            await self.create(who, epoch, "probe", dry_run=True)
        except Forbidden:
            return True
        return False


async def register(client: Client, objects: list[Json]) -> list[tuple[Resource[Untyped], Untyped]]:
    """Create a policy and its binding; return them with their resources."""
    made = []
    for body in objects:
        kind = Resource(GROUP, "v1", KINDS[body["kind"]], body["kind"], False, Untyped)
        made.append((kind, await client.create(kind, body)))
    return made


@pytest.fixture(scope="module")
async def followed_parameters(client: Client) -> None:
    """A policy that matches no object, and a binding that names a ConfigMap; both stay.

    An API server stops its watch of ConfigMaps when, at one of its refreshes of each second, no
    binding names one as its parameter, and it never starts the watch again. Later policies then
    find no table, or the table of that moment.
    """
    objects = admission_objects(
        Names(f"stays{uuid.uuid4().hex[:8]}"),
        namespace="default",
        guarded=[guard(CONFIG_MAPS)],
        users=["nobody"],
    )
    await register(client, objects)


@pytest.fixture
async def guarded(
    cluster: Cluster, client: Client, namespace: str, followed_parameters: None
) -> AsyncIterator[Guarded]:
    names = Names(f"g{uuid.uuid4().hex[:8]}")
    store = ConfigMapStore(
        client, namespace=namespace, labels=names.labels(TABLE), beside=admission_view
    )
    tables = TableStore(store, key=names.table, ring=names.ring, slots=8)
    users = {name: f"{names.ring}-{name}" for name in ("ann", "bob")}
    clients = {
        name: cluster.client(kubeconfig=cluster.user(user, groups=["system:masters"]))
        for name, user in users.items()
    }
    ring = Guarded(namespace, names, tables, await tables.load(), clients)
    await ring.give(SlotEntry("ann_1"))
    objects = admission_objects(
        names,
        namespace=namespace,
        guarded=[guard(CONFIG_MAPS)],
        users=list(users.values()),
    )
    made = await register(client, objects)
    await until(lambda: ring.refuses("bob", 0), waiting_for="the policy to take effect")
    yield ring
    for kind, each in reversed(made):
        await client.delete(kind, each.name, uid=each.uid)
    for each in clients.values():
        await each.close()


async def test_a_stale_owner_is_refused_by_the_server(guarded: Guarded) -> None:
    first = guarded.loaded.table.epoch
    await guarded.create("ann", first, "o1")
    await guarded.patch("ann", first, "o1", "ann")
    # Ann is asked to hand the slot over, and may finish her reconciles.
    await guarded.give(SlotEntry("ann_1", to="bob_1"))
    await guarded.patch("ann", first, "o1", "ann again")
    second = await guarded.give(SlotEntry("bob_1"))
    await until(lambda: guarded.refuses("ann", first))
    await guarded.patch("bob", second, "o1", "bob")
    await guarded.create("bob", second, "o2")
    # Ann wakes up: she can neither change, nor create, nor delete.
    with pytest.raises(Forbidden, match=f"is granted at epoch {second}, this was written under 1"):
        await guarded.patch("ann", first, "o1", "ann, late")
    with pytest.raises(Forbidden, match="granted at epoch"):
        await guarded.create("ann", first, "o3")
    with pytest.raises(Forbidden, match=f"belongs to {guarded.user('bob')}"):
        await guarded.clients["ann"].delete(CONFIG_MAPS, "o1", guarded.namespace, uid=None)
    found = await guarded.clients["bob"].get(CONFIG_MAPS, "o1", guarded.namespace)
    assert found.data == {"by": "bob"}
    await guarded.clients["bob"].delete(CONFIG_MAPS, "o1", guarded.namespace, uid=found.uid)


async def test_who_is_not_the_owner_is_refused_whatever_epoch_it_claims(guarded: Guarded) -> None:
    epoch = guarded.loaded.table.epoch
    await guarded.create("ann", epoch, "o1")
    with pytest.raises(Forbidden, match=f"belongs to {guarded.user('ann')}, not to"):
        await guarded.patch("bob", epoch, "o1", "bob")


async def test_an_epoch_on_an_object_never_falls(guarded: Guarded) -> None:
    epoch = guarded.loaded.table.epoch
    # As written by the next owner, whose table has not reached this API server yet.
    await guarded.create("bob", epoch + 5, "o1")
    with pytest.raises(Forbidden, match=f"was written at epoch {epoch + 5}"):
        await guarded.patch("ann", epoch, "o1", "ann")


async def test_a_write_without_an_epoch_is_refused_and_a_user_s_is_not(
    guarded: Guarded, client: Client
) -> None:
    await guarded.create("ann", guarded.loaded.table.epoch, "o1")
    await guarded.give(SlotEntry("bob_1"))
    await until(lambda: guarded.refuses("ann", 1))
    plain = MergePatch({"data": {"by": "whom?"}})
    with pytest.raises(Forbidden, match="granted at epoch"):
        await guarded.clients["bob"].patch(CONFIG_MAPS, "o1", plain, guarded.namespace)
    await client.patch(CONFIG_MAPS, "o1", plain, guarded.namespace)


async def test_objects_outside_of_shards_and_the_label_itself_are_not_looked_at(
    guarded: Guarded,
) -> None:
    bob = guarded.clients["bob"]
    await bob.create(CONFIG_MAPS, {"metadata": {"name": "free"}}, namespace=guarded.namespace)
    label = MergePatch({"metadata": {"labels": {guarded.names.slot_label: "3"}}})
    await bob.patch(CONFIG_MAPS, "free", label, guarded.namespace)
    with pytest.raises(Forbidden):
        await bob.patch(CONFIG_MAPS, "free", MergePatch({"data": {"a": "b"}}), guarded.namespace)


async def test_without_a_table_no_replica_is_refused(guarded: Guarded, client: Client) -> None:
    await client.delete(CONFIG_MAPS, guarded.names.table, guarded.namespace, uid=None)

    async def let_through() -> bool:
        return not await guarded.refuses("bob", 0)

    await until(let_through)
    body = {"metadata": {"name": guarded.names.table}}
    await guarded.clients["bob"].create(CONFIG_MAPS, body, namespace=guarded.namespace)


def test_an_admission_policy_without_accounts_or_resources_is_a_mistake() -> None:
    names = Names("ring")
    with pytest.raises(ConfigError, match="guarded"):
        admission_objects(names, namespace="x", guarded=[], users=["u"])
    with pytest.raises(ConfigError, match="users"):
        admission_objects(names, namespace="x", guarded=[guard(CONFIG_MAPS)])

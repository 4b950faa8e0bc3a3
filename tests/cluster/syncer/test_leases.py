"""Heartbeats of virtual nodes: renewed again and again, and put right when somebody meddles."""

from __future__ import annotations

from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.objects import Json
from oceans import Sea
from waiting import until

NAMESPACE = "kube-node-lease"


async def leases(sea: Sea) -> dict[str, Lease]:
    """Those of this binding's virtual nodes, by node."""
    names = {vnode.name for vnode in await sea.vnodes()}
    found = (await sea.above.list(LEASES, NAMESPACE, keep_raw=True)).items
    return {lease.name: lease for lease in found if lease.name in names}


def owners(lease: Lease) -> list[str]:
    return [str(each["uid"]) for each in lease.content()["metadata"].get("ownerReferences", [])]


async def test_every_lease_is_renewed_and_nothing_else_of_it_changes(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    for n in range(5):
        await sea.add_node(f"n{n}")
    async with sea.syncing():

        async def made() -> dict[str, Lease] | None:
            found = await leases(sea)
            return found if len(found) == 5 else None

        first = await until(made)
        assert first is not None
        for vnode in await sea.vnodes():
            lease = first[vnode.name]
            assert lease.spec.holder_identity == vnode.name
            assert lease.spec.lease_duration_seconds == 40
            assert owners(lease) == [vnode.uid]

        async def renewed() -> bool:
            now = await leases(sea)
            return all(now[n].spec.renew_time != first[n].spec.renew_time for n in first)

        await until(renewed, within=20)
        now = await leases(sea)
        assert {n: lease.uid for n, lease in now.items()} == {n: first[n].uid for n in first}


async def test_a_lease_that_is_gone_or_replaced_is_put_right(sea: Sea) -> None:
    await sea.bind()
    await sea.lend()
    for n in range(2):
        await sea.add_node(f"n{n}")
    async with sea.syncing():

        async def made() -> dict[str, Lease] | None:
            found = await leases(sea)
            return found if len(found) == 2 else None

        first = await until(made)
        assert first is not None
        gone, replaced = sorted(first)
        for name in first:
            await sea.above.delete(LEASES, name, NAMESPACE, uid=first[name].uid)
        other: Json = {"metadata": {"name": replaced, "namespace": NAMESPACE}}
        await sea.above.create(LEASES, other | {"spec": {"holderIdentity": "somebody"}})
        uids = {vnode.name: vnode.uid for vnode in await sea.vnodes()}

        async def put_right() -> bool:
            now = await leases(sea)
            return set(now) == {gone, replaced} and all(
                owners(lease) == [uids[name]] and lease.spec.holder_identity == name
                for name, lease in now.items()
            )

        await until(put_right, within=20)

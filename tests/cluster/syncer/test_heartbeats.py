"""Heartbeats of virtual nodes: renewed regularly, and created again after others changed them."""

from __future__ import annotations

from kubeocean.runtime.kinds import LEASES, Lease
from kubeocean.runtime.objects import Json
from support.binding_env import BindingEnv
from support.faults import Faults
from support.wait import until

NAMESPACE = "kube-node-lease"


async def leases(binding_env: BindingEnv) -> dict[str, Lease]:
    """Return the Leases of this binding's virtual nodes, by node."""
    names = {vnode.name for vnode in await binding_env.vnodes()}
    stored = (await binding_env.computing_api.list(LEASES, NAMESPACE, keep_raw=True)).items
    return {lease.name: lease for lease in stored if lease.name in names}


def owners(lease: Lease) -> list[str]:
    return [str(each["uid"]) for each in lease.content()["metadata"].get("ownerReferences", [])]


async def test_every_lease_is_renewed_and_nothing_else_of_it_changes(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    for n in range(5):
        await binding_env.add_node(f"n{n}")
    async with binding_env.syncing():

        async def created() -> dict[str, Lease] | None:
            present = await leases(binding_env)
            return present if len(present) == 5 else None

        first = await until(created)
        assert first is not None
        for vnode in await binding_env.vnodes():
            lease = first[vnode.name]
            assert lease.spec.holder_identity == vnode.name
            assert lease.spec.lease_duration_seconds == 40
            assert owners(lease) == [vnode.uid]

        async def renewed() -> bool:
            now = await leases(binding_env)
            return all(now[n].spec.renew_time != first[n].spec.renew_time for n in first)

        await until(renewed, within=20)
        now = await leases(binding_env)
        assert {n: lease.uid for n, lease in now.items()} == {n: first[n].uid for n in first}


async def test_a_lease_that_is_deleted_or_replaced_is_created_again(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    for n in range(2):
        await binding_env.add_node(f"n{n}")
    async with binding_env.syncing():

        async def created() -> dict[str, Lease] | None:
            present = await leases(binding_env)
            return present if len(present) == 2 else None

        first = await until(created)
        assert first is not None
        gone, replaced = sorted(first)
        for name in first:
            await binding_env.computing_api.delete(LEASES, name, NAMESPACE, uid=first[name].uid)
        other: Json = {"metadata": {"name": replaced, "namespace": NAMESPACE}}
        await binding_env.computing_api.create(
            LEASES, other | {"spec": {"holderIdentity": "another-holder"}}
        )
        uids = {vnode.name: vnode.uid for vnode in await binding_env.vnodes()}

        async def restored() -> bool:
            now = await leases(binding_env)
            return set(now) == {gone, replaced} and all(
                owners(lease) == [uids[name]] and lease.spec.holder_identity == name
                for name, lease in now.items()
            )

        await until(restored, within=20)


async def test_a_syncer_that_starts_with_a_dead_worker_renews_no_lease(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    await binding_env.lend()
    await binding_env.add_node("n0")

    async def renewals() -> dict[str, object]:
        return {name: lease.spec.renew_time for name, lease in (await leases(binding_env)).items()}

    async with binding_env.syncing():
        await until(renewals)
    before = await renewals()
    faults = Faults()
    faults.partition()
    async with binding_env.syncing(worker_api=faults.wrap) as syncer:
        await until(
            lambda: len(syncer.clusters.vnodes) == 1 and not syncer.clusters.worker_health.answers
        )
        assert await renewals() == before
        faults.rejoin()

        async def renewed() -> bool:
            return await renewals() != before

        await until(renewed)

"""Objects that a ring leaves behind are removed with the binding that its replicas shared."""

from __future__ import annotations

from kubeocean.api import naming
from kubeocean.api.bindings import BindingSpec, ClusterBinding
from kubeocean.api.group import DEFAULT
from kubeocean.local.cluster import Cluster
from kubeocean.manager.syncer_leader import SyncerLeaders
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES
from kubeocean.runtime.objects import Meta
from support.ring_env import SLOTS, RingEnv
from support.wait import until


async def test_a_ring_goes_with_its_binding_and_no_other_does(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async def remains() -> set[str]:
        found = await client.list(CONFIG_MAPS, namespace, labels=names.ring_label)
        leases = await client.list(LEASES, namespace)
        return {each.name for each in (*found.items, *leases.items)}

    election = naming.syncer_election("b", DEFAULT)
    gone = {"ring": naming.syncer_ring("b", DEFAULT), "election": election}
    async with RingEnv.open(cluster, namespace) as ring_env:
        staying = ring_env.join("a")
        names = staying.ring.names
        sharing = [ring_env.join(name, sharding=gone) for name in ("b", "c")]
        await until(lambda: len(staying.slots) == SLOTS and all(each.slots for each in sharing))
        kept = {names.table, names.assigner, names.member(staying.ring.id)}
        assert await remains() > kept
        binding = ClusterBinding(metadata=Meta(name="b"), spec=BindingSpec(cluster_id="c"))
        leaders = SyncerLeaders(client, homes=lambda: [namespace], domain=DEFAULT)
        # As long as a replica works, the Lease stays.
        assert [each.name for each in await leaders.remove(binding, [])] == [election]
        assert all(each.slots for each in sharing)
        for each in sharing:
            await each.leave()
        assert await leaders.remove(binding, []) == []
        assert await remains() == kept
        assert len(staying.slots) == SLOTS

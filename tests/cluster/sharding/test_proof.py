"""Five replicas in processes of their own, and everything that can happen to them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from conftest import NewCluster
from support.sharding_proof import Proof


@pytest.mark.slow
@pytest.mark.sweep(sampled=False)
async def test_one_owner_at_a_time_and_nothing_forgotten(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = await new_cluster()
    client = cluster.client()
    proof = Proof(cluster, client, "default", tmp_path, objects=200)
    try:
        await proof.prepare()
        await proof.start(4)
        await proof.start(1, skew_s=1800)
        await proof.settled()
        await proof.synced()

        # Killed, and another one frozen with a write on its way.
        await proof.touch(50)
        await proof.kill("w1")
        await proof.touch(50)
        await proof.settled()
        await proof.freeze("w2", 2 * proof.lease_s, hanging=True)
        await proof.settled()

        # From four to two to five, and the assigner is killed while slots are on their way.
        await proof.touch(50)
        await proof.stop("w3", "w4")
        await proof.settled()
        await proof.start(3)
        await proof.rebalancing()
        await proof.kill(await proof.assigner())
        await proof.touch(50)
        await proof.settled()
        await proof.synced()

        # One by one by a newer version.
        began, table = time.clock_gettime(time.CLOCK_BOOTTIME), (await proof.overseer.state()).table
        for old in sorted(proof.replicas):
            await proof.joined(*await proof.start(1, template="v2"))
            await proof.stop(old)
            await proof.touch(20)
        await proof.settled()
        await proof.touch(50)
        await proof.synced()

        account = proof.account
        account.check(disturbed=proof.disturbed)
        # The write that was on its way when its sender froze: the API server refused it.
        assert (account.count("hangs"), account.count("late-403")) == (1, 1)
        # Every object moved, and none more than once.
        assert set(account.moves([entry.owner for entry in table.entries], since=began)) == {1}
        await proof.stop(*proof.replicas)
    finally:
        await proof.close()
        await client.close()

"""Two computing clusters, each with a binding of the same name and clusterID, and one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from conftest import NewCluster
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.bound.identities import identity_of
from kubeocean.local.faults import Faults
from kubeocean.runtime.kinds import EVENTS, NODES
from kubeocean.runtime.patches import MergePatch
from oceans import Sea
from ourkinds import install_our_kinds
from podseas import matters
from waiting import until

CLAIM, BINDING = "kubeocean.io/computing-cluster-id", "kubeocean.io/cluster-binding"
FINALIZER = "policy.kubeocean.io/finalizer"
MARK = "kubeocean.io/policy-applied"
QUIET_S = 2.5


@pytest.fixture
async def namesake(sea: Sea, new_cluster: NewCluster) -> AsyncIterator[Sea]:
    """The same binding in another computing cluster."""
    cluster = await new_cluster()
    above = cluster.client()
    await install_our_kinds(above)
    yield replace(sea, computing=cluster, above=above)
    await above.close()


async def policy_of(sea: Sea, name: str) -> ResourceLeasingPolicy:
    return await sea.below.get(RESOURCE_LEASING_POLICIES, name)


async def mark_of(sea: Sea, node: str) -> str | None:
    return (await sea.below.get(NODES, f"{sea.name}-{node}")).labels.get(MARK)


async def conflict(sea: Sea) -> tuple[str, str]:
    return (await sea.condition("Conflicted"))[:2]


async def at_rest(*plans: Faults) -> None:
    """Nothing is written, but for heartbeats of nodes."""

    def sent() -> int:
        requests = [request for plan in plans for request in plan.requests]
        return sum(matters(each) and "/leases/" not in each.path for each in requests)

    seen = [-1]

    async def settled() -> bool:
        seen.append(sent())
        return seen[-1] == seen[-2]

    await until(settled, every=1.0)
    await asyncio.sleep(QUIET_S)  # the passing of time is what is tested
    assert sent() == seen[-1], [each for plan in plans for each in plan.requests][-5:]


async def test_a_policy_lends_to_who_claimed_it_until_he_lets_go(sea: Sea, namesake: Sea) -> None:
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("n")
    plans = [Faults() for _ in range(4)]
    async with sea.syncing(above=plans[0].wrap, below=plans[1].wrap):
        await until(sea.vnodes)
        claimed = await policy_of(sea, policy)
        assert claimed.annotations[CLAIM] == await identity_of(sea.above)
        assert claimed.annotations[BINDING] == sea.name
        await until(lambda: mark_of(sea, "n"))
        await namesake.bind()
        async with namesake.syncing(above=plans[2].wrap, below=plans[3].wrap):

            async def stays_off() -> bool:
                return await conflict(namesake) == ("True", "PolicyClaimed")

            await until(stays_off)
            assert policy in (await namesake.condition("Conflicted"))[2]
            fields = f"involvedObject.name={sea.name},reason=PolicyClaimed"

            async def told() -> bool:
                return bool((await namesake.above.list(EVENTS, "default", fields=fields)).items)

            await until(told)
            await at_rest(*plans)
            assert not any(matters(request) for request in plans[3].requests)
            assert await namesake.vnodes() == []
            assert (await sea.condition("Conflicted"))[0] == ""

            await sea.unbind()
            await until(sea.is_unbound)
            await until(namesake.vnodes)
            taken = await policy_of(sea, policy)
            assert taken.annotations[CLAIM] == await identity_of(namesake.above)

            async def at_peace() -> bool:
                return await conflict(namesake) == ("False", "NoConflict")

            await until(at_peace)
            await until(lambda: mark_of(sea, "n"))
            await at_rest(*plans)
            await namesake.unbind()
            await until(namesake.is_unbound)
    left = await policy_of(sea, policy)
    assert not left.metadata.finalizers
    assert CLAIM not in left.annotations
    assert await mark_of(sea, "n") is None
    reasons = {each.type: each.reason for each in left.status.conditions or ()}
    assert reasons["Active"] == "BindingDeleted"
    assert left.status.phase == "Inactive"


async def test_a_claim_that_somebody_takes_away_is_there_for_the_first_to_come(
    sea: Sea, namesake: Sea
) -> None:
    await sea.bind()
    policy = await sea.lend()
    await sea.add_node("n")
    async with sea.syncing():
        await until(sea.vnodes)
    # Whoever held it is gone for good, and left its finalizer and its label.
    await namesake.bind()
    async with namesake.syncing():

        async def stays_off() -> bool:
            return await conflict(namesake) == ("True", "PolicyClaimed")

        await until(stays_off)
        body = MergePatch({"metadata": {"annotations": {CLAIM: None}}})
        await sea.below.patch(RESOURCE_LEASING_POLICIES, policy, body)
        await until(namesake.vnodes)
        assert FINALIZER in ((await policy_of(sea, policy)).metadata.finalizers or ())
        await namesake.unbind()
        await until(namesake.is_unbound)
    assert await mark_of(sea, "n") is None


async def test_what_an_earlier_implementation_held_is_taken_over(sea: Sea) -> None:
    await sea.bind()
    policy = await sea.lend()
    body = MergePatch({"metadata": {"finalizers": [FINALIZER]}})
    await sea.below.patch(RESOURCE_LEASING_POLICIES, policy, body)
    node = await sea.add_node("n")
    labels = {"metadata": {"labels": {MARK: policy}}}
    await sea.below.patch(NODES, node.name, MergePatch(labels))
    async with sea.syncing():
        await until(sea.vnodes)
        taken = await policy_of(sea, policy)
        assert taken.metadata.finalizers == (FINALIZER,)
        assert taken.annotations[CLAIM] == await identity_of(sea.above)

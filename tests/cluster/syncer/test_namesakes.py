"""Two computing clusters, each with a binding of the same name and clusterID, and one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from conftest import NewCluster
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import EVENTS, NODES
from kubeocean.worker_access.identity import identity_of
from support.binding_env import BindingEnv
from support.crds import install_our_kinds
from support.faults import Faults
from support.pod_env import matters
from support.wait import until

CLAIM, BINDING = "kubeocean.io/computing-cluster-id", "kubeocean.io/cluster-binding"
FINALIZER = "policy.kubeocean.io/finalizer"
LABEL = "kubeocean.io/policy-applied"
QUIET_S = 2.5


@pytest.fixture
async def namesake(binding_env: BindingEnv, new_cluster: NewCluster) -> AsyncIterator[BindingEnv]:
    """The same binding in another computing cluster."""
    cluster = await new_cluster()
    computing_api = cluster.client()
    await install_our_kinds(computing_api)
    yield replace(binding_env, computing=cluster, computing_api=computing_api)
    await computing_api.close()


async def policy_of(binding_env: BindingEnv, name: str) -> ResourceLeasingPolicy:
    return await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, name)


async def label_of(binding_env: BindingEnv, node: str) -> str | None:
    return (await binding_env.worker_api.get(NODES, f"{binding_env.name}-{node}")).labels.get(LABEL)


async def conflict(binding_env: BindingEnv) -> tuple[str, str]:
    return (await binding_env.condition("Conflicted"))[:2]


async def at_rest(*plans: Faults) -> None:
    """Wait until nothing is written any more, except heartbeats of nodes."""

    def sent() -> int:
        requests = [request for plan in plans for request in plan.requests]
        return sum(matters(each) and "/leases/" not in each.path for each in requests)

    counts = [-1]

    async def settled() -> bool:
        counts.append(sent())
        return counts[-1] == counts[-2]

    await until(settled, every=1.0)
    await asyncio.sleep(QUIET_S)  # the test needs this time to pass
    assert sent() == counts[-1], [each for plan in plans for each in plan.requests][-5:]


async def test_a_policy_lends_to_the_cluster_that_claimed_it_until_the_claim_is_removed(
    binding_env: BindingEnv, namesake: BindingEnv
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("n")
    plans = [Faults() for _ in range(4)]
    async with binding_env.syncing(computing_api=plans[0].wrap, worker_api=plans[1].wrap):
        await until(binding_env.vnodes)
        claimed = await policy_of(binding_env, policy)
        assert claimed.annotations[CLAIM] == await identity_of(binding_env.computing_api)
        assert claimed.annotations[BINDING] == binding_env.name
        await until(lambda: label_of(binding_env, "n"))
        await namesake.bind()
        async with namesake.syncing(computing_api=plans[2].wrap, worker_api=plans[3].wrap):

            async def is_conflicted() -> bool:
                return await conflict(namesake) == ("True", "PolicyClaimed")

            await until(is_conflicted)
            assert policy in (await namesake.condition("Conflicted"))[2]
            fields = f"involvedObject.name={binding_env.name},reason=PolicyClaimed"

            async def reported() -> bool:
                return bool(
                    (await namesake.computing_api.list(EVENTS, "default", fields=fields)).items
                )

            await until(reported)
            await at_rest(*plans)
            assert not any(matters(request) for request in plans[3].requests)
            assert await namesake.vnodes() == []
            assert (await binding_env.condition("Conflicted"))[0] == ""

            await binding_env.unbind()
            await until(binding_env.is_unbound)
            await until(namesake.vnodes)
            adopted = await policy_of(binding_env, policy)
            assert adopted.annotations[CLAIM] == await identity_of(namesake.computing_api)

            async def is_resolved() -> bool:
                return await conflict(namesake) == ("False", "NoConflict")

            await until(is_resolved)
            await until(lambda: label_of(binding_env, "n"))
            await at_rest(*plans)
            await namesake.unbind()
            await until(namesake.is_unbound)
    left = await policy_of(binding_env, policy)
    assert not left.metadata.finalizers
    assert CLAIM not in left.annotations
    assert await label_of(binding_env, "n") is None
    reasons = {each.type: each.reason for each in left.status.conditions or ()}
    assert reasons["Active"] == "BindingDeleted"
    assert left.status.phase == "Inactive"


async def test_a_policy_without_a_claim_is_claimed_by_the_first_cluster(
    binding_env: BindingEnv, namesake: BindingEnv
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    await binding_env.add_node("n")
    async with binding_env.syncing():
        await until(binding_env.vnodes)
    # The first cluster is gone for good, and left its finalizer and its label.
    await namesake.bind()
    async with namesake.syncing():

        async def is_conflicted() -> bool:
            return await conflict(namesake) == ("True", "PolicyClaimed")

        await until(is_conflicted)
        body = MergePatch({"metadata": {"annotations": {CLAIM: None}}})
        await binding_env.worker_api.patch(RESOURCE_LEASING_POLICIES, policy, body)
        await until(namesake.vnodes)
        assert FINALIZER in ((await policy_of(binding_env, policy)).metadata.finalizers or ())
        await namesake.unbind()
        await until(namesake.is_unbound)
    assert await label_of(binding_env, "n") is None


async def test_a_policy_with_the_finalizer_of_an_earlier_implementation_is_adopted(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend()
    body = MergePatch({"metadata": {"finalizers": [FINALIZER]}})
    await binding_env.worker_api.patch(RESOURCE_LEASING_POLICIES, policy, body)
    node = await binding_env.add_node("n")
    labels = {"metadata": {"labels": {LABEL: policy}}}
    await binding_env.worker_api.patch(NODES, node.name, MergePatch(labels))
    async with binding_env.syncing():
        await until(binding_env.vnodes)
        adopted = await policy_of(binding_env, policy)
        assert adopted.metadata.finalizers == (FINALIZER,)
        assert adopted.annotations[CLAIM] == await identity_of(binding_env.computing_api)

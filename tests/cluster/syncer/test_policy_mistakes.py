"""Mistakes of owners in policies, on two real control planes: nothing more is lent, and the status
of the policy names the mistake."""

from __future__ import annotations

from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import find_condition
from support.binding_env import BindingEnv
from support.faults import SkewedClock
from support.wait import until


async def condition(binding_env: BindingEnv, policy: str, type_: str) -> tuple[str, str, str]:
    has = find_condition((await binding_env.status(policy)).conditions, type_)
    return (has.status, has.reason, has.message) if has else ("", "", "")


async def lent(binding_env: BindingEnv) -> dict[str, str]:
    """Return the amounts that the only virtual node offers."""
    nodes = await binding_env.vnodes()
    return dict(nodes[0].status.allocatable or {}) if nodes else {}


async def test_a_misspelled_limit_lends_nothing_until_it_is_corrected(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    policy = await binding_env.lend(resourceLimits=[{"resource": "cpuu", "percent": 50}])
    await binding_env.add_node("n")
    async with binding_env.syncing():

        async def withheld() -> bool:
            status, reason, message = await condition(binding_env, policy, "UnknownResource")
            assert (status, reason) == ("True", "UnknownResource")
            assert "has cpuu; nothing of cpu, memory is lent" in message
            assert await lent(binding_env) == {"cpu": "0", "memory": "0", "pods": "110"}
            assert "UnknownResource" in await binding_env.events(policy)
            return True

        await until(withheld)
        await binding_env.patch_policy(policy, resourceLimits=[{"resource": "cpu", "percent": 50}])

        async def corrected() -> bool:
            assert (await condition(binding_env, policy, "UnknownResource"))[0] == "False"
            return await lent(binding_env) == {"cpu": "4", "memory": "32Gi", "pods": "110"}

        await until(corrected)


async def test_a_limit_is_known_once_a_selected_node_has_its_resource(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    limits = [{"resource": "example.com/fpga", "quantity": 1}]
    policy = await binding_env.lend(resourceLimits=limits)
    await binding_env.add_node("a")
    async with binding_env.syncing():

        async def withheld() -> bool:
            assert (await condition(binding_env, policy, "UnknownResource"))[0] == "True"
            return (await lent(binding_env)).get("cpu") == "0"

        await until(withheld)
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "example.com/fpga": "4"}
        await binding_env.add_node("b", capacity=amounts, allocatable=amounts)

        async def known() -> bool:
            assert (await condition(binding_env, policy, "UnknownResource"))[0] == "False"
            offered = [dict(node.status.allocatable or {}) for node in await binding_env.vnodes()]
            assert [each.get("cpu") for each in offered] == ["8", "8"]
            return [each.get("example.com/fpga") for each in offered] == [None, "1"]

        await until(known)


async def test_a_second_policy_for_the_same_nodes_names_the_one_that_decides(
    binding_env: BindingEnv,
) -> None:
    await binding_env.bind()
    first = await binding_env.lend(f"{binding_env.name}-a")
    second = await binding_env.lend(f"{binding_env.name}-b", gracefulReclaimPeriodSeconds=5)
    for name in ("n", "m"):
        await binding_env.add_node(name)
    async with binding_env.syncing():

        async def overlapping() -> bool:
            status, reason, message = await condition(binding_env, second, "Overlapping")
            assert (status, reason) == ("True", "OlderPolicyDecides")
            assert f"2 nodes of policy {first}" in message
            assert await condition(binding_env, first, "Overlapping") == ("", "", "")
            assert {"Overlapping", "ProbableMistake"} <= await binding_env.events(second)
            return True

        await until(overlapping)
        stored = await binding_env.worker_api.get(RESOURCE_LEASING_POLICIES, first)
        await binding_env.worker_api.delete(RESOURCE_LEASING_POLICIES, first, uid=stored.uid)

        async def alone() -> bool:
            assert (await condition(binding_env, second, "Overlapping"))[0] == "False"
            nodes = await binding_env.vnodes()
            applied = [node.annotations["kubeocean.io/policies-applied"] for node in nodes]
            return applied == [second, second]

        await until(alone)


async def test_a_policy_that_names_no_binding_says_so(binding_env: BindingEnv) -> None:
    await binding_env.bind()
    await binding_env.lend()
    lost = await binding_env.lend(f"{binding_env.name}-lost", cluster=f"{binding_env.name}-typo")
    await binding_env.add_node("n")
    async with binding_env.syncing(clock=SkewedClock(rate=20.0)):

        async def reported() -> bool:
            status, reason, message = await condition(binding_env, lost, "Active")
            assert (status, reason) == ("False", "BindingNotFound")
            assert f"no ClusterBinding {binding_env.name}-typo exists" in message
            return "BindingNotFound" in await binding_env.events(lost)

        await until(reported)
        await binding_env.patch_policy(lost, cluster=binding_env.name)

        async def taken() -> bool:
            return (await condition(binding_env, lost, "Active"))[0] == "True"

        await until(taken)
        assert await binding_env.worker_api.get(NODES, f"{binding_env.name}-n")

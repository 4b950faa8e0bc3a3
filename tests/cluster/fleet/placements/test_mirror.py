"""Statuses that are mirrored into the placed namespace."""

from __future__ import annotations

from kubeocean.api.fleet.placements import (
    CLUSTER_RESOURCE_PLACEMENT_STATUSES as MIRRORS,
)
from kubeocean.api.fleet.placements import ClusterResourcePlacementStatus, Placement
from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES
from kubeocean.runtime.objects import Key
from support.placement_env import PlacementEnv, conditions_of, namespace_selector
from support.wait import until

SYNCED = "ClusterResourcePlacementStatusSynced"


async def mirror(env: PlacementEnv, key: Key) -> ClusterResourcePlacementStatus | None:
    try:
        return await env.client.get(MIRRORS, key.name, env.namespace)
    except NotFound:
        return None


async def is_mirrored(env: PlacementEnv, key: Key) -> ClusterResourcePlacementStatus | None:
    placement, found = await env.placement(key), await mirror(env, key)
    others = tuple(each for each in placement.status.conditions if each.type != SYNCED)
    if found is None or found.source_status.conditions != others:
        return None
    same = found.source_status.placement_statuses == placement.status.placement_statuses
    return found if same else None


async def has_synced(env: PlacementEnv, key: Key, expected: tuple[str, str]) -> Placement | None:
    placement = await env.placement(key)
    state = conditions_of(placement.status.conditions).get(SYNCED)
    return placement if state is not None and state[:2] == expected else None


async def test_a_status_is_mirrored_into_its_namespace(env: PlacementEnv) -> None:
    (a,) = await env.join("a")
    await env.config_map("settings")
    key = await env.place(
        namespace_selector(env.namespace), statusReportingScope="NamespaceAccessible"
    )
    async with env.controlling(), env.reporting():
        placement = await env.completed(key, a)
        found = await until(lambda: is_mirrored(env, key))
        assert found is not None
        (owner,) = found.metadata.owner_references or ()
        assert (owner.uid, owner.controller) == (placement.uid, True)
        assert conditions_of(placement.status.conditions)[SYNCED] == (
            "True",
            "StatusSyncSucceeded",
            1,
        )

        stripped = MergePatch({"metadata": {"ownerReferences": None}})
        await env.client.patch(MIRRORS, key.name, stripped, env.namespace)

        async def is_owned() -> bool:
            mirror = await env.client.get(MIRRORS, key.name, env.namespace)
            owners = mirror.metadata.owner_references or ()
            return [each.uid for each in owners] == [placement.uid]

        await until(is_owned)

        await env.client.delete(MIRRORS, key.name, env.namespace, uid=found.uid)
        again = await until(lambda: is_mirrored(env, key))
        assert again is not None
        assert again.uid != found.uid

        before = (await env.placement(key)).status
        await env.change(key, resourceSelectors=[namespace_selector("elsewhere")])

        async def is_refused() -> bool:
            conditions = conditions_of((await env.placement(key)).status.conditions)
            return conditions["ClusterResourcePlacementScheduled"] == (
                "False",
                "InvalidResourceSelectors",
                2,
            )

        await until(is_refused)
        after = (await env.placement(key)).status
        assert after.conditions[1:] == before.conditions[1:]
        await env.change(key, resourceSelectors=[namespace_selector(env.namespace)])
        await env.completed(key, a)

        await env.client.delete(NAMESPACES, env.namespace, uid=None)
        await until(lambda: has_synced(env, key, ("False", "StatusSyncFailed")))
        await until(lambda: _is_gone(env))
        await env.client.create(NAMESPACES, {"metadata": {"name": env.namespace}})
        await until(lambda: has_synced(env, key, ("True", "StatusSyncSucceeded")))
        await env.completed(key, a)


async def _is_gone(env: PlacementEnv) -> bool:
    return not (await env.client.list(NAMESPACES, fields=f"metadata.name={env.namespace}")).items

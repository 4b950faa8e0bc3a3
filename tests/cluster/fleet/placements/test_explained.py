"""`kubeocean explain placement` on a real hub."""

from __future__ import annotations

import json
from pathlib import Path

from support.commands import Home
from support.placement_env import PlacementEnv, config_map_selector


async def test_a_placement_is_explained(env: PlacementEnv, tmp_path: Path) -> None:
    (a,) = await env.join("a")
    absent = f"b-{env.unique}"
    await env.config_map("settings")
    key = await env.place(config_map_selector("settings"), namespace=env.namespace)
    async with env.controlling(), env.reporting():
        await env.completed(key, a)
    home = Home(tmp_path / "home")
    where = ("--kubeconfig", str(env.hub.kubeconfig))
    placed = await home.run("explain", "placement", str(key), *where, "-o", "json")
    assert placed.code == 0, placed.err
    assert json.loads(placed.out)["rule"] == "Placed"

    fixed = {"placementType": "PickFixed", "clusterNames": [absent]}
    other = await env.place(
        config_map_selector("settings"), namespace=env.namespace, name="fixed", policy=fixed
    )
    async with env.controlling(), env.reporting():
        await env.scheduled(other)
    lacking = await home.run("explain", "placement", other.name, "-n", other.namespace, *where)
    assert "decided by: TooFewClusters" in lacking.out, lacking
    assert f"{absent} NotFound" in lacking.out
    missing = await home.run("explain", "placement", "nothing", *where)
    assert missing.code == 1
    assert "there is no such ClusterResourcePlacement" in missing.out

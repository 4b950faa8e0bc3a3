"""Counts of `make bench ARGS=fleet` on a small fleet, which no load of the machine changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fleet import FleetSize, bars_of_fleet, measure_fleet
from kubeocean.local.progress import Silence

SMALL = FleetSize(members=8, clusters=4, placements=3, heartbeat_s=2, idle_s=6.0, quiet_s=1.0)
COUNTS = {
    "at rest: requests for each heartbeat",
    "restart: writes",
    "placing: writes for each cluster",
    "placed: binding and Work",
    "placed: writes of a restart",
}


@pytest.mark.sweep(sampled=False)
async def test_a_hub_is_quiet_at_rest_and_after_a_restart(cluster_roots: Path) -> None:
    figures = await measure_fleet(cluster_roots, SMALL, Silence())
    bars = {bar.name: bar for bar in bars_of_fleet(figures)}
    assert bars.keys() >= COUNTS
    missed = [bars[name] for name in COUNTS if not bars[name].held]
    assert missed == []
    # No heartbeat, member or placement was left out: ratios of nothing hold, too
    assert figures["fleet: at rest"]["heartbeats_per_s"] > 1
    assert figures["fleet: at rest"]["requests_per_heartbeat"] > 0.5
    assert figures["fleet: placing"]["writes_per_cluster"] >= 3
    assert figures["fleet: placing"]["refused"] == 0

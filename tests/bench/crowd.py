"""Measures the memory of a syncer with many nodes and many running pods."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.living import FLAGS, Life, furnish, together
from bench.measure import peak_mib_of
from bench.ocean import ocean_of
from kubeocean.local.progress import Progress
from support.wait import until

__all__ = ["bars_of_crowd", "gather"]

PATIENCE_S: Final = 900.0


async def gather(directory: Path, nodes: int, pods: int, progress: Progress) -> dict[str, float]:
    """Return the peak memory of the syncer until all pods ran."""
    async with (
        ocean_of(directory / "crowd", nodes, progress, pods=True) as ocean,
        ocean.syncer(*FLAGS) as syncer,
    ):
        pid = syncer.process.pid
        assert pid is not None, syncer.process.tail()
        vnodes = await furnish(ocean, nodes)
        lent = peak_mib_of(pid)
        print(f"bench: {pods} pods on {nodes} virtual nodes", file=sys.stderr)
        life = Life(ocean, vnodes, "crowd")
        async with life.watching():
            await together(life.make, range(pods))
            await until(lambda: len(life.running) == pods, within=PATIENCE_S)
        return {"nodes_mib": lent, "peak_mib": peak_mib_of(pid), "nodes": nodes, "pods": pods}


def bars_of_crowd(figures: dict[str, float]) -> list[Bar]:
    return [Bar("a crowd: memory", figures["peak_mib"], 300, "MiB", go="170 with 500 pods")]

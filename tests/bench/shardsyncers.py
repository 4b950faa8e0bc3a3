"""Two syncers that share a binding, at full size: `make sharding-proof-syncer`.

500 virtual nodes and 1,000 pods; half of the pods are created at rest, the other half while one of
the two is killed with kill -9. The proof fails if a pod was lost, has two physical pods, or was
created twice, or if both worked on one pod or node. It prints how long pods waited, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster
from kubeocean.local.simulated_nodes import SimulatedNodes
from support.crds import install_our_kinds
from support.sharded_env import ShardedEnv, prove

__all__ = ["prove_syncers"]

_SERVERS = ("etcd", "kube-apiserver")
_PATIENCE_S = 600.0


async def prove_syncers(root: Path, requested: argparse.Namespace) -> dict[str, float]:
    """Return the measurements of one run."""
    assets = await ensure()

    def cluster(name: str) -> Cluster:
        return Cluster(name, root / name, assets, components=_SERVERS, audit=True, ephemeral=True)

    async with (
        cluster("computing") as computing,
        cluster("worker") as worker,
        SimulatedNodes(worker, assets) as simulated,
    ):
        computing_api, worker_api = computing.client(), worker.client()
        binding_env = ShardedEnv(
            computing, worker, computing_api, worker_api, patience_s=_PATIENCE_S
        )
        binding_env.flags = (
            f"--leader-election-lease-duration={requested.lease:g}s",
            f"--leader-election-renew-deadline={requested.lease * 2 / 3:g}s",
            f"--leader-election-retry-period={requested.lease * 2 / 15:g}s",
        )
        try:
            for client in (computing_api, worker_api):
                await install_our_kinds(client)
            binding_env.pnodes = await simulated.add(
                requested.nodes, labels={"test": binding_env.name}
            )
            await binding_env.open()
            # The second half is created over a time that is longer than a fail-over.
            every_s = 2 * requested.lease / (requested.pods / 2)
            return await prove(
                binding_env, root, pods=requested.pods, kill_after_s=2.0, every_s=every_s
            )
        finally:
            await computing_api.close()
            await worker_api.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=1_000)
    parser.add_argument("--lease", type=float, default=15.0, help="seconds; 6 is quick")
    requested = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kubeocean-proof-") as name:
        figures = asyncio.run(prove_syncers(Path(name), requested))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

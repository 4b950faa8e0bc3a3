"""The proof of sharding at full size: `PYTHONPATH=tests .venv/bin/python -m bench.shardproof`.

Five replica processes, 5,000 objects with children, on a real kube-apiserver with an admission
policy: kill -9, SIGSTOP for 60 s with a write on its way, a skewed clock, 5 → 3 → 7, the assigner
killed in mid-rebalance, a rolling update. The proof fails if an object ever had two owners or was
forgotten, or if the API server accepted a late write. Its measurements are printed as JSON.
`--objects`, `--freeze` and `--lease` make it smaller. With `--seeds`, the campaign against handlers
(`bench.shardcampaign`) follows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from bench.shardcampaign import run_campaign
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster
from kubeocean.sharding.controller import DELETIONS
from support.sharding_proof import Proof

__all__ = ["prove"]


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _say(text: str) -> None:
    print(f"shardproof: {text}", file=sys.stderr, flush=True)


async def prove(proof: Proof, *, freeze_s: float) -> dict[str, float]:
    """Run the whole proof; return the measurements."""
    figures: dict[str, float] = {"objects": proof.objects, "lease_s": proof.lease_s}
    _say(f"{proof.objects} objects")
    await proof.prepare()
    await proof.start(4)
    await proof.start(1, skew_s=1800)
    await proof.settled(within=120)
    await proof.synced(within=600)

    _say("kill -9")
    figures["failover_s"] = await proof.taken_over("w1")
    await proof.start(1)
    await proof.settled(within=120)

    _say(f"SIGSTOP for {freeze_s:g} s")
    await proof.freeze("w2", freeze_s, hanging=True)
    await proof.settled(within=120)
    await proof.synced(within=300)

    _say("5 to 3")
    figures["writes_to_move_two_fifths"] = await _shrunk(proof, "w3", "w4")

    _say("3 to 7, and the assigner is killed on the way")
    await proof.start(4)
    await proof.rebalancing()
    await proof.kill(await proof.assigner())
    await proof.touch(200)
    await proof.start(1)
    await proof.settled(within=120)
    await proof.synced(within=300)

    _say("rolling update")
    began, table = _now(), (await proof.overseer.state()).table
    for old in sorted(proof.replicas):
        await proof.joined(*await proof.start(1, template="v2"))
        await proof.stop(old)
        await proof.touch(50)
    await proof.settled(within=120)
    await proof.touch(200)
    await proof.synced(within=300)

    account = proof.account
    account.check(disturbed=proof.disturbed)
    # A gained slot is taken up whole, so that every move shows in the account.
    moves = account.moves([entry.owner for entry in table.entries], since=began)
    figures["rolling_moves_mean"] = round(sum(moves) / len(moves), 3)
    figures["rolling_moves_worst"] = max(moves)
    figures["reconciles"] = account.count("begin")
    figures["late_writes"] = account.count("hangs")
    figures["late_writes_refused"] = account.count("late-403")
    assert figures["late_writes"] == figures["late_writes_refused"], figures
    await proof.stop(*proof.replicas)
    return figures


async def _shrunk(proof: Proof, *names: str) -> float:
    """Stop replicas while no object changes; return the writes without renewals and reconciles."""
    mark = proof.cluster.audit.mark()
    await proof.stop(*names)
    await proof.settled(within=120)
    requests = proof.cluster.audit.requests(since=mark)
    return sum(
        request.resource == "configmaps" and request.verb in ("patch", "update", "create")
        for request in requests
    )


async def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--objects", type=int, default=5_000)
    arguments.add_argument("--freeze", type=float, default=60.0)
    arguments.add_argument("--lease", type=float, default=6.0)
    arguments.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    arguments.add_argument("--campaign-objects", type=int, default=2_000)
    options = arguments.parse_args()
    assets = await ensure()
    with tempfile.TemporaryDirectory(prefix="kubeocean-proof-") as name:
        root = Path(name)
        cluster = Cluster(
            "proof",
            root / "cluster",
            assets,
            components=("etcd", "kube-apiserver"),
            audit=True,
            ephemeral=True,
        )
        async with cluster:
            client = cluster.client()
            proof = Proof(cluster, client, "default", root, options.objects, options.lease)
            try:
                figures = await prove(proof, freeze_s=options.freeze)
            finally:
                await proof.close()
                await client.close()
    for seed in options.seeds:
        for mode in DELETIONS:
            with tempfile.TemporaryDirectory(prefix="kubeocean-campaign-") as name:
                counted = await run_campaign(
                    Path(name),
                    seed=seed,
                    objects=options.campaign_objects,
                    lease_s=options.lease,
                    freeze_s=min(options.freeze, 30.0),
                    guaranteed=mode == "guaranteed",
                )
            figures |= {f"{mode}, seed {seed}: {what}": each for what, each in counted.items()}
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

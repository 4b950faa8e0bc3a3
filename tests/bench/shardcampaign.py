"""The campaign against handlers at full size: `PYTHONPATH=tests python -m bench.shardcampaign`.

Objects are added, changed, replaced, relabelled and deleted at random while replicas go from one to
three to five to two, first in order, then with kill -9, SIGSTOP, a network cut and restarts of the
API server. The campaign fails if a change was lost, a deletion was false or repeated, one was lost
in an orderly step (with `--deletions guaranteed`: at all), two replicas handled one key at a time,
or a notifier was given other keys than those of its shard. Its counts are printed as JSON.
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
from kubeocean.sharding.controller import DELETIONS
from support.handler_campaign import Campaign

__all__ = ["campaign", "run_campaign"]


def _say(text: str) -> None:
    print(f"shardcampaign: {text}", file=sys.stderr, flush=True)


def _named(proof: Campaign) -> list[str]:
    return sorted(proof.replicas, key=lambda name: int(name[1:]))


async def campaign(proof: Campaign, *, freeze_s: float) -> dict[str, float]:
    """Run all steps; return the counts."""
    _say(f"seed {proof.seed}, {proof.objects} objects, {proof.environ['SHARD_DELETIONS']}")
    await proof.start(1)
    await proof.populate()
    await proof.settled(within=180)
    await proof.handled(within=600)

    _say("1 to 3 to 5 to 2, in order")
    async with proof.changing(graceful=True):
        await proof.start(2)
        await proof.settled(within=240)
        await proof.start(2)
        await proof.settled(within=240)
        await proof.stop(*_named(proof)[:3])
        await proof.settled(within=240)
        for old in _named(proof):  # a rolling update
            await proof.joined(*await proof.start(1, template="v2"))
            await proof.stop(old)
        await proof.settled(within=240)
    await proof.handled(within=600)

    _say("kill -9, SIGSTOP, a network cut, restarts of the API server")
    async with proof.changing(graceful=False):
        await proof.start(3)
        await proof.settled(within=240)
        await proof.kill(_named(proof)[0])
        await proof.stopped(_named(proof)[0], freeze_s)
        await proof.cut_off(_named(proof)[1])
        await proof.restart_server()
        await proof.settled(within=300)
        await proof.kill(await proof.assigner())
        await proof.start(2)
        await proof.settled(within=300)
        await proof.restart_server()
        await proof.stop(*_named(proof)[:-2])
        await proof.settled(within=300)
    await proof.handled(within=600)

    _say("in order again")
    async with proof.changing(graceful=True):
        await proof.start(1)
        await proof.settled(within=240)
        await proof.stop(_named(proof)[0])
        await proof.settled(within=240)
    await proof.handled(within=600)
    await proof.deletions_handled(within=120)
    await proof.stop(*proof.replicas)
    return proof.evidence().check(guaranteed=proof.guaranteed)


async def run_campaign(
    root: Path, *, seed: int, objects: int, lease_s: float, freeze_s: float, guaranteed: bool
) -> dict[str, float]:
    """Run a campaign on an API server of its own."""
    cluster = Cluster(
        "campaign",
        root / "cluster",
        await ensure(),
        components=("etcd", "kube-apiserver"),
        ephemeral=True,
    )
    async with cluster:
        client = cluster.client()
        proof = Campaign(
            cluster,
            client,
            "default",
            root,
            objects,
            lease_s,
            seed=seed,
            guaranteed=guaranteed,
            cut_s=2 * lease_s,
        )
        try:
            return await campaign(proof, freeze_s=freeze_s)
        finally:
            await proof.close()
            await client.close()


async def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--objects", type=int, default=2_000)
    arguments.add_argument("--freeze", type=float, default=30.0, help="Seconds of SIGSTOP.")
    arguments.add_argument("--lease", type=float, default=6.0, help="Seconds of a Lease.")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments.add_argument(
        "--deletions", nargs="+", choices=DELETIONS, default=DELETIONS, help="Modes to try."
    )
    options = arguments.parse_args()
    figures = {}
    for seed in options.seeds:
        for mode in options.deletions:
            with tempfile.TemporaryDirectory(prefix="kubeocean-campaign-") as name:
                figures[f"seed {seed}, {mode}"] = await run_campaign(
                    Path(name),
                    seed=seed,
                    objects=options.objects,
                    lease_s=options.lease,
                    freeze_s=options.freeze,
                    guaranteed=mode == "guaranteed",
                )
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

"""A small campaign against handlers: random changes while replicas come, go and fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.shardcampaign import run_campaign


@pytest.mark.slow
@pytest.mark.sweep(sampled=False)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("guaranteed", [False, True], ids=["observed", "guaranteed"])
@pytest.mark.parametrize("seed", [1])
async def test_no_change_is_lost_and_no_deletion_is_false_or_lost_or_repeated(
    tmp_path: Path, seed: int, guaranteed: bool
) -> None:
    counted = await run_campaign(
        tmp_path, seed=seed, objects=150, lease_s=6.0, freeze_s=8.0, guaranteed=guaranteed
    )
    assert counted["deletions_in_graceful_steps"] > 0
    assert counted["shards_gained_and_lost"] > 0

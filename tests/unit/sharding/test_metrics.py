"""The metrics have the names of the document, and are served at the configured address."""

from __future__ import annotations

import aiohttp

from kubeocean.runtime.metrics import Metrics
from kubeocean.sharding.config import read_config
from kubeocean.sharding.members import MemberState
from kubeocean.sharding.metrics import MetricsPage, RingMetrics, WorkMetrics
from support.background import running
from support.wait import until

NAMES = (
    "shard_count",
    "rebalances_total",
    "shard_changes_total",
    "node_count",
    "node_health",
    "processed_resources_total",
    "processing_latency_seconds",
    "processing_errors_total",
)


async def test_all_figures_are_there_from_the_start_and_served() -> None:
    metrics = Metrics()
    ring = RingMetrics(metrics, "r")
    WorkMetrics(metrics, "r", "c")
    ring.seen({"a": MemberState.HEALTHY, "b": MemberState.LEAVING, "c": MemberState.HEALTHY})
    config = read_config({"metrics": {"port": 0, "path": "/figures"}})
    page = MetricsPage(config, metrics)
    async with running(page):
        await until(lambda: page.address)
        assert page.address is not None
        url = f"http://127.0.0.1:{page.address.port}/figures"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            text = await response.text()
    for name in NAMES:
        assert f"sharded_controller_{name}" in text, name
    health = {"ring": "r", "status": "Healthy"}
    assert metrics.value("sharded_controller_node_health", health) == 2
    assert metrics.value("sharded_controller_node_count", {"ring": "r"}) == 3


async def test_a_page_that_is_switched_off_listens_nowhere() -> None:
    page = MetricsPage(read_config({"metrics": {"enabled": False}}), Metrics())
    async with running(page):
        assert page.address is None

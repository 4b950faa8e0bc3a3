"""Sharded: every replica works on its part of the pods, and never two on one.

Start it as often as you like; each process is a replica. CONFIG_FILE names a configuration.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from kubeocean.errors import ConfigError
from kubeocean.runtime.client import connect
from kubeocean.runtime.kinds import PODS, Pod
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.service import Service, run
from kubeocean.sharding.config import load
from kubeocean.sharding.controller import ShardedController
from kubeocean.sharding.handlers import ResourceHandler
from kubeocean.sharding.ring import Ring
from kubeocean.sharding.serving import MetricsPage
from kubeocean.sharding.workloads import ShardNotifier

log = get_logger("sharded")


class MyResourceHandler(ResourceHandler[Pod]):
    """The business: here it only tells."""

    async def handle_add(self, pod: Pod) -> None:
        log.info("Processing pod add", pod=self.get_resource_key(pod))

    async def handle_update(self, old: Pod, new: Pod) -> None:
        log.info("Processing pod update", pod=self.get_resource_key(new))

    async def handle_delete(self, pod: Pod) -> None:
        log.info("Processing pod delete", pod=self.get_resource_key(pod))

    def should_process(self, pod: Pod) -> bool:
        return pod.namespace != "kube-system"

    def get_resource_key(self, pod: Pod) -> str:
        return f"{pod.namespace}/{pod.name}"


class MyNotifier(ShardNotifier):
    """The layer above: a shard goes to another replica only when `on_shard_lost` has returned."""

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        log.debug("Let go of shard", shard=shard, resources=len(resources))


async def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kubeconfig", required=True)
    arguments.add_argument("--context")
    asked = arguments.parse_args()
    try:
        config = load(os.environ)
        client = connect(asked.kubeconfig, context=asked.context)
    except ConfigError as error:
        sys.exit(f"error: {error}")
    config.logging.apply()
    metrics = Metrics(process=True)
    ring = Ring(client, config, notifiers=[MyNotifier()], metrics=metrics)
    controller = ShardedController(
        "my-sharded-controller", ring, client, PODS, handler=MyResourceHandler()
    )
    # The ring comes last, so that it ends first: shards are handed over while the controller works.
    service = Service(
        "my-sharded-controller",
        [MetricsPage(config, metrics), controller, ring],
        metrics=metrics,
        deadline_s=120,
    )
    try:
        return await service.run()
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(run(main))

"""Log the pods of a cluster with several replicas, of which each handles a part of the pods.

Each process is a replica; start as many as you like. CONFIG_FILE names the configuration file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from kubeocean.sharding import (
    PODS,
    Pod,
    ResourceHandler,
    Ring,
    ShardedController,
    ShardNotifier,
    connect,
    get_logger,
    load,
    run_program,
    serve,
)

log = get_logger("sharded")


class MyResourceHandler(ResourceHandler[Pod]):
    """Handler that logs each change of a pod."""

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
    """Notifier: another replica gets a shard only after `on_shard_lost` has returned."""

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        log.debug("Lost shard", shard=shard, resources=len(resources))


async def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kubeconfig", help="Path of a kubeconfig; not needed in a pod.")
    arguments.add_argument("--context", help="Name of the kubeconfig context to use.")
    options = arguments.parse_args()
    config = load(os.environ)
    config.logging.apply()
    client = connect(options.kubeconfig, context=options.context)
    try:
        ring = Ring(client, config, notifiers=[MyNotifier()])
        controller = ShardedController(
            "my-sharded-controller", ring, client, PODS, handler=MyResourceHandler()
        )
        return await serve("my-sharded-controller", ring, [controller])
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(run_program(main))

"""Seen: every ConfigMap with the label `app` also has the label `seen=yes`."""

from __future__ import annotations

import argparse
import sys

from kubeocean.runtime.client import Client, connect
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS
from kubeocean.runtime.logs import configure, get_logger
from kubeocean.runtime.objects import Key
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.service import Service, run

log = get_logger("seen")


class Seen:
    """Keeps the label."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.configs = Informer(client, CONFIG_MAPS, labels="app")
        self.controller = Controller("seen", self.reconcile, workers=4, gate=self.configs.caught_up)
        self.configs.on_change(lambda old, new: self.controller.enqueue((new or old).key))

    async def reconcile(self, key: Key) -> Outcome:
        config = self.configs.get(key)
        if config is None or config.deleting or config.labels.get("seen") == "yes":
            return Done()
        body = {
            "metadata": {
                "resourceVersion": config.resource_version,
                "labels": {"seen": "yes"},
            }
        }
        written = await self.client.patch(CONFIG_MAPS, key.name, MergePatch(body), key.namespace)
        self.configs.wrote(written)
        log.info("Labelled ConfigMap", config=str(key))
        return Done()


async def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kubeconfig", required=True)
    arguments.add_argument("--context")
    asked = arguments.parse_args()
    configure(format="console")
    client = connect(asked.kubeconfig, context=asked.context)
    seen = Seen(client)
    try:
        return await Service("seen", [seen.configs, seen.controller]).run()
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(run(main))

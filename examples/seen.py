"""Keep the label `seen=yes` on every ConfigMap that has the label `app`."""

from __future__ import annotations

import argparse
import sys

from kubeocean.runtime import (
    CONFIG_MAPS,
    Client,
    Controller,
    Done,
    Informer,
    Key,
    MergePatch,
    Outcome,
    Service,
    configure,
    connect,
    get_logger,
    run,
)

log = get_logger("seen")


class Seen:
    """Controller that adds the label `seen=yes` to ConfigMaps."""

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
    options = arguments.parse_args()
    configure(format="console")
    client = connect(options.kubeconfig, context=options.context)
    seen = Seen(client)
    try:
        return await Service("seen", [seen.configs, seen.controller]).run()
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(run(main))

"""A replica with a handler in a process of its own, which records every call in a file.

    python handler_worker.py KUBECONFIG NAMESPACE NAME FILE TEMPLATE SKEW_S LEASE_S

Each line of the file is

    <seconds> <replica> <event> <slot> <epoch> <key> <uid> <seq>

on a clock that all processes of the machine share. `event` is `begin` and `end` around each call,
and between them `add`, `update` or `delete`; `gained` and `lost` are calls of the notifier, with
the keys, joined by commas, in place of the key. SIGUSR1 cuts the process off from the network for
SHARD_CUT_S seconds. SHARD_DELETIONS is `observed` or `guaranteed`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence

from kubeocean.runtime.client import connect
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.logs import configure
from kubeocean.runtime.service import Service, run
from kubeocean.sharding import ResourceHandler, Ring, ShardedController, ShardNotifier
from kubeocean.sharding.fencing import current_grant
from support.faults import Faults
from support.sharding_worker import settings

CUT_S = float(os.environ.get("SHARD_CUT_S", "10"))
DELETIONS = os.environ.get("SHARD_DELETIONS", "observed")


class Recorder(ResourceHandler[ConfigMap], ShardNotifier):
    """Handler and notifier that record their calls."""

    ring: Ring

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle_add(self, obj: ConfigMap) -> None:
        await self._handle("add", obj)

    async def handle_update(self, old: ConfigMap, new: ConfigMap) -> None:
        await self._handle("update", new)

    async def handle_delete(self, obj: ConfigMap) -> None:
        await self._handle("delete", obj)

    async def on_shard_gained(self, shard: int, resources: Sequence[str]) -> None:
        self._write("gained", self.ring.id, shard, 0, ",".join(resources) or "-")

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        self._write("lost", self.ring.id, shard, 0, ",".join(resources) or "-")

    async def _handle(self, event: str, obj: ConfigMap) -> None:
        grant = current_grant()
        assert grant is not None
        about = (grant.member, grant.slot, grant.epoch, str(obj.key), obj.uid)
        seq = (obj.data or {}).get("seq", "-")
        self._write("begin", *about, seq)
        try:
            await asyncio.sleep(0)  # as work does that waits for something
            self._write(event, *about, seq)
        finally:
            self._write("end", *about, seq)

    def _write(
        self, event: str, who: str, slot: int, epoch: int, key: str, uid: str = "-", seq: str = "-"
    ) -> None:
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        line = f"{at:.6f} {who} {event} {slot} {epoch} {key} {uid} {seq}\n"
        os.write(self._file, line.encode())


async def main() -> int:
    configure(level="warning")
    kubeconfig, namespace, name, path, template, _, lease_s = sys.argv[1:]
    faults, recorder = Faults(), Recorder(path)
    client = connect(kubeconfig, wrap=faults.wrap)
    config = settings(namespace, name, template, float(lease_s))
    recorder.ring = ring = Ring(client, config, notifiers=[recorder])
    controller = ShardedController(
        "proof",
        ring,
        client,
        CONFIG_MAPS,
        handler=recorder,
        namespace=namespace,
        labels="app=sharded",
        workers=8,
        deletions=DELETIONS,
    )
    loop = asyncio.get_running_loop()

    def cut_off() -> None:
        faults.partition()
        loop.call_later(CUT_S, faults.rejoin)

    loop.add_signal_handler(signal.SIGUSR1, cut_off)
    service = Service("worker", [controller, ring], signals=False, deadline_s=90)
    loop.add_signal_handler(signal.SIGTERM, service.stop)
    try:
        return await service.run()
    finally:
        await client.close()


if __name__ == "__main__":
    sys.exit(run(main))

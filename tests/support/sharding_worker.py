"""A replica of a ring in a process of its own, which records its actions in a file.

    python sharding_worker.py KUBECONFIG NAMESPACE NAME FILE TEMPLATE SKEW_S LEASE_S

For each ConfigMap with the label `app=sharded` the replica keeps a child with the same `seq`, a
ConfigMap that is owned by the first. Each line of the file is

    <seconds> <replica> <event> <slot> <epoch> <key>

on a clock that all processes of the machine share. The time of a write is read before the fence is
checked. After SIGUSR1 the next write hangs between the fence and the network, as on a machine that
freezes there. After SIGUSR2 the process writes the number of objects in its caches into FILE.NAME.

For measurements: SHARD_SLOTS, SHARD_LOADS (interval of load reports), SHARD_BURN_MS (CPU time that
a reconcile takes), SHARD_COST_MS (time for which a reconcile blocks all others of the process, as
if it used the only core), SHARD_CHILDREN=no.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.runtime.client import MergePatch, connect
from kubeocean.runtime.controller import Done, Outcome
from kubeocean.runtime.kinds import CONFIG_MAPS, ConfigMap
from kubeocean.runtime.logs import configure
from kubeocean.runtime.objects import Key
from kubeocean.runtime.service import Service, run
from kubeocean.runtime.transport import Request, Response, Stream, Transport
from kubeocean.runtime.transport_layers import Fenced
from kubeocean.runtime.tunnel import Tunnel
from kubeocean.sharding.config import Config, read_config
from kubeocean.sharding.controller import Children, ShardedController
from kubeocean.sharding.fencing import current_grant
from kubeocean.sharding.ring import Ring, WakingClock
from support.faults import SkewedClock

SLOTS = int(os.environ.get("SHARD_SLOTS", "128"))
LOADS = os.environ.get("SHARD_LOADS", "1h")  # never: slots move only when replicas join or leave
BURN_S = float(os.environ.get("SHARD_BURN_MS", "0")) / 1000
COST_S = float(os.environ.get("SHARD_COST_MS", "0")) / 1000
CHILDREN = os.environ.get("SHARD_CHILDREN", "yes") == "yes"
RING = "proof"
HANG_S = 300.0
STOPPED_S = 1.0  # a gap between two readings of the clock: the process was stopped
CHILD = "child=yes"


def settings(namespace: str, name: str, template: str, lease_s: float) -> Config:
    """Return the config of a fast ring, whose periods follow from the lease."""
    return read_config(
        {
            "sharding": {
                "ring": RING,
                "namespace": namespace,
                "slots": SLOTS,
                "settlePeriod": f"{lease_s * 2}s",
                "drainDeadline": f"{lease_s}s",
                "cancelDeadline": "2s",
                "handoverDeadline": f"{lease_s + 5}s",
                "filter": "label",
            },
            "node": {
                "identity": name,
                "template": template,
                "healthCheckInterval": LOADS,
            },
            "state": {
                "leaseDuration": f"{lease_s}s",
                "renewDeadline": f"{lease_s * 2 / 3}s",
                "retryPeriod": f"{lease_s / 8}s",
                "syncInterval": "10s" if LOADS == "1h" else LOADS,  # loads are measured then
            },
        }
    )


class Hanging:
    """A network in which one write may hang until the process was stopped and continued.

    The write has left the program, so it is sent even if its sender is cancelled meanwhile.
    """

    def __init__(self, inner: Transport, note: Callable[[str], None]) -> None:
        self._inner = inner
        self._note = note
        self._late: set[asyncio.Task[Response]] = set()
        self.next = False

    @property
    def generation(self) -> int:
        return self._inner.generation

    async def send(self, request: Request) -> Response:
        if self.next and request.writes and current_grant() is not None:
            self.next = False
            self._note("hangs")
            task = asyncio.create_task(self._send_late(request))
            self._late.add(task)
            return await asyncio.shield(task)
        return await self._inner.send(request)

    async def _send_late(self, request: Request) -> Response:
        began = last = _now()
        while _now() - began < HANG_S and _now() - last < STOPPED_S:
            last = _now()
            await asyncio.sleep(0.05)
        response = await self._inner.send(request)
        self._note(f"late-{response.status}")
        return response

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self._inner.stream(request)

    def upgrade(self, request: Request, protocol: str) -> AbstractAsyncContextManager[Tunnel]:
        return self._inner.upgrade(request, protocol)

    async def close(self) -> None:
        await self._inner.close()


class Worker:
    """Keeps children in step, and an account of it."""

    def __init__(self, arguments: list[str]) -> None:
        kubeconfig, self.namespace, name, path, template, skew_s, lease_s = arguments
        self._core = asyncio.Lock()
        self._holds = Path(f"{path}.{name}")
        self._hanging: Hanging | None = None
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.client = connect(kubeconfig, wrap=self._wrap)
        skew = float(skew_s)
        clock = SkewedClock(skew, rate=1.02 if skew else 1.0, inner=WakingClock())
        config = settings(self.namespace, name, template, float(lease_s))
        self.ring = Ring(self.client, config, clock=clock)
        self.objects: ShardedController[ConfigMap] = ShardedController(
            "proof",
            self.ring,
            self.client,
            CONFIG_MAPS,
            reconcile=self.reconcile,
            children=[Children(CONFIG_MAPS, labels=CHILD)] if CHILDREN else (),
            namespace=self.namespace,
            labels="app=sharded",
            workers=8,
            clock=clock,
        )

    def _wrap(self, inner: Transport) -> Transport:
        self._hanging = Hanging(inner, lambda event: self.note(_now(), event, Key("", "late")))
        return self._hanging

    def tell(self) -> None:
        """Write the number of objects in the replica's caches."""
        self._holds.write_text(str(len(self.objects.objects)))

    def hang(self) -> None:
        assert self._hanging is not None
        self._hanging.next = True

    def note(self, at: float, event: str, key: Key) -> None:
        grant = current_grant()
        assert grant is not None
        line = f"{at:.6f} {grant.member} {event} {grant.slot} {grant.epoch} {key}\n"
        os.write(self._file, line.encode())

    async def reconcile(self, key: Key) -> Outcome:
        self.note(_now(), "begin", key)
        try:
            await self._keep(key)
        finally:
            self.note(_now(), "end", key)
        return Done()

    async def _keep(self, key: Key) -> None:
        obj = self.objects.get(key)
        if obj is None or not CHILDREN:
            return
        child = self.objects.children(CONFIG_MAPS).get(Key(key.namespace, f"{key.name}-child"))
        seq = (obj.data or {}).get("seq", "")
        if child is not None and (child.data or {}).get("seq") == seq:
            return
        await self._work()
        if child is None:
            await self._written(key, lambda: self._create(obj, seq))
        else:
            await self._written(key, lambda: self._update(child, seq))

    async def _work(self) -> None:
        """Use CPU as a controller does that computes its write."""
        burned = time.process_time() + BURN_S
        while time.process_time() < burned:
            pass
        if COST_S:
            async with self._core:
                await asyncio.sleep(COST_S)

    async def _written(self, key: Key, write: Callable[[], Awaitable[object]]) -> None:
        at = _now()
        try:
            await write()
        except Fenced:
            self.note(at, "fenced", key)
            raise
        except Forbidden:
            self.note(at, "refused", key)
            raise
        except (AlreadyExists, Conflict, NotFound):
            self.note(at, "raced", key)
            raise
        self.note(at, "wrote", key)

    async def _create(self, obj: ConfigMap, seq: str) -> None:
        owner = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": obj.name,
            "uid": obj.uid,
            "controller": True,
        }
        label, value = CHILD.split("=")
        body = {
            "metadata": {
                "name": f"{obj.name}-child",
                "labels": {label: value},
                "ownerReferences": [owner],
            },
            "data": {"seq": seq},
        }
        stamped = self.objects.stamped(body)
        await self.objects.client.create(CONFIG_MAPS, stamped, namespace=obj.namespace)

    async def _update(self, child: ConfigMap, seq: str) -> None:
        # No resourceVersion: only the epoch prevents a late write after one of the next owner.
        body = {"metadata": {"uid": child.uid}, "data": {"seq": seq}}
        patch = MergePatch(self.objects.stamped(body))
        await self.objects.client.patch(CONFIG_MAPS, child.name, patch, child.namespace)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


async def main() -> int:
    configure(level="warning")
    worker = Worker(sys.argv[1:])
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, worker.hang)
    loop.add_signal_handler(signal.SIGUSR2, worker.tell)
    # The ring ends first: the controller works until all slots are handed over.
    service = Service("worker", [worker.objects, worker.ring], signals=False)
    loop.add_signal_handler(signal.SIGTERM, service.stop)
    try:
        return await service.run()
    finally:
        await worker.client.close()


if __name__ == "__main__":
    sys.exit(run(main))

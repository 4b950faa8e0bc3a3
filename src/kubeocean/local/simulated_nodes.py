"""Simulated nodes: kwok simulates thousands of kubelets for a real API server.

A simulated node renews its Lease and stays Ready; pods that are bound to it run at once (a Job's
pods complete), and deleted pods are removed. `stages.yaml` defines the steps, and the annotations
that delay them.

kwok manages only the nodes that `add` created in this cluster: those whose label has the cluster's
name. A copy of such a node in another cluster is not managed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import itertools
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from kubeocean.errors import LocalError, NotFound
from kubeocean.local import ports
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.process import Process
from kubeocean.local.readiness import ReadinessProbe, until_ready
from kubeocean.local.versions import pinned
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.components import Lifespan
from kubeocean.runtime.kinds import LEASES, NODES, Node
from kubeocean.runtime.objects import Json, Resource

__all__ = ["SimulatedNodes"]

_LABEL: Final = "kwok.x-k8s.io/node"
_STAGES: Final = Path(__file__).with_name("stages.yaml")
_USER: Final = "kwok"
_CAPACITY: Final = {"cpu": "32", "memory": "128Gi", "ephemeral-storage": "500Gi", "pods": "250"}
# No server answers at this address, and no packet to it leaves this machine: a request for logs of
# a simulated node fails at once.
_NETWORK: Final = ipaddress.ip_network("127.128.0.0/9")
_NO_KUBELET: Final = {"kubeletEndpoint": {"Port": 9}}  # the discard port
_PODS: Final = "10.128.0.1/9"
_NODE_INFO: Final = {"operatingSystem": "linux", "architecture": "amd64", "osImage": "simulated"}
_CONDITIONS: Final = (
    ("Ready", "True", "KubeletReady"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_LEASES: Final = "kube-node-lease"
_SILENT: Final = "silent"
# Leases are renewed after a quarter of this time. Controllers wait 50 s for a renewal, so a third
# of a kubelet's rate is enough; renewals take most of the CPU at a thousand nodes.
_LEASE_S: Final = 120
_AT_ONCE: Final = 32
_START_S: Final = 60.0
_NODE_S: Final = 0.2  # added for each new node; a tenth is usual
_POLL_S: Final = 0.2
_NODE_POLL_S: Final = 0.001  # added for each node, because a poll lists all nodes


class SimulatedNodes(Lifespan):
    """Simulated nodes of one cluster; `async with` starts and stops kwok, the Node objects stay.

    While kwok is stopped or paused, its nodes fail as nodes do: their Leases expire.
    """

    def __init__(
        self,
        cluster: Cluster,
        assets: Programs,
        *,
        lease_s: int = _LEASE_S,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._assets = assets
        self._lease_s = lease_s
        self._clock = clock or RealClock()
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The process of kwok."""
        if self._process is None:
            raise LocalError(f"no simulated nodes were started in cluster {self._cluster.name}")
        return self._process

    async def start(self) -> None:
        """Start kwok, which keeps the simulated nodes Ready, also those of an earlier start.

        :raises LocalError: kwok does not start; the text has the end of its log.
        """
        await self._release()
        kubeconfig = self._cluster.user(_USER, ["system:masters"])
        with ports.reserve(("127.0.0.1", 0)) as held:
            address = f"127.0.0.1:{held.ports[0]}"
            flags = (
                f"--kubeconfig={kubeconfig}",
                f"--config={_STAGES}",
                f"--manage-nodes-with-label-selector={_LABEL}={self._cluster.name}",
                f"--node-lease-duration-seconds={self._lease_s}",
                f"--cidr={_PODS}",
                f"--server-address={address}",
                "--v=WARN",  # logging a line for each pod costs more than simulating the pod
            )
            log = self._cluster.root / "logs" / "kwok.log"
            self._process = Process("kwok", [self._assets.path("kwok"), *flags], log=log)
        await self._process.start()
        async with ReadinessProbe(self._cluster.root / "pki", identity="admin") as probe:
            await until_ready(
                self._process,
                lambda: probe.ok(f"http://{address}/healthz"),
                what=f"kwok of cluster {self._cluster.name}",
                within_s=_START_S,
                clock=self._clock,
            )

    async def _release(self) -> None:
        """Delete the Leases of an earlier kwok, so that a new one holds them at once.

        kwok would wait until they expire; by then, controllers mark the nodes as NotReady.
        """
        async with self._client() as client:
            ours = (await client.list(NODES, labels=f"{_LABEL}={self._cluster.name}")).items
            names = [node.name for node in ours]
            await _each(names, lambda name: _delete(client, LEASES, name, _LEASES))

    async def stop(self) -> None:
        """Stop kwok; its Node objects stay, and fail when their Leases expire."""
        if self._process is not None:
            await self._process.stop()

    def pause(self) -> None:
        """Pause kwok, so that all simulated nodes stop renewing their Leases."""
        self.process.pause()

    def resume(self) -> None:
        """Resume kwok, so that all simulated nodes renew their Leases again."""
        self.process.resume()

    async def add(
        self,
        count: int,
        *,
        prefix: str = "sim",
        capacity: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Json] = (),
    ) -> list[str]:
        """Create `count` more nodes, named after the prefix, and wait until they are Ready.

        `capacity` adds resources to the default ones, or replaces them.
        """
        async with self._client() as client:
            taken = {node.name for node in (await client.list(NODES)).items}
            free = (name for name in map(f"{prefix}-{{}}".format, itertools.count()))
            names = list(itertools.islice((name for name in free if name not in taken), count))
            new = functools.partial(
                _node,
                cluster=self._cluster.name,
                version=pinned().kubernetes,
                now=self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
                capacity=_CAPACITY | dict(capacity or {}),
                labels=labels or {},
                taints=taints,
            )
            await _each(names, lambda name: client.create(NODES, new(name)))
            await self._until_ready(client, set(names))
        return names

    async def remove(self, names: Iterable[str] | None = None) -> None:
        """Delete these nodes, or all simulated ones; pods are deleted as those of lost nodes."""
        async with self._client() as client:
            chosen = names if names is not None else await self._all(client)
            await _each(chosen, lambda name: _delete(client, NODES, name))

    async def fail(self, names: Iterable[str]) -> None:
        """Stop the Lease renewal of these nodes only, as if their machines were lost."""
        await self._relabel(names, _SILENT)

    async def heal(self, names: Iterable[str]) -> None:
        """Restart the Lease renewal of nodes that `fail` has stopped."""
        await self._relabel(names, self._cluster.name)

    async def _relabel(self, names: Iterable[str], value: str) -> None:
        change = MergePatch({"metadata": {"labels": {_LABEL: value}}})
        async with self._client() as client:
            await _each(names, lambda name: client.patch(NODES, name, change))

    async def _all(self, client: Client) -> list[str]:
        ours = f"{_LABEL} in ({self._cluster.name},{_SILENT})"
        return [node.name for node in (await client.list(NODES, labels=ours)).items]

    async def _until_ready(self, client: Client, names: set[str]) -> None:
        """Wait until kwok has Leases for all these nodes, and controllers admit pods to them."""

        async def ready() -> bool:
            leases = {lease.name for lease in (await client.list(LEASES, _LEASES)).items}
            if not names <= leases:
                return False
            if "kube-controller-manager" not in self._cluster.components:
                return True
            nodes = (await client.list(NODES, labels=f"{_LABEL}={self._cluster.name}")).items
            return names <= {node.name for node in nodes if _schedulable(node)}

        await until_ready(
            self.process,
            ready,
            what=f"kwok with {len(names)} new nodes of cluster {self._cluster.name}",
            within_s=_START_S + len(names) * _NODE_S,
            every_s=_POLL_S + len(names) * _NODE_POLL_S,
            clock=self._clock,
        )

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        client = self._cluster.client()
        try:
            yield client
        finally:
            await client.close()


def _node(
    name: str,
    *,
    cluster: str,
    version: str,
    now: str,
    capacity: Mapping[str, str],
    labels: Mapping[str, str],
    taints: Sequence[Json],
) -> Json:
    """Return a Node that is Ready when created, which saves a write for each node."""
    address = str(_NETWORK[1 + zlib.crc32(name.encode()) % (_NETWORK.num_addresses - 2)])
    platform = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    own = {"kubernetes.io/hostname": name, _LABEL: cluster}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "metadata": {"name": name, "labels": platform | dict(labels) | own},
        "spec": {"taints": list(taints)},
        "status": {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                {"type": kind, "status": status, "reason": reason} | times
                for kind, status, reason in _CONDITIONS
            ],
            "daemonEndpoints": _NO_KUBELET,
            "nodeInfo": _NODE_INFO | {"kubeletVersion": f"{version}+kwok"},
        },
    }


def _schedulable(node: Node) -> bool:
    return all(taint.key != _NOT_READY for taint in node.spec.taints or ())


async def _delete(client: Client, kind: Resource[Any], name: str, namespace: str = "") -> None:
    with contextlib.suppress(NotFound):
        await client.delete(kind, name, namespace, uid=None)


async def _each(names: Iterable[str], act: Callable[[str], Awaitable[object]]) -> None:
    """Await `act` for all names, some at a time; the first error cancels the others."""
    waiting = iter(names)

    async def work() -> None:
        for name in waiting:  # shared by the workers: no await between taking a name and the next
            await act(name)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None

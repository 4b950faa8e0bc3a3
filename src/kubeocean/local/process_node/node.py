"""Process node: a node of a local cluster that runs Kubeocean's pods as processes of this machine.

A process node is a kubelet for one image: a registered Node with a lease that runs the pods bound
by the scheduler, each under its own ServiceAccount. So Deployments of Kubeocean are rolled out
without containers. The identity of a process node is that of a node, with the rights of a kubelet.

A taint keeps other pods away. The processes are children of this process and end with it; the Pod
objects stay, and run again with the next start.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import zlib
from pathlib import Path
from typing import Final

from kubeocean.api.group import DEFAULT, Domain
from kubeocean.errors import AlreadyExists, ApiError, LocalError, NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.files import private_directory
from kubeocean.local.process_node.logs import LogServer
from kubeocean.local.process_node.pods import Host, PodRun, directory_name
from kubeocean.local.process_node.programs import environment
from kubeocean.local.versions import pinned
from kubeocean.runtime.client import Client, MergePatch, StrategicPatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import LEASES, NODES, PODS, Pod
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key

__all__ = ["TAINT", "Addresses", "ProcessNode", "node_document"]

TAINT: Final = "kubeocean.local/processes"
_EFFECT: Final = "NoSchedule"
_LEASES: Final = "kube-node-lease"
_LEASE_S: Final = 40
_RENEW_S: Final = 10.0
_LATE_S: Final = 30.0  # after a longer gap the controllers may have marked the node as not Ready
_PODS: Final = 110
_FIRST_ADDRESS: Final = 2  # of pods in the /24 of the node
_LAST_ADDRESS: Final = 254
_CONDITIONS: Final = (
    ("Ready", "True", "KubeletReady"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)

_log = get_logger(__name__)


class Addresses:
    """Assigns loopback addresses: 127.x.y.1 to the node in `root`, the rest of the /24 to pods.

    All of 127.0.0.0/8 can be used without any set-up, so pods that share the machine can all listen
    on their usual ports. The part that a node uses follows from the path of its directory, so that
    nodes of different oceans use different parts.
    """

    def __init__(self, root: Path) -> None:
        digest = zlib.crc32(str(root).encode())
        # Other programs use 127.0.0.0/16 and 127.1.0.0/16.
        self._network = f"127.{2 + digest % 253}.{(digest >> 8) % 256}"
        self.node = f"{self._network}.1"
        self._taken: dict[str, str] = {}

    def take(self, uid: str, wanted: str = "") -> str:
        """Return an address for the pod: its previous address, if that is free.

        :raises LocalError: all addresses are in use.
        """
        taken = set(self._taken.values())
        ours = (f"{self._network}.{number}" for number in range(_FIRST_ADDRESS, _LAST_ADDRESS + 1))
        free = [address for address in ours if address not in taken]
        if not free:
            why = f"all addresses of {self._network}.0/24 are in use"
            raise LocalError(f"cannot assign an address to pod {uid}: {why}")
        self._taken[uid] = wanted if wanted in free else free[0]
        return self._taken[uid]

    def give_back(self, uid: str) -> None:
        """Free the address of a deleted pod."""
        self._taken.pop(uid, None)


class ProcessNode:
    """A node of `cluster` that runs pods as processes; the cluster must run while `run` runs.

    Only pods of the system namespace of `domain` are run.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str = "processes",
        domain: Domain = DEFAULT,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.root = cluster.root / "pods" / name
        self.ready = asyncio.Event()  # the node is registered, and pods are run
        self._cluster = cluster
        self._domain = domain
        self._clock = clock or RealClock()
        self._addresses = Addresses(self.root)
        self._runs: dict[str, PodRun] = {}
        self._renewed_at = 0.0

    async def run(self) -> None:
        """Register the node and run its pods until cancelled; end all processes then.

        :raises ApiError: the node cannot be registered.
        """
        private_directory(self.root)
        user = self._cluster.user(f"system:node:{self.name}", ["system:nodes"])
        client = self._cluster.client(kubeconfig=user)
        server = LogServer(
            self._log, self._cluster.authority, address=self._addresses.node, node=self.name
        )
        try:
            await server.start(self.root)
            await self._register(client, server.port)
            await self._serve(client)
        finally:
            await server.stop()
            await client.close()

    def pod(self, key: Key) -> PodRun | None:
        """Return the pod with this key that runs on this node; None if there is none."""
        return next((run for run in self._runs.values() if run.key == key), None)

    async def _serve(self, client: Client) -> None:
        pods = Informer(client, PODS, fields=f"spec.nodeName={self.name}", keep_raw=True)
        host = Host(
            client=client,
            address=self._addresses.node,
            server=self._cluster.server,
            authority=self._cluster.authority.certificate,
            root=self.root,
            base=environment(os.environ),
            clock=self._clock,
            domain=self._domain,
        )
        async with asyncio.TaskGroup() as group:

            def changed(old: Pod | None, new: Pod | None) -> None:
                self._change(group, host, old, new)

            group.create_task(pods.run())
            group.create_task(self._renew(client))
            await pods.synced()
            self._tidy({directory_name(pod) for pod in pods.items()})
            pods.on_change(changed)
            self.ready.set()

    def _change(
        self, group: asyncio.TaskGroup, host: Host, old: Pod | None, new: Pod | None
    ) -> None:
        if new is None:
            if old is not None and (run := self._runs.get(old.uid)) is not None:
                run.forget()
        elif (run := self._runs.get(new.uid)) is not None:
            run.update(new)
        else:
            address = self._addresses.take(new.uid, new.status.pod_ip)
            run = self._runs[new.uid] = PodRun(new, host, address)
            group.create_task(self._run(run))

    async def _run(self, run: PodRun) -> None:
        try:
            await run.run()
        finally:
            self._addresses.give_back(run.uid)
            del self._runs[run.uid]

    def _tidy(self, wanted: set[str]) -> None:
        """Delete files of pods that were removed while the node was down."""
        for entry in self.root.iterdir():
            if entry.is_dir() and entry.name not in wanted:
                shutil.rmtree(entry, ignore_errors=True)

    def _log(self, key: Key, container: str) -> Path | None:
        run = self.pod(key)
        return run.logs.get(container) if run is not None else None

    # The node

    async def _register(self, client: Client, port: int) -> None:
        body = node_document(
            self.name,
            address=self._addresses.node,
            port=port,
            now=self._now(),
            version=pinned().kubernetes,
        )
        await self._beat(client)
        try:
            await client.create(NODES, body)
        except AlreadyExists:
            await self._write_status(client, body["status"])

    async def _write_status(self, client: Client, status: Json) -> None:
        await client.patch(
            NODES, self.name, StrategicPatch({"status": status}), subresource="status"
        )

    async def _renew(self, client: Client) -> None:
        """Renew the Lease, and restore the Ready condition where another client may have changed
        it."""
        while True:
            await self._clock.sleep(_RENEW_S)
            late = self._clock.monotonic() - self._renewed_at > _LATE_S
            try:
                await self._beat(client)
                if late:
                    await self._write_status(client, {"conditions": _conditions(self._now())})
            except ApiError as error:
                _log.warning("Could not renew Lease of node", node=self.name, error=str(error))

    async def _beat(self, client: Client) -> None:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": _LEASE_S, "renewTime": now}
        try:
            await client.patch(LEASES, self.name, MergePatch({"spec": spec}), _LEASES)
        except NotFound:
            lease = {"metadata": {"name": self.name, "namespace": _LEASES}, "spec": spec}
            await client.create(LEASES, lease)
        self._renewed_at = self._clock.monotonic()

    def _now(self) -> str:
        return self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")


def node_document(name: str, *, address: str, port: int, now: str, version: str) -> Json:
    """Return the Node object, with the capacity of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = {"cpu": str(os.cpu_count() or 1), "memory": str(memory), "pods": str(_PODS)}
    labels = {
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        TAINT: "true",
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": TAINT, "effect": _EFFECT}]},
        "status": {
            "capacity": room,
            "allocatable": room,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": _conditions(now),
            "nodeInfo": {
                "operatingSystem": "linux",
                "architecture": "amd64",
                "osImage": "processes of this machine",
                "kubeletVersion": f"{version}+processes",
            },
        },
    }


def _conditions(now: str) -> list[Json]:
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return [
        {"type": kind, "status": status, "reason": reason} | times
        for kind, status, reason in _CONDITIONS
    ]

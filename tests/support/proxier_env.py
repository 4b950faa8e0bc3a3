"""A binding for tests of the proxier: a virtual node, a real worker node, and pods on both.

The objects that a syncer would create are created here in the same form, so that the proxier is
tested by itself: the virtual node with its port, and pairs of virtual and physical pods.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kubeocean.api import group, naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.errors import AlreadyExists
from kubeocean.local.cluster import Cluster
from kubeocean.local.ports import reserve
from kubeocean.local.process import Process
from kubeocean.local.real_nodes.images import BUSYBOX
from kubeocean.local.real_nodes.node import RealNode
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import NAMESPACES, NODES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key
from kubeocean.worker_access.identity import identity_of
from support.syncer_process import SyncerProcess
from support.wait import until

__all__ = ["Answer", "ProxierEnv", "Talk", "node_port"]

DOMAIN = group.DEFAULT


@dataclass(frozen=True, slots=True)
class Answer:
    """The exit code and the output of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


class Talk:
    """A running command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._output = b""

    async def wait_for_output(self, text: str, *, within: float = 30.0) -> str:
        """Wait for a line with this text and return it."""
        assert self._process.stdout is not None
        async with asyncio.timeout(within):
            while text.encode() not in self._output:
                piece = await self._process.stdout.read(4096)
                assert piece, f"ended without printing {text!r}: {self._output!r}"
                self._output += piece
        return next(line for line in self._output.decode().splitlines() if text in line)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def ended(self) -> int:
        return await self._process.wait()


def node_port() -> int:
    """Return a free port in the range of virtual nodes."""
    while True:
        with reserve(("127.0.0.1", 0)) as held:
            if held.ports[0] >= group.PROXIER_PORT_FIRST:
                return held.ports[0]


@dataclass
class ProxierEnv:
    """A binding of a worker with a real node, and a client of each of its two clusters."""

    computing: Cluster
    worker: Cluster
    node: RealNode
    computing_api: Client
    worker_api: Client
    kubectl_path: Path
    directory: Path
    name: str = field(default_factory=lambda: f"h{uuid.uuid4().hex[:8]}")
    port: int = 0

    @property
    def cluster_id(self) -> str:
        return f"id{self.name}"

    @property
    def vnode(self) -> str:
        return naming.virtual_node(self.cluster_id, self.node.name)

    async def build(self) -> None:
        """Create everything but pods."""
        self.port = node_port()
        for client, namespace in (
            (self.worker_api, DOMAIN.worker_namespace),
            (self.computing_api, self.name),
        ):
            with suppress(AlreadyExists):
                await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        secret: Json = {
            "metadata": {"name": self.name, "namespace": "default"},
            "data": {"kubeconfig": base64.b64encode(self.worker.kubeconfig.read_bytes()).decode()},
        }
        await self.computing_api.create(SECRETS, secret)
        spec: Json = {
            "clusterID": self.cluster_id,
            "secretRef": {"name": self.name, "namespace": "default"},
            "mountNamespace": DOMAIN.worker_namespace,
        }
        binding: Json = {
            "apiVersion": group.API_VERSION,
            "kind": CLUSTER_BINDINGS.kind,
            "metadata": {"name": self.name},
            "spec": spec,
        }
        await self.computing_api.create(CLUSTER_BINDINGS, binding)
        self.ids = Ids(self.name, self.cluster_id, await identity_of(self.computing_api))
        await self._make_vnode()

    async def _make_vnode(self) -> None:
        pnode = (await self.worker_api.get(NODES, self.node.name, keep_raw=True)).content()
        address = next(a for a in pnode["status"]["addresses"] if a["type"] == "InternalIP")
        labels = ownership_labels(self.ids, DOMAIN) | {
            DOMAIN.physical_node_name: self.node.name,
            DOMAIN.physical_node_inner_ip: address["address"],
            DOMAIN.proxier_port: str(self.port),
        }
        node: Json = {
            "metadata": {"name": self.vnode, "labels": labels},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        await self.computing_api.create(NODES, node)

    async def demolish(self) -> None:
        """Delete the objects that would disturb other tests."""
        for pod in (await self.computing_api.list(PODS, self.name)).items:
            await self.computing_api.delete(PODS, pod.name, self.name, uid=None, grace_s=0)
        labels = f"{DOMAIN.cluster_binding}={self.name}"
        for pod in (await self.worker_api.list(PODS, DOMAIN.worker_namespace, labels=labels)).items:
            await self.worker_api.delete(PODS, pod.name, pod.namespace, uid=None, grace_s=0)
        await self.computing_api.delete(NODES, self.vnode, uid=None)

    async def run(self, name: str, script: str, *, vnode: str = "", **container: object) -> Key:
        """Run a script in a virtual and a physical pod; return the latter when it is ready."""
        main: Json = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}
        spec: Json = {
            "nodeName": vnode or self.vnode,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [main | container],
        }
        body: Json = {"metadata": {"name": name}, "spec": spec}
        virtual = await self.computing_api.create(PODS, body, namespace=self.name)
        physical = Key(DOMAIN.worker_namespace, naming.physical_name(name, self.name))
        annotations = {
            DOMAIN.virtual_pod_namespace: self.name,
            DOMAIN.virtual_pod_name: name,
            DOMAIN.virtual_pod_uid: virtual.uid,
        }
        pod: Json = {
            "metadata": {
                "name": physical.name,
                "labels": ownership_labels(self.ids, DOMAIN),
                "annotations": annotations,
            },
            "spec": spec | {"nodeName": self.node.name},
        }
        await self.worker_api.create(PODS, pod, namespace=physical.namespace)
        await until(lambda: self._ready(physical), waiting_for=f"pod {physical} to be ready")
        await self._set_running(name)
        return physical

    async def _ready(self, pod: Key) -> bool:
        content = (
            await self.worker_api.get(PODS, pod.name, pod.namespace, keep_raw=True)
        ).content()
        conditions = content["status"].get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    async def _set_running(self, name: str) -> None:
        """Set the virtual pod's status, which kubectl reads before it requests anything."""
        ready = {"name": "main", "ready": True, "restartCount": 0, "image": "", "imageID": ""}
        running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [ready | {"state": running}],
        }
        patch = MergePatch({"status": status})
        await self.computing_api.patch(PODS, name, patch, self.name, subresource="status")

    @asynccontextmanager
    async def proxier(
        self,
        *flags: str,
        name: str = "proxier",
        address: str = "127.0.0.1",
        ready: bool = True,
    ) -> AsyncIterator[SyncerProcess]:
        """Run a replica and kill it at the end; yield once it is ready, if `ready`."""
        words = (
            f"--kubeconfig={self.computing.kubeconfig}",
            f"--cluster-binding-name={self.name}",
            f"--listen-address={address}",
            "--listen-port=0",
            "--prometheus-vnode-base-port=0",
            "--metrics-bind-address=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
            *flags,
        )
        process = Process(
            name,
            [sys.executable, "-m", "kubeocean", "proxier", *words],
            log=self.directory / f"{name}-{uuid.uuid4().hex[:8]}.log",
            env={"PATH": os.environ["PATH"], "POD_IP": address},
        )
        await process.start()
        try:
            replica = SyncerProcess(process)
            if ready:
                await until(replica.is_ready, waiting_for="the proxier to be ready")
            yield replica
        finally:
            await process.kill()

    async def point_at(self, address: str) -> None:
        """Set the address of the virtual node, as the syncer does when a replica is not ready."""
        addresses = [{"type": "InternalIP", "address": address}]
        patch = MergePatch({"status": {"addresses": addresses}})
        await self.computing_api.patch(NODES, self.vnode, patch, subresource="status")

    async def hand_over(self, kubeconfig: Path) -> None:
        """Write another kubeconfig into the binding's Secret."""
        data = {"kubeconfig": base64.b64encode(kubeconfig.read_bytes()).decode()}
        await self.computing_api.patch(SECRETS, self.name, MergePatch({"data": data}), "default")

    async def kubectl(
        self, *arguments: str, stdin: bytes = b"", environ: dict[str, str] | None = None
    ) -> Answer:
        """Run kubectl as an administrator of the computing cluster, in the pods' namespace."""
        command = await asyncio.create_subprocess_exec(
            *self.kubectl_words,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environ or {})},
        )
        out, err = await command.communicate(stdin)
        return Answer(command.returncode or 0, out, err.decode())

    @asynccontextmanager
    async def talking(
        self, *arguments: str, environ: dict[str, str] | None = None
    ) -> AsyncIterator[Talk]:
        """Run kubectl as long as the block lasts."""
        command = await asyncio.create_subprocess_exec(
            *self.kubectl_words,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
        )
        try:
            yield Talk(command)
        finally:
            with suppress(ProcessLookupError):
                command.kill()
            await command.communicate()

    @property
    def kubectl_words(self) -> tuple[str, ...]:
        kubeconfig = f"--kubeconfig={self.computing.kubeconfig}"
        return (str(self.kubectl_path), kubeconfig, "-n", self.name)

    @property
    def kubectl_line(self) -> str:
        return shlex.join(self.kubectl_words)

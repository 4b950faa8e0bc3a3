"""Real nodes: a kubelet and containerd on this machine, running real containers.

Each node has separate namespaces: network, mounts, processes, host name. When this process ends,
the first process of the namespaces ends, and the kernel then ends all others, with their mounts and
interfaces. The API server listens on the loopback: a forwarder relays the node's connections to it,
so that pods reach the API server at the `kubernetes` service. Other services are not routed and
names are not resolved: there is no kube-proxy and no DNS.

Needs root and some programs of the distribution; `available` names those that are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kubeocean.errors import ConfigError, LocalError, NotFound
from kubeocean.local import accounts
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.local.process import Process, run
from kubeocean.local.readiness import failure, until_ready
from kubeocean.local.real_nodes import cgroups, forwarder, images, network
from kubeocean.local.real_nodes import config as node_config
from kubeocean.local.real_nodes.checks import available, cni_plugins
from kubeocean.local.real_nodes.images import Image
from kubeocean.local.real_nodes.namespaces import NamespaceSet
from kubeocean.local.real_nodes.network import Subnet
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.components import Lifespan
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json

__all__ = ["RealNode", "available", "write_files"]

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_CONTAINERD_S: Final = 20.0
_KUBELET_S: Final = 60.0
_WATCH_EVERY_S: Final = 0.5


class RealNode(Lifespan):
    """A real node of `cluster`; `async with` starts and stops the node.

    `taints` are `key=value:effect`; `kubelet` replaces entries of the kubelet's configuration;
    `reach` are ports of this machine's loopback, which pods reach at `config.MACHINE_ADDRESS`.
    """

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        assets: Programs,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[str] = (),
        kubelet: Mapping[str, object] | None = None,
        reach: Iterable[int] = (),
        clock: Clock | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError("is not a valid name of a node", field="name", value=name)
        self.name = name
        self.cluster = cluster
        self.root = cluster.root / "nodes" / name
        self._kubelet = assets.path("kubelet")
        self._labels = dict(labels or {})
        self._taints = tuple(taints)
        self._overrides = dict(kubelet or {})
        self._reach = set(reach)
        self._clock = clock or RealClock()
        self._world: NamespaceSet | None = None
        self._subnet: Subnet | None = None
        self._asked_to_end: set[str] = set()

    @property
    def subnet(self) -> Subnet:
        """The addresses of the node and its pods, reachable from this machine and its nodes."""
        if self._subnet is None:
            raise LocalError(f"node {self.name} is not running")
        return self._subnet

    @property
    def address(self) -> str:
        """Address of the node's kubelet."""
        return str(self.subnet.node)

    @property
    def world(self) -> NamespaceSet:
        """The Linux namespaces of the node."""
        if self._world is None:
            raise LocalError(f"node {self.name} is not running")
        return self._world

    def process(self, component: str) -> Process:
        """Return the process of `forwarder`, `containerd` or `kubelet`."""
        try:
            return self.world.processes[component]
        except KeyError:
            raise LocalError(f"node {self.name} has no component {component}") from None

    # The node as a whole.

    async def start(self) -> None:
        """Start the node; return when the node is Ready and has the images.

        :raises LocalError: a program of the node does not start; started programs are stopped
            again.
        """
        if (reason := available()) is not None:
            raise LocalError(f"could not start node {self.name}: {reason}")
        if self._world is not None:
            raise LocalError(f"could not start node {self.name}: it is already running")
        try:
            await self._make_world()
            await self._start_forwarder()
            await self._start_containerd()
            await self._start_kubelet()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Kill all processes of the node. The Node object stays, as after the loss of a machine."""
        if self._world is None:
            return
        self._asked_to_end.update(self._world.processes)
        await self._world.end()
        if self._subnet is not None:
            await network.released(self._subnet, clock=self._clock)
            await cgroups.remove(network.cgroup_of(self._subnet), clock=self._clock)
        self._world = self._subnet = None
        shutil.rmtree(self._files, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.root / "world").rmdir()

    async def watch(self) -> None:
        """Wait until a component ends unexpectedly, and raise; never return.

        :raises LocalError: a component ended; the text has the end of its log.
        """
        while True:
            processes = self._world.processes if self._world is not None else {}
            for component, process in processes.items():
                if not process.running and component not in self._asked_to_end:
                    what = f"{component} of node {self.name}"
                    raise failure(process, f"{what} ended with exit code {process.returncode}")
            await self._clock.sleep(_WATCH_EVERY_S)

    # One component: `forwarder`, `containerd` or `kubelet`.

    async def kill(self, component: str = "world") -> None:
        """Kill one component with SIGKILL, or all processes of the node, as a power cut would."""
        if component == "world":
            return await self.stop()
        self._asked_to_end.add(component)
        await self.world.kill(component)

    def pause(self, component: str) -> None:
        """Pause a component; pausing the forwarder cuts the node off from its API server."""
        self.world.pause(component)

    def resume(self, component: str) -> None:
        """Resume a paused component."""
        self.world.resume(component)

    async def restart(self, component: str) -> None:
        """Kill a component if it runs, and start it again; containers keep running."""
        self._asked_to_end.add(component)
        await self.world.restart(component)
        self._asked_to_end.discard(component)
        if component == "containerd":
            await self._until_containerd()

    # Resources that pods can request.

    async def load(self, *wanted: Image) -> None:
        """Import images into the node's containerd, for pods that do not always pull them."""
        socket_ = f"--address={self.world.inside(node_config.CONTAINERD_SOCKET)}"
        command = ("ctr", socket_, "--namespace=k8s.io", "images", "import", "-")
        await asyncio.to_thread(run, *command, stdin=images.archive(*wanted))

    def reach(self, port: int) -> str:
        """Open a port of the machine's loopback to the node's pods; return the address they use."""
        self._reach.add(port)
        if self._world is not None:
            self._write_ports()
        return f"{node_config.MACHINE_ADDRESS}:{port}"

    # The steps of `start`.

    @property
    def _files(self) -> Path:
        return self.root / "files"

    async def _make_world(self) -> None:
        """Create the namespaces of the node, its network, and the files that its programs read."""
        private_directory(self._files)
        logs = private_directory(self.root / "logs")
        world = self._world = NamespaceSet(
            self.name, root=self.root, kubelet=self._kubelet, logs=logs, clock=self._clock
        )
        await world.start()
        subnet = self._subnet = await network.claim(world.init, clock=self._clock)
        inside = (node_config.SERVICE_ADDRESS, node_config.MACHINE_ADDRESS)
        network.configure(subnet, world.init, inside=inside)
        # With the node's /run, too: iptables locks a file there, which must not be the machine's.
        enter = ("nsenter", f"--target={world.init}", "--net", "--mount")
        run(*enter, "iptables-restore", stdin=node_config.iptables().encode())
        write_files(
            self._files,
            node=self.name,
            subnet=subnet,
            cluster=self.cluster.name,
            authority=self.cluster.authority,
            overrides=self._overrides,
        )

    async def _start_forwarder(self) -> None:
        self._write_ports()
        await self.world.start_script(
            "forwarder",
            str(forwarder.__file__),
            f"/proc/{self.world.init}/ns/net",
            f"{node_config.SERVICE_ADDRESS}:443",
            urlsplit(self.cluster.server).netloc,
            f"{node_config.MACHINE_ADDRESS}:{node_config.CATCH_PORT}",
            str(self._files / "ports"),
        )

    async def _start_containerd(self) -> None:
        await self.world.start_program("containerd", node_config.containerd_command())
        await self._until_containerd()
        # Before the kubelet starts, which records the mounts at its start; an import mounts, too.
        busybox = images.find_busybox()
        await self.load(images.busybox_image(busybox), images.pause_image(busybox))

    async def _start_kubelet(self) -> None:
        client = self.cluster.client()
        try:
            before = await _heartbeat(client, self.name)
            command = node_config.kubelet_command(
                self.name, self.subnet, labels=self._labels, taints=self._taints
            )
            await self.world.start_program("kubelet", command)
            await self._until_ready(client, before)
        finally:
            await client.close()

    async def _until_containerd(self) -> None:
        async def answers() -> bool:
            return _accepts(self.world.inside(node_config.CONTAINERD_SOCKET))

        await until_ready(
            self.process("containerd"),
            answers,
            what=f"containerd of node {self.name}",
            within_s=_CONTAINERD_S,
            clock=self._clock,
        )

    async def _until_ready(self, client: Client, before: str) -> None:
        async def is_ready() -> bool:
            return await _heartbeat(client, self.name, ready=True) not in ("", before)

        await until_ready(
            self.process("kubelet"),
            is_ready,
            what=f"the kubelet of node {self.name}",
            within_s=_KUBELET_S,
            clock=self._clock,
        )

    def _write_ports(self) -> None:
        write_private(self._files / "ports", " ".join(map(str, self._reach)).encode())


def _accepts(path: Path) -> bool:
    """Whether a process listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0


async def _heartbeat(client: Client, name: str, *, ready: bool = False) -> str:
    """Return the time of the node's last heartbeat; with `ready`, only of a Ready node.

    The Node object of a node that ran before stays Ready until controllers notice its end.
    """
    try:
        node: Json = (await client.get(NODES, name, keep_raw=True)).content()
    except NotFound:
        return ""
    for condition in node.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready" and (condition["status"] == "True" or not ready):
            return str(condition.get("lastHeartbeatTime", ""))
    return ""


def write_files(
    directory: Path,
    *,
    node: str,
    subnet: Subnet,
    cluster: str,
    authority: LocalAuthority,
    overrides: Mapping[str, object],
) -> None:
    """Write the files of a node; the cluster's `authority` signs the kubelet's certificates."""
    user = f"system:node:{node}"
    serving = authority.issue(Subject(user, sans=(node, str(subnet.node)), server=True))
    asking = authority.issue(Subject(user, ("system:nodes",), client=True))
    kubeconfig = accounts.kubeconfig(
        cluster,
        f"https://{node_config.SERVICE_ADDRESS}:443",
        authority.certificate,
        user=user,
        credential=asking,
    )
    cgroup = f"/{cgroups.PARENT}/{network.cgroup_of(subnet)}"
    contents = {
        "ca.crt": authority.certificate,
        "kubeconfig": kubeconfig,
        "kubelet.yaml": node_config.kubelet(cgroup=cgroup, overrides=overrides),
        "containerd.toml": node_config.containerd(cni_plugins=str(cni_plugins())).encode(),
        "cni/pods.conflist": node_config.cni(subnet),
        "resolv.conf": b"",
    }
    private_directory(directory / "cni")
    serving.save(directory, "kubelet")
    for name, content in contents.items():
        write_private(directory / name, content)

"""Real nodes: a kubelet and containerd on this machine, running real containers.

Each node is a world of its own: network, mounts, processes, host name. Whatever ends us ends the
first process of that world, and the kernel then ends all others, with their mounts and interfaces.
The API server stays on the loopback: a forwarder carries the node's connections there.

Needs root and some programs of the distribution; `available` says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from kubeocean.errors import LocalError, NotFound
from kubeocean.local import accounts, cgroups, forwarder, images, nodeconfig, nodenet
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.files import private_directory, write_private
from kubeocean.local.images import Image
from kubeocean.local.nodechecks import available, cni_plugins
from kubeocean.local.nodenet import Subnet
from kubeocean.local.pki import Subject
from kubeocean.local.process import Process
from kubeocean.local.readiness import failure, until_ready
from kubeocean.local.worlds import World, environment, send_to_child
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.objects import Json

__all__ = ["RealNode", "available"]

_CONTAINERD_S: Final = 20.0
_KUBELET_S: Final = 60.0
_WATCH_EVERY_S: Final = 0.5


class RealNode:
    """One node of `cluster`; `async with` starts and stops it.

    `taints` are `key=value:effect`; `kubelet` replaces entries of the kubelet's configuration;
    `reach` are ports of this machine's loopback, which pods find at `nodeconfig.MACHINE_ADDRESS`.
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
        self.name = name
        self.cluster = cluster
        self.root = cluster.root / "nodes" / name
        self._kubelet = assets.path("kubelet")
        self._labels = dict(labels or {})
        self._taints = tuple(taints)
        self._overrides = dict(kubelet or {})
        self._reach = set(reach)
        self._clock = clock or RealClock()
        self._world: World | None = None
        self._subnet: Subnet | None = None
        self._processes: dict[str, Process] = {}
        self._asked_to_end: set[str] = set()

    @property
    def address(self) -> str:
        """The node's address: its kubelet is reachable there from this machine."""
        return str(self._started[1].node)

    @property
    def pods(self) -> str:
        """The network that its pods are in, reachable from this machine and all nodes on it."""
        return str(self._started[1].pods)

    @property
    def _started(self) -> tuple[World, Subnet]:
        if self._world is None or self._subnet is None:
            raise LocalError(f"node {self.name} was not started")
        return self._world, self._subnet

    def process(self, component: str) -> Process:
        """The process of `world`, `forwarder`, `containerd` or `kubelet`."""
        try:
            return self._processes[component]
        except KeyError:
            raise LocalError(f"node {self.name} does not run {component}") from None

    # Start and stop.

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Return when the node is Ready and has our images.

        :raises LocalError: it cannot be; what was started is stopped again.
        """
        if (reason := available()) is not None:
            raise LocalError(f"could not start node {self.name}: {reason}")
        if self._processes:
            raise LocalError(f"could not start node {self.name}: it runs already")
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        private_directory(self._files / "cni")
        private_directory(self._logs)
        world = self._world = World(
            self.name, root=self.root, kubelet=self._kubelet, logs=self._logs, clock=self._clock
        )
        self._processes["world"] = world.process
        await world.start()
        subnet = self._subnet = await nodenet.claim(world.init, clock=self._clock)
        self._write_files(subnet)
        self._connect(world, subnet)
        self._processes |= self._programs(world, subnet)
        await self.process("forwarder").start()
        await self.process("containerd").start()
        await self._until_containerd(world)
        # Before the kubelet starts: it remembers the mounts that it finds, and an import mounts.
        busybox = images.find_busybox()
        await self.load(images.busybox_image(busybox), images.pause_image(busybox))
        client = self.cluster.client()
        try:
            before = await _heartbeat(client, self.name)
            await self.process("kubelet").start()
            await self._until_ready(client, before)
        finally:
            await client.close()

    async def stop(self) -> None:
        """End it and everything in it. The Node object stays, as that of any node that is gone."""
        self._asked_to_end.update(self._processes)
        if self._world is not None:
            await self._world.end()
        for process in self._processes.values():
            await process.kill()
        if self._subnet is not None:
            await nodenet.released(self._subnet, clock=self._clock)
            await cgroups.remove(nodenet.cgroup_of(self._subnet), clock=self._clock)
        self._world, self._subnet, self._processes = None, None, {}
        shutil.rmtree(self._files, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.root / "world").rmdir()

    async def watch(self) -> None:
        """Return never; raise when a component ends that was not asked to.

        :raises LocalError: with the end of its log.
        """
        while True:
            for component, process in self._processes.items():
                if not process.running and component not in self._asked_to_end:
                    what = f"{component} of node {self.name}"
                    raise failure(process, f"{what} ended with exit code {process.returncode}")
            await self._clock.sleep(_WATCH_EVERY_S)

    # One component: `forwarder`, `containerd` or `kubelet`.

    async def kill(self, component: str = "world") -> None:
        """End it with SIGKILL: all of the node, as if its power were cut, or one component."""
        if component == "world":
            await self.stop()
            return
        self._asked_to_end.add(component)
        await self.process(component).kill()

    def pause(self, component: str) -> None:
        """Let it stand still; without its forwarder a node is cut off from its API server."""
        send_to_child(self.process(component), signal.SIGSTOP)

    def resume(self, component: str) -> None:
        """Let it go on."""
        self.process(component).resume()  # nsenter, which stopped with its child, passes it on
        send_to_child(self.process(component), signal.SIGCONT)

    async def restart(self, component: str) -> None:
        """Kill it if it runs, and start it again; containers go on meanwhile."""
        self._asked_to_end.add(component)
        await self.process(component).kill()
        await self.process(component).start()
        self._asked_to_end.discard(component)
        if component == "containerd":
            await self._until_containerd(self._started[0])

    # What pods can use.

    async def load(self, *wanted: Image) -> None:
        """Make images known to the node, for pods that do not insist on pulling them."""
        address = str(self._started[0].inside(nodeconfig.CONTAINERD_SOCKET))
        importing = await asyncio.create_subprocess_exec(
            *("ctr", f"--address={address}", "--namespace=k8s.io", "images", "import", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(),
        )
        said, _ = await importing.communicate(images.archive(*wanted))
        if importing.returncode != 0:
            names = ", ".join(image.name for image in wanted)
            text = said.decode("utf-8", "replace").strip()
            raise LocalError(f"could not load {names} into node {self.name}: {text}")

    def reach(self, port: int) -> str:
        """Open this port of the machine's loopback to the node's pods; the address they use."""
        self._reach.add(port)
        write_private(self._files / "ports", " ".join(map(str, self._reach)).encode())
        return f"{nodeconfig.MACHINE_ADDRESS}:{port}"

    # The parts of `start`.

    @property
    def _files(self) -> Path:
        return self.root / "files"

    @property
    def _logs(self) -> Path:
        return self.root / "logs"

    def _write_files(self, subnet: Subnet) -> None:
        authority = self.cluster.authority
        user = f"system:node:{self.name}"
        serving = authority.issue(Subject(user, sans=(self.name, str(subnet.node)), server=True))
        serving.save(self._files, "kubelet")
        kubeconfig = accounts.kubeconfig(
            self.cluster.name,
            f"https://{nodeconfig.SERVICE_ADDRESS}:443",
            authority.certificate,
            user=user,
            credential=authority.issue(Subject(user, ("system:nodes",), client=True)),
        )
        cgroup = f"/{cgroups.PARENT}/{nodenet.cgroup_of(subnet)}"
        contents = {
            "ca.crt": authority.certificate,
            "kubeconfig": kubeconfig,
            "kubelet.yaml": nodeconfig.kubelet(cgroup=cgroup, overrides=self._overrides),
            "containerd.toml": nodeconfig.containerd(cni_plugins=str(cni_plugins())).encode(),
            "cni/pods.conflist": nodeconfig.cni(subnet),
            "ports": " ".join(map(str, self._reach)).encode(),
            "resolv.conf": b"",
        }
        for name, content in contents.items():
            write_private(self._files / name, content)

    def _connect(self, world: World, subnet: Subnet) -> None:
        inside = (nodeconfig.SERVICE_ADDRESS, nodeconfig.MACHINE_ADDRESS)
        nodenet.configure(subnet, world.init, inside=inside)
        # Its own /run, too: iptables locks a file there, and must not meet the machine's.
        enter = ("nsenter", f"--target={world.init}", "--net", "--mount")
        nodenet.run(*enter, "iptables-restore", stdin=nodeconfig.iptables())

    def _programs(self, world: World, subnet: Subnet) -> dict[str, Process]:
        server = urlsplit(self.cluster.server).netloc
        forward = world.script(
            "forwarder",
            str(forwarder.__file__),
            f"/proc/{world.init}/ns/net",
            f"{nodeconfig.SERVICE_ADDRESS}:443",
            server,
            f"{nodeconfig.MACHINE_ADDRESS}:{nodeconfig.CATCH_PORT}",
            str(self._files / "ports"),
        )
        kubelet = nodeconfig.kubelet_command(
            self.name, subnet, labels=self._labels, taints=self._taints
        )
        return {
            "forwarder": forward,
            "containerd": world.program("containerd", nodeconfig.containerd_command()),
            "kubelet": world.program("kubelet", kubelet),
        }

    async def _until_containerd(self, world: World) -> None:
        async def answers() -> bool:
            return _accepts(world.inside(nodeconfig.CONTAINERD_SOCKET))

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


def _accepts(path: Path) -> bool:
    """Whether something listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0


async def _heartbeat(client: Client, name: str, *, ready: bool = False) -> str:
    """When the node last told how it is, if at all; with `ready`, only if it told that it is Ready.

    A node that was here before has an object that says Ready until someone notices.
    """
    try:
        node: Json = (await client.get(NODES, name, keep_raw=True)).content()
    except NotFound:
        return ""
    for condition in node.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready" and (condition["status"] == "True" or not ready):
            return str(condition.get("lastHeartbeatTime", ""))
    return ""

"""Real nodes: the abilities of a pod there, and no process of a pod outlives the node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from kubeocean.errors import LocalError
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.local.real_nodes import cgroups, images, network
from kubeocean.local.real_nodes.images import BUSYBOX, File, Image
from kubeocean.local.real_nodes.node import RealNode, available
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, NODES, PODS
from kubeocean.runtime.objects import Json
from support.wait import until

Kubectl = Callable[..., Awaitable[Any]]
RunPod = Callable[..., Awaitable[Json]]
T = TypeVar("T")

HTTPD = "mkdir /www; echo hello from $HOSTNAME >/www/index.html; exec httpd -f -v -p 8080 -h /www"
PROBED: Json = {"readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}}
WAIT = "trap 'exit 0' TERM; sleep 1000 & wait"
# The request of a client in a pod, with the token and address that every pod gets.
ASK = (
    'wget -q -O - --header "Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/'
    'serviceaccount/token)" "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT{path}"'
)


def test_root_on_debian_never_goes_without_real_nodes() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("real nodes need root and Debian")
    assert available() is None, "make real-nodes installs what is missing"


class TestPods:
    async def test_a_probe_makes_a_pod_ready_and_its_address_answers(
        self, run_pod: RunPod, real_node: RealNode
    ) -> None:
        pod = await run_pod("web", HTTPD, container=PROBED)
        assert pod["spec"]["nodeName"] == real_node.name
        assert pod["status"]["hostIP"] == real_node.address
        url = f"http://{pod['status']['podIP']}:8080/"
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())
        assert answer == b"hello from web\n"

    async def test_logs_are_those_of_the_container(
        self, run_pod: RunPod, kubectl: Kubectl, real_namespace: str
    ) -> None:
        await run_pod("talker", f"echo one; echo two >&2; {WAIT}")
        answer = await until(
            lambda: _when(kubectl("logs", "talker", "-n", real_namespace), lambda a: "two" in a.out)
        )
        assert sorted(answer.out.split()) == ["one", "two"]

    async def test_exec_passes_arguments_input_and_exit_code(
        self, run_pod: RunPod, kubectl: Kubectl, real_namespace: str
    ) -> None:
        await run_pod("box", WAIT)
        run = ("exec", "-i", "-n", real_namespace, "box", "--")
        answer = await kubectl(*run, "sh", "-c", 'cat; echo "$0" >&2; exit 42', "a b", stdin="in\n")
        assert (answer.code, answer.out) == (42, "in\n")
        assert answer.err.startswith("a b\n")

    async def test_a_port_is_forwarded(
        self,
        run_pod: RunPod,
        real_cluster: Cluster,
        node_assets: Assets,
        real_namespace: str,
    ) -> None:
        await run_pod("web", HTTPD, container=PROBED)
        forward = await asyncio.create_subprocess_exec(
            *(node_assets.path("kubectl"), f"--kubeconfig={real_cluster.kubeconfig}"),
            *("port-forward", "-n", real_namespace, "--address=127.0.0.1", "pod/web", ":8080"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert forward.stdout is not None
        try:
            actual = re.search(rb"127\.0\.0\.1:(\d+)", await forward.stdout.readline())
            assert actual is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", int(actual[1]))
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            assert b"hello from web" in await reader.read(-1)
            writer.close()
            await writer.wait_closed()
        finally:
            forward.terminate()
            await forward.communicate()

    async def test_config_and_token_are_in_the_container_and_the_api_server_is_reachable(
        self, run_pod: RunPod, kubectl: Kubectl, real_client: Client, real_namespace: str
    ) -> None:
        await real_client.create(
            CONFIG_MAPS,
            {"metadata": {"name": "settings"}, "data": {"colour": "blue"}},
            namespace=real_namespace,
        )
        await kubectl(
            *("create", "rolebinding", "reader", "--clusterrole=view", "-n", real_namespace),
            f"--serviceaccount={real_namespace}:default",
        )
        volume = {"name": "settings", "configMap": {"name": "settings"}}
        mount = {"name": "settings", "mountPath": "/settings"}
        await run_pod("box", WAIT, volumes=[volume], container={"volumeMounts": [mount]})
        run = ("exec", "-n", real_namespace, "box", "--", "sh", "-c")
        assert (await kubectl(*run, "cat /settings/colour")).out == "blue"
        account = "/var/run/secrets/kubernetes.io/serviceaccount"
        assert "BEGIN CERTIFICATE" in (await kubectl(*run, f"cat {account}/ca.crt")).out
        requested = ASK.format(path=f"/api/v1/namespaces/{real_namespace}/configmaps/settings")
        assert json.loads((await kubectl(*run, requested)).out)["data"] == {"colour": "blue"}
        # The pod may not read another namespace: the server authenticates its account.
        denied = await kubectl(*run, ASK.format(path="/api/v1/namespaces/default/configmaps/x"))
        assert "403" in denied.err

    async def test_a_deleted_pod_has_its_grace_to_finish(
        self, run_pod: RunPod, kubectl: Kubectl, real_namespace: str
    ) -> None:
        await run_pod(
            "polite",
            "trap 'echo ending; sleep 1; echo ended; exit 0' TERM; echo up; sleep 1000 & wait",
            terminationGracePeriodSeconds=30,
        )
        log = ("logs", "polite", "-n", real_namespace)

        async def listens() -> bool:
            return (await kubectl(*log)).out.split() == ["up"]

        await until(listens)  # before that, the shell has no trap yet
        async with asyncio.TaskGroup() as group:
            logs = group.create_task(kubectl(*log, "-f"))
            deleted = await kubectl("delete", "pod", "polite", "-n", real_namespace)
        assert deleted.code == 0
        # A kubelet may add that the container it follows was removed
        assert logs.result().out.split()[:3] == ["up", "ending", "ended"]

    async def test_a_pod_that_does_not_listen_is_killed_after_its_grace(
        self, run_pod: RunPod, kubectl: Kubectl, real_namespace: str
    ) -> None:
        await run_pod("deaf", "trap '' TERM; while :; do sleep 1; done")
        before = asyncio.get_running_loop().time()
        await kubectl("delete", "pod", "deaf", "-n", real_namespace)
        assert 1 <= asyncio.get_running_loop().time() - before < 20

    async def test_orphans_of_a_shared_process_namespace_are_reaped(
        self, run_pod: RunPod, kubectl: Kubectl, real_namespace: str
    ) -> None:
        await run_pod("family", WAIT, shareProcessNamespace=True)
        run = ("exec", "-n", real_namespace, "family", "--", "sh", "-c")
        await kubectl(*run, "(sleep 0.1 &)")

        async def no_sleeper() -> bool:
            listed = (await kubectl(*run, "ps -o stat,args")).out
            assert "2147483647" in listed  # that of pause is seen, so the namespace is shared
            return not re.search(r"^Z|sleep 0.1", listed, re.MULTILINE)

        await until(no_sleeper)

    async def test_resource_metrics_and_summary_know_the_pod(
        self, run_pod: RunPod, real_client: Client, real_namespace: str, real_node: RealNode
    ) -> None:
        await run_pod("busy", WAIT)
        proxy = f"/api/v1/nodes/{real_node.name}/proxy"

        async def summary_has_it() -> bool:
            summary = json.loads(await real_client.request("GET", f"{proxy}/stats/summary"))
            assert summary["node"]["fs"]["capacityBytes"] > 0
            pods = {entry["podRef"]["namespace"]: entry for entry in summary["pods"]}
            return "memory" in pods.get(real_namespace, {})

        await until(summary_has_it)

    async def test_an_image_of_ones_own_can_be_loaded(
        self, run_pod: RunPod, kubectl: Kubectl, real_node: RealNode, real_namespace: str
    ) -> None:
        busybox = images.busybox_image(images.find_busybox())
        files = {**busybox.files, "/greeting": File(b"ahoy\n")}
        await real_node.load(Image("example.org/greeter:1", files))
        await run_pod("greeter", WAIT, container={"image": "example.org/greeter:1"})
        answer = await kubectl("exec", "-n", real_namespace, "greeter", "--", "cat", "/greeting")
        assert answer.out == "ahoy\n"


class TestNodes:
    async def test_pods_of_other_nodes_and_open_ports_of_the_machine_are_reachable(
        self,
        run_pod: RunPod,
        real_cluster: Cluster,
        real_node: RealNode,
        node_assets: Assets,
        new_cluster: Callable[..., Awaitable[Cluster]],
        kubectl: Kubectl,
        real_namespace: str,
    ) -> None:
        here = await run_pod("here", HTTPD, container=PROBED)
        other_cluster = await new_cluster()
        port = int(other_cluster.server.rpartition(":")[2])
        async with (
            RealNode("node-2", real_cluster, node_assets, taints=["own=yes:NoSchedule"]) as second,
            RealNode("node-1", other_cluster, node_assets) as foreign,
        ):
            assert len({real_node.address, second.address, foreign.address}) == 3
            await run_pod("there", WAIT, nodeName="node-2", nodeSelector=None)
            run = ("exec", "-n", real_namespace, "there", "--", "sh", "-c")
            requested = f"timeout 5 wget -q -O - http://{here['status']['podIP']}:8080/"
            assert (await kubectl(*run, requested)).out == "hello from here\n"

            version = f"timeout 5 wget -q -O - https://169.254.77.1:{port}/version"
            assert (await kubectl(*run, version)).code != 0  # closed until it is opened
            assert second.reach(port) == f"169.254.77.1:{port}"
            assert '"gitVersion": "v1.' in (await kubectl(*run, version)).out

    async def test_containers_survive_a_restart_of_their_kubelet(
        self,
        run_pod: RunPod,
        real_node: RealNode,
        real_client: Client,
        real_namespace: str,
        kubectl: Kubectl,
    ) -> None:
        pod = await run_pod("steady", WAIT)
        await real_node.restart("kubelet")
        ask = ("get", "--raw", f"/api/v1/nodes/{real_node.name}/proxy/healthz")
        await until(lambda: _when(kubectl(*ask), lambda answer: answer.out == "ok"))
        after = await real_client.get(PODS, "steady", real_namespace, keep_raw=True)
        (was,) = pod["status"]["containerStatuses"]
        (now,) = after.content()["status"]["containerStatuses"]
        assert (now["containerID"], now["restartCount"]) == (was["containerID"], 0)

    async def test_a_paused_kubelet_is_silent_until_it_goes_on(
        self, real_node: RealNode, kubectl: Kubectl
    ) -> None:
        ask = ("get", "--raw", f"/api/v1/nodes/{real_node.name}/proxy/healthz")
        real_node.pause("kubelet")
        try:
            assert (await kubectl(*ask, "--request-timeout=1s")).code != 0
        finally:
            real_node.resume("kubelet")
        assert (await kubectl(*ask)).out == "ok"

    async def test_a_kubelet_that_cannot_start_is_an_error_with_its_last_words(
        self, real_cluster: Cluster, node_assets: Assets
    ) -> None:
        node = RealNode("broken", real_cluster, node_assets, kubelet={"kind": "Nonsense"})
        with pytest.raises(LocalError, match=r"(?s)kubelet of node broken ended.*Nonsense"):
            await node.start()
        assert not (node.root / "files").exists()
        commands = [
            " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
        ]
        assert not [command for command in commands if str(node.root) in command]

    async def test_a_node_whose_power_was_cut_leaves_nothing_and_comes_back(
        self, real_cluster: Cluster, node_assets: Assets, real_client: Client, real_namespace: str
    ) -> None:
        pod = _pod("lasting", "victim")
        node = RealNode("victim", real_cluster, node_assets)
        await node.start()
        try:
            await real_client.create(PODS, pod, namespace=real_namespace)
            first = await _started(real_client, real_namespace, "lasting")
            traces = Traces.of(node)
            assert any("sleep 1000" in process.command for process in traces.processes)
            await node.kill()
            assert traces.left() == []
            assert traces.cgroups_left() == []
            assert not (node.root / "files").exists()

            await node.start()  # as after a reboot: the pod is run again
            await until(
                lambda: _when(
                    _started(real_client, real_namespace, "lasting"), lambda now: now != first
                )
            )
        finally:
            await node.stop()
            await real_client.delete(NODES, "victim", uid=None)

    async def test_nothing_survives_when_we_are_killed(
        self, real_cluster: Cluster, node_assets: Assets, tmp_path: Path
    ) -> None:
        directory = node_assets.path("kubelet").parent
        starter = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", STARTER, str(tmp_path), json.dumps(_pod("lasting", "n1"))),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "KUBEOCEAN_ASSETS": str(directory)},
        )
        try:
            assert starter.stdout is not None
            message = json.loads(await starter.stdout.readline())
            traces = Traces.collect(
                message["init"], message["link"], message["cgroup"], str(tmp_path)
            )
        finally:
            starter.send_signal(signal.SIGKILL)
            await starter.communicate()
        assert {"kubelet", "containerd", "containerd-shim-runc-v2", "sleep", "etcd"} <= {
            process.name for process in traces.processes
        }
        await until(lambda: traces.left() == [], within=10, waiting_for="everything to end")

        # Cgroups are no processes: empty ones stay until the next node starts.
        async with RealNode("tidy", real_cluster, node_assets):
            assert traces.cgroups_left() == []
        client = real_cluster.client()
        await client.delete(NODES, "tidy", uid=None)
        await client.close()


STARTER = """
import asyncio, json, os, sys
from pathlib import Path
from kubeocean.local.real_nodes import network
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster
from kubeocean.local.real_nodes.node import RealNode
from kubeocean.runtime.kinds import PODS

async def main():
    assets = await ensure(("etcd", "kube-apiserver", "kubelet"))
    components = ("etcd", "kube-apiserver")
    async with Cluster("doomed", Path(sys.argv[1]), assets, components=components) as cluster:
        async with RealNode("n1", cluster, assets) as node:
            client = cluster.client()
            await client.create(PODS, json.loads(sys.argv[2]), namespace="default")
            while (await client.get(PODS, "lasting", "default")).status.phase != "Running":
                await asyncio.sleep(0.1)
            report = {
                "init": node.world.init,
                "link": node.subnet.link,
                "cgroup": network.cgroup_of(node.subnet),
            }
            print(json.dumps(report), flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process that was there; `handle` is never mistaken for a later one of the same number."""

    handle: psutil.Process
    name: str
    command: str

    @property
    def alive(self) -> bool:
        try:
            return self.handle.is_running() and self.handle.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@dataclass(frozen=True, slots=True)
class Traces:
    """All that a node has on this machine while it runs."""

    processes: tuple[Seen, ...]
    link: str
    root: str
    cgroups: tuple[Path, ...]

    @classmethod
    def of(cls, node: RealNode) -> Traces:
        name = network.cgroup_of(node.subnet)
        return cls.collect(node.world.init, node.subnet.link, name, str(node.root))

    @classmethod
    def collect(cls, init: int, link: str, cgroup: str, root: str) -> Traces:
        world = os.readlink(f"/proc/{init}/ns/pid")
        seen = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                command = " ".join(process.cmdline())
                place = Path("/proc", str(process.pid))
                in_container = cgroup in (place / "cgroup").read_text()
                if root in command or in_container or os.readlink(place / "ns" / "pid") == world:
                    seen.append(Seen(process, process.name(), command))
        mounts = cgroups.hierarchies(Path("/proc/self/mountinfo").read_text())
        containers = [pod for top in mounts for pod in top.glob(f"kubeocean/{cgroup}/**/pod*")]
        assert Path("/sys/class/net", link).exists()
        assert containers
        return cls(tuple(seen), link, root, tuple(containers))

    def left(self) -> list[str]:
        """Return processes, interfaces and mounts that still exist."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return [
            *(f"{seen.handle.pid} {seen.command}" for seen in self.processes if seen.alive),
            *([self.link] if Path("/sys/class/net", self.link).exists() else []),
            *(line for line in mounts if self.root in line),
        ]

    def cgroups_left(self) -> list[Path]:
        """Return the containers' cgroups that are still there."""
        return [path for path in self.cgroups if path.exists()]


def _pod(name: str, node: str) -> Json:
    """Return a pod that needs neither a scheduler nor a service account."""
    container = {"name": "main", "image": BUSYBOX, "command": ["sleep", "1000"]}
    return {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}


async def _started(client: Client, namespace: str, name: str) -> str:
    """Wait until the pod's container has started; return when."""

    async def since() -> str:
        pod = (await client.get(PODS, name, namespace, keep_raw=True)).content()
        (container,) = pod["status"].get("containerStatuses") or ({"state": {}},)
        return str(container["state"].get("running", {}).get("startedAt", ""))

    return await until(since, waiting_for=f"pod {name} to run")


async def _when(answer: Awaitable[T], holds: Callable[[T], bool]) -> T | None:
    """Return the answer if `holds` is true for it, else None."""
    got = await answer
    return got if holds(got) else None

"""An installation with three clusters: programs in the first, bindings in the second, a worker."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import COMPONENT_MANAGER, COMPONENT_PROXIER, COMPONENT_SYNCER, DEFAULT
from kubeocean.errors import AlreadyExists, NotFound
from kubeocean.install.apply import resource_of
from kubeocean.install.object_parts import cluster_role_binding
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.process import Process
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, find_condition
from kubeocean.worker_access.identity import identity_of
from support.commands import Home
from support.control_planes import SERVERS, plane
from support.rollout_env import Mounted
from support.syncer_process import SyncerProcess
from support.wait import until

SYSTEM, NAME, ADDRESS = "kubeocean-system", "berlin", "192.0.2.7"


@dataclass(frozen=True)
class Three:
    """The clusters, and clients of the two in which Kubeocean is installed."""

    management: Cluster
    computing: Cluster
    worker: Cluster
    management_api: Client
    computing_api: Client
    home: Home
    directory: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Options of `install` and `uninstall`."""
        return (
            *("--kubeconfig", str(self.computing.kubeconfig)),
            *("--management-kubeconfig", str(self.management.kubeconfig)),
        )

    async def command(self, *words: str) -> str:
        result = await self.home.run(*words)
        assert result.code == 0, result.err
        return result.out

    @asynccontextmanager
    async def program(self, component: str, deployment: str) -> AsyncIterator[SyncerProcess]:
        """Run the container of a Deployment of the management cluster as a process."""
        stored = await self.management_api.get(DEPLOYMENTS, deployment, SYSTEM, keep_raw=True)
        pod = stored.content()["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        account = await self.management.service_account(SYSTEM, pod["serviceAccountName"])
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        paths = {":8080": "127.0.0.1:0", ":8081": "127.0.0.1:0", "in-cluster": str(account)}
        environ = {"POD_NAME": f"{deployment}-1", "POD_NAMESPACE": SYSTEM, "POD_IP": "127.0.0.1"}
        for volume in pod["volumes"]:
            directory = self.directory / f"{deployment}-{volume['name']}"
            Mounted(directory, await self._content(volume))
            paths[mounts[volume["name"]]] = str(directory)
            if volume["name"].endswith("-template"):
                part = volume["name"].removesuffix("-template").upper()
                environ[f"KUBEOCEAN_{part}_TEMPLATE_DIR"] = str(directory)
        words = [_replaced(word, paths) for word in container["args"]]
        if component == COMPONENT_PROXIER:
            words += ["--listen-address=127.0.0.1", "--listen-port=0"]
            words += ["--prometheus-vnode-base-port=0"]
        process = Process(
            deployment,
            [sys.executable, "-m", "kubeocean", *words],
            log=self.directory / f"{deployment}.log",
            env={"PATH": os.environ["PATH"], "TZ": "UTC", **environ},
        )
        await process.start()
        try:
            yield SyncerProcess(process)
        finally:
            await process.kill()

    async def _content(self, volume: Json) -> dict[str, str]:
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            secret = (await self.management_api.get(SECRETS, name, SYSTEM, keep_raw=True)).content()
            return {key: base64.b64decode(each).decode() for key, each in secret["data"].items()}
        name = volume["configMap"]["name"]
        return dict((await self.management_api.get(CONFIG_MAPS, name, SYSTEM)).data or {})

    async def objects(self) -> list[str]:
        """Return kinds and names of the objects that are rolled out in the management cluster."""
        path = f"namespaces/{SYSTEM}"
        names = []
        for plural in (
            f"/apis/apps/v1/{path}/deployments",
            f"/api/v1/{path}/services",
            f"/apis/policy/v1/{path}/poddisruptionbudgets",
            f"/apis/autoscaling/v2/{path}/horizontalpodautoscalers",
        ):
            for item in (await self.management_api.request_json("GET", plural))["items"]:
                if NAME in item["metadata"]["name"]:
                    assert not item["metadata"].get("ownerReferences")
                    names.append(f"{plural.rpartition('/')[2]} {item['metadata']['name']}")
        return names


def _replaced(word: str, paths: dict[str, str]) -> str:
    for old, new in paths.items():
        word = word.replace(old, new)
    return word


@pytest.fixture
async def three(assets: Programs, cluster_roots: Path, tmp_path: Path) -> AsyncIterator[Three]:
    controlled = (*SERVERS, "kube-controller-manager")
    async with AsyncExitStack() as stack:
        # Garbage collection there would delete objects whose owner is in another cluster.
        management, computing = [
            await stack.enter_async_context(
                plane(name, assets, cluster_roots, components=controlled)
            )
            for name in ("management", "virtual")
        ]
        worker = await stack.enter_async_context(plane("lends", assets, cluster_roots, nodes=1))
        clients = management.client(), computing.client()
        for client in clients:
            stack.push_async_callback(client.close)
        home = Home(tmp_path / "home")
        yield Three(management, computing, worker, *clients, home, tmp_path)


@pytest.mark.slow
async def test_programs_in_a_management_cluster_serve_the_computing_cluster(three: Three) -> None:
    options, scaled = three.options, ("--max-proxiers", "4")
    await three.command("install", *options, *scaled, "--no-wait")
    again = await three.home.run("install", *options, *scaled, "--no-wait")
    assert again.code == 0
    changed = [line for line in again.err.splitlines() if " created" in line or " changed" in line]
    assert changed == []  # the credentials, too, are kept
    with pytest.raises(NotFound):
        await three.computing_api.get(DEPLOYMENTS, DEFAULT.manager, SYSTEM)
    elsewhere = await three.home.run("install", *options[:2], "--no-wait")
    assert elsewhere.code == 2
    management_id = await identity_of(three.management_api)
    assert f"must point to the cluster {management_id}" in elsewhere.err

    worker = ("--kubeconfig", str(three.worker.kubeconfig))
    computing = ("--computing-kubeconfig", str(three.computing.kubeconfig))
    await three.command("join", NAME, *worker, *computing, "--lease", "cpu=50%", "--no-wait")
    async with three.program(COMPONENT_MANAGER, DEFAULT.manager) as manager:
        rolled_out = [
            f"deployments kubeocean-proxier-{NAME}",
            f"deployments kubeocean-syncer-{NAME}",
            f"services kubeocean-proxier-{NAME}-svc",
            f"poddisruptionbudgets kubeocean-proxier-{NAME}",
            f"poddisruptionbudgets kubeocean-syncer-{NAME}",
            f"horizontalpodautoscalers kubeocean-proxier-{NAME}",
        ]

        async def complete() -> bool:
            return await three.objects() == rolled_out

        await until(complete, waiting_for="the Deployments of the binding")
        await _run_proxier_pod(three)
        async with (
            three.program(COMPONENT_SYNCER, f"kubeocean-syncer-{NAME}") as syncer,
            three.program(COMPONENT_PROXIER, f"kubeocean-proxier-{NAME}") as proxier,
        ):

            async def lent() -> bool:
                nodes = (await three.computing_api.list(NODES, keep_raw=True)).items
                if not nodes:
                    return False
                ready = find_condition(nodes[0].status.conditions, "Ready")
                # The address is that of the proxier's pod in the management cluster.
                addresses = nodes[0].content()["status"].get("addresses", ())
                known = ADDRESS in {each["address"] for each in addresses}
                return known and ready is not None and ready.status == "True"

            await until(lent, waiting_for="the virtual node")
            await until(proxier.is_ready, waiting_for="the proxier")
            for program in (manager, syncer, proxier):
                await _check_metrics(three, program)
            leases = (await three.computing_api.list(LEASES, SYSTEM)).items
            assert {each.name for each in leases} >= {"kubeocean-manager-leader"}
            assert (await three.management_api.list(LEASES, SYSTEM)).items == []
            assert await three.objects() == rolled_out
            await _check_doctor(three)
            await three.command("leave", NAME, *worker, *computing)
        assert (await three.computing_api.list(CLUSTER_BINDINGS)).items == []
        assert await three.objects() == []

    refused = await three.home.run("uninstall", *options[:2])
    assert refused.code == 2
    assert "--management-kubeconfig: must point to the cluster" in refused.err
    await three.command("uninstall", *options)
    for client in (three.management_api, three.computing_api):
        names = [each.name for each in (await client.list(SECRETS, SYSTEM)).items]
        assert not [name for name in names if "computing" in name or "management" in name]
    with pytest.raises(NotFound):
        await three.management_api.get(DEPLOYMENTS, DEFAULT.manager, SYSTEM)


async def _check_doctor(three: Three) -> None:
    """Check that doctor examines the programs there, or reports that it could not."""
    unread = await three.home.run("doctor", *three.options[:2])
    assert "they run in the management cluster" in unread.out
    assert "add --management-kubeconfig" in unread.out
    assert "Deployment kubeocean-manager" not in unread.out
    assert unread.code != 0
    whole = await three.home.run("doctor", *three.options)
    assert "Deployment kubeocean-manager" in whole.out  # no kubelet runs its pods
    assert "in the management cluster" in whole.out
    assert "add --management-kubeconfig" not in whole.out
    other = ("--management-kubeconfig", str(three.worker.kubeconfig))
    refused = await three.home.run("doctor", *three.options[:2], *other)
    assert refused.code == 2
    assert "--management-kubeconfig: must point to the cluster" in refused.err


async def _check_metrics(three: Three, program: SyncerProcess) -> None:
    """Check that the management cluster authorizes readers of the metrics of programs there."""
    reader, binding = "prometheus", f"reads-{program.process.name}"
    subject = {"kind": "ServiceAccount", "name": reader, "namespace": SYSTEM}
    role = cluster_role_binding(
        binding, role="kubeocean-metrics-reader", subject=subject, labels={}
    )
    with suppress(AlreadyExists):
        account = {"metadata": {"name": reader}}
        await three.management_api.create(SERVICE_ACCOUNTS, account, namespace=SYSTEM)
    await three.management_api.create(resource_of(role), role)
    tokens = []
    for cluster, account in ((three.management, reader), (three.computing, DEFAULT.manager)):
        access = load_kubeconfig(await cluster.service_account(SYSTEM, account))
        assert access.token is not None
        tokens.append(access.token.reveal())

    async def served() -> bool:
        return await program.metrics_status(tokens[0]) == 200

    await until(served, within=30, waiting_for="metrics for the reader")
    assert await program.metrics_status(tokens[1]) == 401


async def _run_proxier_pod(three: Three) -> None:
    """Set the status of a pod of the proxiers' Deployment as a kubelet would."""
    labels = f"app.kubernetes.io/name={DEFAULT.proxier}"

    async def created() -> str:
        pods = (await three.management_api.list(PODS, SYSTEM, labels=labels)).items
        return pods[0].name if pods else ""

    name = await until(created, waiting_for="a pod of the proxiers")
    status = {
        "phase": "Running",
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    patch = MergePatch({"status": status})
    await three.management_api.patch(PODS, name, patch, SYSTEM, subresource="status")

"""Pages of a virtual node, compared with those of the worker's kubelet."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kubeocean.install.apply import FIELD_MANAGER, Applier
from kubeocean.install.values import WorkerValues
from kubeocean.install.worker_objects import worker_objects
from kubeocean.local.cluster import Cluster
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.local.ports import reserve
from kubeocean.runtime.client import connect
from kubeocean.runtime.kinds import PODS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Key
from support.proxier_env import DOMAIN, ProxierEnv
from support.syncer_process import SyncerProcess
from support.wait import until

Series: TypeAlias = frozenset[tuple[str, frozenset[tuple[str, str]]]]

LOOP = "while true; do sleep 0.5; done"


class Scene:
    """A proxier with its metrics port and the credential that `join` creates, a virtual pod, and a
    pod of the worker's owner on the same node."""

    def __init__(self, proxier_env: ProxierEnv, replica: SyncerProcess, directory: Path) -> None:
        self.proxier_env = proxier_env
        self.replica = replica
        self.metrics_port = 0
        self.physical = Key("", "")
        self.uid = ""
        self._computing_tls = context_of(proxier_env.computing, directory, "computing")
        self._worker_tls = context_of(proxier_env.worker, directory, "worker")

    async def ours(self, path: str, *, method: str = "GET", port: int = 0) -> tuple[int, str]:
        url = f"https://127.0.0.1:{port or self.proxier_env.port}{path}"
        return await _fetch(method, url, self._computing_tls)

    async def theirs(self, path: str, *, method: str = "GET") -> tuple[int, str]:
        """Return the same page of the worker's kubelet."""
        return await _fetch(method, f"{await self.kubelet()}{path}", self._worker_tls)

    async def kubelet(self) -> str:
        nodes = await self.proxier_env.worker_api.request_json("GET", "/api/v1/nodes")
        node = next(
            n for n in nodes["items"] if n["metadata"]["name"] == self.proxier_env.node.name
        )
        address = next(
            a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"
        )
        return f"https://{address}:10250"


def context_of(cluster: Cluster, directory: Path, name: str) -> ssl.SSLContext:
    """Return the TLS context of an administrator, which trusts the cluster's CA."""
    authority = LocalAuthority.load(cluster.root / "pki", "ca")
    authority.issue(Subject("admin", ("system:masters",), client=True)).save(directory, name)
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    return context


async def _fetch(
    method: str, url: str, context: ssl.SSLContext, token: str = ""
) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.request(method, url, headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def joined(proxier_env: ProxierEnv) -> Path:
    """Return the kubeconfig of the binding's account in a worker with all objects that `join`
    creates."""
    client = connect(proxier_env.worker.kubeconfig, field_manager=FIELD_MANAGER)
    try:
        await Applier(client, domain=DOMAIN).apply_all(worker_objects(WorkerValues()))
    finally:
        await client.close()
    return await proxier_env.worker.service_account(DOMAIN.worker_namespace, DOMAIN.syncer)


@pytest.fixture(scope="module")
async def scene(
    proxier_env: ProxierEnv, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    with reserve(("127.0.0.1", 0)) as held:
        port = held.ports[0]
    await proxier_env.hand_over(await joined(proxier_env))
    async with proxier_env.proxier(f"--prometheus-vnode-base-port={port}") as replica:
        made = Scene(proxier_env, replica, tmp_path_factory.mktemp("certificates"))
        made.metrics_port = port
        made.physical = await proxier_env.run("web", LOOP)
        made.uid = (await proxier_env.computing_api.get(PODS, "web", proxier_env.name)).uid
        body: Json = {
            "metadata": {"name": f"{proxier_env.name}-private"},
            "spec": {
                "nodeName": proxier_env.node.name,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "containers": [
                    {"name": "c", "image": "busybox", "command": ["sh", "-c", LOOP]}
                    | {"imagePullPolicy": "Never"}
                ],
            },
        }
        physical = await proxier_env.worker_api.get(
            PODS, made.physical.name, made.physical.namespace, keep_raw=True
        )
        image = physical.content()["spec"]["containers"][0]["image"]
        body["spec"]["containers"][0]["image"] = image
        await proxier_env.worker_api.create(PODS, body, namespace=DOMAIN.worker_namespace)

        async def counted() -> bool:
            text = (await made.theirs("/metrics/resource"))[1]
            return made.physical.name in text and f"{proxier_env.name}-private" in text

        await until(counted, within=60.0, waiting_for="the kubelet to count both pods")
        yield made
        await proxier_env.worker_api.delete(
            PODS, f"{proxier_env.name}-private", DOMAIN.worker_namespace, uid=None, grace_s=0
        )
    await proxier_env.hand_over(proxier_env.worker.kubeconfig)


def series(text: str, keep: Callable[[dict[str, str]], bool]) -> Series:
    """Return every series of a page, without its values, which change meanwhile."""
    return frozenset(
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if keep(sample.labels)
    )


@pytest.mark.parametrize("page", ["cadvisor", "resource", "probes"])
async def test_metrics_of_a_nodes_own_pods_differ_in_their_names_only(
    scene: Scene, page: str
) -> None:
    physical, virtual = scene.physical, Key(scene.proxier_env.name, "web")

    async def same() -> bool:
        status, ours = await scene.ours(f"/metrics/{page}")
        _, theirs = await scene.theirs(f"/metrics/{page}")
        assert status == 200, ours
        shown = series(ours, lambda labels: "pod" in labels)
        expected = frozenset(
            (
                name,
                frozenset(
                    (
                        key,
                        {
                            "pod": virtual.name,
                            "namespace": virtual.namespace,
                            "pod_uid": scene.uid,
                        }.get(key, value),
                    )
                    for key, value in labels
                ),
            )
            for name, labels in series(
                theirs,
                lambda labels: (labels.get("namespace"), labels.get("pod")) == tuple(physical),
            )
        )
        assert shown == expected
        for line in ours.splitlines():
            if line.startswith("# "):
                assert line in theirs or "node_" in line, line
        assert "private" not in ours
        return bool(shown) or page == "probes"

    await until(same, waiting_for=page)


async def test_the_summary_is_the_kubelets_under_virtual_names(scene: Scene) -> None:
    _, ours = await scene.ours("/stats/summary")
    _, theirs = await scene.theirs("/stats/summary")
    shown, real = json.loads(ours), json.loads(theirs)
    assert shown["node"]["nodeName"] == scene.proxier_env.vnode
    (pod,) = shown["pods"]
    names = {"name": "web", "namespace": scene.proxier_env.name, "uid": scene.uid}
    assert pod["podRef"] == names
    same = next(p for p in real["pods"] if p["podRef"]["name"] == scene.physical.name)
    assert pod.keys() == same.keys()
    assert [c["name"] for c in pod["containers"]] == [c["name"] for c in same["containers"]]
    assert set(pod["containers"][0]) == set(same["containers"][0])
    few = json.loads((await scene.ours("/stats/summary?only_cpu_and_memory=true"))[1])
    assert "volume" not in few["pods"][0]


async def test_the_list_of_pods_has_the_virtual_pods_of_the_node(scene: Scene) -> None:
    for page in ("/pods", "/runningpods", "/runningpods/"):
        status, text = await scene.ours(page)
        listing = json.loads(text)
        assert (status, listing["kind"]) == (200, "PodList"), page
        assert [pod["metadata"]["uid"] for pod in listing["items"]] == [scene.uid], page
    theirs = json.loads((await scene.theirs("/pods"))[1])
    assert (theirs["kind"], theirs["metadata"]) == (listing["kind"], listing["metadata"])


async def test_a_command_is_run_as_a_kubelet_runs_it(scene: Scene) -> None:
    physical, name = scene.physical, scene.proxier_env.name
    for words in ("echo%20hello", "sh%20-c%20exit", "cat%20/nothing"):
        ours = await scene.ours(f"/run/{name}/web/main?cmd={words}", method="POST")
        theirs = await scene.theirs(
            f"/run/{physical.namespace}/{physical.name}/main?cmd={words}", method="POST"
        )
        assert ours[0] == theirs[0], (words, ours, theirs)
        if ours[0] == 200:
            assert ours == theirs
        else:
            assert "nothing" in ours[1] and "nothing" in theirs[1]


async def test_a_node_serves_its_health_version_and_configuration(scene: Scene) -> None:
    assert await scene.ours("/healthz/ping") == (200, "ok")
    assert "kubeletVersion" in (await scene.ours("/version"))[1]
    assert list(json.loads((await scene.ours("/configz"))[1])) == ["kubeletconfig"]
    assert list(json.loads((await scene.theirs("/configz"))[1])) == ["kubeletconfig"]


async def test_the_metrics_port_serves_all_nodes_with_the_same_authentication(scene: Scene) -> None:
    port, vnode = scene.metrics_port, scene.proxier_env.vnode
    status, text = await scene.ours(f"/{vnode}/metrics", port=port)
    shown = series(text, lambda labels: True)
    assert status == 200
    assert {dict(labels)["node"] for _, labels in shown} == {vnode}
    assert {dict(labels)["pod"] for _, labels in shown} == {"web"}
    assert (await scene.ours(f"/{vnode}/metrics/resource", port=port))[0] == 200
    assert (await scene.ours(f"/{vnode}", port=port))[0] == 400
    assert (await scene.ours(f"/{vnode}/pods", port=port))[0] == 404
    assert (await scene.ours("/missing/metrics", port=port))[0] == 404
    target = f"/exec/{scene.proxier_env.name}/web/main?command=id&output=1"
    assert (await scene.ours(target, port=port))[0] == 404
    anonymous = ssl.create_default_context()
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{port}/{vnode}/metrics"
    assert (await _fetch("GET", url, anonymous))[0] == 401


async def test_the_metrics_that_metrics_server_needs_are_served(scene: Scene) -> None:
    """metrics-server selects these families by name and label, and computes rates over time."""
    text = (await scene.ours("/metrics/resource"))[1]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    needed = {
        "node_cpu_usage_seconds": set(),
        "node_memory_working_set_bytes": set(),
        "container_cpu_usage_seconds": {"container", "namespace", "pod"},
        "container_memory_working_set_bytes": {"container", "namespace", "pod"},
        "container_start_time_seconds": {"container", "namespace", "pod"},
    }
    for name, labels in needed.items():
        for sample in families[name].samples:
            assert labels <= set(sample.labels), name
            assert sample.value > 0, name
            assert sample.timestamp or "start_time" in name, name


async def test_the_proxier_serves_its_own_metrics(scene: Scene) -> None:
    _, text = await scene.replica.page("metrics", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    own = [name for name in families if name.startswith("kubeocean_proxier_")]
    assert len(own) == 7, own
    refusals = families["kubeocean_proxier_refusals"].samples
    assert {s.labels["reason"]: s.value for s in refusals}["unauthenticated"] >= 1
    (not_after,) = families["kubeocean_proxier_certificate_not_after_seconds"].samples
    assert not_after.value > 1.7e9


async def test_logs_and_commands_work_without_metrics(proxier_env: ProxierEnv) -> None:
    async with proxier_env.proxier(
        "--metrics-enabled=false", address="127.0.0.2", name="plain"
    ) as replica:
        context = context_of(proxier_env.computing, proxier_env.directory, "plain")
        context.check_hostname = False
        port = f"https://127.0.0.2:{proxier_env.port}"
        for page in ("/metrics", "/metrics/resource", "/stats/summary"):
            assert (await _fetch("GET", port + page, context))[0] == 404
        log = f"{port}/containerLogs/{proxier_env.name}/web/main"
        assert (await _fetch("GET", log, context))[0] == 200
        run = f"{port}/run/{proxier_env.name}/web/main?cmd=id"
        assert (await _fetch("POST", run, context))[0] == 200
        assert replica.process.running


# Credentials that kubelets receive

OWN_TOKEN = "Used the binding's own token for kubelet metrics"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
OLD_RULES: tuple[Json, ...] = (
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/metrics", "nodes/stats"], "verbs": ["get"]},
)


async def test_the_bindings_own_token_is_not_what_kubelets_are_shown(scene: Scene) -> None:
    """Kubelets refuse that token, and serve every page with the one that they are shown."""
    proxier_env = scene.proxier_env
    path = await proxier_env.worker.service_account(DOMAIN.worker_namespace, DOMAIN.syncer)
    own = load_kubeconfig(path).token
    authority = LocalAuthority.load(proxier_env.worker.root / "pki", "ca").certificate.decode()
    context = ssl.create_default_context(cadata=authority)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    assert own is not None
    for page in ("/metrics/resource", "/metrics/cadvisor", "/stats/summary"):
        url = f"{await scene.kubelet()}{page}"
        assert (await _fetch("GET", url, context, own.reveal()))[0] == 403
        assert (await scene.ours(page))[0] == 200
    assert scene.replica.lines(OWN_TOKEN) == []
    assert scene.replica.lines("Could not obtain token for reading kubelet metrics") == []


async def old_kubeconfig(proxier_env: ProxierEnv) -> Path:
    """Return the kubeconfig of a worker that was joined before there was an account for metrics."""
    namespace, name = DOMAIN.worker_namespace, f"{proxier_env.name}-old"
    kubeconfig = await proxier_env.worker.service_account(namespace, name)
    role: Json = {"metadata": {"name": name}, "rules": list(OLD_RULES)}
    await proxier_env.worker_api.request_json("POST", f"{RBAC}/clusterroles", body=role)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    binding: Json = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    await proxier_env.worker_api.request_json("POST", f"{RBAC}/clusterrolebindings", body=binding)
    return kubeconfig


async def test_a_worker_without_a_metrics_account_keeps_its_metrics_with_one_warning(
    scene: Scene,
) -> None:
    proxier_env, kubeconfig = scene.proxier_env, await old_kubeconfig(scene.proxier_env)
    await proxier_env.hand_over(kubeconfig)
    context = context_of(proxier_env.computing, proxier_env.directory, "old")
    context.check_hostname = False
    url = f"https://127.0.0.2:{proxier_env.port}/metrics/resource"

    async def served() -> bool:
        return (await _fetch("GET", url, context))[0] == 200

    try:
        async with proxier_env.proxier(address="127.0.0.2", name="old") as replica:
            await until(served)
            for _ in range(3):
                assert await served()
            (line,) = replica.lines(OWN_TOKEN)
            assert "kubeocean join" in line["remedy"]
            await proxier_env.hand_over(await joined(proxier_env))
            await until(lambda: _has_new_credentials(replica))
            await until(served)
            assert len(replica.lines(OWN_TOKEN)) == 1
            own = load_kubeconfig(kubeconfig).token
            assert own is not None
            assert own.reveal() not in replica.process.log.read_text()
    finally:
        await proxier_env.hand_over(await joined(proxier_env))


def _has_new_credentials(replica: SyncerProcess) -> bool:
    return len(replica.lines("Loaded new worker credentials")) == 1

"""A real control plane: its life, its failures, its users, its audit log."""

from __future__ import annotations

import asyncio
import socket
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from kubernetes import client as official
from kubernetes import config as official_config

from conftest import NewCluster
from kubeocean.errors import Forbidden, LocalError, NotFound
from kubeocean.local import ports
from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Resource, Untyped
from support.wait import until

_SIGNING_REQUESTS = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    Untyped,
)
_ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True, Untyped)
_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, Untyped
)


@asynccontextmanager
async def _opened(cluster: Cluster, kubeconfig: Path | None = None) -> AsyncIterator[Client]:
    client = cluster.client(kubeconfig=kubeconfig)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(scope="module")
async def sturdy(assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A cluster whose components are killed and paused, and which works again after each test."""
    root = cluster_roots / "sturdy"
    settings = {"components": ("etcd", "kube-apiserver"), "ephemeral": True}
    async with Cluster("sturdy", root, assets, **settings) as cluster:
        yield cluster


def _config_map(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


async def _let_read(client: Client, namespace: str, subject: dict[str, str]) -> None:
    """Give `subject` the right to read config maps in the namespace."""
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}
    await client.create(
        _ROLES, {"metadata": {"name": "reader"}, "rules": [rule]}, namespace=namespace
    )
    reference = {"apiGroup": _ROLES.group, "kind": "Role", "name": "reader"}
    binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]}
    await client.create(_BINDINGS, binding, namespace=namespace)


async def _can_list(client: Client, namespace: str) -> bool:
    try:
        await client.list(CONFIG_MAPS, namespace)
    except Forbidden:
        return False
    return True


# Life


async def test_pods_can_be_created_as_soon_as_a_cluster_has_started(
    client: Client, namespace: str
) -> None:
    names = {item.name for item in (await client.list(NAMESPACES)).items}
    assert {"default", "kube-system"} <= names
    container = {"name": "c", "image": "none"}
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
    created = await client.create(PODS, pod, namespace="default")
    assert created.spec.service_account_name == "default"
    await client.delete(PODS, "p", "default", uid=created.uid, grace_s=0)


async def test_a_stopped_cluster_starts_again_with_its_data_port_and_users(
    new_cluster: NewCluster,
) -> None:
    cluster = await new_cluster()
    server, user = cluster.server, cluster.user("ann", ["system:masters"])
    async with _opened(cluster) as client:
        created = await client.create(CONFIG_MAPS, _config_map("kept"), namespace="default")
    certificate = (cluster.root / "pki" / "apiserver.crt").read_bytes()
    pids = [cluster.process(name).pid for name in cluster.components]
    await cluster.stop()
    assert not [pid for pid in pids if pid is not None and psutil.pid_exists(pid)]

    again = await new_cluster(root=cluster.root, name=cluster.name)
    assert again.server == server
    assert (cluster.root / "pki" / "apiserver.crt").read_bytes() == certificate
    async with _opened(again, user) as client:
        assert (await client.get(CONFIG_MAPS, "kept", "default")).uid == created.uid


async def test_a_cluster_whose_ports_were_taken_meanwhile_moves_with_its_kubeconfigs(
    new_cluster: NewCluster,
) -> None:
    cluster = await new_cluster()
    old, user = cluster.server, cluster.user("ann", ["system:masters"])
    await cluster.stop()
    taken = msgspec.json.decode((cluster.root / "ports.json").read_bytes(), type=dict[str, int])
    with ExitStack() as stack:
        for port in taken.values():
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        await cluster.start()
        assert cluster.server != old
        async with _opened(cluster, user) as client:
            await client.get(NAMESPACES, "default")


async def test_a_port_lost_at_the_last_moment_is_replaced(
    new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as thief:
        lost = [thief.getsockname()[1]]

        def reserve(*wanted: tuple[str, int]) -> ports.Reserved:
            held = real(*wanted)
            if lost:
                held.ports = (held.ports[0], lost.pop(), *held.ports[2:])
            return held

        real = ports.reserve
        monkeypatch.setattr(ports, "reserve", reserve)
        cluster = await new_cluster()
    assert not lost
    assert "address already in use" in (cluster.root / "logs" / "etcd.log").read_text()


async def test_two_clusters_run_side_by_side(new_cluster: NewCluster) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(new_cluster(name=f"side{n}")) for n in range(2)]
    one, two = (task.result() for task in tasks)
    assert one.server != two.server
    async with _opened(one) as here, _opened(two) as existing:
        await here.create(CONFIG_MAPS, _config_map("mine"), namespace="default")
        with pytest.raises(NotFound):
            await existing.get(CONFIG_MAPS, "mine", "default")


async def test_files_of_a_cluster_are_private(cluster: Cluster) -> None:
    assert cluster.root.stat().st_mode & 0o777 == 0o700
    assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert cluster.audit_log.stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mode & 0o077 for path in (cluster.root / "pki").iterdir()} == {0}


async def test_a_cluster_listens_on_another_address(new_cluster: NewCluster) -> None:
    cluster = await new_cluster(listen="127.0.0.5", sans=["c.example"])
    assert cluster.server.startswith("https://127.0.0.5:")
    async with _opened(cluster) as client:
        await client.get(NAMESPACES, "default")


async def test_the_official_client_reads_our_kubeconfig(cluster: Cluster) -> None:
    def read() -> str:
        with official_config.new_client_from_config(str(cluster.kubeconfig)) as api:
            version = official.VersionApi(api).get_code()
            api.rest_client.pool_manager.clear()
            return str(version.git_version)

    assert (await asyncio.to_thread(read)).startswith("v1.")


# Failures


async def test_an_api_server_that_was_killed_restarts_on_its_data_and_port(
    sturdy: Cluster,
) -> None:
    server = sturdy.server
    async with _opened(sturdy) as client:
        await client.create(CONFIG_MAPS, _config_map("before-kill"), namespace="default")
        await sturdy.kill("kube-apiserver")
        assert not sturdy.process("kube-apiserver").running
        await sturdy.restart("kube-apiserver")
        assert sturdy.server == server
        await client.get(CONFIG_MAPS, "before-kill", "default")


async def test_etcd_that_was_killed_keeps_what_was_acknowledged(sturdy: Cluster) -> None:
    async with _opened(sturdy) as client:
        await client.create(CONFIG_MAPS, _config_map("acknowledged"), namespace="default")
        await sturdy.kill("etcd")
        await sturdy.restart("etcd")
        await client.get(CONFIG_MAPS, "acknowledged", "default")


async def test_a_paused_api_server_answers_after_it_goes_on(sturdy: Cluster) -> None:
    async with _opened(sturdy) as client, asyncio.TaskGroup() as group:
        sturdy.pause("kube-apiserver")
        server = psutil.Process(sturdy.process("kube-apiserver").pid)
        await until(lambda: server.status() == psutil.STATUS_STOPPED)
        requested = group.create_task(client.get(NAMESPACES, "default"))
        done, _ = await asyncio.wait([requested], timeout=0.5)
        assert not done
        sturdy.resume("kube-apiserver")
        assert (await requested).name == "default"


async def test_a_component_that_dies_is_reported_with_its_log(sturdy: Cluster) -> None:
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(_failure_of(sturdy))
        await sturdy.restart("kube-apiserver")  # a requested stop is not reported
        assert not watch.done()
        pid = sturdy.process("etcd").pid
        assert pid is not None
        psutil.Process(pid).kill()
    assert "etcd of cluster sturdy ended with exit code -9" in watch.result()
    await sturdy.restart("etcd")


async def test_a_root_is_used_by_one_cluster_at_a_time(sturdy: Cluster, assets: Assets) -> None:
    with pytest.raises(LocalError, match="is already running"):
        await Cluster("other", sturdy.root, assets).start()
    with pytest.raises(LocalError, match="is already running"):
        await sturdy.start()
    async with _opened(sturdy) as client:
        await client.get(NAMESPACES, "default")


async def _failure_of(cluster: Cluster) -> str:
    with pytest.raises(LocalError) as caught:
        await cluster.watch()
    return str(caught.value)


@pytest.mark.parametrize("component", ["etcd", "kube-apiserver", "kube-scheduler"])
async def test_a_broken_flag_is_shown_and_nothing_is_left(
    tmp_path: Path, assets: Assets, component: str
) -> None:
    names = ("etcd", "kube-apiserver", component)
    flags = {component: ["--no-such-flag"]}
    cluster = Cluster("bad", tmp_path, assets, components=sorted(set(names)), extra_args=flags)
    with pytest.raises(LocalError) as caught:
        await cluster.start()
    message = str(caught.value)
    assert f"{component} of cluster bad ended with exit code" in message
    assert "no-such-flag" in message
    assert f"{component}.log" in message
    assert len(message.splitlines()) <= 16
    assert not _processes_of(tmp_path)


def _processes_of(root: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(root) in str(p.info["cmdline"])]


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path, assets: Assets) -> None:
    cluster = Cluster("cancelled", tmp_path, assets)
    start = asyncio.create_task(cluster.start())
    await until(lambda: _processes_of(tmp_path), waiting_for="the first process")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not _processes_of(tmp_path)


async def test_a_chosen_port_that_is_in_use_is_named(tmp_path: Path, assets: Assets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster = Cluster("c", tmp_path, assets, port=port)
        with pytest.raises(LocalError, match=rf"port {port} of 127\.0\.0\.1 is in use"):
            await cluster.start()


async def test_a_root_that_cannot_be_made_is_named(tmp_path: Path, assets: Assets) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match=r"could not start cluster c: .*file"):
        await Cluster("c", tmp_path / "file" / "root", assets).start()


# Users


async def test_a_user_may_do_what_rbac_grants_and_no_more(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    async with _opened(cluster, cluster.user("ann", ["team-a"])) as ann:
        assert not await _can_list(ann, namespace)
        group = {"apiGroup": _ROLES.group, "kind": "Group", "name": "team-a"}
        await _let_read(client, namespace, group)
        await until(lambda: _can_list(ann, namespace))
        with pytest.raises(Forbidden):
            await ann.create(CONFIG_MAPS, _config_map("x"), namespace=namespace)
        with pytest.raises(Forbidden):
            await ann.list(CONFIG_MAPS, "default")


async def test_a_service_account_has_a_kubeconfig_with_a_token(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    kubeconfig = await cluster.service_account(namespace, "robot")
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    await client.get(SERVICE_ACCOUNTS, "robot", namespace)
    async with _opened(cluster, kubeconfig) as robot:
        assert not await _can_list(robot, namespace)
        account = {"kind": "ServiceAccount", "name": "robot", "namespace": namespace}
        await _let_read(client, namespace, account)
        await until(lambda: _can_list(robot, namespace))
    assert await cluster.service_account(namespace, "robot") == kubeconfig


async def test_signing_requests_become_certificates(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "asked")])
    wish = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, SHA256())
    spec = {
        "request": b64encode(wish.public_bytes(Encoding.PEM)).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
    }
    await client.create(_SIGNING_REQUESTS, {"metadata": {"name": namespace}, "spec": spec})
    approved = {"type": "Approved", "status": "True", "reason": "test"}
    change = MergePatch({"status": {"conditions": [approved]}})
    await client.patch(_SIGNING_REQUESTS, namespace, change, subresource="approval")

    async def certificate() -> str:
        got = await client.get(_SIGNING_REQUESTS, namespace, keep_raw=True)
        return str(got.content()["status"].get("certificate", ""))

    issued = x509.load_pem_x509_certificate(b64decode(await until(certificate)))
    issued.verify_directly_issued_by(x509.load_pem_x509_certificate(cluster.authority.certificate))


async def test_extension_api_servers_find_whom_to_trust(client: Client) -> None:
    published = await client.get(
        CONFIG_MAPS, "extension-apiserver-authentication", "kube-system", keep_raw=True
    )
    data = published.content()["data"]
    assert "BEGIN CERTIFICATE" in data["requestheader-client-ca-file"]
    assert "BEGIN CERTIFICATE" in data["client-ca-file"]
    assert data["requestheader-allowed-names"] == '["front-proxy-client"]'


# Audit


async def test_the_audit_log_counts_exactly_the_requests_made(
    cluster: Cluster, namespace: str
) -> None:
    user = f"counted-{namespace}"
    async with _opened(cluster, cluster.user(user, ["system:masters"])) as client:
        mark = cluster.audit.mark()
        for number in range(20):
            await client.create(CONFIG_MAPS, _config_map(f"c{number}"), namespace=namespace)
        for number in range(10):
            await client.get(CONFIG_MAPS, f"c{number}", namespace)
        await client.list(CONFIG_MAPS, namespace)
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, "none", namespace)
        seen = cluster.audit.requests(user=user, since=mark)
    assert [(request.verb, request.code) for request in seen] == [
        *[("create", 201)] * 20,
        *[("get", 200)] * 10,
        ("list", 200),
        ("get", 404),
    ]
    assert {request.resource for request in seen} == {"configmaps"}
    assert {request.namespace for request in seen} == {namespace}


# Speed


async def test_a_control_plane_starts_in_seconds(new_cluster: NewCluster) -> None:
    began = time.monotonic()
    cluster = await new_cluster(components=("etcd", "kube-apiserver", "kube-controller-manager"))
    took = time.monotonic() - began
    assert cluster.process("kube-controller-manager").running
    assert took < 30, f"{took:.1f} s"  # four on an idle machine; tests share theirs

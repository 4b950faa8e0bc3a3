"""Requests that the proxier refuses, their status, and their audit lines.

Callers connect to its port directly, with TLS of their own, as any pod of the cluster could.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from support.proxier_env import DOMAIN, ProxierEnv, node_port
from support.syncer_process import SyncerProcess
from support.wait import until

EXEC = "/exec/{ns}/web/main?command=id&output=1"
UPGRADE = ("Connection: Upgrade", "Upgrade: SPDY/3.1")
WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol: v4.channel.k8s.io",
)


@pytest.fixture(scope="module")
async def proxier(proxier_env: ProxierEnv) -> AsyncIterator[SyncerProcess]:
    async with proxier_env.proxier() as replica:
        await proxier_env.run("web", "while true; do sleep 1; done")
        yield replica


async def ask(
    proxier_env: ProxierEnv,
    method: str,
    target: str,
    *headers: str,
    tls: ssl.SSLContext | None = None,
    raw: bytes = b"",
    host: str = "127.0.0.1",
) -> int:
    """Return the status of the answer; 0 if TLS was refused."""
    context = tls or anonymous()
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: here", *headers, "", ""])
    try:
        reader, writer = await asyncio.open_connection(host, proxier_env.port, ssl=context)
        writer.write(raw or head.format(ns=proxier_env.name).encode())
        async with asyncio.timeout(15):
            line = await reader.readline()
    except (ssl.SSLError, ConnectionError):
        return 0
    writer.transport.abort()
    return int(line.split()[1]) if line else 0


def anonymous() -> ssl.SSLContext:
    """Return the TLS context of a client without a certificate, which does not verify the
    server."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certified(cluster: Cluster, directory: Path, name: str, *groups: str) -> ssl.SSLContext:
    """Return the TLS context of a client with a certificate of the computing cluster's CA."""
    authority = LocalAuthority.load(cluster.root / "pki", "ca")
    authority.issue(Subject(name, groups, client=True)).save(directory, "caller")
    context = anonymous()
    context.load_cert_chain(directory / "caller.crt", directory / "caller.key")
    return context


async def token(proxier_env: ProxierEnv, name: str, rule: Json) -> str:
    """Return the token of a ServiceAccount with this rule only."""
    client, namespace = proxier_env.computing_api, proxier_env.name
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace)
    rbac, unique = "/apis/rbac.authorization.k8s.io/v1", f"{namespace}-{name}"
    role: Json = {"metadata": {"name": unique}, "rules": [rule]}
    await client.request_json("POST", f"{rbac}/clusterroles", body=role)
    binding: Json = {
        "metadata": {"name": unique},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": unique,
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    await client.request_json("POST", f"{rbac}/clusterrolebindings", body=binding)
    made = await client.post(SERVICE_ACCOUNTS, name, "token", {"spec": {}}, namespace)
    return f"Authorization: Bearer {made['status']['token']}"


def refusals(proxier: SyncerProcess, status: int) -> int:
    lines = proxier.lines("Refused kubelet request")
    return sum(line["status"] == status for line in lines)


async def leaves_line(proxier: SyncerProcess, before: int, status: int, **fields: str) -> None:
    """Wait for one more refusal with this status, and check the fields of its line."""
    await until(lambda: refusals(proxier, status) == before + 1)
    lines = [x for x in proxier.lines("Refused kubelet request") if x["status"] == status]
    assert lines[-1].items() >= fields.items(), lines[-1]


def outcomes(proxier: SyncerProcess, what: str) -> str:
    """Return the outcomes of refused requests of this kind."""
    lines = proxier.lines("Refused kubelet request")
    return "; ".join(line["outcome"] for line in lines if line["what"] == what)


async def test_a_caller_without_certificate_or_token_is_refused_with_401(
    proxier_env: ProxierEnv, proxier: SyncerProcess
) -> None:
    before = refusals(proxier, 401)
    for target in (EXEC, "/pods", "/containerLogs/{ns}/web/main", "/metrics", "/nothing"):
        assert await ask(proxier_env, "GET", target) == 401
    assert await ask(proxier_env, "POST", EXEC, *UPGRADE) == 401
    assert await ask(proxier_env, "GET", "/pods", "Authorization: Basic YTpi") == 401
    assert await ask(proxier_env, "GET", "/pods", "Authorization: Bearer not.a.token") == 401
    await until(lambda: refusals(proxier, 401) - before == 8)


async def test_a_certificate_of_another_authority_ends_the_handshake(
    proxier_env: ProxierEnv, proxier: SyncerProcess, tmp_path: Path
) -> None:
    other = LocalAuthority.create("another")
    other.issue(Subject("kube-apiserver", ("system:masters",), client=True)).save(tmp_path, "c")
    context = anonymous()
    context.load_cert_chain(tmp_path / "c.crt", tmp_path / "c.key")
    assert await ask(proxier_env, "GET", "/pods", tls=context) == 0
    await until(lambda: "not trusted" in outcomes(proxier, "handshake"))


async def test_plain_http_is_refused(proxier_env: ProxierEnv, proxier: SyncerProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxier_env.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    assert b"200" not in await reader.read(200)
    writer.close()
    await until(lambda: "HTTP_REQUEST" in outcomes(proxier, "handshake"))


async def test_an_authenticated_caller_without_rights_is_refused_with_403(
    proxier_env: ProxierEnv, proxier: SyncerProcess, tmp_path: Path
) -> None:
    context = certified(proxier_env.computing, tmp_path, "caller", "callers")
    for target in (EXEC, "/pods", "/metrics/resource", "/stats/summary"):
        assert await ask(proxier_env, "GET", target, tls=context) == 403
    assert await ask(proxier_env, "POST", EXEC, *UPGRADE, tls=context) == 403


async def test_a_caller_that_may_only_read_cannot_exec_by_websocket(
    proxier_env: ProxierEnv, proxier: SyncerProcess
) -> None:
    reading: Json = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}
    header = await token(proxier_env, "reader", reading)
    assert await ask(proxier_env, "GET", "/containerLogs/{ns}/web/main", header) == 200
    before = refusals(proxier, 403)
    assert await ask(proxier_env, "GET", EXEC, header, *WEBSOCKET) == 403
    user = f"system:serviceaccount:{proxier_env.name}:reader"
    fields = {"user": user, "by": "token", "method": "GET", "what": "exec", "container": "main"}
    await leaves_line(
        proxier, before, 403, **fields, pod=f"{proxier_env.name}/web", node=proxier_env.vnode
    )
    entering = reading | {"verbs": ["get", "create"]}
    header = await token(proxier_env, "writer", entering)
    assert await ask(proxier_env, "GET", EXEC, header, *WEBSOCKET) == 101


async def test_the_right_to_metrics_allows_metrics_only(
    proxier_env: ProxierEnv, proxier: SyncerProcess
) -> None:
    rule: Json = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    header = await token(proxier_env, "scraper", rule)
    assert await ask(proxier_env, "GET", "/metrics/resource", header) == 200
    user = f"system:serviceaccount:{proxier_env.name}:scraper"
    for method, target, headers, what in (
        ("GET", "/stats/summary", (), "stats/summary"),
        ("GET", "/containerLogs/{ns}/web/main", (), "logs"),
        ("POST", EXEC, UPGRADE, "exec"),
        ("POST", "/attach/{ns}/web/main?output=1", UPGRADE, "attach"),
        ("POST", "/portForward/{ns}/web", UPGRADE, "portforward"),
        ("POST", "/run/{ns}/web/main?cmd=id", (), "run"),
    ):
        before = refusals(proxier, 403)
        assert await ask(proxier_env, method, target, header, *headers) == 403
        await leaves_line(proxier, before, 403, user=user, by="token", what=what)


@pytest.fixture
def admin(proxier_env: ProxierEnv, tmp_path: Path) -> ssl.SSLContext:
    return certified(proxier_env.computing, tmp_path, "admin", "system:masters")


@pytest.mark.usefixtures("proxier")
async def test_pods_that_are_not_on_the_node_are_not_found(
    proxier_env: ProxierEnv, admin: ssl.SSLContext
) -> None:
    for target in (
        "/containerLogs/{ns}/missing/main",
        "/containerLogs/kube-system/web/main",
        "/containerLogs/{ns}/web/other",
        "/exec/{ns}/web/11111111-2222/main?command=id&output=1",
    ):
        assert await ask(proxier_env, "GET", target, tls=admin) == 404, target


async def test_a_pod_of_another_node_is_not_found_on_the_port_of_this_node(
    proxier_env: ProxierEnv, proxier: SyncerProcess, admin: ssl.SSLContext
) -> None:
    """Though the pod is of the same binding, and is served on the port of its own node."""
    port = node_port()
    other = f"{proxier_env.vnode}-2"
    node = (await proxier_env.computing_api.get(NODES, proxier_env.vnode, keep_raw=True)).content()
    labels = node["metadata"]["labels"] | {DOMAIN.proxier_port: str(port)}
    body: Json = {"metadata": {"name": other, "labels": labels}, "status": node["status"]}
    made = await proxier_env.computing_api.create(NODES, body)
    try:
        await proxier_env.run("other", "while true; do sleep 1; done", vnode=other)
        target, before = "/containerLogs/{ns}/other/main", refusals(proxier, 404)
        assert await ask(proxier_env, "GET", target, tls=admin) == 404
        await until(lambda: refusals(proxier, 404) == before + 1)
        own = replace(proxier_env, port=port)
        await until(lambda: _is(own, target, admin, 200))
        assert await ask(own, "GET", "/containerLogs/{ns}/web/main", tls=admin) == 404
    finally:
        await proxier_env.computing_api.delete(NODES, other, uid=made.uid)


async def _is(proxier_env: ProxierEnv, target: str, tls: ssl.SSLContext, status: int) -> bool:
    try:
        return await ask(proxier_env, "GET", target, tls=tls) == status
    except OSError:
        return False


async def test_annotations_that_name_another_pod_are_ignored(
    proxier_env: ProxierEnv, proxier: SyncerProcess, admin: ssl.SSLContext
) -> None:
    victim = await proxier_env.run("victim", "echo secret; while true; do sleep 1; done")
    body = {
        "metadata": {
            "name": "thief",
            "annotations": {
                DOMAIN.physical_pod_namespace: victim.namespace,
                DOMAIN.physical_pod_name: victim.name,
            },
        },
        "spec": {"nodeName": proxier_env.vnode, "containers": [{"name": "main", "image": "x"}]},
    }
    await proxier_env.computing_api.create(PODS, body, namespace=proxier_env.name)
    target, before = "/containerLogs/{ns}/thief/main", refusals(proxier, 404)
    assert await ask(proxier_env, "GET", target, tls=admin) == 404
    await leaves_line(
        proxier, before, 404, user="admin", pod=f"{proxier_env.name}/thief", what="logs"
    )
    # Not even if the physical pod is annotated with the thief's name.
    claim = {DOMAIN.virtual_pod_name: "thief"}
    patch = MergePatch({"metadata": {"annotations": claim}})
    await proxier_env.worker_api.patch(PODS, victim.name, patch, victim.namespace)
    assert await ask(proxier_env, "GET", target, tls=admin) == 404


async def test_a_physical_pod_of_another_binding_that_took_the_name_is_not_found(
    proxier_env: ProxierEnv, proxier: SyncerProcess, admin: ssl.SSLContext
) -> None:
    physical = await proxier_env.run("gone", "while true; do sleep 1; done")
    target = "/containerLogs/{ns}/gone/main"
    assert await ask(proxier_env, "GET", target, tls=admin) == 200
    ours = await proxier_env.worker_api.get(PODS, physical.name, physical.namespace, keep_raw=True)
    await proxier_env.worker_api.delete(
        PODS, physical.name, physical.namespace, uid=ours.uid, grace_s=0
    )
    labels = ours.labels | {DOMAIN.cluster_binding: "another"}
    metadata = {"name": physical.name, "labels": labels, "annotations": dict(ours.annotations)}
    spec = ours.content()["spec"]
    other: Json = {"metadata": metadata, "spec": {"containers": spec["containers"]}}
    other["spec"] |= {"nodeName": proxier_env.node.name, "automountServiceAccountToken": False}
    made = await proxier_env.worker_api.create(PODS, other, namespace=physical.namespace)
    before = refusals(proxier, 404)
    assert await ask(proxier_env, "GET", target, tls=admin) == 404
    assert await ask(proxier_env, "POST", EXEC.replace("web", "gone"), *UPGRADE, tls=admin) == 404
    await until(lambda: refusals(proxier, 404) == before + 2)
    await proxier_env.worker_api.delete(PODS, made.name, made.namespace, uid=made.uid, grace_s=0)


async def test_secrets_and_commands_are_not_in_the_debug_log(
    proxier_env: ProxierEnv, admin: ssl.SSLContext
) -> None:
    rule: Json = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get", "create"]}
    header = await token(proxier_env, "talker", rule)
    key = (proxier_env.worker.root / "pki" / "ca.key").read_text().splitlines()[1]
    secrets = (header.partition("Bearer ")[2], "canary-bad", "canary-word", key)
    async with proxier_env.proxier(
        "--zap-log-level=debug", name="talkative", address="127.0.0.3"
    ) as replica:
        host = "127.0.0.3"
        for target, status in (
            ("/exec/{ns}/web/main?command=echo&command=canary-word&output=1", 101),
            ("/exec/{ns}/web/main?command=canary-word&output=2", 400),
            ("/exec/{ns}/missing/main?command=canary-word&output=1", 404),
        ):
            assert await ask(proxier_env, "GET", target, header, *WEBSOCKET, host=host) == status
        run = "/run/{ns}/web/main?cmd=sh+-c+canary-word"
        assert await ask(proxier_env, "POST", run, header, host=host) == 500
        assert (
            await ask(proxier_env, "GET", "/pods", "Authorization: Bearer canary-bad", host=host)
            == 401
        )
        await until(lambda: len(replica.lines("Refused kubelet request")) == 4)
        log = replica.process.log.read_text()
    for secret in secrets:
        assert secret not in log
    # Lines of requests have no field of the controller that opened the port.
    assert not any("reconcile" in line for line in replica.lines("Refused kubelet request"))


@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("GET", "/containerLogs/{ns}/../web/main", (), 404),
        ("GET", "/containerLogs/{ns}/%2e%2e/main", (), 400),
        ("GET", "/containerLogs/{ns}/web%2f..%2fx/main", (), 400),
        ("GET", "/containerLogs/{ns}/web/main?tailLines=-1", (), 400),
        ("GET", "/logs/", (), 404),
        ("GET", "/debug/pprof", (), 404),
        ("DELETE", "/pods", (), 405),
        ("POST", EXEC, ("Connection: Upgrade", "Upgrade: h2c"), 400),
        ("POST", EXEC, (), 400),
        ("GET", "/pods", ("X: " + "a" * 1_048_576,), 431),
        ("GET", "/pods", ("Content-Length: 1", "Content-Length: 2"), 400),
    ],
)
async def test_malformed_requests_are_refused_and_audited(
    proxier_env: ProxierEnv,
    proxier: SyncerProcess,
    admin: ssl.SSLContext,
    method: str,
    target: str,
    headers: tuple[str, ...],
    status: int,
) -> None:
    before = refusals(proxier, status)
    assert await ask(proxier_env, method, target, *headers, tls=admin) == status
    await until(lambda: refusals(proxier, status) == before + 1)


@pytest.mark.usefixtures("proxier")
async def test_bytes_that_are_no_request_are_refused(
    proxier_env: ProxierEnv, admin: ssl.SSLContext
) -> None:
    assert await ask(proxier_env, "", "", raw=b"\x00\x01\x02\r\n\r\n", tls=admin) == 400


@pytest.mark.usefixtures("proxier")
async def test_only_the_plain_health_check_needs_no_authentication(proxier_env: ProxierEnv) -> None:
    assert await ask(proxier_env, "GET", "/healthz") == 200
    assert await ask(proxier_env, "GET", "/healthz?verbose") == 401
    assert await ask(proxier_env, "POST", "/healthz") == 401


async def test_objects_of_a_worker_that_exceed_the_limit_of_a_proxier_are_not_kept(
    proxier_env: ProxierEnv, proxier: SyncerProcess
) -> None:
    flag = "--worker-cache-limit=64"
    async with proxier_env.proxier(flag, name="limited", ready=False) as limited:
        line = await limited.wait_for_output("Left objects out of full cache")
        assert (line["cluster"], line["resource"]) == ("worker", "pods")
        status, page = await limited.page("health", "/readyz")
        assert (status, "caches" in page) == (500, True), page

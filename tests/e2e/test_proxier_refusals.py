"""Who and what the proxier refuses, with which status, and that it leaves a line.

Strangers speak to its port directly, with TLS of their own, as whoever can reach a pod's address.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from harbours import DOMAIN, Harbour, node_port
from kubeocean.local.cluster import Cluster
from kubeocean.local.pki import Authority, Subject
from kubeocean.runtime.kinds import NODES, PODS, SERVICE_ACCOUNTS
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from syncers import SyncerProcess
from waiting import until

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
async def proxier(harbour: Harbour) -> AsyncIterator[SyncerProcess]:
    async with harbour.proxier() as replica:
        await harbour.run("web", "while true; do sleep 1; done")
        yield replica


async def ask(
    harbour: Harbour,
    method: str,
    target: str,
    *headers: str,
    tls: ssl.SSLContext | None = None,
    raw: bytes = b"",
    host: str = "127.0.0.1",
) -> int:
    """The status of the answer; 0 if TLS was refused."""
    context = tls or strangers()
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: here", *headers, "", ""])
    try:
        reader, writer = await asyncio.open_connection(host, harbour.port, ssl=context)
        writer.write(raw or head.format(ns=harbour.name).encode())
        async with asyncio.timeout(15):
            line = await reader.readline()
    except (ssl.SSLError, ConnectionError):
        return 0
    writer.transport.abort()
    return int(line.split()[1]) if line else 0


def strangers() -> ssl.SSLContext:
    """TLS as somebody speaks it who has no certificate, and trusts everybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certified(cluster: Cluster, directory: Path, name: str, *groups: str) -> ssl.SSLContext:
    """With a certificate of the computing cluster's authority."""
    authority = Authority.load(cluster.root / "pki", "ca")
    authority.issue(Subject(name, groups, client=True)).save(directory, "caller")
    context = strangers()
    context.load_cert_chain(directory / "caller.crt", directory / "caller.key")
    return context


async def token(harbour: Harbour, name: str, rule: Json) -> str:
    """The token of a service account that may do this and nothing more."""
    above, namespace = harbour.above, harbour.name
    await above.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace=namespace)
    rbac, unique = "/apis/rbac.authorization.k8s.io/v1", f"{namespace}-{name}"
    role: Json = {"metadata": {"name": unique}, "rules": [rule]}
    await above.request_json("POST", f"{rbac}/clusterroles", body=role)
    binding: Json = {
        "metadata": {"name": unique},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": unique,
        },
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }
    await above.request_json("POST", f"{rbac}/clusterrolebindings", body=binding)
    made = await above.post(SERVICE_ACCOUNTS, name, "token", {"spec": {}}, namespace)
    return f"Authorization: Bearer {made['status']['token']}"


def refusals(proxier: SyncerProcess, status: int) -> int:
    lines = proxier.lines("Refused kubelet request")
    return sum(line["status"] == status for line in lines)


async def leaves_line(proxier: SyncerProcess, before: int, status: int, **said: str) -> None:
    """That the last of the refusals with a status, one more than before, tells all of this."""
    await until(lambda: refusals(proxier, status) == before + 1)
    lines = [x for x in proxier.lines("Refused kubelet request") if x["status"] == status]
    assert lines[-1].items() >= said.items(), lines[-1]


def told(proxier: SyncerProcess, what: str) -> str:
    """Why all those were refused who did not get as far as a route."""
    lines = proxier.lines("Refused kubelet request")
    return "; ".join(line["outcome"] for line in lines if line["what"] == what)


async def test_nobody_is_let_in_without_a_name(harbour: Harbour, proxier: SyncerProcess) -> None:
    before = refusals(proxier, 401)
    for target in (EXEC, "/pods", "/containerLogs/{ns}/web/main", "/metrics", "/nothing"):
        assert await ask(harbour, "GET", target) == 401
    assert await ask(harbour, "POST", EXEC, *UPGRADE) == 401
    assert await ask(harbour, "GET", "/pods", "Authorization: Basic YTpi") == 401
    assert await ask(harbour, "GET", "/pods", "Authorization: Bearer not.a.token") == 401
    await until(lambda: refusals(proxier, 401) - before == 8)


async def test_a_certificate_of_another_authority_ends_the_handshake(
    harbour: Harbour, proxier: SyncerProcess, tmp_path: Path
) -> None:
    other = Authority.create("somebody")
    other.issue(Subject("kube-apiserver", ("system:masters",), client=True)).save(tmp_path, "c")
    context = strangers()
    context.load_cert_chain(tmp_path / "c.crt", tmp_path / "c.key")
    assert await ask(harbour, "GET", "/pods", tls=context) == 0
    await until(lambda: "not trusted" in told(proxier, "handshake"))


async def test_plain_http_is_not_spoken(harbour: Harbour, proxier: SyncerProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", harbour.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
    assert b"200" not in await reader.read(200)
    writer.close()
    await until(lambda: "HTTP_REQUEST" in told(proxier, "handshake"))


async def test_a_known_caller_needs_the_right(
    harbour: Harbour, proxier: SyncerProcess, tmp_path: Path
) -> None:
    context = certified(harbour.computing, tmp_path, "somebody", "visitors")
    for target in (EXEC, "/pods", "/metrics/resource", "/stats/summary"):
        assert await ask(harbour, "GET", target, tls=context) == 403
    assert await ask(harbour, "POST", EXEC, *UPGRADE, tls=context) == 403


async def test_who_may_only_read_gets_no_shell_by_websocket(
    harbour: Harbour, proxier: SyncerProcess
) -> None:
    reading: Json = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]}
    header = await token(harbour, "reader", reading)
    assert await ask(harbour, "GET", "/containerLogs/{ns}/web/main", header) == 200
    before = refusals(proxier, 403)
    assert await ask(harbour, "GET", EXEC, header, *WEBSOCKET) == 403
    user = f"system:serviceaccount:{harbour.name}:reader"
    said = {"user": user, "by": "token", "method": "GET", "what": "exec", "container": "main"}
    await leaves_line(proxier, before, 403, **said, pod=f"{harbour.name}/web", node=harbour.vnode)
    entering = reading | {"verbs": ["get", "create"]}
    header = await token(harbour, "writer", entering)
    assert await ask(harbour, "GET", EXEC, header, *WEBSOCKET) == 101


async def test_metrics_do_not_take_more_than_their_own_right(
    harbour: Harbour, proxier: SyncerProcess
) -> None:
    rule: Json = {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}
    header = await token(harbour, "scraper", rule)
    assert await ask(harbour, "GET", "/metrics/resource", header) == 200
    user = f"system:serviceaccount:{harbour.name}:scraper"
    for method, target, headers, what in (
        ("GET", "/stats/summary", (), "stats/summary"),
        ("GET", "/containerLogs/{ns}/web/main", (), "logs"),
        ("POST", EXEC, UPGRADE, "exec"),
        ("POST", "/attach/{ns}/web/main?output=1", UPGRADE, "attach"),
        ("POST", "/portForward/{ns}/web", UPGRADE, "portforward"),
        ("POST", "/run/{ns}/web/main?cmd=id", (), "run"),
    ):
        before = refusals(proxier, 403)
        assert await ask(harbour, method, target, header, *headers) == 403
        await leaves_line(proxier, before, 403, user=user, by="token", what=what)


@pytest.fixture
def admin(harbour: Harbour, tmp_path: Path) -> ssl.SSLContext:
    return certified(harbour.computing, tmp_path, "admin", "system:masters")


@pytest.mark.usefixtures("proxier")
async def test_pods_that_are_not_on_the_node_are_not_found(
    harbour: Harbour, admin: ssl.SSLContext
) -> None:
    for target in (
        "/containerLogs/{ns}/nobody/main",
        "/containerLogs/kube-system/web/main",
        "/containerLogs/{ns}/web/other",
        "/exec/{ns}/web/11111111-2222/main?command=id&output=1",
    ):
        assert await ask(harbour, "GET", target, tls=admin) == 404, target


async def test_a_pod_of_another_node_is_not_found_through_this_ones_door(
    harbour: Harbour, proxier: SyncerProcess, admin: ssl.SSLContext
) -> None:
    """Though it is of the same binding, runs, and is served through its own node's door."""
    port = node_port()
    other = f"{harbour.vnode}-2"
    node = (await harbour.above.get(NODES, harbour.vnode, keep_raw=True)).content()
    labels = node["metadata"]["labels"] | {DOMAIN.proxier_port: str(port)}
    body: Json = {"metadata": {"name": other, "labels": labels}, "status": node["status"]}
    made = await harbour.above.create(NODES, body)
    try:
        await harbour.run("elsewhere", "while true; do sleep 1; done", vnode=other)
        target, before = "/containerLogs/{ns}/elsewhere/main", refusals(proxier, 404)
        assert await ask(harbour, "GET", target, tls=admin) == 404
        await until(lambda: refusals(proxier, 404) == before + 1)
        own = replace(harbour, port=port)
        await until(lambda: _is(own, target, admin, 200))
        assert await ask(own, "GET", "/containerLogs/{ns}/web/main", tls=admin) == 404
    finally:
        await harbour.above.delete(NODES, other, uid=made.uid)


async def _is(harbour: Harbour, target: str, tls: ssl.SSLContext, status: int) -> bool:
    try:
        return await ask(harbour, "GET", target, tls=tls) == status
    except OSError:
        return False


async def test_annotations_that_point_at_another_pod_lead_nowhere(
    harbour: Harbour, proxier: SyncerProcess, admin: ssl.SSLContext
) -> None:
    victim = await harbour.run("victim", "echo secret; while true; do sleep 1; done")
    body = {
        "metadata": {
            "name": "thief",
            "annotations": {
                DOMAIN.physical_pod_namespace: victim.namespace,
                DOMAIN.physical_pod_name: victim.name,
            },
        },
        "spec": {"nodeName": harbour.vnode, "containers": [{"name": "main", "image": "x"}]},
    }
    await harbour.above.create(PODS, body, namespace=harbour.name)
    target, before = "/containerLogs/{ns}/thief/main", refusals(proxier, 404)
    assert await ask(harbour, "GET", target, tls=admin) == 404
    await leaves_line(proxier, before, 404, user="admin", pod=f"{harbour.name}/thief", what="logs")
    # Not even if the pod below says that it runs for the thief, under its own name.
    claim = {DOMAIN.virtual_pod_name: "thief"}
    patch = MergePatch({"metadata": {"annotations": claim}})
    await harbour.below.patch(PODS, victim.name, patch, victim.namespace)
    assert await ask(harbour, "GET", target, tls=admin) == 404


async def test_a_pod_that_has_taken_the_name_below_is_not_entered(
    harbour: Harbour, proxier: SyncerProcess, admin: ssl.SSLContext
) -> None:
    """It is another binding's, or nobody's: what it runs for is not the pod above."""
    physical = await harbour.run("gone", "while true; do sleep 1; done")
    target = "/containerLogs/{ns}/gone/main"
    assert await ask(harbour, "GET", target, tls=admin) == 200
    ours = await harbour.below.get(PODS, physical.name, physical.namespace, keep_raw=True)
    await harbour.below.delete(PODS, physical.name, physical.namespace, uid=ours.uid, grace_s=0)
    labels = ours.labels | {DOMAIN.cluster_binding: "another"}
    metadata = {"name": physical.name, "labels": labels, "annotations": dict(ours.annotations)}
    spec = ours.content()["spec"]
    other: Json = {"metadata": metadata, "spec": {"containers": spec["containers"]}}
    other["spec"] |= {"nodeName": harbour.node.name, "automountServiceAccountToken": False}
    made = await harbour.below.create(PODS, other, namespace=physical.namespace)
    before = refusals(proxier, 404)
    assert await ask(harbour, "GET", target, tls=admin) == 404
    assert await ask(harbour, "POST", EXEC.replace("web", "gone"), *UPGRADE, tls=admin) == 404
    await until(lambda: refusals(proxier, 404) == before + 2)
    await harbour.below.delete(PODS, made.name, made.namespace, uid=made.uid, grace_s=0)


async def test_no_secret_and_no_command_is_in_the_log_of_a_talkative_replica(
    harbour: Harbour, admin: ssl.SSLContext
) -> None:
    rule: Json = {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get", "create"]}
    header = await token(harbour, "talker", rule)
    key = (harbour.worker.root / "pki" / "ca.key").read_text().splitlines()[1]
    secrets = (header.partition("Bearer ")[2], "canary-bad", "canary-word", key)
    async with harbour.proxier(
        "--zap-log-level=debug", name="talkative", address="127.0.0.3"
    ) as it:
        here = "127.0.0.3"
        for target, status in (
            ("/exec/{ns}/web/main?command=echo&command=canary-word&output=1", 101),
            ("/exec/{ns}/web/main?command=canary-word&output=2", 400),
            ("/exec/{ns}/nobody/main?command=canary-word&output=1", 404),
        ):
            assert await ask(harbour, "GET", target, header, *WEBSOCKET, host=here) == status
        run = "/run/{ns}/web/main?cmd=sh+-c+canary-word"
        assert await ask(harbour, "POST", run, header, host=here) == 500
        assert (
            await ask(harbour, "GET", "/pods", "Authorization: Bearer canary-bad", host=here) == 401
        )
        await until(lambda: len(it.lines("Refused kubelet request")) == 4)
        log = it.process.log.read_text()
    for secret in secrets:
        assert secret not in log
    # What a door was opened for is not what is asked through it.
    assert not any("reconcile" in line for line in it.lines("Refused kubelet request"))


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
        ("GET", "/pods", ("X: " + "a" * 20_000,), 431),
        ("GET", "/pods", ("Content-Length: 1", "Content-Length: 2"), 400),
    ],
)
async def test_tricks_are_refused(
    harbour: Harbour,
    proxier: SyncerProcess,
    admin: ssl.SSLContext,
    method: str,
    target: str,
    headers: tuple[str, ...],
    status: int,
) -> None:
    before = refusals(proxier, status)
    assert await ask(harbour, method, target, *headers, tls=admin) == status
    await until(lambda: refusals(proxier, status) == before + 1)


@pytest.mark.usefixtures("proxier")
async def test_garbage_is_refused(harbour: Harbour, admin: ssl.SSLContext) -> None:
    assert await ask(harbour, "", "", raw=b"\x00\x01\x02\r\n\r\n", tls=admin) == 400


@pytest.mark.usefixtures("proxier")
async def test_a_probe_learns_that_we_listen_and_nothing_more(harbour: Harbour) -> None:
    assert await ask(harbour, "GET", "/healthz") == 200
    assert await ask(harbour, "GET", "/healthz?verbose") == 401
    assert await ask(harbour, "POST", "/healthz") == 401

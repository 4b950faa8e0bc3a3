"""Changes of credentials, servers and proxies, on real kube-apiservers.

The clock of the clients under test stands still unless a test advances it, so that no file is read
again by chance: a request uses the old credentials until the test has let time pass.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import NewCluster
from kubeocean.errors import (
    ApiError,
    BadRequest,
    Forbidden,
    InternalError,
    NotFound,
    Unauthorized,
    Unreachable,
)
from kubeocean.local.cluster import Cluster
from kubeocean.local.pki import LocalAuthority, Subject
from kubeocean.runtime.access import Access
from kubeocean.runtime.client import Client, MergePatch, connect
from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.credentials import StaticAccess
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import HttpTransport, Request
from support.background import running
from support.certificates import encoded, kubeconfig, write
from support.faults import Faults, watches
from support.servers import Server, connections_to, echo, head_of, proxying, serving
from support.wait import until

LOOK_S = 11.0  # a little more than the time between two reads of files
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def who_am_i(client: Client) -> dict[str, Any]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request_json("POST", REVIEWS, body=body)
    info: dict[str, Any] = answer["status"]["userInfo"]
    return info


async def name_of(client: Client) -> str:
    return str((await who_am_i(client))["username"])


def reach(cluster: Cluster, **more: object) -> dict[str, object]:
    """Return the part of a kubeconfig that says where the cluster is."""
    authority = encoded(cluster.authority.certificate)
    return {"server": cluster.server, "certificate-authority-data": authority} | more


def certified(cluster: Cluster, user: str, *groups: str, **more: object) -> dict[str, object]:
    identity = cluster.authority.issue(Subject(user, groups, client=True))
    return {
        "client-certificate-data": encoded(identity.certificate),
        "client-key-data": encoded(identity.private_key),
    } | more


def administrator(cluster: Cluster, **more: object) -> dict[str, object]:
    return certified(cluster, "someone", "system:masters", **more)


async def let_in(client: Client, namespace: str, *users: str) -> None:
    """Let these users do everything in the namespace."""
    subjects = [
        {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"} for user in users
    ]
    role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": "rbac.authorization.k8s.io"}
    await client.request(
        "POST",
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        body={"metadata": {"generateName": "all-"}, "roleRef": role, "subjects": subjects},
    )


def watched(faults: Faults) -> list[Request]:
    return [request for request in faults.requests if request.watches]


async def make(client: Client, name: str, namespace: str = "default") -> None:
    body = {"metadata": {"name": name, "labels": {"app": "seen"}}}
    await client.create(CONFIG_MAPS, body, namespace=namespace)


def port_of(cluster: Cluster) -> int:
    return int(cluster.server.rpartition(":")[2])


def shown(informer: Informer[Any]) -> set[str]:
    return {item.name for item in informer.items()}


def restarts(metrics: Metrics, cluster: str = "") -> float:
    """Return how often the watch was restarted, for any reason."""
    labels = {"cluster": cluster, "resource": "configmaps"}
    reasons = ("ended", "gone", "silent", "failed")
    actual = [
        metrics.value("kubeocean_watch_restarts_total", labels | {"why": why}) for why in reasons
    ]
    return sum(value or 0.0 for value in actual)


Connecting = Callable[..., Client]


@pytest.fixture
async def connecting() -> AsyncIterator[Connecting]:
    """`connect`, but the clients are closed with the test."""
    clients: list[Client] = []

    def start(*where: Any, **how: Any) -> Client:
        clients.append(connect(*where, **how))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()


# --- tokens


class Robot:
    """A service account whose tokens are in a file; each is valid as long as its Secret exists."""

    def __init__(self, cluster: Cluster, admin: Client, namespace: str, where: Path) -> None:
        self.cluster, self.admin, self.namespace = cluster, admin, namespace
        self.token_file = where / "token"
        self.kubeconfig = where / "config"
        self.user = f"system:serviceaccount:{namespace}:robot"
        self._bound: dict[str, str] = {}

    async def create(self) -> None:
        body = {"metadata": {"name": "robot"}}
        await self.admin.create(SERVICE_ACCOUNTS, body, namespace=self.namespace)
        await let_in(self.admin, self.namespace, self.user)
        self.token_file.write_text(await self.new_token("first"))
        document = kubeconfig({"tokenFile": "token"}, reach(self.cluster))
        write(self.kubeconfig, document)

    async def new_token(self, secret: str) -> str:
        made = await self.admin.create(
            SECRETS, {"metadata": {"name": secret}}, namespace=self.namespace
        )
        bound = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made.uid}
        body = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        answer = await self.admin.post(SERVICE_ACCOUNTS, "robot", "token", body, self.namespace)
        token = str(answer["status"]["token"])
        self._bound[token] = secret
        return token

    async def revoke(self, token: str) -> None:
        """Return when the server refuses the token, which it caches for some seconds."""
        await self.admin.delete(SECRETS, self._bound[token], self.namespace, uid=None)
        access = Access(
            self.cluster.server, ca=self.cluster.authority.certificate, token=Secret(token)
        )
        client = Client(HttpTransport(StaticAccess(access)))

        async def rejected() -> bool:
            try:
                await name_of(client)
            except Unauthorized:
                return True
            return False

        await until(rejected, within=30)
        await client.close()


@pytest.fixture
async def robot(cluster: Cluster, client: Client, namespace: str, tmp_path: Path) -> Robot:
    robot = Robot(cluster, client, namespace, tmp_path)
    await robot.create()
    return robot


async def rejections(admin: Client) -> int:
    """Return the number of requests that the server has answered with 401."""
    page = (await admin.request("GET", "/metrics", accept="text/plain")).decode()
    counts = re.findall(r'^authentication_attempts\{result="(?:error|failure)"\} (\d+)', page, re.M)
    return sum(map(int, counts))


async def test_a_request_with_a_revoked_token_is_repeated_with_the_token_in_the_file(
    client: Client, namespace: str, robot: Robot, connecting: Connecting
) -> None:
    faults, metrics = Faults(), Metrics()
    rotating, fifty, watching, upgrading = (
        connecting(robot.kubeconfig, wrap=faults.wrap, clock=VirtualClock()) for _ in range(4)
    )
    informer = Informer(rotating, CONFIG_MAPS, namespace=namespace, labels="app", metrics=metrics)
    late = Informer(watching, CONFIG_MAPS, namespace=namespace, labels="app")
    async with running(informer):
        await informer.synced()
        for each in (rotating, fifty, watching, upgrading):
            assert await name_of(each) == robot.user
        await robot.revoke(robot.token_file.read_text())
        before = await rejections(client)
        with pytest.raises(Unauthorized):
            await name_of(rotating)
        assert await rejections(client) - before == 1
        robot.token_file.write_text(await robot.new_token("second"))

        # One request, one 401.
        assert await name_of(rotating) == robot.user
        assert await name_of(rotating) == robot.user
        assert await rejections(client) - before == 2

        # Many requests at a time, each of which got the answer 401.
        before = await rejections(client)
        names = await asyncio.gather(*(name_of(fifty) for _ in range(50)))
        assert set(names) == {robot.user}
        assert await rejections(client) - before == 50

        # A running watch is not interrupted, and a new watch is not refused.
        await make(client, "later", namespace)
        await until(lambda: shown(informer) == {"later"})
        assert restarts(metrics) == 0
        requested = len(watched(faults))
        async with running(late):
            await late.synced()
        assert len(watched(faults)) == requested + 1

        # An upgrade was refused for the pod, not for the token.
        with pytest.raises(NotFound):
            await upgrade(upgrading, namespace)


async def test_a_new_token_is_used_before_the_old_one_is_rejected(
    cluster: Cluster, namespace: str, robot: Robot, connecting: Connecting
) -> None:
    clock = VirtualClock()
    rotating = connecting(robot.kubeconfig, clock=clock)
    assert await name_of(rotating) == robot.user
    other = await cluster.service_account(namespace, "other")
    robot.token_file.write_text(yaml.safe_load(other.read_text())["users"][0]["user"]["token"])
    assert await name_of(rotating) == robot.user
    await clock.advance(LOOK_S)
    assert await name_of(rotating) == f"system:serviceaccount:{namespace}:other"


# --- certificates


async def test_a_new_certificate_makes_another_user_and_half_of_one_makes_none(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path, connecting: Connecting
) -> None:
    await let_in(client, namespace, "alice", "bob")
    alice, bob = (cluster.authority.issue(Subject(who, client=True)) for who in ("alice", "bob"))
    (tmp_path / "crt").write_bytes(alice.certificate)
    (tmp_path / "key").write_bytes(alice.private_key)
    user = {"client-certificate": "crt", "client-key": "key"}
    path = write(tmp_path / "config", kubeconfig(user, reach(cluster)))
    faults, metrics, clock = Faults(), Metrics(), VirtualClock()
    reloading = connecting(path, wrap=faults.wrap, clock=clock)
    informer = Informer(reloading, CONFIG_MAPS, namespace=namespace, labels="app", metrics=metrics)
    async with running(informer):
        await informer.synced()
        assert await name_of(reloading) == "alice"

        (tmp_path / "crt").write_bytes(bob.certificate)
        await clock.advance(LOOK_S)
        assert await name_of(reloading) == "alice"

        (tmp_path / "key").write_bytes(bob.private_key)
        await clock.advance(LOOK_S)
        assert await name_of(reloading) == "bob"

        # The watch continues as alice, who still has the right to it.
        await make(client, "during", namespace)
        await until(lambda: shown(informer) == {"during"})
        assert restarts(metrics) == 0

        # After a restart the watch is bob's, and the last connection of alice is closed.
        mark = cluster.audit.mark()
        faults.cut()
        await make(client, "after", namespace)
        await clock.advance(1)
        await until(lambda: shown(informer) == {"during", "after"})
        assert restarts(metrics) == 1
        await name_of(reloading)
        requested = cluster.audit.requests(since=mark)
        assert {r.user for r in requested if r.uri == REVIEWS} == {"bob"}
    await until(lambda: "watch" in {r.verb for r in cluster.audit.requests(user="bob")})


async def test_idle_connections_of_an_old_certificate_are_closed(
    new_cluster: NewCluster, tmp_path: Path, connecting: Connecting
) -> None:
    cluster = await new_cluster()
    users = [cluster.user(name) for name in ("alice", "bob", "carol")]
    path, clock = tmp_path / "config", VirtualClock()
    path.write_bytes(users[0].read_bytes())
    client = connecting(path, clock=clock)
    for user in users:
        path.write_bytes(user.read_bytes())
        await clock.advance(LOOK_S)
        assert await name_of(client) == user.stem
        await until(lambda: connections_to(port_of(cluster)) == 1)
    await client.close()
    await until(lambda: connections_to(port_of(cluster)) == 0)


# --- another server


async def test_another_server_is_listed_anew_whatever_its_versions_are(
    new_cluster: NewCluster, tmp_path: Path, connecting: Connecting
) -> None:
    first, second = await new_cluster(name="first"), await new_cluster(name="second")
    admins = {c.name: connecting(c.kubeconfig) for c in (first, second)}
    for n in range(200):  # so that the second one's versions are larger by far
        patch = MergePatch({"metadata": {"annotations": {"n": str(n)}}})
        await admins["second"].patch(NAMESPACES, "default", patch)
    await make(admins["first"], "of-first")
    await make(admins["second"], "of-second")
    path = tmp_path / "config"
    path.write_bytes(first.kubeconfig.read_bytes())
    faults, metrics, clock = Faults(), Metrics(), VirtualClock()
    busy, lonely = (connecting(path, wrap=faults.wrap, clock=clock) for _ in range(2))
    cut = Informer(busy, CONFIG_MAPS, labels="app", metrics=metrics)
    # No other client uses this connection: the other server is noticed when the watch starts again.
    left_alone = Informer(lonely, CONFIG_MAPS, labels="app")
    async with running(cut, left_alone):
        await cut.synced()
        await left_alone.synced()
        assert shown(cut) == shown(left_alone) == {"of-first"}
        for here, existing in ((first, second), (second, first)):
            path.write_bytes(existing.kubeconfig.read_bytes())
            await clock.advance(LOOK_S)
            before = restarts(metrics)
            assert (await busy.get(NAMESPACES, "default")).uid
            await until(lambda name=existing.name: shown(cut) == {f"of-{name}"})
            # for the cut, and for a version of the other server
            assert restarts(metrics) - before <= 2

            faults.cut()
            await until(lambda name=existing.name: shown(left_alone) == {f"of-{name}"})
            await admins[here.name].close()
            await until(lambda here=here: connections_to(port_of(here)) == 0)
            admins[here.name] = connecting(here.kubeconfig)

            await make(admins[existing.name], "new")
            await until(lambda: "new" in shown(cut) & shown(left_alone))
            await admins[existing.name].delete(CONFIG_MAPS, "new", "default", uid=None)


# --- TLS


@asynccontextmanager
async def connected(where: Path, user: object, cluster: object) -> AsyncIterator[Client]:
    path = write(where / "config", kubeconfig(user, cluster))
    client = connect(path)
    try:
        yield client
    finally:
        await client.close()


async def upgrade(client: Client, namespace: str = "default", pod: str = "none") -> None:
    path = PODS.path(namespace, pod, "exec")
    async with client.upgrade("POST", path, protocol="SPDY/3.1", query=[("command", "ls")]):
        raise AssertionError("there is no such pod")


async def test_the_server_must_prove_the_name_that_it_is_said_to_have(
    cluster: Cluster, tmp_path: Path
) -> None:
    user = administrator(cluster)
    right = reach(cluster, **{"tls-server-name": "kubernetes.default.svc"})
    async with connected(tmp_path, user, right) as client:
        assert await name_of(client) == "someone"
        with pytest.raises(NotFound):
            await upgrade(client)
    wrong = reach(cluster, **{"tls-server-name": "elsewhere.example"})
    async with connected(tmp_path, user, wrong) as client:
        for attempt in (client.get(NAMESPACES, "default"), upgrade(client)):
            with pytest.raises(Unreachable, match=r"not trusted \(Hostname mismatch") as refused:
                await attempt
            assert not refused.value.sent


async def test_any_server_will_do_where_the_user_says_so(cluster: Cluster, tmp_path: Path) -> None:
    anyone = {"server": cluster.server, "insecure-skip-tls-verify": True}
    async with connected(tmp_path, administrator(cluster), anyone) as client:
        assert await name_of(client) == "someone"
        with pytest.raises(NotFound):
            await upgrade(client)


async def test_a_server_of_another_authority_is_not_trusted(
    cluster: Cluster, tmp_path: Path
) -> None:
    stranger = LocalAuthority.create("stranger").certificate
    lied = reach(cluster, **{"certificate-authority-data": encoded(stranger)})
    async with connected(tmp_path, administrator(cluster), lied) as client:
        for attempt in (client.get(NAMESPACES, "default"), upgrade(client)):
            with pytest.raises(Unreachable, match="its certificate is not trusted") as refused:
                await attempt
            assert not refused.value.sent
            assert cluster.server in str(refused.value)
        with pytest.raises(Unreachable, match="its certificate is not trusted"):
            async with client.watch(PODS):
                pass


async def test_plain_http_to_a_tls_port_is_said_to_be_that(
    cluster: Cluster, tmp_path: Path
) -> None:
    plain = {"server": cluster.server.replace("https:", "http:")}
    async with connected(tmp_path, {}, plain) as client:
        with pytest.raises(BadRequest, match="HTTP request to an HTTPS server"):
            await client.get(NAMESPACES, "default")
        with pytest.raises(BadRequest, match="HTTP request to an HTTPS server"):
            await upgrade(client)


async def test_a_user_without_credentials_is_not_authenticated(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with connected(tmp_path, {}, reach(cluster)) as client:
        for attempt in (client.get(NAMESPACES, "default"), upgrade(client)):
            with pytest.raises((Unauthorized, Forbidden)):
                await attempt


# --- impersonation


async def test_impersonation_reaches_the_server_whole(cluster: Cluster, tmp_path: Path) -> None:
    user = administrator(
        cluster,
        **{
            "as": "émile",
            "as-groups": ["readers", "writers", "system:masters"],
            "as-uid": "42",
            "as-user-extra": {"example.org/Reason": ["one", "two"]},
        },
    )
    async with connected(tmp_path, user, reach(cluster)) as client:
        info = await who_am_i(client)
        assert (info["username"], info["uid"]) == ("émile", "42")
        assert {"readers", "writers"} <= set(info["groups"])
        assert info["extra"]["example.org/reason"] == ["one", "two"]
        with pytest.raises(NotFound):
            await upgrade(client)


# --- proxies


async def test_everything_goes_through_the_proxy(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    async with proxying() as proxy:
        through = reach(cluster, **{"proxy-url": proxy.url.replace("//", "//me:p%40ss@")})
        async with connected(tmp_path, administrator(cluster), through) as proxied:
            assert await name_of(proxied) == "someone"
            informer = Informer(proxied, CONFIG_MAPS, namespace=namespace, labels="app")
            async with running(informer):
                await informer.synced()
                await make(client, "seen", namespace)
                await until(lambda: shown(informer) == {"seen"})
            with pytest.raises(NotFound):
                await upgrade(proxied)
        assert set(proxy.targets) == {cluster.server.removeprefix("https://")}
        assert len(proxy.targets) == 3
        assert set(proxy.credentials) == {"me:p@ss"}


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 2"],
    ids=["refuses", "babbles", "hangs up"],
)
async def test_a_proxy_that_does_not_connect_is_named(
    cluster: Cluster, tmp_path: Path, answer: bytes
) -> None:
    async with proxying() as proxy:
        proxy.refuse = answer
        through = reach(cluster, **{"proxy-url": proxy.url})
        async with connected(tmp_path, administrator(cluster), through) as client:
            for attempt in (client.create(PODS, {}, namespace="default"), upgrade(client)):
                with pytest.raises(Unreachable) as refused:
                    await attempt
                if answer.startswith(b"HTTP/1.1 403"):
                    assert not refused.value.sent
                    assert "proxy" in str(refused.value)


async def test_a_tunnel_through_a_proxy_carries_tls(cluster: Cluster, tmp_path: Path) -> None:
    identity = cluster.authority.issue(Subject("echo", sans=("127.0.0.1",), server=True))
    identity.save(tmp_path, "echo")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "echo.crt", tmp_path / "echo.key")

    async def switch(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await head_of(server, reader)
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\n")
        await echo(reader, writer)

    async with serving(switch, tls=tls) as server, proxying() as proxy:
        far = reach(cluster, server=server.url, **{"proxy-url": proxy.url})
        sent = bytes(range(256)) * 40_000  # ten megabytes
        async with (
            connected(tmp_path, {"token": "secret"}, far) as client,
            client.upgrade("POST", "/exec", protocol="SPDY/3.1") as tunnel,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(tunnel.write(sent))
            received = bytearray()
            while len(received) < len(sent):
                received += await tunnel.read()
            assert received == sent
        assert "Authorization: Bearer secret\r\n" in server.heads[0]


# --- upgrades that a real server refuses


async def test_an_upgrade_that_is_refused_is_a_typed_error(
    cluster: Cluster, client: Client, namespace: str
) -> None:
    body = {"spec": {"containers": [{"name": "c", "image": "none"}]}}
    await client.create(PODS, {"metadata": {"name": "p"}} | body, namespace=namespace)
    for protocol in ("SPDY/3.1", "websocket"):
        method = "POST" if protocol == "SPDY/3.1" else "GET"
        key = {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version": "13"}
        query = [("command", "ls"), ("stdout", "true")]
        path = PODS.path(namespace, "p", "exec")
        # The pod has no node, so there is no kubelet to connect to.
        with pytest.raises((BadRequest, InternalError)) as refused:
            async with client.upgrade(method, path, protocol=protocol, query=query, headers=key):
                raise AssertionError("the pod does not run")
        assert "p" in str(refused.value)
    with pytest.raises(NotFound, match='pods "absent" not found'):
        await upgrade(client, namespace, "absent")
    stranger = cluster.client(kubeconfig=cluster.user("stranger"))
    with pytest.raises(Forbidden, match='User "stranger" cannot create resource "pods/exec"'):
        await upgrade(stranger, namespace, "p")
    await stranger.close()


# --- closed clients, and servers and kinds that do not exist


async def test_a_closed_client_says_so(cluster: Cluster) -> None:
    faults = Faults()
    client = cluster.client(wrap=faults.wrap)
    informer = Informer(client, CONFIG_MAPS, labels="app")
    async with running(informer):
        await informer.synced()
        faults.delay(0.05, when=watches)
        await client.close()
        with pytest.raises(Unreachable, match="client was closed") as closed:
            await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace="default")
        assert not closed.value.sent
        with pytest.raises(ApiError):
            await upgrade(client)
    await client.close()

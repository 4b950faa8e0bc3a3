"""What is granted is what is used: a syncer at work under exactly the roles that we ship."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import ssl
import sys
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from fronts import pair_of
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.policy import PolicySpec
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import NotFound
from kubeocean.installation.applying import Applier
from kubeocean.installation.bindings import Joining
from kubeocean.installation.joining import Join
from kubeocean.installation.reviews import granted_to
from kubeocean.installation.rights import Permission, Rights
from kubeocean.installation.roles import AddOn, metrics_rights, worker_rights
from kubeocean.installation.tokens import read_token
from kubeocean.installation.values import WorkerValues
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.local.pki import Authority
from kubeocean.local.process import Process
from kubeocean.proxier.badges import Badge
from kubeocean.proxier.kubelets import Kubelets
from kubeocean.runtime.client import Client
from kubeocean.runtime.credentials import AccessSource, StaticAccess
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Key, find_condition
from kubeocean.runtime.pem import load_pair
from kubeocean.runtime.secrets import Secret
from kubeocean.runtime.transport import HttpTransport
from servers import Server, head_of, serving
from syncers import SyncerProcess, syncer
from waiting import until

SYNCER = "system:serviceaccount:kubeocean-system:kubeocean-syncer"
AT_ONCE = 16
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
# What Kubernetes lets everybody do who is somebody.
EVERYBODY = {
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    ("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
    ("create", "authentication.k8s.io", "selfsubjectreviews"),
}


def refused(cluster: Cluster, user: str) -> list[AuditedRequest]:
    made = cluster.audit.requests(user=user)
    assert {"watch", "create", "patch"} <= {each.verb for each in made}  # it was at work
    return [each for each in made if each.code == 403]


async def is_gone(client: Client, name: str) -> bool:
    try:
        await client.get(CLUSTER_BINDINGS, name)
    except NotFound:
        return True
    return False


async def join(above: Applier, below: Applier, bare: Cluster, **values: object) -> Joining:
    name = f"j{uuid.uuid4().hex[:8]}"
    worker = WorkerValues(namespace=f"m-{name}", **values)
    joining = Joining(name=name, worker=worker, lease=PolicySpec(name), direct_scheduling=True)
    await Join(joining, above, below, load_kubeconfig(bare.kubeconfig)).run()
    return joining


async def ready_nodes(client: Client, binding: str) -> list[str]:
    found = await client.list(NODES, labels=f"{DEFAULT.cluster_binding}={binding}")
    conditions = {
        node.name: find_condition(node.status.conditions, "Ready") for node in found.items
    }
    return [name for name, each in conditions.items() if each and each.status == "True"]


def pod(node: str) -> Json:
    return {
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "c",
                    "image": "none",
                    "envFrom": [{"configMapRef": {"name": "settings"}}],
                    "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
                }
            ],
            "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        },
    }


async def test_a_syncer_needs_what_its_roles_grant_and_is_refused_nothing(
    above: Applier, below: Applier, computing: Cluster, bare: Cluster, tmp_path: Path
) -> None:
    joining = await join(above, below, bare)
    client, mount = above.client, joining.worker.mount_namespace
    kubeconfig = await computing.service_account("kubeocean-system", "kubeocean-syncer")
    async with syncer(
        "one",
        f"--cluster-binding-name={joining.name}",
        "--leader-election-namespace=kubeocean-system",
        "--kubernetes-service-address=10.9.9.9:443",
        "--dns-service-address=10.9.9.10",
        kubeconfig=kubeconfig,
        directory=tmp_path,
    ):
        nodes = await until(lambda: ready_nodes(client, joining.name), within=60)
        home = f"v-{joining.name}"
        await client.create(NAMESPACES, {"metadata": {"name": home}})
        await client.create(
            CONFIG_MAPS, {"metadata": {"name": "settings"}, "data": {"a": "b"}}, namespace=home
        )
        await client.create(SECRETS, {"metadata": {"name": "keys"}}, namespace=home)

        async def admitted() -> bool:
            try:
                await client.get(SERVICE_ACCOUNTS, "default", home)
            except NotFound:
                return False
            return True

        await until(admitted)
        await client.create(PODS, pod(nodes[0]), namespace=home)

        async def runs() -> bool:
            return (await client.get(PODS, "web", home)).status.phase == "Running"

        await until(runs, within=60)
        tokens = await below.client.list(
            SECRETS, mount, labels=f"{DEFAULT.service_account_token}=true"
        )
        assert len(tokens.items) == 1
        await client.delete(PODS, "web", home, uid=None)
        binding = await client.get(CLUSTER_BINDINGS, joining.name)
        await client.delete(CLUSTER_BINDINGS, binding.name, uid=binding.uid)
        await until(lambda: is_gone(client, joining.name), within=60)
        assert await ready_nodes(client, joining.name) == []
    assert refused(computing, SYNCER) == []
    assert refused(bare, f"system:serviceaccount:{mount}:kubeocean-syncer") == []


PROXIER = """
import sys
from functools import partial
from kubeocean.proxier import process
from kubeocean.proxier.settings import Settings
from kubeocean.runtime import service
from kubeocean.runtime.goflags import parse
sys.exit(service.run(partial(process.run, parse(Settings, sys.argv[1:]))))
"""


async def test_a_proxier_becomes_ready_and_is_refused_nothing(
    above: Applier, below: Applier, computing: Cluster, bare: Cluster, tmp_path: Path
) -> None:
    joining = await join(above, below, bare)
    kubeconfig = await computing.service_account("kubeocean-system", "kubeocean-proxier")
    words = (
        f"--cluster-binding-name={joining.name}",
        f"--kubeconfig={kubeconfig}",
        "--listen-address=127.0.0.1",
        "--listen-port=0",
        "--prometheus-vnode-base-port=0",
        "--health-probe-bind-address=127.0.0.1:0",
    )
    process = Process(
        "proxier",
        [sys.executable, "-c", PROXIER, *words],
        log=tmp_path / "proxier.log",
        env={"PATH": os.environ["PATH"], "POD_NAME": "p", "POD_IP": "127.0.0.1"},
    )
    await process.start()
    try:
        await until(SyncerProcess(process).is_ready, within=60)  # with a certificate, too
    finally:
        await process.kill()
    user = "system:serviceaccount:kubeocean-system:kubeocean-proxier"
    made = computing.audit.requests(user=user)
    assert ("update", "approval") in {(each.verb, each.subresource) for each in made}
    below_made = bare.audit.requests(
        user=f"system:serviceaccount:{joining.worker.mount_namespace}:kubeocean-syncer"
    )
    assert below_made
    assert [each for each in (*made, *below_made) if each.code == 403] == []


# The credential


async def questions(client: Client, namespaces: tuple[str, ...]) -> list[Permission]:
    """Every verb on everything that a server has, everywhere and in these namespaces."""
    groups = (await client.request_json("GET", "/apis"))["groups"]
    versions = [("", "v1", "/api/v1")]
    for each in groups:
        version = each["preferredVersion"]["groupVersion"]
        versions.append((each["name"], version, f"/apis/{version}"))
    found = []
    for group, _, path in versions:
        for resource in (await client.request_json("GET", path))["resources"]:
            spread = itertools.product(VERBS, ("", *namespaces))
            found += [Permission(verb, group, resource["name"], where) for verb, where in spread]
    return found


async def allowed(client: Client, asked: list[Permission]) -> set[Permission]:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(each: Permission) -> bool:
        body = kind | {"spec": {"resourceAttributes": each.attributes()}}
        async with turns:
            answer = await client.request_json("POST", path, body=body, idempotent=True)
        return bool(answer["status"]["allowed"])

    answers = await asyncio.gather(*map(ask, asked))
    return {each for each, answer in zip(asked, answers, strict=True) if answer}


def granted(rights: Rights, asked: Permission) -> bool:
    permissions = set(rights.permissions())
    anywhere = asked._replace(namespace="")
    return (
        asked in permissions
        or anywhere in permissions
        or (asked.verb, asked.group, asked.resource) in EVERYBODY
    )


async def credential(above: Applier, joining: Joining) -> SecretAccess:
    name = f"{joining.name}-kubeconfig"
    return SecretAccess(await above.client.get(KUBECONFIG_SECRETS, name, "kubeocean-system"))


async def may_do(source: AccessSource, asked: list[Permission]) -> set[Permission]:
    client = Client(HttpTransport(source), cluster="worker")
    try:
        return await allowed(client, asked)
    finally:
        await client.close()


METRICS = [Permission("get", "", "nodes/metrics"), Permission("get", "", "nodes/stats")]


def token_of(account: str, mount: str) -> Permission:
    return Permission("create", "", "serviceaccounts/token", mount, account)


async def test_a_minted_credential_can_do_what_its_role_says_and_nothing_more(
    above: Applier, below: Applier, bare: Cluster
) -> None:
    add_ons = (AddOn.VOLUMES, AddOn.METRICS)
    joining = await join(above, below, bare, add_ons=add_ons)
    mount = joining.worker.mount_namespace
    accounts = ("kubeocean-metrics", "kubeocean-syncer", "default")
    asked = await questions(below.client, (mount, "default", "kube-system"))
    asked += [*METRICS, *(token_of(account, mount) for account in accounts)]
    found = await may_do(await credential(above, joining), asked)
    rights = worker_rights(mount, add_ons)
    assert {str(each) for each in found} == {str(e) for e in asked if granted(rights, e)}
    assert not [each for each in found if each.resource == "secrets" and each.namespace != mount]
    assert not [each for each in found if each.resource.startswith("nodes/")]
    tokens = [each for each in found if each.resource == "serviceaccounts/token"]
    assert tokens == [token_of("kubeocean-metrics", mount)]


async def test_what_kubelets_are_shown_can_read_metrics_and_nothing_else(
    above: Applier, below: Applier, bare: Cluster
) -> None:
    joining = await join(above, below, bare)
    mount = joining.worker.mount_namespace
    source = await credential(above, joining)
    client = Client(HttpTransport(source), cluster="worker")
    badge = Badge(client, source, Key(mount, "kubeocean-metrics"))
    try:
        await badge.ensure()
    finally:
        await client.close()
    shown = badge.current()
    told = read_token(shown.token.reveal() if shown.token else "")
    assert told is not None
    assert told.ends - told.begins == timedelta(minutes=10)
    asked = await questions(below.client, (mount, "default", "kube-system"))
    asked += [*METRICS, token_of("kubeocean-metrics", mount), Permission("get", "", "nodes/proxy")]
    found = await may_do(StaticAccess(shown), asked)
    assert {str(each) for each in found} == {str(e) for e in asked if granted(metrics_rights(), e)}
    assert set(METRICS) <= found


def hostile_tls(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = pair_of(authority)
    load_pair(context, pair.certificate, pair.key)
    return context


async def test_a_hostile_kubelet_learns_a_token_that_opens_nothing(
    above: Applier, below: Applier, bare: Cluster
) -> None:
    """Whoever is root on a node keeps what its kubelet is shown, and tries it elsewhere."""
    joining = await join(above, below, bare)
    mount, name = joining.worker.mount_namespace, f"hostile-{joining.name}"
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    await below.client.create(NODES, {"metadata": {"name": name}, "status": status})
    source, authority = await credential(above, joining), Authority.create("kubelets")
    client = Client(HttpTransport(source), cluster="worker")

    async def listens(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await head_of(server, reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with serving(listens, tls=hostile_tls(authority)) as hostile:
        badge = Badge(client, source, Key(mount, "kubeocean-metrics"))
        kubelets = Kubelets(client, badge, port=hostile.port, authority=authority.certificate)
        try:
            for page in ("/metrics/cadvisor", "/metrics/resource", "/stats/summary"):
                async with kubelets.opened(name, page) as read:
                    await read()
        finally:
            await kubelets.close()
            await client.close()
            await below.client.delete(NODES, name, uid=None)
    seen = {re.findall(r"Authorization: Bearer (\S+)", head)[0] for head in hostile.heads}
    own = source.current().token
    assert own is not None
    assert own.reveal() not in "".join(hostile.heads)
    (stolen,) = seen  # three pages, one token
    thief = replace(load_kubeconfig(bare.kubeconfig), certificate=None, private_key=None)
    source_of_thief = StaticAccess(replace(thief, token=Secret(stolen)))
    asked = [
        *METRICS,
        *(Permission("create", "", what, mount) for what in ("pods", "pods/exec", "secrets")),
        *(Permission("get", "", what, mount) for what in ("pods", "pods/log", "secrets")),
        token_of("kubeocean-metrics", mount),
        token_of("kubeocean-syncer", mount),
    ]
    assert await may_do(source_of_thief, asked) == set(METRICS)


async def test_without_the_add_on_nobody_reads_metrics(
    above: Applier, below: Applier, bare: Cluster
) -> None:
    joining = await join(above, below, bare)
    mount = joining.worker.mount_namespace
    less = replace(joining, worker=replace(joining.worker, add_ons=()))
    await Join(less, above, below, load_kubeconfig(bare.kubeconfig)).run()
    with pytest.raises(NotFound):
        await below.client.get(SERVICE_ACCOUNTS, "kubeocean-metrics", mount)
    asked = [*METRICS, token_of("kubeocean-metrics", mount)]

    async def lost() -> bool:
        return not await may_do(await credential(above, joining), asked)

    await until(lost)
    account = f"{mount}:kubeocean-metrics"
    assert await granted_to(below.client, account, METRICS) == []
    await Join(joining, above, below, load_kubeconfig(bare.kubeconfig)).run()
    await until(lambda: granted_to(below.client, account, METRICS))

"""Tests that the shipped roles grant exactly the permissions that the programs use."""

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

from kubeocean.api import naming
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import PolicySpec
from kubeocean.errors import NotFound
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.apply import Applier
from kubeocean.install.computing_objects import sharding_objects
from kubeocean.install.credentials import read_token
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.permissions import Permission, Rights
from kubeocean.install.roles import AddOn, metrics_rights, worker_rights
from kubeocean.install.values import Values, WorkerValues
from kubeocean.local.audit import AuditedRequest
from kubeocean.local.cluster import Cluster
from kubeocean.local.pki import LocalAuthority
from kubeocean.local.process import Process
from kubeocean.proxier.kubelet_client import KubeletClient
from kubeocean.proxier.kubelet_credentials import KubeletCredential
from kubeocean.runtime.access import load_pair
from kubeocean.runtime.client import Client, JsonPatch, MergePatch
from kubeocean.runtime.credentials import AccessSource, StaticAccess
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SECRETS_WITH_DATA,
    SERVICE_ACCOUNTS,
)
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Key, find_condition
from kubeocean.runtime.redaction import Secret
from kubeocean.runtime.transport import HttpTransport
from kubeocean.sharding.names import Names
from kubeocean.worker_access.credentials import SecretAccess
from support.proxier_server import pair_of
from support.rollout_env import granting, roll_out
from support.servers import Server, head_of, serving
from support.syncer_process import SyncerProcess, syncer
from support.wait import until

SYSTEM = "kubeocean-system"
HOLD = "tests.example.com/hold"
AT_ONCE = 16
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
# Permissions that Kubernetes grants to all authenticated users.
EVERYBODY = {
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    ("create", "authorization.k8s.io", "selfsubjectrulesreviews"),
    ("create", "authentication.k8s.io", "selfsubjectreviews"),
}


async def refused(cluster: Cluster, user: str) -> list[AuditedRequest]:
    """Return the refused requests of a user whose program has ended."""

    def was_at_work() -> bool:
        made = cluster.audit.requests(user=user)
        return {"watch", "create", "patch"} <= {each.verb for each in made}

    # The server records a watch when it notices that the client has closed the connection.
    await until(was_at_work)
    return [each for each in cluster.audit.requests(user=user) if each.code == 403]


async def delete_binding(client: Client, name: str) -> None:
    """Delete a binding, and wait until its syncer has cleaned up.

    A finalizer keeps the binding until `release`: otherwise garbage collection would delete the
    account of a syncer that still runs.
    """
    held = JsonPatch([{"op": "add", "path": "/metadata/finalizers/-", "value": HOLD}])
    binding = await client.patch(CLUSTER_BINDINGS, name, held)
    await client.delete(CLUSTER_BINDINGS, name, uid=binding.uid)

    async def cleaned_up() -> bool:
        stored = await client.get(CLUSTER_BINDINGS, name)
        return list(stored.metadata.finalizers or ()) == [HOLD]

    await until(cleaned_up, within=60)


async def release(client: Client, name: str) -> None:
    """Let a binding of `delete_binding` go."""
    await client.patch(CLUSTER_BINDINGS, name, MergePatch({"metadata": {"finalizers": None}}))


async def join(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster, **values: object
) -> JoinRequest:
    name = f"j{uuid.uuid4().hex[:8]}"
    worker = WorkerValues(namespace=f"m-{name}", **values)
    join_request = JoinRequest(
        name=name, worker=worker, lease=PolicySpec(name), direct_scheduling=True
    )
    await Join(
        join_request, computing_applier, worker_applier, load_kubeconfig(worker_cluster.kubeconfig)
    ).run()
    return join_request


async def own_account(client: Client, join_request: JoinRequest, component: str, root: Path) -> str:
    """Return the account of the binding's syncers or proxiers, as the manager creates it."""
    binding = await client.get(CLUSTER_BINDINGS, join_request.name)
    await roll_out(client, binding, root)
    return f"kubeocean-{component}-{binding.spec.cluster_id}"


async def ready_nodes(client: Client, binding: str) -> list[str]:
    nodes = await client.list(NODES, labels=f"{DEFAULT.cluster_binding}={binding}")
    conditions = {
        node.name: find_condition(node.status.conditions, "Ready") for node in nodes.items
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


async def test_a_syncer_uses_all_permissions_of_its_roles_and_is_refused_nothing(
    computing_applier: Applier,
    worker_applier: Applier,
    computing_cluster: Cluster,
    worker_cluster: Cluster,
    tmp_path: Path,
) -> None:
    join_request = await join(computing_applier, worker_applier, worker_cluster)
    client, mount = computing_applier.client, join_request.worker.mount_namespace
    account = await own_account(client, join_request, "syncer", tmp_path)
    kubeconfig = await computing_cluster.service_account(SYSTEM, account)
    async with (
        granting(client, join_request.name, tmp_path / "granting"),
        syncer(
            "one",
            f"--cluster-binding-name={join_request.name}",
            f"--leader-election-namespace={SYSTEM}",
            f"--leader-election-id={account}",
            "--secrets-by-namespace=true",
            "--kubernetes-service-address=10.9.9.9:443",
            "--dns-service-address=10.9.9.10",
            kubeconfig=kubeconfig,
            directory=tmp_path,
        ),
    ):
        nodes = await until(lambda: ready_nodes(client, join_request.name), within=60)
        home = f"v-{join_request.name}"
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
        tokens = await worker_applier.client.list(
            SECRETS, mount, labels=f"{DEFAULT.service_account_token}=true"
        )
        assert len(tokens.items) == 1
        await client.delete(PODS, "web", home, uid=None)
        await delete_binding(client, join_request.name)
        assert await ready_nodes(client, join_request.name) == []
    await release(client, join_request.name)
    assert await refused(computing_cluster, f"system:serviceaccount:{SYSTEM}:{account}") == []
    assert await refused(worker_cluster, f"system:serviceaccount:{mount}:kubeocean-syncer") == []


async def test_sharded_syncers_are_refused_nothing(
    computing_applier: Applier,
    worker_applier: Applier,
    computing_cluster: Cluster,
    worker_cluster: Cluster,
    tmp_path: Path,
) -> None:
    values, client = Values(shard_syncers=True), computing_applier.client
    objects = sharding_objects(values)
    await computing_applier.apply_all(objects)
    join_request = await join(computing_applier, worker_applier, worker_cluster)
    binding = await client.get(CLUSTER_BINDINGS, join_request.name)
    account = f"kubeocean-syncer-{binding.spec.cluster_id}"
    permission = Permission("list", "coordination.k8s.io", "leases", SYSTEM)
    # The manager must be able to bind the role of sharding to the account.
    manager = computing_cluster.client(
        kubeconfig=await computing_cluster.service_account(SYSTEM, DEFAULT.manager)
    )
    try:
        await roll_out(manager, binding, tmp_path / "templates", values)
        await until(lambda: granted_to(client, f"{SYSTEM}:{account}", [permission]))
        async with syncer(
            "one",
            f"--cluster-binding-name={join_request.name}",
            f"--leader-election-namespace={SYSTEM}",
            f"--leader-election-id={account}",
            "--sharding",
            "--secrets-by-namespace=true",
            kubeconfig=await computing_cluster.service_account(SYSTEM, account),
            directory=tmp_path,
        ):
            await until(lambda: ready_nodes(client, join_request.name), within=60)
            ring = Names(naming.syncer_ring(join_request.name), DEFAULT.sharding)
            tables = await client.list(CONFIG_MAPS, SYSTEM, labels=ring.selects("table"))
            assert [each.name for each in tables.items] == [ring.table]
            await delete_binding(client, join_request.name)
        await release(client, join_request.name)
    finally:
        await manager.close()
        for body in reversed(objects):
            await computing_applier.remove(body)
    assert await refused(computing_cluster, f"system:serviceaccount:{SYSTEM}:{account}") == []


PROXIER = """
import sys
from functools import partial
from kubeocean.proxier import process
from kubeocean.proxier.settings import ProxierSettings
from kubeocean.runtime import service
from kubeocean.runtime.flags import parse
sys.exit(service.run(partial(process.run, parse(ProxierSettings, sys.argv[1:]))))
"""


async def test_a_proxier_becomes_ready_and_is_refused_nothing(
    computing_applier: Applier,
    worker_applier: Applier,
    computing_cluster: Cluster,
    worker_cluster: Cluster,
    tmp_path: Path,
) -> None:
    join_request = await join(computing_applier, worker_applier, worker_cluster)
    account = await own_account(computing_applier.client, join_request, "proxier", tmp_path)
    kubeconfig = await computing_cluster.service_account(SYSTEM, account)
    words = (
        f"--cluster-binding-name={join_request.name}",
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
    user = f"system:serviceaccount:{SYSTEM}:{account}"
    made = computing_cluster.audit.requests(user=user)
    assert ("update", "approval") in {(each.verb, each.subresource) for each in made}
    below_made = worker_cluster.audit.requests(
        user=f"system:serviceaccount:{join_request.worker.mount_namespace}:kubeocean-syncer"
    )
    assert below_made
    assert [each for each in (*made, *below_made) if each.code == 403] == []


# The credential


async def questions(client: Client, namespaces: tuple[str, ...]) -> list[Permission]:
    """Return every verb on everything that a server has, everywhere and in these namespaces."""
    groups = (await client.request_json("GET", "/apis"))["groups"]
    versions = [("", "v1", "/api/v1")]
    for each in groups:
        version = each["preferredVersion"]["groupVersion"]
        versions.append((each["name"], version, f"/apis/{version}"))
    permissions = []
    for group, _, path in versions:
        for resource in (await client.request_json("GET", path))["resources"]:
            spread = itertools.product(VERBS, ("", *namespaces))
            permissions += [
                Permission(verb, group, resource["name"], where) for verb, where in spread
            ]
    return permissions


async def allowed(client: Client, requested: list[Permission]) -> set[Permission]:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    turns = asyncio.Semaphore(AT_ONCE)

    async def ask(each: Permission) -> bool:
        body = kind | {"spec": {"resourceAttributes": each.attributes()}}
        async with turns:
            answer = await client.request_json("POST", path, body=body, idempotent=True)
        return bool(answer["status"]["allowed"])

    answers = await asyncio.gather(*map(ask, requested))
    return {each for each, answer in zip(requested, answers, strict=True) if answer}


def granted(rights: Rights, requested: Permission) -> bool:
    permissions = set(rights.permissions())
    anywhere = requested._replace(namespace="")
    return (
        requested in permissions
        or anywhere in permissions
        or (requested.verb, requested.group, requested.resource) in EVERYBODY
    )


async def credential(computing_applier: Applier, join_request: JoinRequest) -> SecretAccess:
    name = f"{join_request.name}-kubeconfig"
    return SecretAccess(
        await computing_applier.client.get(SECRETS_WITH_DATA, name, "kubeocean-system")
    )


async def may_do(source: AccessSource, requested: list[Permission]) -> set[Permission]:
    client = Client(HttpTransport(source), cluster="worker")
    try:
        return await allowed(client, requested)
    finally:
        await client.close()


METRICS = [Permission("get", "", "nodes/metrics"), Permission("get", "", "nodes/stats")]


def token_of(account: str, mount: str) -> Permission:
    return Permission("create", "", "serviceaccounts/token", mount, account)


async def test_a_credential_has_the_permissions_of_its_role_and_no_others(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster
) -> None:
    add_ons = (AddOn.VOLUMES, AddOn.METRICS)
    join_request = await join(computing_applier, worker_applier, worker_cluster, add_ons=add_ons)
    mount = join_request.worker.mount_namespace
    accounts = ("kubeocean-metrics", "kubeocean-syncer", "default")
    permissions = await questions(worker_applier.client, (mount, "default", "kube-system"))
    permissions += [*METRICS, *(token_of(account, mount) for account in accounts)]
    allowed = await may_do(await credential(computing_applier, join_request), permissions)
    rights = worker_rights(mount, add_ons)
    assert {str(each) for each in allowed} == {str(e) for e in permissions if granted(rights, e)}
    assert not [each for each in allowed if each.resource == "secrets" and each.namespace != mount]
    assert not [each for each in allowed if each.resource.startswith("nodes/")]
    tokens = [each for each in allowed if each.resource == "serviceaccounts/token"]
    assert tokens == [token_of("kubeocean-metrics", mount)]


async def test_the_token_that_kubelets_see_can_read_metrics_only(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster
) -> None:
    join_request = await join(computing_applier, worker_applier, worker_cluster)
    mount = join_request.worker.mount_namespace
    source = await credential(computing_applier, join_request)
    client = Client(HttpTransport(source), cluster="worker")
    kubelet_credential = KubeletCredential(client, source, Key(mount, "kubeocean-metrics"))
    try:
        await kubelet_credential.ensure()
    finally:
        await client.close()
    shown = kubelet_credential.current()
    claims = read_token(shown.token.reveal() if shown.token else "")
    assert claims is not None
    assert claims.ends - claims.begins == timedelta(minutes=10)
    permissions = await questions(worker_applier.client, (mount, "default", "kube-system"))
    permissions += [
        *METRICS,
        token_of("kubeocean-metrics", mount),
        Permission("get", "", "nodes/proxy"),
    ]
    allowed = await may_do(StaticAccess(shown), permissions)
    assert {str(each) for each in allowed} == {
        str(e) for e in permissions if granted(metrics_rights(), e)
    }
    assert set(METRICS) <= allowed


def hostile_tls(authority: LocalAuthority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = pair_of(authority)
    load_pair(context, pair.certificate, pair.key)
    return context


async def test_a_hostile_kubelet_sees_a_token_without_further_permissions(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster
) -> None:
    """A user who is root on a node can read its kubelet's requests and reuse their tokens."""
    join_request = await join(computing_applier, worker_applier, worker_cluster)
    mount, name = join_request.worker.mount_namespace, f"hostile-{join_request.name}"
    status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
    await worker_applier.client.create(NODES, {"metadata": {"name": name}, "status": status})
    source, authority = (
        await credential(computing_applier, join_request),
        LocalAuthority.create("kubelets"),
    )
    client = Client(HttpTransport(source), cluster="worker")

    async def listens(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await head_of(server, reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with serving(listens, tls=hostile_tls(authority)) as hostile:
        kubelet_credential = KubeletCredential(client, source, Key(mount, "kubeocean-metrics"))
        kubelets = KubeletClient(
            client, kubelet_credential, port=hostile.port, authority=authority.certificate
        )
        try:
            for page in ("/metrics/cadvisor", "/metrics/resource", "/stats/summary"):
                async with kubelets.opened(name, page) as read:
                    await read()
        finally:
            await kubelets.close()
            await client.close()
            await worker_applier.client.delete(NODES, name, uid=None)
    seen = {re.findall(r"Authorization: Bearer (\S+)", head)[0] for head in hostile.heads}
    own = source.current().token
    assert own is not None
    assert own.reveal() not in "".join(hostile.heads)
    (stolen,) = seen  # three pages, one token
    thief = replace(load_kubeconfig(worker_cluster.kubeconfig), certificate=None, private_key=None)
    source_of_thief = StaticAccess(replace(thief, token=Secret(stolen)))
    permissions = [
        *METRICS,
        *(Permission("create", "", what, mount) for what in ("pods", "pods/exec", "secrets")),
        *(Permission("get", "", what, mount) for what in ("pods", "pods/log", "secrets")),
        token_of("kubeocean-metrics", mount),
        token_of("kubeocean-syncer", mount),
    ]
    assert await may_do(source_of_thief, permissions) == set(METRICS)


async def test_metrics_cannot_be_read_without_the_add_on(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster
) -> None:
    join_request = await join(computing_applier, worker_applier, worker_cluster)
    mount = join_request.worker.mount_namespace
    less = replace(join_request, worker=replace(join_request.worker, add_ons=()))
    await Join(
        less, computing_applier, worker_applier, load_kubeconfig(worker_cluster.kubeconfig)
    ).run()
    with pytest.raises(NotFound):
        await worker_applier.client.get(SERVICE_ACCOUNTS, "kubeocean-metrics", mount)
    permissions = [*METRICS, token_of("kubeocean-metrics", mount)]

    async def lost() -> bool:
        return not await may_do(await credential(computing_applier, join_request), permissions)

    await until(lost)
    account = f"{mount}:kubeocean-metrics"
    assert await granted_to(worker_applier.client, account, METRICS) == []
    await Join(
        join_request, computing_applier, worker_applier, load_kubeconfig(worker_cluster.kubeconfig)
    ).run()
    await until(lambda: granted_to(worker_applier.client, account, METRICS))

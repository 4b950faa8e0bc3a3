"""Requests with a binding's credential that the API server of a worker refuses by default."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.errors import ConfigError, Forbidden
from kubeocean.install.apply import Applier
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.values import LENDABLE, WorkerValues
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SECRETS_WITH_DATA,
    SERVICE_ACCOUNTS,
    SERVICES,
)
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.transport import HttpTransport
from kubeocean.worker_access.credentials import SecretAccess
from support.wait import until

VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", False, Untyped)
NETWORK_POLICIES = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, Untyped
)
LENT = LENDABLE["nodeSelectorTerms"][0]["matchExpressions"]


@pytest.fixture(scope="module")
async def request_of_owner(
    computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster
) -> JoinRequest:
    name = f"e{uuid.uuid4().hex[:8]}"
    request = JoinRequest(
        name=name, worker=WorkerValues(namespace=f"m-{name}"), lease=PolicySpec(name)
    )
    access = load_kubeconfig(worker_cluster.kubeconfig)
    await Join(request, computing_applier, worker_applier, access).run()
    return request


@pytest.fixture(scope="module")
async def borrower(
    computing_applier: Applier, request_of_owner: JoinRequest
) -> AsyncIterator[Client]:
    """A client with the credential of the binding, once the worker enforces its policies."""
    name = f"{request_of_owner.name}-kubeconfig"
    secret = await computing_applier.client.get(SECRETS_WITH_DATA, name, "kubeocean-system")
    client = Client(HttpTransport(SecretAccess(secret)), cluster="worker")
    mount = request_of_owner.worker.mount_namespace

    async def refuses() -> bool:
        for resource, body in (
            (PODS, pod(priorityClassName="system-node-critical")),
            (SECRETS, token_secret()),
            (SERVICES, service(type="NodePort")),
        ):
            try:
                await client.create(resource, body, namespace=mount, dry_run=True)
            except Forbidden:
                continue
            return False
        return True

    # The API server reads new policies by a watch.
    await until(refuses, within=30)
    yield client
    await client.close()


def pod(**spec: object) -> Json:
    """Return a pod as the syncer creates it, with other fields of its spec."""
    on_node = {"key": "metadata.name", "operator": "In", "values": ["bare-0"]}
    terms = [{"matchExpressions": LENT, "matchFields": [on_node]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"generateName": "try-"},
        "spec": {
            "priorityClassName": "kubeocean-default",
            "affinity": {"nodeAffinity": required},
            "automountServiceAccountToken": False,
            "containers": [container()],
            **spec,
        },
    }


def container(**security: object) -> Json:
    return {"name": "c", "image": "none", "securityContext": security}


def token_secret() -> Json:
    annotations = {"kubernetes.io/service-account.name": "kubeocean-syncer"}
    return {
        "metadata": {"generateName": "try-", "annotations": annotations},
        "type": "kubernetes.io/service-account-token",
    }


def service(**spec: object) -> Json:
    return {"metadata": {"generateName": "try-"}, "spec": {"ports": [{"port": 80}], **spec}}


def volume(**source: object) -> Json:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], **source}
    return {"metadata": {"generateName": "try-"}, "spec": spec}


ESCAPES = {
    "privileged container": pod(containers=[container(privileged=True)]),
    "all capabilities": pod(containers=[container(capabilities={"add": ["ALL"]})]),
    "one capability": pod(containers=[container(capabilities={"add": ["SYS_MODULE"]})]),
    "seccomp unconfined": pod(containers=[container(seccompProfile={"type": "Unconfined"})]),
    "apparmor unconfined": pod(containers=[container(appArmorProfile={"type": "Unconfined"})]),
    "unmasked /proc": pod(containers=[container(procMount="Unmasked")], hostUsers=False),
    "SELinux type": pod(containers=[container(seLinuxOptions={"type": "spc_t"})]),
    "host network": pod(hostNetwork=True),
    "host PID": pod(hostPID=True),
    "host IPC": pod(hostIPC=True),
    "host path": pod(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
    "host port": pod(containers=[{**container(), "ports": [{"containerPort": 1, "hostPort": 1}]}]),
    "sysctl": pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
    "privileged init container": pod(
        initContainers=[{**container(privileged=True), "name": "init"}]
    ),
    "critical priority": pod(priorityClassName="system-node-critical"),
    "no priority class": pod(priorityClassName=""),
    "a node of the owner": pod(affinity={}),
    "a node of the owner, named": pod(affinity={}, nodeName="bare-1"),
    "a second term": pod(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": LENT},
                        {"matchExpressions": [{"key": "any", "operator": "Exists"}]},
                    ]
                }
            }
        }
    ),
    "a year of grace": pod(terminationGracePeriodSeconds=31_536_000),
    "another service account": pod(serviceAccountName="kubeocean-syncer"),
}


@pytest.mark.parametrize("body", ESCAPES.values(), ids=ESCAPES)
async def test_a_pod_beyond_the_lease_is_refused(
    borrower: Client, request_of_owner: JoinRequest, body: Json
) -> None:
    with pytest.raises(Forbidden):
        await borrower.create(PODS, body, namespace=request_of_owner.worker.mount_namespace)


async def test_a_pod_within_the_lease_is_admitted(
    borrower: Client, request_of_owner: JoinRequest
) -> None:
    mount = request_of_owner.worker.mount_namespace
    await borrower.create(PODS, pod(), namespace=mount)
    await borrower.create(PODS, pod(nodeName="bare-0"), namespace=mount)
    await borrower.create(PODS, pod(terminationGracePeriodSeconds=3600), namespace=mount)


@pytest.mark.parametrize(
    "source",
    [
        {"hostPath": {"path": "/"}},
        {
            "local": {"path": "/"},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [{"matchExpressions": LENT}],
                }
            },
        },
    ],
    ids=["hostPath", "local"],
)
async def test_a_volume_on_a_node_is_refused(borrower: Client, source: Json) -> None:
    with pytest.raises(Forbidden, match="volumes on nodes are allowed at level privileged only"):
        await borrower.create(VOLUMES, volume(**source))


async def test_a_volume_of_others_is_neither_changed_nor_deleted(
    borrower: Client, worker_applier: Applier
) -> None:
    shared = {"nfs": {"server": "nfs.example", "path": "/"}}
    theirs = await worker_applier.client.create(VOLUMES, volume(**shared))
    with pytest.raises(Forbidden, match="only volumes that Kubeocean created"):
        await borrower.delete(VOLUMES, theirs.name, uid=theirs.uid)
    reclaim = MergePatch({"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
    with pytest.raises(Forbidden, match="only volumes that Kubeocean created"):
        await borrower.patch(VOLUMES, theirs.name, reclaim)
    ours = volume(**shared)
    ours["metadata"]["labels"] = {DEFAULT.managed_by: "kubeocean"}
    made = await borrower.create(VOLUMES, ours)
    await borrower.patch(VOLUMES, made.name, reclaim)
    await borrower.delete(VOLUMES, made.name, uid=made.uid)


async def test_a_token_that_outlives_the_credential_is_refused(
    borrower: Client, request_of_owner: JoinRequest
) -> None:
    with pytest.raises(Forbidden, match="tokens of service accounts"):
        await borrower.create(
            SECRETS, token_secret(), namespace=request_of_owner.worker.mount_namespace
        )


async def test_a_token_of_the_account_ends_with_the_secret_that_the_owner_deletes(
    borrower: Client, request_of_owner: JoinRequest
) -> None:
    """The account may request tokens of itself, for the renewal of the credential alone."""
    mount = request_of_owner.worker.mount_namespace
    secrets = (await borrower.list(SECRETS, mount)).items
    (anchor,) = [each for each in secrets if each.labels.get(DEFAULT.component) == "credential"]
    own = await borrower.create(SECRETS, {"metadata": {"generateName": "own-"}}, namespace=mount)

    async def request(account: str = "kubeocean-syncer", **spec: object) -> Json:
        body = {"spec": {"expirationSeconds": 3600, **spec}}
        return await borrower.post(SERVICE_ACCOUNTS, account, "token", body, mount)

    def bound(name: str, kind: str = "Secret") -> Json:
        return {"kind": kind, "apiVersion": "v1", "name": name}

    match = "must be bound to the Secret of the credential"
    with pytest.raises(Forbidden, match=match):
        await request()
    with pytest.raises(Forbidden, match=match):
        await request(boundObjectRef=bound(own.name))
    with pytest.raises(Forbidden, match=match):
        await request(boundObjectRef=bound("bare-0", "Node"))
    with pytest.raises(Forbidden, match="365 days at most"):
        seconds = 366 * 24 * 3600
        await request(boundObjectRef=bound(anchor.name), expirationSeconds=seconds)
    with pytest.raises(Forbidden):
        await request("default")
    assert (await request(boundObjectRef=bound(anchor.name)))["status"]["token"]

    for name in ("kubeocean-own-0123abcd", anchor.name + "-01234567"):
        with pytest.raises(Forbidden, match="names of Secrets to which credentials are bound"):
            await borrower.create(SECRETS, {"metadata": {"name": name}}, namespace=mount)
    copy = {"metadata": {"name": f"kubeocean-own-{uuid.uuid4().hex}"}}
    await borrower.create(SECRETS, copy, namespace=mount)


@pytest.mark.parametrize(
    "spec",
    [{"type": "NodePort"}, {"type": "LoadBalancer"}, {"externalIPs": ["192.0.2.1"]}],
    ids=["NodePort", "LoadBalancer", "externalIPs"],
)
async def test_a_service_that_is_reached_from_outside_is_refused(
    borrower: Client, request_of_owner: JoinRequest, spec: Json
) -> None:
    mount = request_of_owner.worker.mount_namespace
    with pytest.raises(Forbidden):
        await borrower.create(SERVICES, service(**spec), namespace=mount)
    await borrower.create(SERVICES, service(), namespace=mount)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        {"metadata": {"labels": {"pool": "lent"}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.example/b"]}},
    ],
    ids=["cordon", "taint", "label", "removed label", "annotation", "finalizer"],
)
async def test_a_node_is_not_changed_but_for_its_policy(borrower: Client, change: Json) -> None:
    node = (await borrower.list(NODES)).items[0]
    with pytest.raises(Forbidden, match=r"only the label kubeocean\.io/policy-applied"):
        await borrower.patch(NODES, node.name, MergePatch(change))
    for value in ("any", None):
        label = {"labels": {DEFAULT.policy_applied: value}}
        await borrower.patch(NODES, node.name, MergePatch({"metadata": label}))


async def test_a_policy_is_not_changed_but_for_its_metadata(
    borrower: Client, request_of_owner: JoinRequest
) -> None:
    name = request_of_owner.name
    wider = MergePatch({"spec": {"forceReclaim": True}})
    with pytest.raises(Forbidden, match="the owner alone changes the spec"):
        await borrower.patch(RESOURCE_LEASING_POLICIES, name, wider)
    claim = {"annotations": {DEFAULT.cluster_binding: name}}
    await borrower.patch(RESOURCE_LEASING_POLICIES, name, MergePatch({"metadata": claim}))


async def test_the_owner_is_not_limited(
    borrower: Client, worker_applier: Applier, request_of_owner: JoinRequest
) -> None:
    mount = request_of_owner.worker.mount_namespace
    plain = {"metadata": {"generateName": "own-"}, "spec": {"containers": [container()]}}
    await worker_applier.client.create(PODS, plain, namespace=mount)


async def test_pods_are_kept_from_metadata_addresses_and_the_api_server(
    worker_applier: Applier, request_of_owner: JoinRequest
) -> None:
    mount = request_of_owner.worker.mount_namespace
    stored = await worker_applier.client.get(
        NETWORK_POLICIES, "kubeocean-syncer-egress", mount, keep_raw=True
    )
    spec = stored.content()["spec"]
    assert (spec["podSelector"], spec["policyTypes"]) == ({}, ["Egress"])
    excepted = {
        address
        for rule in spec["egress"]
        for peer in rule.get("to", ())
        for address in peer.get("ipBlock", {}).get("except", ())
    }
    server = await worker_applier.client.get(SERVICES, "kubernetes", "default", keep_raw=True)
    cluster_ip = server.content()["spec"]["clusterIP"]
    assert {"169.254.0.0/16", "fe80::/10", f"{cluster_ip}/32"} <= excepted
    (others,) = [
        rule["ports"]
        for rule in spec["egress"]
        if rule.get("to") == [{"ipBlock": {"cidr": f"{cluster_ip}/32"}}]
    ]
    assert not [port for port in others if port["port"] <= 443 <= port["endPort"]]


async def test_a_mount_namespace_of_another_computing_cluster_is_refused(
    computing_applier: Applier,
    worker_applier: Applier,
    worker_cluster: Cluster,
    request_of_owner: JoinRequest,
) -> None:
    mount = request_of_owner.worker.mount_namespace
    labels = {DEFAULT.component: "credential", DEFAULT.computing_cluster_id: "another"}
    body = {"metadata": {"name": "another", "labels": labels}}
    theirs = await worker_applier.client.create(SECRETS, body, namespace=mount)
    name = f"{request_of_owner.name}x"
    access = load_kubeconfig(worker_cluster.kubeconfig)

    async def join(**options: bool) -> None:
        request = JoinRequest(name=name, worker=request_of_owner.worker, **options)
        await Join(request, computing_applier, worker_applier, access).run()

    try:
        with pytest.raises(ConfigError, match=r"is used by another computing cluster.*--shared"):
            await join()
        await join(shared=True)
    finally:
        await worker_applier.client.delete(SECRETS, theirs.name, mount, uid=theirs.uid)
    await join()


async def test_a_worker_without_a_verified_certificate_is_refused(
    computing_applier: Applier,
    worker_applier: Applier,
    worker_cluster: Cluster,
    request_of_owner: JoinRequest,
) -> None:
    access = replace(load_kubeconfig(worker_cluster.kubeconfig), ca=None, insecure=True)
    with pytest.raises(ConfigError, match=r"insecure-skip-tls-verify.*--insecure accepts this"):
        await Join(request_of_owner, computing_applier, worker_applier, access).run()


# Rights outside of the mount namespace: all that `kubectl auth can-i --list` may show there.
WRITES = {
    "nodes": {"patch"},
    "persistentvolumes": {"create", "patch", "delete"},
    "resourceleasingpolicies.cloud.tencent.com": {"patch"},
    "resourceleasingpolicies.cloud.tencent.com/status": {"patch"},
    "events": {"create", "patch"},
    "selfsubjectreviews.authentication.k8s.io": {"create"},
    "selfsubjectaccessreviews.authorization.k8s.io": {"create"},
    "selfsubjectrulesreviews.authorization.k8s.io": {"create"},
}
READS = {"get", "list", "watch"}


async def permissions(kubeconfig: Path, namespace: str) -> dict[str, set[str]]:
    """Return the verbs of each resource that `kubectl auth can-i --list` prints."""
    kubectl = (await ensure(["kubectl"])).path("kubectl")
    words = (f"--kubeconfig={kubeconfig}", "auth", "can-i", "--list", f"--namespace={namespace}")
    process = await asyncio.create_subprocess_exec(
        kubectl, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err
    verbs: dict[str, set[str]] = {}
    for line in out.decode().splitlines()[1:]:
        resource = line.split()[0]
        if not resource.startswith("["):  # a URL that is no resource
            listed = line[line.rindex("[") + 1 : line.rindex("]")].split()
            verbs.setdefault(resource, set()).update(listed)
    return verbs


async def test_the_credential_has_no_further_permission_by_kubectl_auth_can_i(
    computing_applier: Applier, request_of_owner: JoinRequest, tmp_path: Path
) -> None:
    name = f"{request_of_owner.name}-kubeconfig"
    secret = await computing_applier.client.get(SECRETS, name, "kubeocean-system", keep_raw=True)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(base64.b64decode(secret.content()["data"]["kubeconfig"]))
    for namespace in ("default", "kube-system"):
        listed = await permissions(kubeconfig, namespace)
        assert not [resource for resource in listed if "*" in resource], listed
        assert listed.keys().isdisjoint({"secrets", "configmaps", "pods/exec", "pods/log"}), listed
        writes = {resource: verbs - READS for resource, verbs in listed.items() if verbs - READS}
        beyond = {
            resource: verbs
            for resource, verbs in writes.items()
            if not verbs <= WRITES.get(resource, set())
        }
        assert beyond == {}
    mounted = await permissions(kubeconfig, request_of_owner.worker.mount_namespace)
    assert {"create", "delete"} <= mounted["pods"]
    assert "*" not in set().union(*mounted.values())


async def test_objects_of_another_computing_cluster_are_out_of_reach(
    borrower: Client, worker_applier: Applier, request_of_owner: JoinRequest
) -> None:
    """Names of copies can be predicted; the namespace of another cluster cannot be entered."""
    owner, theirs = worker_applier.client, f"m-other-{request_of_owner.name}"
    await owner.create(NAMESPACES, {"metadata": {"name": theirs}})
    await owner.create(SECRETS, {"metadata": {"name": "db-password"}}, namespace=theirs)
    account = {"metadata": {"name": "default"}}
    await owner.create(SERVICE_ACCOUNTS, account, namespace=theirs)
    plain = {"metadata": {"name": "web"}, "spec": {"containers": [container()]}}
    await owner.create(PODS, plain, namespace=theirs)
    for resource in (SECRETS, CONFIG_MAPS):
        with pytest.raises(Forbidden):
            await borrower.get(resource, "db-password", theirs)
        with pytest.raises(Forbidden):
            await borrower.list(resource, theirs)
        with pytest.raises(Forbidden):
            await borrower.create(resource, {"metadata": {"name": "new"}}, namespace=theirs)
    with pytest.raises(Forbidden):
        await borrower.create(PODS, pod(), namespace=theirs)
    with pytest.raises(Forbidden):
        await borrower.delete(PODS, "web", theirs, uid=None)
    with pytest.raises(Forbidden):
        await borrower.patch(PODS, "web", MergePatch({"metadata": {"labels": {"a": "b"}}}), theirs)
    for subresource in ("exec", "attach", "portforward"):
        with pytest.raises(Forbidden):
            await borrower.post(PODS, "web", subresource, {}, theirs)
    with pytest.raises(Forbidden):
        await borrower.request("GET", f"/api/v1/namespaces/{theirs}/pods/web/log")
    with pytest.raises(Forbidden):
        await borrower.post(SERVICE_ACCOUNTS, "default", "token", {"spec": {}}, theirs)


@pytest.mark.parametrize(
    "path",
    [
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/networking.k8s.io/v1/namespaces/{mount}/networkpolicies",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/{mount}/rolebindings",
        "/api/v1/namespaces/{mount}/resourcequotas",
        "/api/v1/namespaces/{mount}/serviceaccounts",
        "/api/v1/namespaces",
        "/api/v1/nodes",
    ],
)
async def test_the_limits_themselves_are_not_changed(
    borrower: Client, request_of_owner: JoinRequest, path: str
) -> None:
    """The objects that enforce the lease are created, changed and deleted by the owner alone."""
    mount = request_of_owner.worker.mount_namespace
    collection = path.format(mount=mount)
    with pytest.raises(Forbidden):
        await borrower.request("POST", collection, body={"metadata": {"name": "new"}})
    with pytest.raises(Forbidden):
        await borrower.request("DELETE", f"{collection}/kubeocean-syncer")


async def test_the_security_level_of_the_namespace_is_not_changed(
    borrower: Client, request_of_owner: JoinRequest
) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    patch = MergePatch({"metadata": {"labels": labels}})
    with pytest.raises(Forbidden):
        await borrower.patch(NAMESPACES, request_of_owner.worker.mount_namespace, patch)

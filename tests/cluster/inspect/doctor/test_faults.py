"""Tests of doctor: a clean installation is healthy, and each fault is a finding."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import NewCluster
from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT, LABEL_POD_SECURITY
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, PolicySpec, ResourceLimit
from kubeocean.errors import NotFound
from kubeocean.inspect.doctor.diagnosis import Diagnosis, diagnose
from kubeocean.inspect.doctor.permissions import missing_rights
from kubeocean.inspect.doctor.reading import DoctorReader
from kubeocean.inspect.findings import Severity
from kubeocean.install.apply import Applier
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.credentials import secret_name
from kubeocean.install.join import Join, JoinRequest
from kubeocean.install.values import Values, WorkerValues
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import ApplyPatch, Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS_WITH_DATA,
)
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Resource, Untyped, find_condition
from kubeocean.worker_access.identity import identity_of
from support.doctor_command import Doctor, output_of, run_command
from support.faults import Faults, SkewedClock
from support.rollout_env import roll_out
from support.syncer_process import SyncerProcess, syncer
from support.wait import until

SYSTEM = "kubeocean-system"
PROGRAMS = ("syncer", "proxier")
ROLES = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped
)
NETWORK_POLICIES = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, Untyped
)
POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
    Untyped,
)
OURS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, Untyped)
DENIED = dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostPath", "privileged"), "Deny")


@dataclass(frozen=True)
class JoinedWorker:
    """A worker that has joined, without a syncer."""

    joining: JoinRequest
    computing_api: Client
    worker_api: Client
    bare: Cluster

    @property
    def name(self) -> str:
        return self.joining.name

    @property
    def mount(self) -> str:
        return self.joining.worker.mount_namespace

    async def give(self, kubeconfig: str) -> None:
        """Replace the credential."""
        data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
        await self.computing_api.patch(
            SECRETS_WITH_DATA, secret_name(self.name), MergePatch({"data": data}), SYSTEM
        )

    async def kubeconfig(self) -> str:
        secret = await self.computing_api.get(SECRETS_WITH_DATA, secret_name(self.name), SYSTEM)
        return base64.b64decode(secret.data["kubeconfig"]).decode()


async def leading(client: Client) -> None:
    """Renew the lease of a manager that leads."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kubeocean-manager-leader", "namespace": SYSTEM},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 600, "renewTime": now},
    }
    name = "kubeocean-manager-leader"
    await client.patch(LEASES, name, ApplyPatch(lease, force=True), SYSTEM)


@pytest.fixture
async def joined(
    computing_api: Applier, worker_api: Applier, bare: Cluster
) -> AsyncIterator[JoinedWorker]:
    name = f"d{uuid.uuid4().hex[:8]}"
    values = WorkerValues(namespace=f"m-{name}")
    lease = PolicySpec(name, resource_limits=(ResourceLimit("cpu", percent=50),))
    joining = JoinRequest(name=name, worker=values, lease=lease, direct_scheduling=True)
    await Join(joining, computing_api, worker_api, load_kubeconfig(bare.kubeconfig)).run()
    client = computing_api.client
    await leading(client)
    ready = MergePatch({"status": {"phase": "Ready"}})
    await client.patch(CLUSTER_BINDINGS, name, ready, subresource="status")
    denied = MergePatch({"spec": {"podPrivileges": DENIED}})
    await client.patch(CLUSTER_BINDINGS, name, denied)
    yield JoinedWorker(joining, client, worker_api.client, bare)
    binding = await client.get(CLUSTER_BINDINGS, name)
    await client.delete(CLUSTER_BINDINGS, name, uid=binding.uid)


async def ready_nodes(client: Client, binding: str) -> bool:
    nodes = (await client.list(NODES, labels=f"{DEFAULT.cluster_binding}={binding}")).items
    conditions = [find_condition(node.status.conditions, "Ready") for node in nodes]
    return len(nodes) == 2 and all(each and each.status == "True" for each in conditions)


async def test_a_clean_installation_is_healthy(
    joined: JoinedWorker, computing: Cluster, doctor: Doctor, tmp_path: Path
) -> None:
    kubeconfig = await computing.service_account(SYSTEM, "kubeocean-syncer")
    async with syncer(
        "one",
        f"--cluster-binding-name={joined.name}",
        f"--leader-election-namespace={SYSTEM}",
        kubeconfig=kubeconfig,
        directory=tmp_path,
    ) as one:
        await until(lambda: ready_nodes(joined.computing_api, joined.name), within=60)
        leased = f"{DEFAULT.cluster_binding}={joined.name}"
        nodes = (await joined.computing_api.list(NODES, labels=leased)).items

        async def beating() -> bool:
            leases = (await joined.computing_api.list(LEASES, "kube-node-lease")).items
            return {node.name for node in nodes} <= {lease.name for lease in leases}

        await until(beating)
        code, document, err = await doctor(joined.name)
        errors = [each for each in document["findings"] if each["severity"] == "error"]
        assert (code, errors, document["notRead"]) == (0, [], []), (document, err)
        # The Deployment of the manager has no nodes to run on here, which is a warning.
        warned = {each["about"] for each in document["findings"]}
        assert warned == {"Deployment kubeocean-manager"}
        code, document, err = await doctor(joined.name, "--strict")
        assert code == 3
        await the_log_level_changes(joined, one, computing)
        await explain_needs_no_further_rights(nodes[0].name, computing)
        await a_drain_is_respected(joined, nodes[0].name, computing)
        binding = await joined.computing_api.get(CLUSTER_BINDINGS, joined.name)
        await joined.computing_api.delete(CLUSTER_BINDINGS, joined.name, uid=binding.uid)
        await until(lambda: is_deleted(joined))
    await joined.computing_api.create(CLUSTER_BINDINGS, joined.joining.binding())


async def the_log_level_changes(
    joined: JoinedWorker, one: SyncerProcess, computing: Cluster
) -> None:
    """Check that `kubeocean logs-level` changes the level of a running syncer."""
    where = f"--kubeconfig={computing.kubeconfig}"
    for level in ("debug", "usual"):
        assert await run_command("logs-level", joined.name, level, where) == 0
    assert await run_command("logs-level", joined.name, "loud", where) == 2
    await until(lambda: len(one.lines("Changed log level")) == 2)
    assert [line["level_"] for line in one.lines("Changed log level")] == ["debug", "info"]


async def explain_needs_no_further_rights(vnode: str, computing: Cluster) -> None:
    """Check that the credential that `join` creates is enough for an explanation."""
    where = f"--kubeconfig={computing.kubeconfig}"
    code, out, err = await output_of("explain", "node", vnode, where, "-o", "json")
    document = json.loads(out)
    assert (code, document["rule"], document["notRead"]) == (0, "Lent", []), (document, err)
    assert document["figures"][0]["limit"] == "50 %"


async def a_drain_is_respected(joined: JoinedWorker, vnode: str, computing: Cluster) -> None:
    """Check that the syncer keeps a cordon that is not its own."""
    where = f"--kubeconfig={computing.kubeconfig}"
    for words, cordoned in (((), True), (("--undo",), False)):
        assert await run_command("drain", vnode, *words, where) == 0
        labels = MergePatch({"metadata": {"labels": {"touched": str(cordoned)}}})
        pnode = (await joined.computing_api.get(NODES, vnode)).annotations[
            DEFAULT.physical_node_name
        ]
        await joined.worker_api.patch(NODES, pnode, labels)

        async def followed(cordoned: bool = cordoned) -> bool:
            node = await joined.computing_api.get(NODES, vnode)
            return node.labels.get("touched") == str(cordoned)

        await until(followed)
        assert (await joined.computing_api.get(NODES, vnode)).spec.unschedulable is cordoned


async def is_deleted(joined: JoinedWorker) -> bool:
    bindings = (await joined.computing_api.list(CLUSTER_BINDINGS)).items
    return joined.name not in {each.name for each in bindings}


async def test_no_definitions_and_no_manager(new_cluster: NewCluster) -> None:
    cluster = await new_cluster()
    doctor = Doctor(cluster.kubeconfig)
    message = "there is no CustomResourceDefinition clusterbindings.cloud.tencent.com"
    await doctor.finds("definitions", message)
    client = cluster.client()
    try:
        await Applier(client, domain=DEFAULT).apply_all(computing_objects(Values()))
    finally:
        await client.close()
    await doctor.finds("manager", "none has ever led")


async def test_no_syncer(joined: JoinedWorker, doctor: Doctor) -> None:
    await doctor.finds("syncer", "no syncer leads", joined.name)


async def test_accounts_that_lost_their_roles(
    joined: JoinedWorker, computing: Cluster, doctor: Doctor, faults: Faults
) -> None:
    """The rights are read by access reviews, or from the roles if reviews are not allowed."""
    computing_api, name = joined.computing_api, "kubeocean-syncer"
    bound = await computing_api.get(ROLES, name, keep_raw=True)
    await computing_api.delete(ROLES, name, uid=bound.uid)

    async def lacking() -> bool:
        missing = (await missing_rights(computing_api, DEFAULT))[name] or ()
        return "get, list, watch, create, patch, delete nodes" in missing

    try:
        await until(lacking)
        await doctor.finds("accounts", "clusterbindings.cloud.tencent.com", joined.name)
        missing = await missing_rights(computing_api, DEFAULT)
        assert (missing["kubeocean-manager"], missing["kubeocean-proxier"]) == ((), ())
        viewer = computing.client(wrap=faults.wrap)
        faults.answer(403, times=1000, when=lambda requested: "accessreviews" in requested.path)
        try:
            assert await missing_rights(viewer, DEFAULT) == missing
        finally:
            await viewer.close()
    finally:
        await Applier(computing_api, domain=DEFAULT).apply_all(
            [each for each in computing_objects(Values()) if each["kind"] == "ClusterRoleBinding"]
        )


async def test_accounts_of_a_binding_that_lost_their_roles(
    joined: JoinedWorker, computing: Cluster, doctor: Doctor, faults: Faults, tmp_path: Path
) -> None:
    computing_api = joined.computing_api
    binding = await computing_api.get(CLUSTER_BINDINGS, joined.name)
    await roll_out(computing_api, binding, tmp_path)
    syncer, proxier = (f"kubeocean-{each}-{binding.spec.cluster_id}" for each in PROGRAMS)

    async def missing(client: Client = computing_api) -> dict[str, tuple[str, ...] | None]:
        rights = await missing_rights(client, DEFAULT, [binding])
        return {name: rights[name] for name in (syncer, proxier)}

    viewer = computing.client(wrap=faults.wrap)
    faults.answer(403, times=1000, when=lambda requested: "accessreviews" in requested.path)
    try:
        for client in (computing_api, viewer):
            await until(lambda: _equals(missing(client), {syncer: (), proxier: ()}))  # noqa: B023
        for resource, name in ((ROLES, f"{syncer}-common"), (OURS, proxier)):
            where = SYSTEM if resource is OURS else ""
            bound = await computing_api.get(resource, name, where)
            await computing_api.delete(resource, name, where, uid=bound.uid)
        secret = f"get, list, watch secrets {binding.spec.secret_ref.name} in {SYSTEM}"
        for client in (computing_api, viewer):

            async def lacking(client: Client = client) -> bool:
                rights = await missing(client)
                own = "patch clusterbindings.cloud.tencent.com"
                assert not any(own in each for each in rights[syncer] or ())
                lost = "get, list, watch, create, patch, delete nodes"
                return lost in (rights[syncer] or ()) and rights[proxier] == (secret,)

            await until(lacking)
        await doctor.finds("accounts", "delete nodes", joined.name)
        await doctor.finds("accounts", secret, joined.name)
    finally:
        await viewer.close()


async def _equals(reading: Awaitable[object], value: object) -> bool:
    return await reading == value


async def test_limits_that_the_worker_does_not_enforce(
    joined: JoinedWorker, doctor: Doctor
) -> None:
    worker_api, mount = joined.worker_api, joined.mount

    async def delete(resource: Resource[Untyped], name: str, namespace: str = "") -> None:
        stored = await worker_api.get(resource, name, namespace)
        await worker_api.delete(resource, name, namespace, uid=stored.uid)

    async def findings() -> list[str]:
        _, document, _ = await doctor(joined.name)
        assert f"enforcement of {joined.name}" in document["checks"], document
        return [each["message"] for each in document["findings"] if each["check"] == "enforcement"]

    async def finds(*texts: str) -> bool:
        messages = await findings()
        return len(messages) == len(texts) and all(
            text in message for text, message in zip(texts, messages, strict=True)
        )

    await until(finds, within=60)  # the API server reads new policies by a watch
    level = MergePatch({"metadata": {"labels": {LABEL_POD_SECURITY: "privileged"}}})
    await worker_api.patch(NAMESPACES, mount, level)
    await until(lambda: finds("privileged pods"), within=60)  # the admission policy refuses it, too
    await delete(NETWORK_POLICIES, "kubeocean-syncer-egress", mount)
    await until(lambda: finds("privileged pods", "metadata addresses"), within=60)
    await delete(POLICY_BINDINGS, f"{joined.joining.worker.cluster_role}-pods")
    texts = ("no admission policy", "privileged pods", "metadata addresses")
    await until(lambda: finds(*texts), within=60)


async def test_no_secret(joined: JoinedWorker, doctor: Doctor) -> None:
    name = secret_name(joined.name)
    secret = await joined.computing_api.get(SECRETS_WITH_DATA, name, SYSTEM)
    await joined.computing_api.delete(SECRETS_WITH_DATA, name, SYSTEM, uid=secret.uid)
    await doctor.finds("secret", "not found", joined.name)


async def test_a_secret_without_a_valid_kubeconfig(joined: JoinedWorker, doctor: Doctor) -> None:
    await joined.give("clusters: [")
    await doctor.finds("secret", secret_name(joined.name), joined.name)


async def test_a_worker_that_does_not_answer(joined: JoinedWorker, doctor: Doctor) -> None:
    content = await joined.kubeconfig()
    await joined.give(content.replace(joined.bare.server, "https://127.0.0.1:1"))
    await doctor.finds("worker", "could not reach https://127.0.0.1:1", joined.name)


async def test_too_few_rights(joined: JoinedWorker, doctor: Doctor) -> None:
    bound = await joined.worker_api.get(OURS, "kubeocean-syncer", joined.mount)
    await joined.worker_api.delete(OURS, bound.name, joined.mount, uid=bound.uid)
    await doctor.finds("rights", f"pods in {joined.mount}", joined.name)


async def test_too_many_rights(joined: JoinedWorker, doctor: Doctor) -> None:
    body = {
        "metadata": {"name": joined.name},
        "roleRef": {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "kubeocean-syncer", "namespace": joined.mount}
        ],
    }
    _, document, _ = await doctor(joined.name)
    assert not [each for each in document["findings"] if each["check"] == "excess rights"]
    secrets = {"apiGroups": [""], "resources": ["secrets", "nodes/proxy"], "verbs": ["get"]}
    roles = Resource(ROLES.group, "v1", "clusterroles", "ClusterRole", False, Untyped)
    await joined.worker_api.create(roles, {"metadata": {"name": joined.name}, "rules": [secrets]})
    body["roleRef"] = {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": joined.name}
    await joined.worker_api.create(ROLES, body)

    async def noticed() -> bool:
        await doctor.finds("excess rights", "get secrets", joined.name)
        await doctor.finds("excess rights", "get nodes/proxy", joined.name)
        return True

    await until(noticed)


async def test_a_token_that_is_sent_to_kubelets_is_a_warning(
    joined: JoinedWorker, doctor: Doctor, computing_api: Applier
) -> None:
    """The worker is one that was joined before accounts for metrics existed."""
    roles = Resource(ROLES.group, "v1", "clusterroles", "ClusterRole", False, Untyped)
    name, mount = f"kubeocean-syncer-{joined.mount}", joined.mount
    rule = {"apiGroups": [""], "resources": ["nodes/metrics", "nodes/stats"], "verbs": ["get"]}
    role = (await joined.worker_api.get(roles, name, keep_raw=True)).content()
    await joined.worker_api.patch(roles, name, MergePatch({"rules": [*role["rules"], rule]}))
    locally = Resource(ROLES.group, "v1", "roles", "Role", True, Untyped)
    role = (
        await joined.worker_api.get(locally, "kubeocean-syncer", mount, keep_raw=True)
    ).content()
    rules = [each for each in role["rules"] if "serviceaccounts/token" not in each["resources"]]
    await joined.worker_api.patch(locally, "kubeocean-syncer", MergePatch({"rules": rules}), mount)

    async def warned() -> list[str]:
        _, document, _ = await doctor(joined.name)
        findings = [each for each in document["findings"] if each["check"] == "kubelets"]
        assert all(each["severity"] == "warning" for each in findings)
        return [each["remedy"] for each in findings]

    (remedy,) = await until(warned)
    assert f"kubeocean join {joined.name}" in remedy
    force = Applier(joined.worker_api, domain=DEFAULT, force=True)
    await Join(joined.joining, computing_api, force, load_kubeconfig(joined.bare.kubeconfig)).run()

    async def well() -> bool:
        return not await warned()

    await until(well)


async def test_no_mount_namespace(joined: JoinedWorker, doctor: Doctor) -> None:
    body = joined.joining.binding()
    name = f"{joined.name}x"
    body["metadata"] = {"name": name}
    body["spec"] |= {"clusterID": name, "mountNamespace": "nowhere"}
    admin = joined.bare.kubeconfig.read_text()
    await joined.give(admin)
    made = await joined.computing_api.create(CLUSTER_BINDINGS, body)
    try:
        await doctor.finds("mount namespace", "namespace nowhere does not exist", name)
        await doctor.finds("excess rights", "do everything", name)
    finally:
        await joined.computing_api.delete(CLUSTER_BINDINGS, name, uid=made.uid)


async def test_an_expired_token(joined: JoinedWorker, doctor: Doctor) -> None:
    claims = {"iat": 1_600_000_000, "exp": 1_600_003_600}
    parts = ({"alg": "none"}, claims, {})
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
    lines = (await joined.kubeconfig()).splitlines()
    content = [
        line if "token:" not in line else f"{line.partition('token:')[0]}token: {token}"
        for line in lines
    ]
    await joined.give("\n".join(content))
    await doctor.finds("token", "it expired at 2020-09-13", joined.name)


async def test_a_policy_that_is_invalid(joined: JoinedWorker, doctor: Doctor) -> None:
    limits = [{"resource": "cpu", "quantity": "1e1000"}]
    patch = MergePatch({"spec": {"resourceLimits": limits}})
    await joined.worker_api.patch(RESOURCE_LEASING_POLICIES, joined.name, patch)
    await doctor.finds("policies", "spec.resourceLimits[0].quantity", joined.name)


async def test_a_policy_that_names_no_binding_is_a_warning(
    joined: JoinedWorker, doctor: Doctor
) -> None:
    name = f"{joined.name}-lost"
    body = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": "ResourceLeasingPolicy",
        "metadata": {"name": name},
        "spec": {"cluster": "unknown"},
    }
    made = await joined.worker_api.create(RESOURCE_LEASING_POLICIES, body)
    try:
        _, document, _ = await doctor(joined.name)
        findings = [each for each in document["findings"] if "'unknown'" in each["message"]]
        assert [each["severity"] for each in findings] == ["warning"]
    finally:
        await joined.worker_api.delete(RESOURCE_LEASING_POLICIES, name, uid=made.uid)


async def test_an_object_that_is_left_over_in_the_worker(
    joined: JoinedWorker, doctor: Doctor
) -> None:
    ids = Ids(joined.name, joined.name, await identity_of(joined.computing_api))
    annotations = {
        "kubeocean.io/virtual-namespace": "team",
        "kubeocean.io/virtual-name": "gone",
        "kubeocean.io/virtual-uid": "u",
    }
    meta = {"name": "left", "labels": ownership_labels(ids, DEFAULT), "annotations": annotations}
    await joined.worker_api.create(CONFIG_MAPS, {"metadata": meta}, namespace=joined.mount)
    await doctor.finds("orphans", "left is left over", joined.name)


async def test_a_labelled_pod_that_names_no_virtual_pod(
    joined: JoinedWorker, doctor: Doctor
) -> None:
    meta = {"name": "stray", "labels": {DEFAULT.managed_by: DEFAULT.product}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    body = {"metadata": meta, "spec": spec}
    await joined.worker_api.create(PODS, body, namespace=joined.mount)
    _, document, _ = await doctor(joined.name)
    (finding,) = (each for each in document["findings"] if each["check"] == "orphans")
    assert "stray has the label of Kubeocean, but names no virtual pod" in finding["message"]
    assert finding["severity"] == "warning"
    assert finding["remedy"] == f"kubeocean repair --cluster-binding-name {joined.name}"


async def test_nodes_without_heartbeat_and_without_binding(
    joined: JoinedWorker, doctor: Doctor
) -> None:
    for binding in (joined.name, "gone"):
        labels = {
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": binding,
        }
        body = {"metadata": {"name": f"vnode-{joined.name}-{binding}", "labels": labels}}
        await joined.computing_api.create(NODES, body)
    try:
        await doctor.finds("nodes", "it never had a heartbeat", joined.name)
        await doctor.finds("nodes", "its binding gone does not exist", joined.name)
    finally:
        for binding in (joined.name, "gone"):
            await joined.computing_api.delete(NODES, f"vnode-{joined.name}-{binding}", uid=None)


async def test_a_finalizer_of_a_binding_that_does_not_exist(
    joined: JoinedWorker, doctor: Doctor
) -> None:
    meta = {
        "name": joined.name,
        "labels": {"kubeocean.io/managed-by": "kubeocean"},
        "finalizers": ["kubeocean.io/finalizer-gone"],
    }
    await joined.computing_api.create(CONFIG_MAPS, {"metadata": meta}, namespace="default")
    try:
        await doctor.finds("finalizers", "kubeocean.io/finalizer-gone", joined.name)
    finally:
        free = MergePatch({"metadata": {"finalizers": None, "labels": None}})
        await joined.computing_api.patch(CONFIG_MAPS, joined.name, free, "default")


async def examined(computing: Client, binding: str, clock: Clock) -> Diagnosis:
    """Make all checks of one binding."""
    reader = DoctorReader(computing, clock=clock)
    try:
        return diagnose(await reader.read(binding))
    finally:
        await reader.close()


class Meanwhile(RealClock):
    """A clock whose `sleep` lets `happen` take its place."""

    def __init__(self, happen: Callable[[], Awaitable[object]]) -> None:
        self._happen = happen

    async def sleep(self, seconds: float) -> None:
        await self._happen()


async def test_an_object_with_a_binding_in_the_second_read_is_not_left_over(
    joined: JoinedWorker,
) -> None:
    """Bindings are read again before a remedy is given that deletes something."""
    computing_api, late = joined.computing_api, f"{joined.name}-late"
    labels = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/cluster-binding": late}
    node = await computing_api.create(
        NODES, {"metadata": {"name": f"vnode-{late}", "labels": labels}}
    )
    meta = {"name": late, "labels": labels, "finalizers": [f"kubeocean.io/finalizer-{late}"]}
    await computing_api.create(CONFIG_MAPS, {"metadata": meta}, namespace="default")
    body = joined.joining.binding()
    body["metadata"] = {"name": late}
    body["spec"] |= {"clusterID": late}

    async def left_over(clock: Clock) -> set[str]:
        findings = (await examined(computing_api, joined.name, clock)).findings
        return {each.subject for each in findings if "does not exist" in each.message}

    try:
        both = {f"node vnode-{late}", f"ConfigMap default/{late}"}
        assert await left_over(RealClock()) == both
        clock = Meanwhile(lambda: computing_api.create(CLUSTER_BINDINGS, body))
        assert await left_over(clock) == set()
    finally:
        free = MergePatch({"metadata": {"finalizers": None, "labels": None}})
        await computing_api.patch(CONFIG_MAPS, late, free, "default")
        await computing_api.delete(NODES, node.name, uid=node.uid)
        with suppress(NotFound):
            made = await computing_api.get(CLUSTER_BINDINGS, late)
            await computing_api.delete(CLUSTER_BINDINGS, late, uid=made.uid)


async def test_nothing_is_left_over_where_bindings_cannot_be_read_again(
    joined: JoinedWorker, computing: Cluster, faults: Faults
) -> None:
    labels = {"kubeocean.io/managed-by": "kubeocean", "kubeocean.io/cluster-binding": "gone"}
    body = {"metadata": {"name": f"vnode-{joined.name}", "labels": labels}}
    node = await joined.computing_api.create(NODES, body)
    client = computing.client(wrap=faults.wrap)

    async def fail() -> None:
        faults.answer(503, times=1000, when=lambda requested: "clusterbindings" in requested.path)

    try:
        diagnosis = await examined(client, joined.name, Meanwhile(fail))
    finally:
        await client.close()
        await joined.computing_api.delete(NODES, node.name, uid=node.uid)
    assert "nodes" in diagnosis.not_made
    assert f"node {node.name}" not in {each.subject for each in diagnosis.findings}
    assert [each for each in diagnosis.unread if each.startswith("bindings")]


async def test_clocks_that_differ(joined: JoinedWorker) -> None:
    clock = SkewedClock(-300)
    diagnosis = await examined(joined.computing_api, joined.name, clock)
    findings = {each.check: each for each in diagnosis.findings}
    for check in ("clock", "worker clock"):
        assert findings[check].severity is Severity.ERROR
        assert re.search(r"(299|30[0-5]) s ahead of", findings[check].message)
    assert not diagnosis.healthy(strict=False)


async def test_an_account_without_rights_is_an_error(computing: Cluster) -> None:
    kubeconfig = await computing.service_account("default", "stranger")
    code, document, err = await Doctor(kubeconfig)()
    assert (code, document) == (1, {})
    assert "clusterbindings.cloud.tencent.com is forbidden" in err


async def test_an_account_that_may_list_bindings_only_learns_that_health_is_unknown(
    joined: JoinedWorker, computing: Cluster
) -> None:
    """No part that cannot be read counts as absent."""
    name, computing_api = f"{joined.name}-viewer", joined.computing_api
    roles = Resource(ROLES.group, "v1", "clusterroles", "ClusterRole", False, Untyped)
    rule = {
        "apiGroups": [CLUSTER_BINDINGS.group],
        "resources": [CLUSTER_BINDINGS.plural],
        "verbs": ["get", "list"],
    }
    role = await computing_api.create(roles, {"metadata": {"name": name}, "rules": [rule]})
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    }
    bound = await computing_api.create(ROLES, body)
    viewer = Doctor(await computing.service_account("default", name))
    try:

        async def permitted() -> tuple[int, Json] | None:
            code, document, _ = await viewer(joined.name)
            return (code, document) if document else None

        code, document = await until(permitted)
        made, not_made = document["checks"], document["checksNotMade"]
        assert {"version", "clock"} <= set(made)
        unread = {"definitions", "manager", "nodes", "finalizers", f"secret of {joined.name}"}
        assert unread <= set(not_made)
        assert (code, document["healthy"], document["findings"]) == (4, None, [])
        assert document["notRead"]
        code, strict, _ = await viewer(joined.name, "--strict")
        assert (code, strict["healthy"], strict["checksNotMade"]) == (4, None, not_made)
    finally:
        await computing_api.delete(ROLES, name, uid=bound.uid)
        await computing_api.delete(roles, name, uid=role.uid)


async def test_a_binding_that_does_not_exist(doctor: Doctor) -> None:
    code, document, err = await doctor("unknown")
    assert (code, document) == (2, {})
    assert "BINDING: there is no such binding; there are: " in err

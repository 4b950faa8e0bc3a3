"""A clean installation is healthy; each fault that is put into one is found."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import NewCluster
from doctors import Doctor, run_command, said_by
from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.ownership import Ids, ownership
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, PolicySpec, ResourceLimit
from kubeocean.bound.identities import identity_of
from kubeocean.bound.workers import KUBECONFIG_SECRETS
from kubeocean.doctoring.accounts import missing_rights
from kubeocean.doctoring.diagnosing import diagnose
from kubeocean.doctoring.examining import Examiner
from kubeocean.doctoring.findings import Severity
from kubeocean.installation.applying import Applier
from kubeocean.installation.bindings import Joining
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.credentials import secret_name
from kubeocean.installation.joining import Join
from kubeocean.installation.values import Values, WorkerValues
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults, SkewedClock
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import CONFIG_MAPS, LEASES, NODES
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Resource, Untyped, find_condition
from kubeocean.runtime.patches import ApplyPatch, MergePatch
from syncers import SyncerProcess, syncer
from waiting import until

SYSTEM = "kubeocean-system"
ROLES = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, Untyped
)
OURS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, Untyped)
DENIED = dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostPath", "privileged"), "Deny")


@dataclass(frozen=True)
class Patient:
    """A worker that has joined, and on which nobody works."""

    joining: Joining
    above: Client
    below: Client
    bare: Cluster

    @property
    def name(self) -> str:
        return self.joining.name

    @property
    def mount(self) -> str:
        return self.joining.worker.mount_namespace

    async def give(self, kubeconfig: str) -> None:
        """Other credentials."""
        data = {"kubeconfig": base64.b64encode(kubeconfig.encode()).decode()}
        await self.above.patch(
            KUBECONFIG_SECRETS, secret_name(self.name), MergePatch({"data": data}), SYSTEM
        )

    async def kubeconfig(self) -> str:
        secret = await self.above.get(KUBECONFIG_SECRETS, secret_name(self.name), SYSTEM)
        return base64.b64decode(secret.data["kubeconfig"]).decode()


async def leading(client: Client) -> None:
    """What a manager that leads writes every other second."""
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
async def patient(above: Applier, below: Applier, bare: Cluster) -> AsyncIterator[Patient]:
    name = f"d{uuid.uuid4().hex[:8]}"
    values = WorkerValues(namespace=f"m-{name}")
    lease = PolicySpec(name, resource_limits=(ResourceLimit("cpu", percent=50),))
    joining = Joining(name=name, worker=values, lease=lease, direct_scheduling=True)
    await Join(joining, above, below, load_kubeconfig(bare.kubeconfig)).run()
    client = above.client
    await leading(client)
    ready = MergePatch({"status": {"phase": "Ready"}})
    await client.patch(CLUSTER_BINDINGS, name, ready, subresource="status")
    denied = MergePatch({"spec": {"podPrivileges": DENIED}})
    await client.patch(CLUSTER_BINDINGS, name, denied)
    yield Patient(joining, client, below.client, bare)
    binding = await client.get(CLUSTER_BINDINGS, name)
    await client.delete(CLUSTER_BINDINGS, name, uid=binding.uid)


async def ready_nodes(client: Client, binding: str) -> bool:
    found = (await client.list(NODES, labels=f"{DEFAULT.cluster_binding}={binding}")).items
    conditions = [find_condition(node.status.conditions, "Ready") for node in found]
    return len(found) == 2 and all(each and each.status == "True" for each in conditions)


async def test_a_clean_installation_is_healthy(
    patient: Patient, computing: Cluster, doctor: Doctor, tmp_path: Path
) -> None:
    kubeconfig = await computing.service_account(SYSTEM, "kubeocean-syncer")
    async with syncer(
        "one",
        f"--cluster-binding-name={patient.name}",
        f"--leader-election-namespace={SYSTEM}",
        kubeconfig=kubeconfig,
        directory=tmp_path,
    ) as one:
        await until(lambda: ready_nodes(patient.above, patient.name), within=60)
        leased = f"{DEFAULT.cluster_binding}={patient.name}"
        nodes = (await patient.above.list(NODES, labels=leased)).items

        async def beating() -> bool:
            leases = (await patient.above.list(LEASES, "kube-node-lease")).items
            return {node.name for node in nodes} <= {lease.name for lease in leases}

        await until(beating)
        code, found, err = await doctor(patient.name)
        errors = [each for each in found["findings"] if each["severity"] == "error"]
        assert (code, errors, found["notRead"]) == (0, [], []), (found, err)
        # The Deployment of the manager has no nodes to run on here: that is worth a warning.
        warned = {each["about"] for each in found["findings"]}
        assert warned == {"Deployment kubeocean-manager"}
        code, found, err = await doctor(patient.name, "--strict")
        assert code == 3
        await its_level_changes(patient, one, computing)
        await what_is_explained_needs_no_more_rights(nodes[0].name, computing)
        await a_drain_is_respected(patient, nodes[0].name, computing)
        binding = await patient.above.get(CLUSTER_BINDINGS, patient.name)
        await patient.above.delete(CLUSTER_BINDINGS, patient.name, uid=binding.uid)
        await until(lambda: let_go(patient))
    await patient.above.create(CLUSTER_BINDINGS, patient.joining.binding())


async def its_level_changes(patient: Patient, one: SyncerProcess, computing: Cluster) -> None:
    """`kubeocean logs-level` reaches a syncer that runs."""
    where = f"--kubeconfig={computing.kubeconfig}"
    for level in ("debug", "usual"):
        assert await run_command("logs-level", patient.name, level, where) == 0
    assert await run_command("logs-level", patient.name, "loud", where) == 2
    await until(lambda: len(one.lines("Changed log level")) == 2)
    assert [line["level_"] for line in one.lines("Changed log level")] == ["debug", "info"]


async def what_is_explained_needs_no_more_rights(vnode: str, computing: Cluster) -> None:
    """The credential that `join` mints is enough to tell why."""
    where = f"--kubeconfig={computing.kubeconfig}"
    code, out, err = await said_by("explain", "node", vnode, where, "-o", "json")
    told = json.loads(out)
    assert (code, told["rule"], told["notRead"]) == (0, "Lent", []), (told, err)
    assert told["figures"][0]["limit"] == "50 %"


async def a_drain_is_respected(patient: Patient, vnode: str, computing: Cluster) -> None:
    """The syncer leaves a cordon that is not its own."""
    where = f"--kubeconfig={computing.kubeconfig}"
    for words, cordoned in (((), True), (("--undo",), False)):
        assert await run_command("drain", vnode, *words, where) == 0
        labels = MergePatch({"metadata": {"labels": {"touched": str(cordoned)}}})
        pnode = (await patient.above.get(NODES, vnode)).annotations[DEFAULT.physical_node_name]
        await patient.below.patch(NODES, pnode, labels)

        async def followed(cordoned: bool = cordoned) -> bool:
            found = await patient.above.get(NODES, vnode)
            return found.labels.get("touched") == str(cordoned)

        await until(followed)
        assert (await patient.above.get(NODES, vnode)).spec.unschedulable is cordoned


async def let_go(patient: Patient) -> bool:
    found = (await patient.above.list(CLUSTER_BINDINGS)).items
    return patient.name not in {each.name for each in found}


async def test_no_definitions_and_no_manager(new_cluster: NewCluster) -> None:
    cluster = await new_cluster()
    there = Doctor(cluster.kubeconfig)
    await there.finds("definitions", "clusterbindings.cloud.tencent.com is not installed")
    client = cluster.client()
    try:
        await Applier(client, domain=DEFAULT).apply_all(computing_objects(Values()))
    finally:
        await client.close()
    await there.finds("manager", "none has ever led")


async def test_no_syncer(patient: Patient, doctor: Doctor) -> None:
    await doctor.finds("syncer", "no syncer leads", patient.name)


async def test_accounts_that_lost_their_roles(
    patient: Patient, computing: Cluster, doctor: Doctor, faults: Faults
) -> None:
    """Whoever asks: the server is asked, or else the roles are compared."""
    above, name = patient.above, "kubeocean-syncer"
    bound = await above.get(ROLES, name, keep_raw=True)
    await above.delete(ROLES, name, uid=bound.uid)

    async def lacking() -> bool:
        found = (await missing_rights(above, DEFAULT))[name] or ()
        return "get, list, watch, create, patch, delete nodes" in found

    try:
        await until(lacking)
        await doctor.finds("accounts", "clusterbindings.cloud.tencent.com", patient.name)
        found = await missing_rights(above, DEFAULT)
        assert (found["kubeocean-manager"], found["kubeocean-proxier"]) == ((), ())
        viewer = computing.client(wrap=faults.wrap)
        faults.answer(403, times=1000, when=lambda asked: "accessreviews" in asked.path)
        try:
            assert await missing_rights(viewer, DEFAULT) == found
        finally:
            await viewer.close()
    finally:
        await Applier(above, domain=DEFAULT).apply_all(
            [each for each in computing_objects(Values()) if each["kind"] == "ClusterRoleBinding"]
        )


async def test_no_secret(patient: Patient, doctor: Doctor) -> None:
    name = secret_name(patient.name)
    secret = await patient.above.get(KUBECONFIG_SECRETS, name, SYSTEM)
    await patient.above.delete(KUBECONFIG_SECRETS, name, SYSTEM, uid=secret.uid)
    await doctor.finds("secret", "not found", patient.name)


async def test_a_kubeconfig_that_is_none(patient: Patient, doctor: Doctor) -> None:
    await patient.give("clusters: [")
    await doctor.finds("secret", secret_name(patient.name), patient.name)


async def test_a_worker_that_does_not_answer(patient: Patient, doctor: Doctor) -> None:
    content = await patient.kubeconfig()
    await patient.give(content.replace(patient.bare.server, "https://127.0.0.1:1"))
    await doctor.finds("worker", "could not reach https://127.0.0.1:1", patient.name)


async def test_too_few_rights(patient: Patient, doctor: Doctor) -> None:
    bound = await patient.below.get(OURS, "kubeocean-syncer", patient.mount)
    await patient.below.delete(OURS, bound.name, patient.mount, uid=bound.uid)
    await doctor.finds("rights", f"pods in {patient.mount}", patient.name)


async def test_too_many_rights(patient: Patient, doctor: Doctor) -> None:
    body = {
        "metadata": {"name": patient.name},
        "roleRef": {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"kind": "ServiceAccount", "name": "kubeocean-syncer", "namespace": patient.mount}
        ],
    }
    _, found, _ = await doctor(patient.name)
    assert not [each for each in found["findings"] if each["check"] == "excess rights"]
    secrets = {"apiGroups": [""], "resources": ["secrets", "nodes/proxy"], "verbs": ["get"]}
    roles = Resource(ROLES.group, "v1", "clusterroles", "ClusterRole", False, Untyped)
    await patient.below.create(roles, {"metadata": {"name": patient.name}, "rules": [secrets]})
    body["roleRef"] = {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": patient.name}
    await patient.below.create(ROLES, body)

    async def noticed() -> bool:
        await doctor.finds("excess rights", "get secrets", patient.name)
        await doctor.finds("excess rights", "get nodes/proxy", patient.name)
        return True

    await until(noticed)


async def test_a_token_that_kubelets_are_shown_is_a_warning(
    patient: Patient, doctor: Doctor, above: Applier
) -> None:
    """As in a worker that was joined before there was an account for metrics."""
    roles = Resource(ROLES.group, "v1", "clusterroles", "ClusterRole", False, Untyped)
    name, mount = f"kubeocean-syncer-{patient.mount}", patient.mount
    rule = {"apiGroups": [""], "resources": ["nodes/metrics", "nodes/stats"], "verbs": ["get"]}
    there = (await patient.below.get(roles, name, keep_raw=True)).content()
    await patient.below.patch(roles, name, MergePatch({"rules": [*there["rules"], rule]}))
    locally = Resource(ROLES.group, "v1", "roles", "Role", True, Untyped)
    there = (await patient.below.get(locally, "kubeocean-syncer", mount, keep_raw=True)).content()
    rules = [each for each in there["rules"] if "serviceaccounts/token" not in each["resources"]]
    await patient.below.patch(locally, "kubeocean-syncer", MergePatch({"rules": rules}), mount)

    async def warned() -> list[str]:
        _, found, _ = await doctor(patient.name)
        told = [each for each in found["findings"] if each["check"] == "kubelets"]
        assert all(each["severity"] == "warning" for each in told)
        return [each["remedy"] for each in told]

    (remedy,) = await until(warned)
    assert f"kubeocean join {patient.name}" in remedy
    force = Applier(patient.below, domain=DEFAULT, force=True)
    await Join(patient.joining, above, force, load_kubeconfig(patient.bare.kubeconfig)).run()

    async def well() -> bool:
        return not await warned()

    await until(well)


async def test_no_mount_namespace(patient: Patient, doctor: Doctor) -> None:
    body = patient.joining.binding()
    name = f"{patient.name}x"
    body["metadata"] = {"name": name}
    body["spec"] |= {"clusterID": name, "mountNamespace": "nowhere"}
    admin = patient.bare.kubeconfig.read_text()
    await patient.give(admin)
    made = await patient.above.create(CLUSTER_BINDINGS, body)
    try:
        await doctor.finds("mount namespace", "namespace nowhere is not there", name)
        await doctor.finds("excess rights", "do everything", name)
    finally:
        await patient.above.delete(CLUSTER_BINDINGS, name, uid=made.uid)


async def test_an_expired_token(patient: Patient, doctor: Doctor) -> None:
    claims = {"iat": 1_600_000_000, "exp": 1_600_003_600}
    parts = ({"alg": "none"}, claims, {})
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
    lines = (await patient.kubeconfig()).splitlines()
    content = [
        line if "token:" not in line else f"{line.partition('token:')[0]}token: {token}"
        for line in lines
    ]
    await patient.give("\n".join(content))
    await doctor.finds("token", "it ended at 2020-09-13", patient.name)


async def test_a_policy_that_makes_no_sense(patient: Patient, doctor: Doctor) -> None:
    limits = [{"resource": "cpu", "quantity": "1e1000"}]
    patch = MergePatch({"spec": {"resourceLimits": limits}})
    await patient.below.patch(RESOURCE_LEASING_POLICIES, patient.name, patch)
    await doctor.finds("policies", "spec.resourceLimits[0].quantity", patient.name)


async def test_a_policy_that_names_nobody_is_a_warning(patient: Patient, doctor: Doctor) -> None:
    name = f"{patient.name}-lost"
    body = {
        "apiVersion": RESOURCE_LEASING_POLICIES.api_version,
        "kind": "ResourceLeasingPolicy",
        "metadata": {"name": name},
        "spec": {"cluster": "nobody"},
    }
    made = await patient.below.create(RESOURCE_LEASING_POLICIES, body)
    try:
        _, found, _ = await doctor(patient.name)
        told = [each for each in found["findings"] if "'nobody'" in each["message"]]
        assert [each["severity"] for each in told] == ["warning"]
    finally:
        await patient.below.delete(RESOURCE_LEASING_POLICIES, name, uid=made.uid)


async def test_what_is_left_over_in_the_worker(patient: Patient, doctor: Doctor) -> None:
    ids = Ids(patient.name, patient.name, await identity_of(patient.above))
    said = {
        "kubeocean.io/virtual-namespace": "team",
        "kubeocean.io/virtual-name": "gone",
        "kubeocean.io/virtual-uid": "u",
    }
    meta = {"name": "left", "labels": ownership(ids, DEFAULT), "annotations": said}
    await patient.below.create(CONFIG_MAPS, {"metadata": meta}, namespace=patient.mount)
    await doctor.finds("orphans", "left is left over", patient.name)


async def test_nodes_without_heartbeat_and_without_binding(
    patient: Patient, doctor: Doctor
) -> None:
    for binding in (patient.name, "gone"):
        labels = {
            "kubeocean.io/managed-by": "kubeocean",
            "kubeocean.io/cluster-binding": binding,
        }
        body = {"metadata": {"name": f"vnode-{patient.name}-{binding}", "labels": labels}}
        await patient.above.create(NODES, body)
    try:
        await doctor.finds("nodes", "it never had a heartbeat", patient.name)
        await doctor.finds("nodes", "its binding gone does not exist", patient.name)
    finally:
        for binding in (patient.name, "gone"):
            await patient.above.delete(NODES, f"vnode-{patient.name}-{binding}", uid=None)


async def test_a_finalizer_of_a_binding_that_is_gone(patient: Patient, doctor: Doctor) -> None:
    meta = {
        "name": patient.name,
        "labels": {"kubeocean.io/managed-by": "kubeocean"},
        "finalizers": ["kubeocean.io/finalizer-gone"],
    }
    await patient.above.create(CONFIG_MAPS, {"metadata": meta}, namespace="default")
    try:
        await doctor.finds("finalizers", "kubeocean.io/finalizer-gone", patient.name)
    finally:
        free = MergePatch({"metadata": {"finalizers": None, "labels": None}})
        await patient.above.patch(CONFIG_MAPS, patient.name, free, "default")


async def test_clocks_that_differ(patient: Patient) -> None:
    clock = SkewedClock(-300)
    async with AsyncExitStack() as stack:
        examiner = Examiner(patient.above, stack, clock=clock)
        diagnosis = diagnose(*await examiner.examine(patient.name), examiner.notes.unread)
    told = {each.check: each for each in diagnosis.findings}
    for check in ("clock", "worker clock"):
        assert told[check].severity is Severity.ERROR
        assert re.search(r"(299|30[0-5]) s ahead of", told[check].message)
    assert not diagnosis.healthy(strict=False)


async def test_a_binding_that_there_is_not(doctor: Doctor) -> None:
    code, found, err = await doctor("nobody")
    assert (code, found) == (2, {})
    assert "BINDING: there is no such binding; there are: " in err

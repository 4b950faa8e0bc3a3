"""Bindings on real control planes: every phase, condition and reason, and its cause."""

from __future__ import annotations

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.install.permissions import Rule
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import DEPLOYMENTS, NAMESPACES, SECRETS
from kubeocean.runtime.objects import controller_of
from support.controller_env import quiet
from support.faults import Faults
from support.manager_env import SYSTEM, ManagerEnv, granted_kubeconfig, relayed
from support.wait import until

MANAGER = "system:serviceaccount:kubeocean-system:kubeocean-manager"
SEEN_WITHIN_S = 30.0  # that a worker is down


def admin(env: ManagerEnv) -> bytes:
    return env.worker.kubeconfig.read_bytes()


async def owner(env: ManagerEnv) -> str:
    """Return the UID of the binding that owns the syncer of the clusterID."""
    deployment = await env.computing_client.get(DEPLOYMENTS, env.deployment("syncer"), SYSTEM)
    owner = controller_of(deployment)
    return owner.uid if owner is not None else ""


# Set up


async def test_a_binding_becomes_ready_and_reports_when_it_is_not(env: ManagerEnv) -> None:
    faults, since = Faults(), env.computing_cluster.audit.mark()
    async with env.managed(faults):
        await env.bind(admin(env))
        await until(env.is_rolled_out)
        await env.wait_for_phase("Pending")
        message = await env.wait_for_condition("Ready", "False", "Initializing")
        assert "its controller has not observed that yet" in message
        await env.wait_for_condition("Connected", "True", "ConnectivityPassed")
        await env.wait_for_condition("Permitted", "True", "PermissionsGranted")
        await env.wait_for_condition("SyncerReady", "False", "SyncerNotReady")
        await env.wait_for_condition("ProxierReady", "False", "ProxierNotReady")

        await env.run()
        await env.wait_for_phase("Ready")
        await env.wait_for_condition("Ready", "True", "ValidationPassed")
        await env.wait_for_condition("SyncerReady", "True", "SyncerCreated")
        await env.wait_for_condition("ProxierReady", "True", "ProxierCreated")
        binding = await env.binding()
        assert binding.status.last_sync_time
        assert binding.status.observed_generation == binding.metadata.generation
        assert "kubeocean.io/clusterbinding-manager" in (binding.metadata.finalizers or ())
        for reason in ("StatusUpdated", "Reconciling", "RolledOut", "Ready"):
            await env.wait_for_event(reason)
        await quiet(faults)

        await env.run("syncer", replicas=1)
        await env.wait_for_condition("SyncerReady", "True", "SyncerUpdating")
        await env.wait_for_condition("Ready", "True", "ValidationPassed")
        await env.run("syncer", replicas=0)
        await env.wait_for_condition("SyncerReady", "False", "SyncerNotReady")
        await env.wait_for_condition("Ready", "False", "SyncerFailed")
        await env.wait_for_phase("Failed")
        await env.run("proxier", replicas=0)
        await env.wait_for_condition("Ready", "False", "ProxierFailed")
        await env.run()
        await env.wait_for_phase("Ready")

    def was_at_work() -> bool:
        made = env.computing_cluster.audit.requests(user=MANAGER, since=since)
        return {"watch", "create", "patch"} <= {each.verb for each in made}

    # The server records a watch when it notices that the client has closed the connection.
    await until(was_at_work)
    made = env.computing_cluster.audit.requests(user=MANAGER, since=since)
    assert [each for each in made if each.code == 403] == []


async def test_an_invalid_template_fails_and_running_objects_stay(env: ManagerEnv) -> None:
    async with env.managed():
        await env.bind(admin(env))
        await env.make_ready()
        before = await env.deployments()
        good = env.syncers.files["deployment.yaml"]
        env.syncers.write(deployment__yaml="{{ if }")
        await env.wait_for_condition("SyncerReady", "False", "SyncerFailed")
        message = await env.wait_for_condition("Ready", "False", "SyncerFailed")
        assert "deployment.yaml" in message
        env.proxiers.write(service__yaml=None)
        env.syncers.write(deployment__yaml=good)
        await env.wait_for_condition("ProxierReady", "False", "ProxierFailed")
        await env.wait_for_condition("Ready", "False", "ProxierFailed")
        await env.wait_for_condition("SyncerReady", "True", "SyncerCreated")
        await env.wait_for_phase("Failed")
        assert await env.deployments() == before


async def test_an_invalid_binding_is_named_and_can_be_corrected(env: ManagerEnv) -> None:
    async with env.managed():
        await env.bind(admin(env), mountNamespace="", serviceNamespaces=["a", ""])
        message = await env.wait_for_condition("Ready", "False", "ValidationFailed")
        assert "spec.mountNamespace: must name a namespace of the worker cluster" in message
        assert "spec.serviceNamespaces[1]: must name a namespace" in message
        await env.wait_for_phase("Failed")
        assert (await env.wait_for_event("ValidationFailed")).type == "Warning"
        assert await env.deployments() == {}
        better = {"mountNamespace": "default", "serviceNamespaces": ["a"]}
        await env.computing_client.patch(CLUSTER_BINDINGS, env.name, MergePatch({"spec": better}))
        await env.make_ready()


async def test_a_duplicate_binding_is_rolled_out_when_the_first_is_deleted(
    env: ManagerEnv,
) -> None:
    env.name += "-a"
    other = env.other_binding()
    other.name = env.name[:-1] + "b"  # as old, if the server counts seconds; so second
    shared = {"clusterID": env.cluster_id}
    async with env.managed():
        first = await env.bind(admin(env))
        await env.make_ready()
        before = await env.deployments()

        await other.bind(admin(env), **shared)
        message = await other.wait_for_condition("Ready", "False", "ValidationFailed")
        assert f"spec.clusterID: must be unique; binding {env.name} has it already" in message
        await other.wait_for_phase("Failed")
        assert await owner(env) == first.uid

        await other.unbind()
        await until(other.is_gone)
        assert await env.deployments() == before
        await env.wait_for_phase("Ready")

        second = await other.bind(admin(env), **shared)
        await other.wait_for_phase("Failed")
        await env.unbind()
        await until(env.is_gone)

        async def taken() -> bool:
            return len(await env.deployments()) == 2 and await owner(env) == second.uid

        await until(taken)
        await env.run()
        await other.wait_for_phase("Ready")


# The way to the worker


async def test_a_secret_may_be_created_late_be_invalid_and_be_rotated(env: ManagerEnv) -> None:
    worker = env.worker
    async with env.managed():
        await env.bind()
        message = await env.wait_for_condition("Connected", "False", "ConnectivityFailed")
        assert f"Secret {SYSTEM}/{env.name} does not exist" in message
        await env.wait_for_condition("Ready", "False", "ConnectivityFailed")
        await env.wait_for_phase("Failed")
        assert (await env.wait_for_event("ConnectivityFailed")).type == "Warning"

        await env.write_secret(b"apiVersion: v1\nkind: Config\nclusters: 7\n")
        await until(lambda: mentions(env, "clusters"))
        await env.computing_client.patch(SECRETS, env.name, MergePatch({"data": None}), SYSTEM)
        await until(lambda: mentions(env, "data.kubeconfig: is missing or empty"))
        assert await env.deployments() == {}

        users = [f"{env.name}-{n}" for n in range(2)]
        await env.write_secret(worker.user(users[0], ["system:masters"]).read_bytes())
        await env.make_ready()
        before = await env.deployments()
        assert not [each for each in await env.events() if each.reason == "KubeconfigRotated"]
        await env.write_secret(worker.user(users[1], ["system:masters"]).read_bytes())
        rotated = await env.wait_for_event("KubeconfigRotated")
        assert worker.server in rotated.message
        await until(lambda: worker.audit.requests(user=users[1]))
        await env.wait_for_phase("Ready")
        assert await env.deployments() == before

        await env.write_secret(worker.user(users[1]).read_bytes())
        await env.wait_for_condition("Permitted", "False", "PermissionsMissing")


async def mentions(env: ManagerEnv, text: str) -> bool:
    return text in (await env.condition("Ready"))[2]


async def test_a_credential_that_the_worker_rejects_is_no_connection(
    env: ManagerEnv,
) -> None:
    namespace = f"m-{env.name}"
    path = await granted_kubeconfig(env.worker, namespace)
    async with env.managed():
        broken = path.read_text().replace("token: ", "token: not")
        assert broken != path.read_text()
        await env.bind(broken.encode(), mountNamespace=namespace)
        reported = await env.wait_for_condition("Connected", "False", "ConnectivityFailed")
        assert "Unauthorized" in reported
        await env.write_secret(path.read_bytes())
        await env.make_ready()


async def test_each_missing_permission_is_named(env: ManagerEnv) -> None:
    namespace, worker = f"m-{env.name}", env.worker
    without = ("create pods", "delete pods", "list endpointslices", "list nodes")
    path = await granted_kubeconfig(worker, namespace, without=without)
    async with env.managed():
        await env.bind(path.read_bytes(), mountNamespace=namespace)
        message = await env.wait_for_condition("Permitted", "False", "PermissionsMissing")
        assert message == (
            f"The credential may not: list nodes; create, delete pods in {namespace};"
            f" list endpointslices.discovery.k8s.io in {namespace}"
        )
        assert "create, delete pods" in await env.wait_for_condition(
            "Ready", "False", "PermissionsMissing"
        )
        await env.wait_for_phase("Failed")
        await env.wait_for_condition("Connected", "True", "ConnectivityPassed")
        assert await env.deployments() == {}

        path = await granted_kubeconfig(worker, namespace, make=False)
        await env.write_secret(path.read_bytes())
        message = await env.wait_for_condition("Permitted", "True", "PermissionsGranted")
        assert "add-ons without permissions: volumes, node-labels, metrics, renewal" in message
        await env.make_ready()


async def test_removed_permissions_are_named_and_running_objects_stay(
    env: ManagerEnv,
) -> None:
    namespace, worker = f"m-{env.name}", env.worker
    path = await granted_kubeconfig(worker, namespace)
    async with env.managed(review_s=1):
        await env.bind(path.read_bytes(), mountNamespace=namespace)
        await env.make_ready()
        before = await env.deployments()
        await granted_kubeconfig(worker, namespace, without=("create pods",), make=False)
        message = await env.wait_for_condition("Permitted", "False", "PermissionsMissing")
        assert message == f"The credential may not: create pods in {namespace}"
        await env.wait_for_condition("Ready", "False", "PermissionsMissing")
        await env.wait_for_phase("Failed")
        assert await env.deployments() == before


async def test_a_missing_mount_namespace_is_created_if_permitted(env: ManagerEnv) -> None:
    namespace, computing_cluster = f"made-{env.name}", f"m-{env.name}"
    other = env.other_binding()
    looking = Rule(("namespaces",), ("get",))
    path = await granted_kubeconfig(env.worker, computing_cluster, extra=[looking])
    async with env.managed():
        await other.bind(path.read_bytes(), mountNamespace=namespace)
        message = await other.wait_for_condition("Ready", "False", "MountNamespaceMissing")
        assert (
            f"namespace {namespace} does not exist in the worker, and the credential may not"
            in message
        )
        await other.wait_for_phase("Failed")

        await env.bind(admin(env), mountNamespace=namespace)
        await env.wait_for_event("MountNamespaceCreated")
        await until(env.is_rolled_out)
        labels = (await env.worker_client.get(NAMESPACES, namespace)).labels
        assert labels["app.kubernetes.io/part-of"] == "kubeocean"


# Workers that are down


@pytest.mark.slow
async def test_an_unreachable_worker_is_noticed_and_delays_no_other_binding(
    env: ManagerEnv, cluster: Cluster
) -> None:
    alive, never = env.other_binding(), env.other_binding()
    async with relayed(cluster) as relay, relayed(cluster) as nowhere, env.managed():
        await nowhere.cut()
        await never.bind(nowhere.kubeconfig())
        await env.bind(relay.kubeconfig())
        await alive.bind(admin(env))
        for each in (env, alive):
            await each.make_ready()
        await never.wait_for_condition("Connected", "False", "ConnectivityFailed")
        await never.wait_for_condition("Ready", "False", "ConnectivityFailed")
        assert await never.deployments() == {}
        before = await alive.binding(), await env.deployments()

        relay.mute()
        await env.wait_for_condition(
            "Connected", "False", "ConnectivityFailed", within=SEEN_WITHIN_S
        )
        await env.wait_for_condition("Ready", "False", "ConnectivityFailed")
        await env.wait_for_phase("Failed")
        assert (await alive.binding()).resource_version == before[0].resource_version
        assert await env.deployments() == before[1]

        relay.unmute()
        await nowhere.start()
        await env.wait_for_phase("Ready")
        await env.wait_for_condition("Connected", "True", "ConnectivityPassed")
        await until(never.is_rolled_out)
        assert (await alive.binding()).resource_version == before[0].resource_version


async def test_the_leading_syncer_writes_the_condition_connected(env: ManagerEnv) -> None:
    async with env.managed():
        await env.bind(admin(env))
        await env.make_ready()
        await env.lead(duration_s=2)
        await env.set_syncer_finalizer()
        lost = {"type": "Connected", "status": "False", "reason": "WorkerUnreachable"}
        await env.write_condition(lost | {"message": "The worker has not answered since noon"})
        message = await env.wait_for_condition("Ready", "False", "ConnectivityFailed")
        assert message.endswith("The worker has not answered since noon")
        await env.wait_for_condition("Connected", "False", "WorkerUnreachable")
        # No replica is available, but one may still lead; until it is seen not to.
        await env.run("syncer", replicas=0)
        await env.wait_for_condition("SyncerReady", "False", "SyncerNotReady")
        await env.wait_for_condition("Connected", "False", "WorkerUnreachable")
        await env.wait_for_condition("Connected", "True", "ConnectivityPassed")
        await env.wait_for_condition("Ready", "False", "SyncerFailed")


async def test_a_secret_without_read_permission_is_reported(env: ManagerEnv) -> None:
    async with env.managed():
        reference = {"name": env.name, "namespace": "default"}
        await env.bind(secretRef=reference)
        message = await env.wait_for_condition("Ready", "False", "ConnectivityFailed")
        assert "secrets" in message
        assert "forbidden" in message

"""Bindings on real control planes: every phase, condition and reason, and what it takes."""

from __future__ import annotations

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.installation.rights import Rule
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Faults
from kubeocean.manager.rolloutviews import DEPLOYMENTS
from kubeocean.runtime.kinds import NAMESPACES, SECRETS
from kubeocean.runtime.objects import controller_of
from kubeocean.runtime.patches import MergePatch
from managing import SYSTEM, Harbour, granted_kubeconfig, relayed
from straits import quiet
from waiting import until

MANAGER = "system:serviceaccount:kubeocean-system:kubeocean-manager"
SEEN_WITHIN_S = 30.0  # that a worker is down


def admin(harbour: Harbour) -> bytes:
    return harbour.worker.kubeconfig.read_bytes()


async def owner(harbour: Harbour) -> str:
    """The UID of whoever owns the syncers of that clusterID."""
    there = await harbour.above.get(DEPLOYMENTS, harbour.deployment("syncer"), SYSTEM)
    found = controller_of(there)
    return found.uid if found is not None else ""


# Set up


async def test_a_binding_becomes_ready_and_tells_when_it_is_not(harbour: Harbour) -> None:
    faults, since = Faults(), harbour.home.audit.mark()
    async with harbour.managed(faults):
        await harbour.bind(admin(harbour))
        await until(harbour.are_rolled_out)
        await harbour.is_in("Pending")
        said = await harbour.says("Ready", "False", "Initializing")
        assert "its controller has not looked yet" in said
        await harbour.says("Connected", "True", "ConnectivityPassed")
        await harbour.says("Permitted", "True", "PermissionsGranted")
        await harbour.says("SyncerReady", "False", "SyncerNotReady")
        await harbour.says("ProxierReady", "False", "ProxierNotReady")

        await harbour.run()
        await harbour.is_in("Ready")
        await harbour.says("Ready", "True", "ValidationPassed")
        await harbour.says("SyncerReady", "True", "SyncerCreated")
        await harbour.says("ProxierReady", "True", "ProxierCreated")
        there = await harbour.binding()
        assert there.status.last_sync_time
        assert there.status.observed_generation == there.metadata.generation
        assert "kubeocean.io/clusterbinding-manager" in (there.metadata.finalizers or ())
        for reason in ("StatusUpdated", "Reconciling", "RolledOut", "Ready"):
            await harbour.happened(reason)
        await quiet(faults)

        await harbour.run("syncer", replicas=1)
        await harbour.says("SyncerReady", "True", "SyncerUpdating")
        await harbour.says("Ready", "True", "ValidationPassed")
        await harbour.run("syncer", replicas=0)
        await harbour.says("SyncerReady", "False", "SyncerNotReady")
        await harbour.says("Ready", "False", "SyncerFailed")
        await harbour.is_in("Failed")
        await harbour.run("proxier", replicas=0)
        await harbour.says("Ready", "False", "ProxierFailed")
        await harbour.run()
        await harbour.is_in("Ready")
    made = harbour.home.audit.requests(user=MANAGER, since=since)
    assert {"watch", "create", "patch"} <= {each.verb for each in made}
    assert [each for each in made if each.code == 403] == []


async def test_a_broken_template_fails_and_what_runs_goes_on(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await harbour.becomes_ready()
        before = await harbour.deployments()
        good = harbour.syncers.files["deployment.yaml"]
        harbour.syncers.write(deployment__yaml="{{ if }")
        await harbour.says("SyncerReady", "False", "SyncerFailed")
        said = await harbour.says("Ready", "False", "SyncerFailed")
        assert "deployment.yaml" in said
        harbour.proxiers.write(service__yaml=None)
        harbour.syncers.write(deployment__yaml=good)
        await harbour.says("ProxierReady", "False", "ProxierFailed")
        await harbour.says("Ready", "False", "ProxierFailed")
        await harbour.says("SyncerReady", "True", "SyncerCreated")
        await harbour.is_in("Failed")
        assert await harbour.deployments() == before


async def test_what_makes_no_sense_is_named_and_may_be_corrected(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind(admin(harbour), mountNamespace="", serviceNamespaces=["a", ""])
        said = await harbour.says("Ready", "False", "ValidationFailed")
        assert "spec.mountNamespace: must name a namespace of the worker cluster" in said
        assert "spec.serviceNamespaces[1]: must name a namespace" in said
        await harbour.is_in("Failed")
        assert (await harbour.happened("ValidationFailed")).type == "Warning"
        assert await harbour.deployments() == {}
        better = {"mountNamespace": "default", "serviceNamespaces": ["a"]}
        await harbour.above.patch(CLUSTER_BINDINGS, harbour.name, MergePatch({"spec": better}))
        await harbour.becomes_ready()


async def test_a_duplicate_harms_nobody_and_goes_ahead_when_it_may(harbour: Harbour) -> None:
    harbour.name += "-a"
    other = harbour.neighbour()
    other.name = harbour.name[:-1] + "b"  # as old, if the server counts seconds; so second
    shared = {"clusterID": harbour.cluster_id}
    async with harbour.managed():
        first = await harbour.bind(admin(harbour))
        await harbour.becomes_ready()
        before = await harbour.deployments()

        await other.bind(admin(harbour), **shared)
        said = await other.says("Ready", "False", "ValidationFailed")
        assert f"spec.clusterID: must be unique, and binding {harbour.name} had it before" in said
        await other.is_in("Failed")
        assert await owner(harbour) == first.uid

        await other.unbind()
        await until(other.is_gone)
        assert await harbour.deployments() == before
        await harbour.is_in("Ready")

        second = await other.bind(admin(harbour), **shared)
        await other.is_in("Failed")
        await harbour.unbind()
        await until(harbour.is_gone)

        async def taken() -> bool:
            return len(await harbour.deployments()) == 2 and await owner(harbour) == second.uid

        await until(taken)
        await harbour.run()
        await other.is_in("Ready")


# The way to the worker


async def test_a_secret_may_come_late_make_no_sense_and_be_rotated(harbour: Harbour) -> None:
    worker = harbour.worker
    async with harbour.managed():
        await harbour.bind()
        said = await harbour.says("Connected", "False", "ConnectivityFailed")
        assert f"there is no Secret {SYSTEM}/{harbour.name}" in said
        await harbour.says("Ready", "False", "ConnectivityFailed")
        await harbour.is_in("Failed")
        assert (await harbour.happened("ConnectivityFailed")).type == "Warning"

        await harbour.keep_secret(b"apiVersion: v1\nkind: Config\nclusters: 7\n")
        await until(lambda: mentions(harbour, "clusters"))
        await harbour.above.patch(SECRETS, harbour.name, MergePatch({"data": None}), SYSTEM)
        await until(lambda: mentions(harbour, "data.kubeconfig: is missing or empty"))
        assert await harbour.deployments() == {}

        users = [f"{harbour.name}-{n}" for n in range(2)]
        await harbour.keep_secret(worker.user(users[0], ["system:masters"]).read_bytes())
        await harbour.becomes_ready()
        before = await harbour.deployments()
        assert not [each for each in await harbour.events() if each.reason == "KubeconfigRotated"]
        await harbour.keep_secret(worker.user(users[1], ["system:masters"]).read_bytes())
        rotated = await harbour.happened("KubeconfigRotated")
        assert worker.server in rotated.message
        await until(lambda: worker.audit.requests(user=users[1]))
        await harbour.is_in("Ready")
        assert await harbour.deployments() == before

        await harbour.keep_secret(worker.user(users[1]).read_bytes())
        await harbour.says("Permitted", "False", "PermissionsMissing")


async def mentions(harbour: Harbour, text: str) -> bool:
    return text in (await harbour.condition("Ready"))[2]


async def test_a_credential_that_the_worker_does_not_know_is_no_connection(
    harbour: Harbour,
) -> None:
    namespace = f"m-{harbour.name}"
    path = await granted_kubeconfig(harbour.worker, namespace)
    async with harbour.managed():
        broken = path.read_text().replace("token: ", "token: not")
        assert broken != path.read_text()
        await harbour.bind(broken.encode(), mountNamespace=namespace)
        said = await harbour.says("Connected", "False", "ConnectivityFailed")
        assert "Unauthorized" in said
        await harbour.keep_secret(path.read_bytes())
        await harbour.becomes_ready()


async def test_rights_that_are_missing_are_named_to_the_letter(harbour: Harbour) -> None:
    namespace, worker = f"m-{harbour.name}", harbour.worker
    without = ("create pods", "delete pods", "list endpointslices", "list nodes")
    path = await granted_kubeconfig(worker, namespace, without=without)
    async with harbour.managed():
        await harbour.bind(path.read_bytes(), mountNamespace=namespace)
        said = await harbour.says("Permitted", "False", "PermissionsMissing")
        assert said == (
            f"The credential may not: list nodes; create, delete pods in {namespace};"
            f" list endpointslices.discovery.k8s.io in {namespace}"
        )
        assert "create, delete pods" in await harbour.says("Ready", "False", "PermissionsMissing")
        await harbour.is_in("Failed")
        await harbour.says("Connected", "True", "ConnectivityPassed")
        assert await harbour.deployments() == {}

        path = await granted_kubeconfig(worker, namespace, make=False)
        await harbour.keep_secret(path.read_bytes())
        said = await harbour.says("Permitted", "True", "PermissionsGranted")
        assert "add-ons without rights: volumes, node-labels, metrics" in said
        await harbour.becomes_ready()


async def test_rights_that_are_taken_away_are_named_and_nothing_is_touched(
    harbour: Harbour,
) -> None:
    namespace, worker = f"m-{harbour.name}", harbour.worker
    path = await granted_kubeconfig(worker, namespace)
    async with harbour.managed(review_s=1):
        await harbour.bind(path.read_bytes(), mountNamespace=namespace)
        await harbour.becomes_ready()
        before = await harbour.deployments()
        await granted_kubeconfig(worker, namespace, without=("create pods",), make=False)
        said = await harbour.says("Permitted", "False", "PermissionsMissing")
        assert said == f"The credential may not: create pods in {namespace}"
        await harbour.says("Ready", "False", "PermissionsMissing")
        await harbour.is_in("Failed")
        assert await harbour.deployments() == before


async def test_a_mount_namespace_is_made_where_that_is_allowed(harbour: Harbour) -> None:
    namespace, home = f"made-{harbour.name}", f"m-{harbour.name}"
    other = harbour.neighbour()
    looking = Rule(("namespaces",), ("get",))
    path = await granted_kubeconfig(harbour.worker, home, extra=[looking])
    async with harbour.managed():
        await other.bind(path.read_bytes(), mountNamespace=namespace)
        said = await other.says("Ready", "False", "MountNamespaceMissing")
        assert f"no namespace {namespace} in the worker, and the credential may not make" in said
        await other.is_in("Failed")

        await harbour.bind(admin(harbour), mountNamespace=namespace)
        await harbour.happened("MountNamespaceCreated")
        await until(harbour.are_rolled_out)
        labels = (await harbour.below.get(NAMESPACES, namespace)).labels
        assert labels["app.kubernetes.io/part-of"] == "kubeocean"


# Workers that are down


@pytest.mark.slow
async def test_one_dead_worker_is_seen_soon_and_disturbs_no_other(
    harbour: Harbour, cluster: Cluster
) -> None:
    alive, never = harbour.neighbour(), harbour.neighbour()
    async with relayed(cluster) as relay, relayed(cluster) as nowhere, harbour.managed():
        await nowhere.cut()
        await never.bind(nowhere.kubeconfig())
        await harbour.bind(relay.kubeconfig())
        await alive.bind(admin(harbour))
        for each in (harbour, alive):
            await each.becomes_ready()
        await never.says("Connected", "False", "ConnectivityFailed")
        await never.says("Ready", "False", "ConnectivityFailed")
        assert await never.deployments() == {}
        before = await alive.binding(), await harbour.deployments()

        relay.mute()
        await harbour.says("Connected", "False", "ConnectivityFailed", within=SEEN_WITHIN_S)
        await harbour.says("Ready", "False", "ConnectivityFailed")
        await harbour.is_in("Failed")
        assert (await alive.binding()).resource_version == before[0].resource_version
        assert await harbour.deployments() == before[1]

        relay.unmute()
        await nowhere.start()
        await harbour.is_in("Ready")
        await harbour.says("Connected", "True", "ConnectivityPassed")
        await until(never.are_rolled_out)
        assert (await alive.binding()).resource_version == before[0].resource_version


async def test_a_syncer_that_leads_has_the_word_on_the_connection(harbour: Harbour) -> None:
    async with harbour.managed():
        await harbour.bind(admin(harbour))
        await harbour.becomes_ready()
        await harbour.lead(duration_s=2)
        await harbour.hold()
        lost = {"type": "Connected", "status": "False", "reason": "WorkerUnreachable"}
        await harbour.tell(lost | {"message": "The worker has not answered since noon"})
        said = await harbour.says("Ready", "False", "ConnectivityFailed")
        assert said.endswith("The worker has not answered since noon")
        await harbour.says("Connected", "False", "WorkerUnreachable")
        # No replica is available, but one may still lead; until it is seen not to.
        await harbour.run("syncer", replicas=0)
        await harbour.says("SyncerReady", "False", "SyncerNotReady")
        await harbour.says("Connected", "False", "WorkerUnreachable")
        await harbour.says("Connected", "True", "ConnectivityPassed")
        await harbour.says("Ready", "False", "SyncerFailed")


async def test_a_secret_that_may_not_be_read_is_told(harbour: Harbour) -> None:
    async with harbour.managed():
        reference = {"name": harbour.name, "namespace": "default"}
        await harbour.bind(secretRef=reference)
        said = await harbour.says("Ready", "False", "ConnectivityFailed")
        assert "secrets" in said
        assert "forbidden" in said

"""Workers that join and leave, on real control planes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.bound.workers import KUBECONFIG_SECRETS, KubeconfigSecret, SecretAccess
from kubeocean.errors import ConfigError, Conflict, Forbidden, NotFound, Unauthorized
from kubeocean.installation.applying import Applier, Fate, resource_of
from kubeocean.installation.bindings import Joining
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.joining import Join, identity
from kubeocean.installation.leaving import Leave
from kubeocean.installation.parts import title
from kubeocean.installation.values import Values, WorkerValues
from kubeocean.installation.workerside import worker_objects
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES, NODES, SECRETS, SERVICE_ACCOUNTS
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json
from kubeocean.runtime.patches import MergePatch
from kubeocean.runtime.transport import HttpTransport
from waiting import until

Joiner = Callable[..., Join]


def silent(body: Json, fate: Fate) -> None:
    pass


class Fates(dict[str, Fate]):
    """What became of each object."""

    def note(self, body: Json, fate: Fate) -> None:
        self[title(body)] = fate


@pytest.fixture
def joining() -> Joining:
    name = f"j{uuid.uuid4().hex[:8]}"
    return Joining(name=name, worker=WorkerValues(namespace=f"m-{name}"), lease=PolicySpec(name))


@pytest.fixture
def joiner(above: Applier, below: Applier, bare: Cluster) -> Joiner:
    def make(joining: Joining, worker: Applier = below, cluster: Cluster = bare) -> Join:
        return Join(joining, above, worker, load_kubeconfig(cluster.kubeconfig))

    return make


async def secret(above: Applier, joining: Joining) -> KubeconfigSecret:
    name = f"{joining.name}-kubeconfig"
    return await above.client.get(KUBECONFIG_SECRETS, name, "kubeocean-system")


async def credential(above: Applier, joining: Joining) -> SecretAccess:
    return SecretAccess(await secret(above, joining))


async def works(access: SecretAccess) -> bool:
    client = Client(HttpTransport(access), cluster="worker")
    try:
        await client.list(NODES, page=1)
    except (Unauthorized, Forbidden):
        return False
    finally:
        await client.close()
    return True


async def test_installing_again_changes_nothing(above: Applier) -> None:
    fates = Fates()
    await above.apply_all(computing_objects(Values()), fates.note)
    assert {name for name, fate in fates.items() if fate is not Fate.UNCHANGED} == set()


async def test_joining_again_changes_nothing(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    first = await joiner(joining).run()
    before = (await credential(above, joining)).current()
    fates = Fates()
    again = await joiner(joining).run(fates.note)
    assert {name for name, fate in fates.items() if fate is not Fate.UNCHANGED} == set()
    assert (first.renewed, again.renewed) == (True, False)
    assert (await credential(above, joining)).current() == before
    assert again.ends - datetime.now(UTC) > timedelta(days=300)


async def test_a_credential_is_renewed_if_asked_for(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    before = (await credential(above, joining)).current()
    assert (await joiner(joining).run(renew=True)).renewed
    after = await credential(above, joining)
    assert after.current().token != before.token
    assert await works(after)


async def test_a_cluster_is_not_bound_to_itself(
    above: Applier, computing: Cluster, joiner: Joiner, joining: Joining
) -> None:
    with pytest.raises(ConfigError, match="is the computing cluster itself"):
        await joiner(joining, above, computing).run()


async def test_an_id_is_not_given_twice_nor_changed(joiner: Joiner, joining: Joining) -> None:
    await joiner(joining).run()
    taken = Joining(name=f"{joining.name}x", cluster_id=joining.name)
    with pytest.raises(ConfigError, match=f"binding {joining.name} has it"):
        await joiner(taken).run()
    other = Joining(name=joining.name, cluster_id="other")
    with pytest.raises(ConfigError, match=f"cannot be changed: it is {joining.name}"):
        await joiner(other).run()


async def test_a_name_is_not_given_to_another_worker(
    above: Applier,
    below: Applier,
    joiner: Joiner,
    joining: Joining,
    cluster: Cluster,
    client: Client,
) -> None:
    await joiner(joining).run()
    before = await secret(above, joining)
    other = Applier(client, domain=DEFAULT)
    with pytest.raises(ConfigError, match=f"than the one that is bound as {joining.name}"):
        await joiner(joining, other, cluster).run()
    assert await secret(above, joining) == before
    with pytest.raises(NotFound):
        await client.get(NAMESPACES, joining.worker.mount_namespace)

    # Whoever joined before clusters were told apart is known by the way.
    forgotten = {"annotations": {DEFAULT.worker_cluster_id: None}}
    name = f"{joining.name}-kubeconfig"
    patch = MergePatch({"metadata": forgotten})
    await above.client.patch(KUBECONFIG_SECRETS, name, patch, "kubeocean-system")
    with pytest.raises(ConfigError, match="leads to another cluster"):
        await joiner(joining, other, cluster).run()
    assert not (await joiner(joining).run()).renewed

    # What the syncer has met stands on the binding, whatever became of the Secret.
    met = {"annotations": {DEFAULT.worker_cluster_id: await identity(below)}}
    await above.client.patch(CLUSTER_BINDINGS, joining.name, MergePatch({"metadata": met}))
    uid = (await above.client.get(KUBECONFIG_SECRETS, name, "kubeocean-system")).uid
    await above.client.delete(KUBECONFIG_SECRETS, name, "kubeocean-system", uid=uid)
    with pytest.raises(ConfigError, match="leads to another cluster"):
        await joiner(joining, other, cluster).run()
    with pytest.raises(ConfigError, match="leads to another cluster"):
        leave = Leave(joining.name, above, domain=DEFAULT)
        await leave.check_worker(other, load_kubeconfig(cluster.kubeconfig))
    assert (await joiner(joining).run()).renewed


async def test_a_mount_namespace_is_not_changed_nor_the_credential_for_it(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    before = await secret(above, joining)
    moved = replace(joining, worker=WorkerValues(namespace=f"n-{joining.name}"))
    with pytest.raises(ConfigError, match=f"cannot be changed: it is m-{joining.name}"):
        await joiner(moved).run()
    assert await secret(above, joining) == before


async def test_what_is_being_deleted_is_not_joined(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    held = MergePatch({"metadata": {"finalizers": [DEFAULT.finalizer_syncer]}})
    there = await above.client.patch(CLUSTER_BINDINGS, joining.name, held)
    await above.client.delete(CLUSTER_BINDINGS, joining.name, uid=there.uid)
    with pytest.raises(ConfigError, match="is being deleted"):
        await joiner(joining).run()
    leave = Leave(joining.name, above, domain=DEFAULT)
    assert (await leave.unbind(patience_s=0, force=True, say=lambda said: None)).gone
    await joiner(joining).run()


async def test_what_somebody_else_has_set_is_theirs(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    theirs = above.client
    change = MergePatch({"spec": {"serviceNamespaces": ["theirs"]}})
    other = Client(theirs.transport, field_manager="somebody")
    await other.patch(CLUSTER_BINDINGS, joining.name, change)
    wanted = replace(joining, service_namespaces=("ours",))
    with pytest.raises(Conflict, match=r"serviceNamespaces.*--force-conflicts"):
        await joiner(wanted).run()
    forced = Applier(theirs, domain=DEFAULT, force=True)
    await forced.apply(wanted.binding())
    spec = (await theirs.get(CLUSTER_BINDINGS, joining.name)).spec
    assert spec.service_namespaces == ("ours",)


async def test_who_leaves_leaves_nothing_that_opens_a_door(
    above: Applier, below: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    access = await credential(above, joining)
    assert await works(access)
    leave = Leave(joining.name, above, domain=DEFAULT)
    gone = await leave.unbind(patience_s=10, force=False, say=lambda said: None)
    assert gone.gone
    await leave.forget(silent)
    stays = await leave.clean(below, joining.worker, silent, force=False)
    assert f"Namespace {joining.worker.mount_namespace}" in stays
    with pytest.raises(NotFound):
        await credential(above, joining)
    with pytest.raises(NotFound):
        await below.client.get(RESOURCE_LEASING_POLICIES, joining.name)
    with pytest.raises(NotFound):
        await below.client.get(SERVICE_ACCOUNTS, "kubeocean-syncer", joining.worker.mount_namespace)
    assert not await works(access)


async def test_only_the_worker_that_is_bound_is_let_go_of(
    above: Applier,
    below: Applier,
    joiner: Joiner,
    joining: Joining,
    computing: Cluster,
    bare: Cluster,
    cluster: Cluster,
    client: Client,
) -> None:
    await joiner(joining).run()
    leave = Leave(joining.name, above, domain=DEFAULT)
    with pytest.raises(ConfigError, match="is the computing cluster itself"):
        await leave.check_worker(above, load_kubeconfig(computing.kubeconfig))
    other = Applier(client, domain=DEFAULT)
    with pytest.raises(ConfigError, match=f"than the one that is bound as {joining.name}"):
        await leave.check_worker(other, load_kubeconfig(cluster.kubeconfig))
    await leave.check_worker(below, load_kubeconfig(bare.kubeconfig))


async def test_roles_of_a_computing_cluster_are_no_workers(above: Applier) -> None:
    fates = Fates()
    for body in worker_objects(WorkerValues()):
        if body["kind"] in ("ClusterRole", "ClusterRoleBinding"):
            fates.note(body, await above.remove(body))
    assert fates == {
        "ClusterRole kubeocean-syncer": Fate.FOREIGN,
        "ClusterRoleBinding kubeocean-syncer": Fate.FOREIGN,
        "ClusterRole kubeocean-metrics": Fate.ABSENT,
        "ClusterRoleBinding kubeocean-metrics": Fate.ABSENT,
    }


async def test_who_is_not_there_cannot_leave_unless_something_was_left(
    above: Applier, below: Applier, joiner: Joiner, joining: Joining
) -> None:
    other = Joining(name=f"{joining.name}x", worker=joining.worker)
    await joiner(other).run()
    leave, values = Leave(joining.name, above, domain=DEFAULT), joining.worker
    for worker in (None, below):
        with pytest.raises(ConfigError, match=rf"no such binding; there are: .*{other.name}"):
            await leave.check(worker, values)
    await joiner(joining).run()
    await leave.check(None, values)
    await leave.unbind(patience_s=10, force=False, say=lambda said: None)
    await leave.forget(silent)
    with pytest.raises(ConfigError, match="no such binding"):
        await leave.check(None, values)
    await leave.check(below, values)
    await leave.clean(below, values, silent, force=False)
    with pytest.raises(ConfigError, match="no such binding"):
        await leave.check(below, values)


async def test_what_nobody_took_back_is_told(
    above: Applier, below: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    leave, home = Leave(joining.name, above, domain=DEFAULT), joining.worker.mount_namespace
    labels = {
        DEFAULT.managed_by: "kubeocean",
        DEFAULT.cluster_binding: joining.name,
        DEFAULT.computing_cluster_id: await identity(above),
    }
    for name in ("one", "two"):
        metadata = {"name": name, "namespace": home, "labels": labels}
        await below.client.create(SECRETS, {"metadata": metadata})
    await leave.unbind(patience_s=10, force=False, say=lambda said: None)
    stays = await leave.clean(below, joining.worker, silent, force=True)
    assert stays[0] == f"2 Secrets of {joining.name}"
    assert f"{DEFAULT.cluster_binding}={joining.name}" in stays[1]
    assert await below.client.get(SECRETS, "one", home)


async def test_what_is_lent_to_another_cluster_is_neither_changed_nor_removed(
    above: Applier, below: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    theirs = {"annotations": {DEFAULT.computing_cluster_id: "another"}}
    patch = MergePatch({"metadata": theirs})
    await below.client.patch(RESOURCE_LEASING_POLICIES, joining.name, patch)
    with pytest.raises(ConfigError, match="lends to another computing cluster"):
        await joiner(joining).run()
    leave, fates = Leave(joining.name, above, domain=DEFAULT), Fates()
    await leave.unbind(patience_s=10, force=False, say=lambda said: None)
    await leave.clean(below, joining.worker, fates.note, force=True)
    assert fates[f"ResourceLeasingPolicy {joining.name}"] is Fate.FOREIGN
    assert await below.client.get(RESOURCE_LEASING_POLICIES, joining.name)


async def test_an_account_stays_while_another_binding_needs_it(
    above: Applier, below: Applier, joiner: Joiner, joining: Joining
) -> None:
    other = Joining(name=f"{joining.name}x", worker=joining.worker)
    await joiner(joining).run()
    await joiner(other).run()
    revoked = await credential(above, joining)
    leave = Leave(joining.name, above, domain=DEFAULT)
    await leave.unbind(patience_s=10, force=False, say=lambda said: None)
    stays = await leave.clean(below, joining.worker, silent, force=False)
    assert len(stays) == 1
    assert other.name in stays[0]

    async def is_revoked() -> bool:
        return not await works(revoked)

    await until(is_revoked, within=30)  # servers remember good tokens for ten seconds
    assert await works(await credential(above, other))


async def test_a_binding_that_nobody_finishes_is_let_go_by_force_only(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    held = MergePatch({"metadata": {"finalizers": [DEFAULT.finalizer_syncer]}})
    await above.client.patch(CLUSTER_BINDINGS, joining.name, held)
    labels = {DEFAULT.managed_by: "kubeocean", DEFAULT.cluster_binding: joining.name}
    vnode = {"metadata": {"name": f"vnode-{joining.name}", "labels": labels}}
    await above.client.create(NODES, vnode)
    leave = Leave(joining.name, above, domain=DEFAULT)
    waiting = await leave.unbind(patience_s=0, force=False, say=lambda said: None)
    assert not waiting.gone
    assert DEFAULT.finalizer_syncer in waiting.waits_for
    assert (await leave.unbind(patience_s=0, force=True, say=lambda said: None)).gone
    with pytest.raises(NotFound):
        await above.client.get(NODES, f"vnode-{joining.name}")


async def test_what_kubectl_has_made_of_our_manifests_is_no_conflict(above: Applier) -> None:
    kubectl = Client(above.client.transport, field_manager="kubectl-client-side-apply")
    home = f"k{uuid.uuid4().hex[:8]}"
    await kubectl.create(NAMESPACES, {"metadata": {"name": home}})
    ours = [
        body | {"metadata": body["metadata"] | {"namespace": home}}
        for body in computing_objects(Values())
        if body["metadata"].get("namespace") == DEFAULT.system_namespace
    ]
    assert "Deployment" in {body["kind"] for body in ours}
    for body in ours:
        await kubectl.create(resource_of(body), body, namespace=home)
        await above.apply(body)  # raises Conflict, if theirs differed from ours

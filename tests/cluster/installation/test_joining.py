"""Workers that join and leave, on real control planes."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.group import DEFAULT
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, PolicySpec
from kubeocean.bound.workers import KUBECONFIG_SECRETS, SecretAccess
from kubeocean.errors import ConfigError, Conflict, Forbidden, NotFound, Unauthorized
from kubeocean.installation.applying import Applier, Fate
from kubeocean.installation.bindings import Joining
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.joining import Join
from kubeocean.installation.leaving import Leave
from kubeocean.installation.parts import title
from kubeocean.installation.values import Values, WorkerValues
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NODES, SERVICE_ACCOUNTS
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


async def credential(above: Applier, joining: Joining) -> SecretAccess:
    name = f"{joining.name}-kubeconfig"
    return SecretAccess(await above.client.get(KUBECONFIG_SECRETS, name, "kubeocean-system"))


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


async def test_what_somebody_else_has_set_is_theirs(
    above: Applier, joiner: Joiner, joining: Joining
) -> None:
    await joiner(joining).run()
    theirs = above.client
    change = MergePatch({"spec": {"mountNamespace": "elsewhere"}})
    other = Client(theirs.transport, field_manager="somebody")
    await other.patch(CLUSTER_BINDINGS, joining.name, change)
    with pytest.raises(Conflict, match=r"mountNamespace.*--force-conflicts"):
        await joiner(joining).run()
    forced = Applier(theirs, domain=DEFAULT, force=True)
    await forced.apply(joining.binding())
    spec = (await theirs.get(CLUSTER_BINDINGS, joining.name)).spec
    assert spec.mount_namespace == joining.worker.mount_namespace


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

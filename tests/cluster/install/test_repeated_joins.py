"""Joins that are repeated with other options, or with fewer."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, ResourceLimit, TimeWindow
from kubeocean.errors import NotFound
from kubeocean.install.apply import Applier
from kubeocean.install.join import Join
from kubeocean.install.join_options import JoinOptions, changes, read_present, requested
from kubeocean.install.roles import AddOn
from kubeocean.install.values import PodSecurity
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import NAMESPACES, SECRETS_WITH_DATA
from kubeocean.runtime.kubeconfig import load_kubeconfig
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.worker_access.credentials import SecretAccess

HALF = (ResourceLimit("cpu", percent=50),)
NIGHT = (TimeWindow("20:00", "06:00"),)
RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(RBAC, "v1", "clusterroles", "ClusterRole", False, Untyped)
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True, Untyped)
NETWORK_POLICIES = Resource(
    "networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, Untyped
)


@dataclass(frozen=True)
class Owner:
    """An administrator of both clusters who runs `kubeocean join`."""

    computing: Applier
    worker: Applier
    cluster: Cluster
    options: JoinOptions

    async def join(self, **options: object) -> tuple[str, ...]:
        """Join with these options; return the changes to values that were present."""
        given = replace(self.options, **options)
        present = await read_present(given, self.computing, self.worker)
        request = requested(given, present)
        access = load_kubeconfig(self.cluster.kubeconfig)
        await Join(request, self.computing, self.worker, access).run()
        return changes(present, request)

    @property
    def mount(self) -> str:
        assert self.options.mount_namespace is not None
        return self.options.mount_namespace

    async def rules(self) -> list[Json]:
        name = f"kubeocean-syncer-{self.mount}"
        stored = await self.worker.client.get(CLUSTER_ROLES, name, keep_raw=True)
        rules: list[Json] = stored.content()["rules"]
        return rules


@pytest.fixture
def owner(computing_applier: Applier, worker_applier: Applier, worker_cluster: Cluster) -> Owner:
    name = f"r{uuid.uuid4().hex[:8]}"
    options = JoinOptions(name=name, mount_namespace=f"m-{name}")
    return Owner(computing_applier, worker_applier, worker_cluster, options)


async def test_a_window_is_changed_without_the_limits(owner: Owner) -> None:
    await owner.join(limits=HALF, time_zone="Europe/Berlin")
    changed = await owner.join(windows=NIGHT)
    assert changed == (
        "windows: always -> 20:00-06:00",
        "eviction when a window ends: no -> yes",
        "grace: 0 s -> 300 s",
    )
    name = owner.options.name
    spec = (await owner.worker.client.get(RESOURCE_LEASING_POLICIES, name)).spec
    assert (spec.resource_limits, spec.time_windows) == (HALF, NIGHT)
    assert (spec.time_zone, spec.force_reclaim) == ("Europe/Berlin", True)
    assert await owner.join(limits=()) == ("limits: cpu=50% -> none",)


async def test_options_that_are_not_given_are_kept(owner: Owner) -> None:
    await owner.join(
        limits=HALF,
        add_ons=tuple(AddOn),
        quota={"pods": "5"},
        isolated=True,
        pod_security=PodSecurity.RESTRICTED,
        nodes={"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]},
        max_grace_s=60,
        service_namespaces=("shop",),
        server=load_kubeconfig(owner.cluster.kubeconfig).server.replace("127.0.0.1", "localhost"),
    )
    rules = await owner.rules()
    bare = Owner(owner.computing, owner.worker, owner.cluster, JoinOptions(name=owner.options.name))
    assert await bare.join() == ()
    assert await owner.rules() == rules
    client = owner.worker.client
    await client.get(NETWORK_POLICIES, "kubeocean-syncer", owner.mount)
    quota = (await client.get(QUOTAS, "kubeocean-syncer", owner.mount, keep_raw=True)).content()
    assert quota["spec"]["hard"] == {"pods": "5"}
    secret = await owner.computing.client.get(
        SECRETS_WITH_DATA, f"{owner.options.name}-kubeconfig", "kubeocean-system"
    )
    assert "localhost" in SecretAccess(secret).current().server


async def test_objects_of_options_that_are_turned_off_are_deleted(owner: Owner) -> None:
    await owner.join(isolated=True)
    changed = await owner.join(isolated=False, quota={}, egress=False)
    assert [line.partition(":")[0] for line in changed] == [
        "quota",
        "isolated from other namespaces",
        "egress policy",
    ]
    client = owner.worker.client
    for resource, name in (
        (NETWORK_POLICIES, "kubeocean-syncer"),
        (NETWORK_POLICIES, "kubeocean-syncer-egress"),
        (QUOTAS, "kubeocean-syncer"),
    ):
        with pytest.raises(NotFound):
            await client.get(resource, name, owner.mount)


async def test_a_second_binding_of_a_mount_namespace_takes_nothing_from_the_first(
    owner: Owner,
) -> None:
    await owner.join(add_ons=tuple(AddOn), quota={"pods": "5"})
    rules = await owner.rules()
    second = replace(owner, options=replace(owner.options, name=f"{owner.options.name}x"))
    assert await second.join() == ()
    assert await owner.rules() == rules
    assert await owner.join() == ()


async def test_a_worker_of_an_earlier_version_keeps_its_nodes_and_shows_new_limits(
    owner: Owner,
) -> None:
    await owner.join(nodes=None, egress=False)
    label = MergePatch({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}})
    await owner.worker.client.patch(NAMESPACES, owner.mount, label)
    assert await owner.join() == (
        "egress policy: no -> yes",
        "PodSecurity level: privileged -> baseline",
    )
    assert await owner.join() == ()
    namespace = await owner.worker.client.get(NAMESPACES, owner.mount)
    assert namespace.labels["pod-security.kubernetes.io/enforce"] == "baseline"
    assert DEFAULT.component in namespace.labels

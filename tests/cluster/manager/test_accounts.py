"""Tests of the accounts that the manager creates for the syncers and proxiers of each binding."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import DEFAULT, NODE_LEASE_NAMESPACE
from kubeocean.errors import AlreadyExists
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.apply import resource_of
from kubeocean.install.object_parts import accounts, named
from kubeocean.install.permissions import Permission
from kubeocean.manager.rendering import ACCOUNT_KINDS, KINDS
from kubeocean.manager.rollout_state import ComponentPhase
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.kinds import DEPLOYMENTS, NAMESPACES
from kubeocean.runtime.objects import Json, prune_json
from support.faults import Crashed, Faults
from support.manager_env import SYSTEM, ManagerEnv
from support.rollout_env import RolloutEnv, settled
from support.wait import until

GROUP = "cloud.tencent.com"
BOUND_IN = (NODE_LEASE_NAMESPACE, DEFAULT.host_port_namespace)


async def account_objects(env: RolloutEnv | ManagerEnv, binding: ClusterBinding) -> dict[str, Json]:
    """Return the accounts and roles that a binding owns, by kind, namespace and name."""
    home = env.namespace if isinstance(env, RolloutEnv) else SYSTEM
    client = env.client if isinstance(env, RolloutEnv) else env.computing_client
    objects = {}
    for kind in sorted(ACCOUNT_KINDS):
        resource = KINDS[kind]
        for namespace in (home, *BOUND_IN) if resource.namespaced else ("",):
            for each in (await client.list(resource, namespace, keep_raw=True)).items:
                owners = each.metadata.owner_references or ()
                if binding.uid in {owner.uid for owner in owners}:
                    objects[f"{kind} {each.key}"] = prune_json(each.content())
    return objects


async def own_binding(env: RolloutEnv) -> ClusterBinding:
    """Return a binding with its Secret in the namespace of syncers and proxiers."""
    with suppress(AlreadyExists):
        await env.client.create(NAMESPACES, {"metadata": {"name": DEFAULT.host_port_namespace}})
    patch = MergePatch({"spec": {"secretRef": {"namespace": env.namespace}}})
    return await env.client.patch(CLUSTER_BINDINGS, env.binding.name, patch)


def account_of(deployment: Json) -> str:
    name: str = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    return name


async def test_the_accounts_of_a_binding_may_use_its_own_objects_only(env: ManagerEnv) -> None:
    other = env.other_binding()
    async with env.managed():
        for each in (env, other):
            await each.bind(env.worker.kubeconfig.read_bytes())
            await until(each.is_rolled_out, within=60)
        client, binding = env.computing_client, await env.binding()
        lease, coordination = env.deployment("syncer"), "coordination.k8s.io"

        def about(name: str, cluster_id: str) -> list[Permission]:
            return [
                Permission("patch", GROUP, "clusterbindings", name=name),
                Permission("patch", GROUP, "clusterbindings/status", name=name),
                Permission("patch", coordination, "leases", SYSTEM, f"kubeocean-{cluster_id}"),
            ]

        own = about(env.name, f"syncer-{env.cluster_id}")
        foreign = about(other.name, f"syncer-{other.cluster_id}")
        granted = await granted_to(client, f"{SYSTEM}:{lease}", [*own, *foreign])
        assert granted == own
        shared = [
            Permission("create", "", "nodes"),
            Permission("patch", coordination, "leases", NODE_LEASE_NAMESPACE),
            Permission("create", "", "pods", DEFAULT.host_port_namespace),
        ]
        assert await granted_to(client, f"{SYSTEM}:{lease}", shared) == shared

        proxier = f"{SYSTEM}:{env.deployment('proxier')}"
        own_secret = Permission("get", "", "secrets", SYSTEM, env.name)
        secrets = [
            own_secret,
            own_secret._replace(name=other.name),
            own_secret._replace(name=""),
            own_secret._replace(verb="list", name=""),
            own_secret._replace(verb="patch"),
        ]
        assert await granted_to(client, proxier, secrets) == [own_secret]
        for component in ("syncer", "proxier"):
            stored = await client.get(DEPLOYMENTS, env.deployment(component), SYSTEM, keep_raw=True)
            assert account_of(stored.content()) == env.deployment(component)
        assert len(await account_objects(env, binding)) == 12

        await env.unbind()
        await until(env.is_gone, within=60)
        assert await account_objects(env, binding) == {}
        assert len(await account_objects(other, await other.binding())) == 12


async def test_a_template_that_names_an_account_gets_no_other(rollout_env: RolloutEnv) -> None:
    binding = await own_binding(rollout_env)
    rollout_env.binding = binding
    async with rollout_env.running() as rollout:
        assert not (await rollout.ensure(binding)).failed
        assert len(await account_objects(rollout_env, binding)) == 12
        rollout_env.syncers.write(serviceAccountName="theirs")
        rollout_env.proxiers.write(accountPerBinding=None)  # as that of the earlier implementation
        assert not (await rollout.ensure(binding)).failed
        await settled(rollout, binding)
        assert account_of(await rollout_env.deployment("syncer")) == "theirs"
        assert account_of(await rollout_env.deployment("proxier")) == "kubeocean-proxier"
        # Pods of the earlier templates run until the Deployments are rolled out.
        assert len(await account_objects(rollout_env, binding)) == 12
        for templates in (rollout_env.syncers, rollout_env.proxiers):
            templates.scale_to_zero()

        async def pruned() -> bool:
            await rollout.ensure(binding)
            return await account_objects(rollout_env, binding) == {}

        await until(pruned)


async def test_a_binding_with_a_secret_elsewhere_keeps_the_shared_account(
    rollout_env: RolloutEnv,
) -> None:
    binding = rollout_env.binding
    assert binding.spec.secret_ref.namespace != rollout_env.namespace
    async with rollout_env.running() as rollout:
        assert not (await rollout.ensure(binding)).failed
        assert account_of(await rollout_env.deployment("syncer")) == "kubeocean-syncer"
        assert await account_objects(rollout_env, binding) == {}


async def test_an_upgrade_from_the_shared_account_changes_each_deployment_once(
    rollout_env: RolloutEnv,
) -> None:
    rollout_env.binding = binding = await own_binding(rollout_env)
    for templates in (rollout_env.syncers, rollout_env.proxiers):
        templates.write(accountPerBinding=None)
    async with rollout_env.running() as rollout:
        await rollout.ensure(binding)
        assert account_of(await rollout_env.deployment("proxier")) == "kubeocean-proxier"
        for templates in (rollout_env.syncers, rollout_env.proxiers):
            templates.write(accountPerBinding="true")
        await rollout.ensure(binding)
        await settled(rollout, binding)
        for component in ("syncer", "proxier"):
            deployment = await rollout_env.deployment(component)
            assert deployment["metadata"]["generation"] == 2
            assert account_of(deployment) == deployment["metadata"]["name"]


async def test_a_foreign_account_or_role_is_not_written_and_pods_keep_their_account(
    rollout_env: RolloutEnv,
) -> None:
    rollout_env.binding = binding = await own_binding(rollout_env)
    name = f"kubeocean-syncer-{binding.spec.cluster_id}"
    (account,) = accounts((name,), rollout_env.namespace, labels={})
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    role = named("ClusterRole", "rbac.authorization.k8s.io/v1", name, labels={}, rules=[rule])
    foreign = [await rollout_env.client.create(resource_of(each), each) for each in (account, role)]
    rollout_env.syncers.write(accountPerBinding=None)
    async with rollout_env.running() as rollout:
        await rollout.ensure(binding)
        rollout_env.syncers.write(accountPerBinding="true")
        state = await rollout.ensure(binding)
        assert state.syncer.phase is ComponentPhase.FOREIGN
        assert f"ServiceAccount {rollout_env.namespace}/{name}" in state.syncer.reason
        assert account_of(await rollout_env.deployment("syncer")) == "kubeocean-syncer"
        assert await rollout.remove(binding) == []
        assert await rollout.remove_accounts(binding) == []
    for body, before in zip((account, role), foreign, strict=True):
        resource = resource_of(body)
        namespace = body["metadata"].get("namespace", "")
        after = await rollout_env.client.get(resource, name, namespace)
        assert (after.uid, after.resource_version) == (before.uid, before.resource_version)
        await rollout_env.client.delete(resource, name, namespace, uid=after.uid)


async def test_edited_and_deleted_roles_are_restored(rollout_env: RolloutEnv) -> None:
    rollout_env.binding = binding = await own_binding(rollout_env)
    name = f"kubeocean-syncer-{binding.spec.cluster_id}"
    async with rollout_env.running() as rollout:
        await rollout.ensure(binding)
        await settled(rollout, binding)
        before = await account_objects(rollout_env, binding)
        wide = MergePatch({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})
        await rollout_env.client.patch(KINDS["ClusterRole"], name, wide)
        bound = KINDS["RoleBinding"]
        stored = await rollout_env.client.get(bound, name, NODE_LEASE_NAMESPACE)
        await rollout_env.client.delete(bound, name, NODE_LEASE_NAMESPACE, uid=stored.uid)

        async def restored() -> bool:
            await rollout.ensure(binding)
            return await account_objects(rollout_env, binding) == before

        await until(restored)


@pytest.mark.sweep
async def test_a_crash_after_any_write_and_two_managers_end_with_the_same_accounts(
    rollout_env: RolloutEnv,
) -> None:
    rollout_env.binding = binding = await own_binding(rollout_env)

    async def life(faults: Faults) -> dict[str, Json]:
        """Roll out until the crash, then twice at once; return the accounts; remove all."""
        rollout, client = rollout_env.rollout(faults)
        with suppress(Crashed):
            await rollout.ensure(binding)
        await client.close()
        leaders = [rollout_env.rollout() for _ in range(2)]

        async def settle() -> bool:
            results = await asyncio.gather(
                *(each.ensure(binding) for each, _ in leaders), return_exceptions=True
            )
            return not [each for each in results if isinstance(each, BaseException) or each.written]

        await until(settle)
        made = await account_objects(rollout_env, binding)
        for each, client in leaders:
            await each.remove(binding)
            await each.remove_accounts(binding)
            await client.close()
        assert await account_objects(rollout_env, binding) == {}
        return made

    calm = Faults()
    wanted = await life(calm)
    assert len(wanted) == 12
    for n in range(1, calm.writes + 1):
        faults = Faults()
        faults.crash_after_write(n)
        assert await life(faults) == wanted
        assert faults.crashed


async def test_syncers_of_an_earlier_version_keep_their_role_until_they_are_replaced(
    rollout_env: RolloutEnv,
) -> None:
    binding = await own_binding(rollout_env)
    rollout_env.binding = binding
    current = rollout_env.syncers.files["clusterrolebinding.yaml"]
    earlier = current.replace("-common", "-shared").replace("kubeocean-binding-syncer", "view")
    assert earlier != current
    rollout_env.syncers.write(clusterrolebinding__yaml=earlier)
    name = f"ClusterRoleBinding kubeocean-syncer-{binding.spec.cluster_id}"
    async with rollout_env.running() as rollout:
        assert not (await rollout.ensure(binding)).failed
        assert f"{name}-shared" in await account_objects(rollout_env, binding)
        rollout_env.syncers.write(clusterrolebinding__yaml=current)
        assert not (await rollout.ensure(binding)).failed
        await settled(rollout, binding)
        assert {f"{name}-shared", f"{name}-common"} <= (
            await account_objects(rollout_env, binding)
        ).keys()
        for templates in (rollout_env.syncers, rollout_env.proxiers):
            templates.scale_to_zero()

        async def is_replaced() -> bool:
            await rollout.ensure(binding)
            objects = await account_objects(rollout_env, binding)
            assert f"{name}-common" in objects
            return f"{name}-shared" not in objects

        await until(is_replaced)

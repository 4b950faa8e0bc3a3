"""Tests of the RoleBindings by which a syncer reads Secrets, with the accounts of an installation.

The manager and the pods' part of a syncer run with the accounts and the rights that they have.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from kubeocean.api.bindings import CLUSTER_BINDINGS, RefusedNamespace, SecretNamespaces
from kubeocean.errors import AlreadyExists, Forbidden, NotFound
from kubeocean.install.access_reviews import granted_to
from kubeocean.install.permissions import Permission
from kubeocean.manager.rendering import KINDS
from kubeocean.manager.secret_grants import NO_NAME, RESERVED, UNPROVEN
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import EVENTS, NAMESPACES, PODS, SECRETS
from kubeocean.runtime.objects import Json, Key, Untyped
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods.controller import PodController
from kubeocean.syncer.replication import secret_namespaces
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints
from kubeocean.syncer.replication.kinds.volumes import VOLUMES
from kubeocean.syncer.replication.pod_copies import PodCopies
from support.background import running
from support.manager_env import SYSTEM, ManagerEnv
from support.pod_env import GIVEN, PodEnv, make_namespace, usable
from support.syncer_context import crossing
from support.wait import until

ROLE_BINDINGS = KINDS["RoleBinding"]
READING = ("get", "list", "watch")


class SyncedEnv(PodEnv):
    """A binding that a manager rolls out, with a virtual node, and the pods' part of its syncer."""

    manager: ManagerEnv
    account: Path

    @classmethod
    async def bound(cls, env: ManagerEnv) -> SyncedEnv:
        synced = cls(
            env.computing_cluster,
            env.worker,
            env.computing_client,
            env.worker_client,
            name=env.name,
            pnodes=["n1"],
        )
        synced.manager = env
        await make_namespace(env.worker_client, synced.mount)
        kubeconfig = env.worker.kubeconfig.read_bytes()
        await env.bind(kubeconfig, mountNamespace=synced.mount)
        await until(env.is_rolled_out, within=60)
        await synced.lend("n1")
        synced.account = await env.computing_cluster.service_account(SYSTEM, synced.syncer_account)
        return synced

    @property
    def syncer_account(self) -> str:
        return self.manager.deployment("syncer")

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{SYSTEM}:{self.syncer_account}"

    async def new_namespace(self) -> str:
        """Create a namespace that pods can be created in; further pods are created there."""
        number = len((await self.computing_api.list(NAMESPACES)).items)
        self.namespace = f"v{number}-{self.name}"
        await make_namespace(self.computing_api, self.namespace)
        await usable(self.computing_api, self.namespace)
        return self.namespace

    async def write_secret(self, value: str, name: str = "s") -> Untyped:
        data = {"key": base64.b64encode(value.encode()).decode()}
        metadata = {"name": name, "namespace": self.namespace}
        try:
            return await self.computing_api.create(SECRETS, {"metadata": metadata, "data": data})
        except AlreadyExists:
            patch = MergePatch({"data": data})
            return await self.computing_api.patch(SECRETS, name, patch, self.namespace)

    async def run_with_secret(self, pod: str = "web", secret: str = "s") -> None:
        volume = {"name": "v", "secret": {"secretName": secret}}
        await self.run(pod, volumes=[volume])

    async def copies(self, namespace: str) -> list[Json]:
        """Return the contents of the worker's copies of Secrets in a namespace."""
        listing = await self.worker_api.list(SECRETS, self.mount, keep_raw=True)
        key = self.domain.virtual_namespace
        found = [each for each in listing.items if each.annotations.get(key) == namespace]
        return [each.content() for each in found]

    async def copied(self, namespace: str, value: str) -> None:
        """Wait until the worker has one copy of the namespace's Secret, with this value."""
        expected = base64.b64encode(value.encode()).decode()

        async def has_value() -> bool:
            copies = await self.copies(namespace)
            assert [each["data"]["key"] for each in copies] == [expected]
            return True

        await until(has_value, within=60)

    async def new_namespace_with_pod(self, value: str) -> str:
        """Create a namespace with a pod that mounts a Secret; wait for the copy of the Secret."""
        namespace = await self.new_namespace()
        await self.write_secret(value)
        await self.run_with_secret()
        await self.copied(namespace, value)
        return namespace

    async def has_physical_pod(self, name: str = "web") -> bool:
        return len(await self.ppods(name)) == 1

    async def state(self) -> SecretNamespaces:
        return (await self.manager.binding()).status.secret_namespaces

    async def request(self, *namespaces: str) -> None:
        """Write requested namespaces to the status of the binding, as the syncer does."""
        patch = MergePatch({"status": {"secretNamespaces": {"requested": list(namespaces)}}})
        await self.computing_api.patch(CLUSTER_BINDINGS, self.name, patch, subresource="status")

    async def claim(self, secrets: str, *, field: str, phase: str = "Bound") -> None:
        """Create a volume that a claim here is bound to, with a Secret in another namespace."""
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": self.namespace, "name": "claim", "uid": "of-the-claim"},
            "csi": {
                "driver": "d", "volumeHandle": secrets,
                field: {"name": "s", "namespace": secrets},
            },
        }  # fmt: skip
        volumes, name = VOLUMES.sources, f"pv-{secrets}"
        await self.computing_api.create(volumes, {"metadata": {"name": name}, "spec": spec})
        # As the binder of kube-controller-manager, which these clusters do not run.
        status = MergePatch({"status": {"phase": phase}})
        await self.computing_api.patch(volumes, name, status, subresource="status")

    def grant(self, namespace: str) -> Key:
        return Key(namespace, f"{self.syncer_account}-secrets")

    async def has_grant(self, namespace: str) -> bool:
        key = self.grant(namespace)
        try:
            await self.computing_api.get(ROLE_BINDINGS, key.name, key.namespace)
        except NotFound:
            return False
        return True

    async def delete_grant(self, namespace: str) -> Untyped:
        """Delete the RoleBinding of a namespace, and return it."""
        key = self.grant(namespace)
        stored: Untyped = await self.computing_api.get(ROLE_BINDINGS, key.name, key.namespace)
        await self.computing_api.delete(ROLE_BINDINGS, key.name, key.namespace, uid=stored.uid)
        return stored

    async def is_marked(self, namespace: str, name: str = "s") -> bool:
        secret = await self.computing_api.get(SECRETS, name, namespace)
        return self.domain.synced_by(self.cluster_id) in secret.labels

    @asynccontextmanager
    async def syncing(self) -> AsyncIterator[Clusters]:
        """Run the pods' part of the syncer with the account that the manager created."""
        async with crossing(
            self,
            account=self.account,
            mount_namespace=self.mount,
            secrets_by_namespace=True,
        ) as clusters:
            endpoints = ClusterEndpoints(clusters, GIVEN)
            copies = PodCopies(clusters, linger_s=0.5)
            pods = PodController(clusters, copies, endpoints)
            caches = (clusters.bindings, clusters.vnodes, clusters.vpods, clusters.ppods)
            parts = (*endpoints.parts, *copies.parts, *pods.parts)
            async with running(clusters.events, clusters.worker_health, *caches, *parts):
                yield clusters

    async def end_pod(self, name: str = "web") -> None:
        pod = await self.vpod(name)
        assert pod is not None
        await self.delete(pod, grace_s=0)
        for ppod in await self.ppods(name):
            with suppress(NotFound):  # a syncer that runs deletes it, too
                await self.worker_api.delete(
                    PODS, ppod.name, ppod.namespace, uid=ppod.uid, grace_s=0
                )


def reading(namespace: str, name: str = "") -> list[Permission]:
    return [Permission(verb, "", "secrets", namespace, name) for verb in READING]


async def forbidden(client: Client, namespace: str, name: str) -> None:
    with pytest.raises(Forbidden):
        await client.get(SECRETS, name, namespace)
    with pytest.raises(Forbidden):
        await client.list(SECRETS, namespace)


async def test_a_syncer_reads_secrets_only_where_its_pods_need_them(env: ManagerEnv) -> None:
    other = env.other_binding()
    async with env.managed():
        await other.bind(env.worker.kubeconfig.read_bytes())
        synced = await SyncedEnv.bound(env)
        unused = await synced.new_namespace()
        await synced.write_secret("unused")
        async with synced.syncing():
            home = await synced.new_namespace_with_pod("one")
            await until(synced.has_physical_pod)
            # The worker has no nodes, and its scheduler says so.
            fields = "involvedObject.name=web,type=Warning,reason!=FailedScheduling"
            warnings = (await env.computing_client.list(EVENTS, home, fields=fields)).items
            assert [f"{each.reason} {each.message}" for each in warnings] == []
            assert (await synced.state()).granted == (home,)

            questions = [
                *reading(home),
                *reading(SYSTEM, synced.name),
                *reading(SYSTEM, other.name),
                *reading(SYSTEM),
                *reading("kube-system"),
                *reading(unused),
                *reading(""),
            ]
            allowed = [*reading(home), *reading(SYSTEM, synced.name)]
            client = env.computing_client
            account = f"{SYSTEM}:{synced.syncer_account}"
            assert await granted_to(client, account, questions) == allowed
            own = env.computing_cluster.client(kubeconfig=synced.account)
            try:
                await own.get(SECRETS, "s", home)
                await forbidden(own, SYSTEM, other.name)
                await forbidden(own, unused, "s")
            finally:
                await own.close()

            # From here on all requests are allowed, and a second pod costs no request for Secrets.
            mark = env.computing_cluster.audit.mark()
            await synced.run_with_secret("more")
            await until(lambda: synced.has_physical_pod("more"))
            audit = env.computing_cluster.audit
            requests = audit.requests(user=synced.user, since=mark)
            assert [each for each in requests if each.resource == "secrets"] == []
            await synced.write_secret("two")
            await synced.copied(home, "two")
            requests = audit.requests(user=synced.user, since=mark)
            assert [each for each in requests if each.code in (401, 403)] == []


async def test_a_grant_that_was_deleted_is_created_again(env: ManagerEnv) -> None:
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        async with synced.syncing():
            home = await synced.new_namespace_with_pod("one")
            key = synced.grant(home)
            deleted = await synced.delete_grant(home)

            async def is_new() -> bool:
                new = await env.computing_client.get(ROLE_BINDINGS, key.name, key.namespace)
                return new.uid != deleted.uid

            async def is_back() -> bool:
                return await synced.has_grant(home) and await is_new()

            await until(is_back)
            await synced.write_secret("two")
            await synced.copied(home, "two")
        await env.unbind()
        await until(env.is_gone)
        assert not await synced.has_grant(home)


async def test_a_namespace_that_is_not_needed_any_more_is_returned(
    env: ManagerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_namespaces, "RELEASE_S", 1.0)
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        async with synced.syncing():
            first = await synced.new_namespace_with_pod("one")
            await synced.end_pod()

            async def is_returned() -> bool:
                assert await synced.copies(first) == []
                assert not await synced.is_marked(first)
                assert await synced.state() == SecretNamespaces()
                assert not await synced.has_grant(first)
                return True

            await until(is_returned, within=60)
            second = await synced.new_namespace_with_pod("two")
        await synced.end_pod()
        # The pod is deleted while no syncer runs.
        assert len(await synced.copies(second)) == 1
        async with synced.syncing():

            async def is_clean() -> bool:
                assert await synced.copies(second) == []
                assert not await synced.is_marked(second)
                assert await synced.state() == SecretNamespaces()
                return True

            await until(is_clean, within=60)
            third = await synced.new_namespace()
            await synced.run_with_secret("waits", secret="absent")

            async def is_granted() -> bool:
                return (await synced.state()).granted == (third,)

            await until(is_granted)
            await synced.end_pod("waits")

            async def is_empty() -> bool:
                return await synced.state() == SecretNamespaces()

            await until(is_empty, within=30)
            assert not await synced.has_grant(third)


async def test_a_namespace_that_cannot_be_listed_delays_only_its_own_pods(env: ManagerEnv) -> None:
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        async with synced.syncing():
            lost = await synced.new_namespace_with_pod("one")
            home = await synced.new_namespace_with_pod("two")
    # Neither manager nor syncer runs.
    await synced.delete_grant(lost)
    synced.namespace = lost
    await synced.end_pod()
    (copy,) = await synced.copies(lost)
    async with synced.syncing():
        await synced.run_with_secret("waits")

        async def tells_why() -> bool:
            pod = await synced.vpod("waits")
            assert pod is not None
            text = f"Secrets of namespace {lost} could not be listed"
            assert text in str(pod.content()["status"])
            return True

        await until(tells_why, within=60)
        synced.namespace = home
        await synced.run_with_secret("more")
        await until(lambda: synced.has_physical_pod("more"))
        await synced.write_secret("three")
        await synced.copied(home, "three")
        assert [each["metadata"]["uid"] for each in await synced.copies(lost)] == [
            copy["metadata"]["uid"]
        ]
        synced.namespace = lost
        assert not await synced.has_physical_pod("waits")
        async with env.managed():
            await until(lambda: synced.has_physical_pod("waits"), within=60)
        assert [each["metadata"]["uid"] for each in await synced.copies(lost)] == [
            copy["metadata"]["uid"]
        ]


async def test_a_refused_namespace_stops_no_other(env: ManagerEnv) -> None:
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        refused = await synced.new_namespace()
        foreign = {
            "metadata": {"name": synced.grant(refused).name, "namespace": refused},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view",
            },
        }  # fmt: skip
        stored = await env.computing_client.create(ROLE_BINDINGS, foreign)
        async with synced.syncing():
            await synced.write_secret("one")
            await synced.run_with_secret("kept")

            async def tells_why() -> bool:
                pod = await synced.vpod("kept")
                assert pod is not None
                text = str(pod.content()["status"])
                assert f"may not read Secrets in namespace {refused}" in text
                assert "belongs to another owner" in text
                return True

            await until(tells_why, within=60)
            await synced.new_namespace_with_pod("two")
            await env.wait_for_event("SecretsRefused")
        key = synced.grant(refused)
        kept = await env.computing_client.get(ROLE_BINDINGS, key.name, key.namespace)
        assert (kept.uid, kept.resource_version) == (stored.uid, stored.resource_version)
        assert await synced.copies(refused) == []


async def test_the_manager_verifies_the_namespaces_that_a_syncer_requests(env: ManagerEnv) -> None:
    """A syncer under the control of others requests what it likes."""
    other = env.other_binding()
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        unproven = await synced.new_namespace()
        kubeconfigs = await synced.new_namespace()
        await synced.run("here")
        await other.bind(secretRef={"name": "any", "namespace": kubeconfigs})
        drivers = await synced.new_namespace()
        volumes = await synced.new_namespace()
        home = await synced.new_namespace()
        await synced.run("web")
        released = await synced.new_namespace()
        synced.namespace = home
        await synced.claim(drivers, field="nodePublishSecretRef")
        await synced.claim(volumes, field="controllerPublishSecretRef")
        await synced.claim(released, field="nodePublishSecretRef", phase="Released")
        unproved, reserved = (volumes, released, unproven), (kubeconfigs, SYSTEM, "kube-system")
        requested = (home, drivers, *unproved, *reserved, "absent")
        await synced.request(*requested)

        async def is_decided() -> bool:
            state = await synced.state()
            reasons = {each.namespace: each.reason for each in state.refused or ()}
            assert state.granted == tuple(sorted((home, drivers)))
            assert reasons == dict.fromkeys((*unproved, "absent"), UNPROVEN) | (
                dict.fromkeys(reserved, RESERVED)
            )
            return True

        await until(is_decided)
        for namespace in requested[:-1]:
            assert await synced.has_grant(namespace) == (namespace in (home, drivers))
        # The virtual node of one binding is no proof for another.
        await other.write_secret(env.worker.kubeconfig.read_bytes())
        stranger = await SyncedEnv.bound(env.other_binding())
        await stranger.request(home)

        async def is_refused() -> bool:
            return [each.namespace for each in (await stranger.state()).refused or ()] == [home]

        await until(is_refused)
        assert not await stranger.has_grant(home)


async def test_texts_that_are_no_names_of_namespaces_are_refused(env: ManagerEnv) -> None:
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        home = await synced.new_namespace()
        await synced.run("web")
        texts = ("", ".", "..", "../kube-system", f"{home}/pods?x=", "Upper", "a b", "ä")
        await synced.request(home, *texts)

        async def is_decided() -> bool:
            state = await synced.state()
            assert state.granted == (home,)
            reasons = {each.namespace: each.reason for each in state.refused or ()}
            assert reasons == dict.fromkeys(texts, NO_NAME)
            return True

        await until(is_decided)


async def test_secrets_of_the_namespace_of_proxiers_are_not_granted(env: ManagerEnv) -> None:
    """The certificate of a proxier is there, unless its binding names another namespace."""
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        home = await synced.new_namespace()
        await synced.run("web")
        await synced.request(home)
        await until(lambda: synced.has_grant(home))
        env.proxiers.write(proxierNamespace=home)

        async def is_reserved() -> bool:
            state = await synced.state()
            assert state.refused == (RefusedNamespace(home, RESERVED),)
            return not await synced.has_grant(home)

        await until(is_reserved, within=30)


async def test_an_invalid_template_withdraws_no_grant(env: ManagerEnv) -> None:
    async with env.managed():
        synced = await SyncedEnv.bound(env)
        home = await synced.new_namespace()
        await synced.run("web")
        await synced.request(home)
        await until(lambda: synced.has_grant(home))
    env.syncers.write(deployment__yaml="{{ if }")
    async with env.managed():  # a new process, which has rendered no template before
        await env.wait_for_condition("SyncerReady", "False", "SyncerFailed")
        assert await synced.has_grant(home)
        assert (await synced.state()).granted == (home,)


async def test_the_manager_cannot_grant_secrets_of_system_namespaces(env: ManagerEnv) -> None:
    client = env.computing_cluster.client(kubeconfig=env.account)
    try:
        for namespace, role, name in (
            ("kube-system", "kubeocean-secret-reader", "kubeocean-syncer-x-secrets"),
            ("default", "kubeocean-secret-reader", "anything"),
            ("default", "cluster-admin", "kubeocean-syncer-x-secrets"),
        ):
            body = {
                "metadata": {"name": name, "namespace": namespace},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
                },
            }  # fmt: skip
            with pytest.raises(Forbidden):
                await client.create(ROLE_BINDINGS, body)
    finally:
        await client.close()

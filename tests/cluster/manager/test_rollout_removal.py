"""Tests of the deletion of rolled-out objects on a real API server."""

from __future__ import annotations

import base64

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from kubeocean.api import group, naming
from kubeocean.api.group import DEFAULT
from kubeocean.errors import NotFound
from kubeocean.install.apply import resource_of
from kubeocean.install.object_parts import accounts, granted
from kubeocean.install.permissions import Rights
from kubeocean.install.roles import manager_rights
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.rollout_state import ComponentPhase
from kubeocean.runtime.client import JsonPatch, MergePatch
from kubeocean.runtime.kinds import DEPLOYMENTS, SECRETS
from kubeocean.runtime.objects import Json, Resource, Untyped
from support.faults import Faults
from support.rollout_env import RolloutEnv, settled
from support.wait import until

CSRS = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    Untyped,
)


def tls_secret(rollout_env: RolloutEnv, *, instance: str) -> Json:
    labels = {
        group.APP_NAME: "kubeocean-proxier",
        group.APP_INSTANCE: instance,
        group.APP_COMPONENT: group.COMPONENT_TLS,
    }
    name = naming.tls_secret(rollout_env.binding.spec.cluster_id)
    return {"metadata": {"name": name, "namespace": rollout_env.namespace, "labels": labels}}


def signing_request(binding: str) -> Json:
    labels = {DEFAULT.component: group.COMPONENT_LOGS_PROXY, DEFAULT.node_name: binding}
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
    return {
        "metadata": {"name": naming.signing_request(binding, "p", now_ns=1), "labels": labels},
        "spec": {
            "request": base64.b64encode(request.public_bytes(Encoding.PEM)).decode(),
            "signerName": "example.org/nobody",
            "usages": ["client auth"],
        },
    }


async def test_all_objects_of_a_binding_are_deleted_in_order(rollout_env: RolloutEnv) -> None:
    other = await rollout_env.bind()
    faults = Faults()
    async with rollout_env.running(faults) as rollout:
        await rollout.ensure(rollout_env.binding)
        await rollout.ensure(other)
        await rollout_env.client.create(
            SECRETS, tls_secret(rollout_env, instance=rollout_env.binding.name)
        )
        for name in (rollout_env.binding.name, f"{rollout_env.binding.name}-more"):
            await rollout_env.client.create(CSRS, signing_request(name))
        assert await rollout.remove(rollout_env.binding) == []
        deleted = [each.path.split("/")[-2:] for each in faults.requests if each.method == "DELETE"]
        cluster_id = rollout_env.binding.spec.cluster_id
        assert deleted == [
            ["deployments", f"kubeocean-syncer-{cluster_id}"],
            ["deployments", f"kubeocean-proxier-{cluster_id}"],
            ["services", f"kubeocean-proxier-{cluster_id}-svc"],
            ["poddisruptionbudgets", f"kubeocean-syncer-{cluster_id}"],
            ["poddisruptionbudgets", f"kubeocean-proxier-{cluster_id}"],
            ["secrets", f"{cluster_id}-logs-proxy-tls"],
            ["certificatesigningrequests", f"kubeocean-proxier-{rollout_env.binding.name}-p-1"],
        ]
        left = await rollout_env.names()
        assert len(left) == 3
        assert all(other.spec.cluster_id in name for name in left)
        await rollout_env.client.get(CSRS, f"kubeocean-proxier-{rollout_env.binding.name}-more-p-1")
        assert await rollout.remove(rollout_env.binding) == []


async def test_objects_that_still_exist_are_named_and_the_certificate_stays(
    rollout_env: RolloutEnv,
) -> None:
    name = f"kubeocean-syncer-{rollout_env.binding.spec.cluster_id}"
    await rollout_env.client.create(
        SECRETS, tls_secret(rollout_env, instance=rollout_env.binding.name)
    )
    async with rollout_env.running() as rollout:
        await rollout.ensure(rollout_env.binding)
        held = MergePatch({"metadata": {"finalizers": ["example.org/held"]}})
        await rollout_env.client.patch(DEPLOYMENTS, name, held, rollout_env.namespace)
        assert await rollout.remove(rollout_env.binding) == [
            f"Deployment {rollout_env.namespace}/{name}"
        ]
        assert await rollout_env.names() == [name]
        secret = naming.tls_secret(rollout_env.binding.spec.cluster_id)
        await rollout_env.client.get(SECRETS, secret, rollout_env.namespace)
        free = JsonPatch([{"op": "remove", "path": "/metadata/finalizers"}])
        await rollout_env.client.patch(DEPLOYMENTS, name, free, rollout_env.namespace)
        assert await rollout.remove(rollout_env.binding) == []
        with pytest.raises(NotFound):
            await rollout_env.client.get(SECRETS, secret, rollout_env.namespace)


async def test_a_foreign_certificate_stays(rollout_env: RolloutEnv) -> None:
    await rollout_env.client.create(SECRETS, tls_secret(rollout_env, instance="somebody-else"))
    async with rollout_env.running() as rollout:
        assert await rollout.remove(rollout_env.binding) == []
    await rollout_env.client.get(
        SECRETS, naming.tls_secret(rollout_env.binding.spec.cluster_id), rollout_env.namespace
    )


async def test_removal_needs_no_templates(rollout_env: RolloutEnv) -> None:
    made = await rollout_env.create_go_objects(rollout_env.binding)
    for mounted in (rollout_env.syncers, rollout_env.proxiers):
        mounted.write(deployment__yaml=None)
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        assert rolled.syncer.phase is rolled.proxier.phase is ComponentPhase.TEMPLATE
        assert await rollout_env.names() == sorted(made)
        assert await rollout.remove(rollout_env.binding) == []
    assert await rollout_env.names() == []


async def under_shipped_rights(rollout_env: RolloutEnv) -> None:
    """Run the rollouts of this test with exactly the permissions of the manager."""
    shipped = manager_rights()
    own = {rollout_env.namespace: shipped.within[DEFAULT.system_namespace]}
    rights = Rights(shipped.everywhere, own)
    name = f"manager-{rollout_env.namespace}"
    (account,) = accounts([name], rollout_env.namespace, labels={})
    roles = granted(name, rights, account=name, namespace=rollout_env.namespace, labels={})
    for body in (account, *roles):
        await rollout_env.client.create(resource_of(body), body)
    rollout_env.kubeconfig = await rollout_env.cluster.service_account(rollout_env.namespace, name)


async def test_the_shipped_permissions_suffice_for_a_removal(rollout_env: RolloutEnv) -> None:
    await under_shipped_rights(rollout_env)
    await rollout_env.create_go_objects(rollout_env.binding)
    await rollout_env.client.create(
        SECRETS, tls_secret(rollout_env, instance=rollout_env.binding.name)
    )
    await rollout_env.client.create(CSRS, signing_request(rollout_env.binding.name))
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        assert not rolled.failed
        assert (len(rolled.adopted), len(rolled.written)) == (3, 5)  # budgets are new
        await settled(rollout, rollout_env.binding)
        edit = MergePatch({"spec": {"replicas": 0}})
        name = f"kubeocean-syncer-{rollout_env.binding.spec.cluster_id}"
        await rollout_env.client.patch(DEPLOYMENTS, name, edit, rollout_env.namespace)
        await until(lambda: is_written(rollout, rollout_env, name))
        assert await rollout.remove(rollout_env.binding) == []
    assert await rollout_env.names() == []
    with pytest.raises(NotFound):
        request = naming.signing_request(rollout_env.binding.name, "p", now_ns=1)
        await rollout_env.client.get(CSRS, request)


async def is_written(rollout: Rollout, rollout_env: RolloutEnv, name: str) -> bool:
    """Whether a reconcile changed the object of this name."""
    written = (await rollout.ensure(rollout_env.binding)).written
    return any(title.endswith(f"/{name}") for title in written)


async def test_a_kind_without_permission_is_reported(rollout_env: RolloutEnv) -> None:
    await under_shipped_rights(rollout_env)
    policy = (
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\n"
        "spec: {podSelector: {}}\n"
    )
    rollout_env.syncers.write(networkpolicy__yaml=policy)
    async with rollout_env.running() as rollout:
        rolled = await rollout.ensure(rollout_env.binding)
        assert rolled.syncer.phase is ComponentPhase.REFUSED
        assert 'cannot get resource "networkpolicies"' in rolled.syncer.reason
        assert len(rolled.written) == 5  # the others are there all the same
        rollout_env.syncers.write(networkpolicy__yaml=None)
        assert not (await rollout.ensure(rollout_env.binding)).failed

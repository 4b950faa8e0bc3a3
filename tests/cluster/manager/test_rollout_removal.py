"""Removal on a real API server: in order, by UID, and of nobody else's."""

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
from kubeocean.installation.applying import resource_of
from kubeocean.installation.parts import accounts, granted
from kubeocean.installation.rights import Rights
from kubeocean.installation.roles import manager_rights
from kubeocean.local.faults import Faults
from kubeocean.manager.rollout import Rollout
from kubeocean.manager.rolloutviews import DEPLOYMENTS, Standing
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json, Resource, Untyped
from kubeocean.runtime.patches import JsonPatch, MergePatch
from rollouts import Yard, settled
from waiting import until

CSRS = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    False,
    Untyped,
)


def tls_secret(yard: Yard, *, instance: str) -> Json:
    labels = {
        group.APP_NAME: "kubeocean-proxier",
        group.APP_INSTANCE: instance,
        group.APP_COMPONENT: group.COMPONENT_TLS,
    }
    name = naming.tls_secret(yard.binding.spec.cluster_id)
    return {"metadata": {"name": name, "namespace": yard.namespace, "labels": labels}}


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


async def test_all_that_a_binding_had_goes_in_order(yard: Yard) -> None:
    other = await yard.bind()
    faults = Faults()
    async with yard.running(faults) as rollout:
        await rollout.ensure(yard.binding)
        await rollout.ensure(other)
        await yard.client.create(SECRETS, tls_secret(yard, instance=yard.binding.name))
        for name in (yard.binding.name, f"{yard.binding.name}-more"):
            await yard.client.create(CSRS, signing_request(name))
        assert await rollout.remove(yard.binding) == []
        deleted = [each.path.split("/")[-2:] for each in faults.requests if each.method == "DELETE"]
        cluster_id = yard.binding.spec.cluster_id
        assert deleted == [
            ["deployments", f"kubeocean-syncer-{cluster_id}"],
            ["deployments", f"kubeocean-proxier-{cluster_id}"],
            ["services", f"kubeocean-proxier-{cluster_id}-svc"],
            ["secrets", f"{cluster_id}-logs-proxy-tls"],
            ["certificatesigningrequests", f"kubeocean-proxier-{yard.binding.name}-p-1"],
        ]
        left = await yard.names()
        assert len(left) == 3
        assert all(other.spec.cluster_id in name for name in left)
        await yard.client.get(CSRS, f"kubeocean-proxier-{yard.binding.name}-more-p-1")
        assert await rollout.remove(yard.binding) == []


async def test_what_cannot_go_yet_is_named_and_its_certificate_stays(yard: Yard) -> None:
    name = f"kubeocean-syncer-{yard.binding.spec.cluster_id}"
    await yard.client.create(SECRETS, tls_secret(yard, instance=yard.binding.name))
    async with yard.running() as rollout:
        await rollout.ensure(yard.binding)
        held = MergePatch({"metadata": {"finalizers": ["example.org/held"]}})
        await yard.client.patch(DEPLOYMENTS, name, held, yard.namespace)
        assert await rollout.remove(yard.binding) == [f"Deployment {yard.namespace}/{name}"]
        assert await yard.names() == [name]
        secret = naming.tls_secret(yard.binding.spec.cluster_id)
        await yard.client.get(SECRETS, secret, yard.namespace)
        free = JsonPatch([{"op": "remove", "path": "/metadata/finalizers"}])
        await yard.client.patch(DEPLOYMENTS, name, free, yard.namespace)
        assert await rollout.remove(yard.binding) == []
        with pytest.raises(NotFound):
            await yard.client.get(SECRETS, secret, yard.namespace)


async def test_a_certificate_of_somebody_else_stays(yard: Yard) -> None:
    await yard.client.create(SECRETS, tls_secret(yard, instance="somebody-else"))
    async with yard.running() as rollout:
        assert await rollout.remove(yard.binding) == []
    await yard.client.get(SECRETS, naming.tls_secret(yard.binding.spec.cluster_id), yard.namespace)


async def test_removal_needs_no_templates(yard: Yard) -> None:
    made = await yard.go_made(yard.binding)
    for mounted in (yard.syncers, yard.proxiers):
        mounted.write(deployment__yaml=None)
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
        assert rolled.syncer.standing is rolled.proxier.standing is Standing.TEMPLATE
        assert await yard.names() == sorted(made)
        assert await rollout.remove(yard.binding) == []
    assert await yard.names() == []


async def under_shipped_rights(yard: Yard) -> None:
    """Let rollouts of this yard do what the manager may, and nothing else."""
    shipped = manager_rights()
    own = {yard.namespace: shipped.within[DEFAULT.system_namespace]}
    rights = Rights(shipped.everywhere, own)
    name = f"manager-{yard.namespace}"
    (account,) = accounts([name], yard.namespace, labels={})
    roles = granted(name, rights, account=name, namespace=yard.namespace, labels={})
    for body in (account, *roles):
        await yard.client.create(resource_of(body), body)
    yard.kubeconfig = await yard.cluster.service_account(yard.namespace, name)


async def test_the_rights_that_we_ship_are_enough(yard: Yard) -> None:
    await under_shipped_rights(yard)
    await yard.go_made(yard.binding)
    await yard.client.create(SECRETS, tls_secret(yard, instance=yard.binding.name))
    await yard.client.create(CSRS, signing_request(yard.binding.name))
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
        assert not rolled.failed
        assert len(rolled.adopted) == len(rolled.written) == 3
        await settled(rollout, yard.binding)
        edit = MergePatch({"spec": {"replicas": 0}})
        name = f"kubeocean-syncer-{yard.binding.spec.cluster_id}"
        await yard.client.patch(DEPLOYMENTS, name, edit, yard.namespace)
        await until(lambda: is_written(rollout, yard, name))
        assert await rollout.remove(yard.binding) == []
    assert await yard.names() == []
    with pytest.raises(NotFound):
        request = naming.signing_request(yard.binding.name, "p", now_ns=1)
        await yard.client.get(CSRS, request)


async def is_written(rollout: Rollout, yard: Yard, name: str) -> bool:
    """Whether a look changed what is called so."""
    written = (await rollout.ensure(yard.binding)).written
    return any(title.endswith(f"/{name}") for title in written)


async def test_a_kind_that_we_have_no_right_to_is_told(yard: Yard) -> None:
    await under_shipped_rights(yard)
    role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules: []\n"
    yard.syncers.write(role__yaml=role)
    async with yard.running() as rollout:
        rolled = await rollout.ensure(yard.binding)
        assert rolled.syncer.standing is Standing.REFUSED
        assert 'cannot get resource "roles"' in rolled.syncer.reason
        assert len(rolled.written) == 3  # the others are there all the same
        yard.syncers.write(role__yaml=None)
        assert not (await rollout.ensure(yard.binding)).failed

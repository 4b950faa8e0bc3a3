"""The namespaces into which a binding's reference to a Secret is followed."""

from __future__ import annotations

import base64

import msgspec
import pytest

from kubeocean.api.bindings import ClusterBinding, SecretReference
from kubeocean.api.group import DEFAULT
from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import SecretWithData
from kubeocean.worker_access.credentials import SecretAccess
from kubeocean.worker_access.rotation import ANY_NAMESPACE, Rotation, kubeconfig_namespaces
from support.scripted_transport import Scripted

START = SecretReference(namespace="team-a", name="worker")
KUBECONFIG = b"""
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://worker:6443"}}]
users: [{name: u, user: {token: t}}]
"""


def binding(reference: SecretReference) -> ClusterBinding:
    secret_ref = {"namespace": reference.namespace, "name": reference.name}
    spec = {"clusterID": "c", "secretRef": secret_ref}
    return msgspec.convert({"metadata": {"name": "b"}, "spec": spec}, ClusterBinding)


def secret_in(namespace: str, name: str = "worker") -> SecretReference:
    return SecretReference(namespace=namespace, name=name)


class EditedBinding:
    """A rotation and a binding that a test edits."""

    def __init__(self, *named: str) -> None:
        content = base64.b64encode(KUBECONFIG).decode()
        secret = SecretWithData(data={"kubeconfig": content})
        self.refused: list[str] = []
        self.rotation = Rotation(
            Client(Scripted()),
            SecretAccess(secret),
            START,
            namespaces=kubeconfig_namespaces(START, frozenset(named), DEFAULT),
            refused=lambda _, message: self.refused.append(message),
        )

    def edit(self, reference: SecretReference) -> SecretReference:
        self.rotation.follow(None, binding(reference))
        return self.rotation.reference


def test_a_binding_is_not_followed_into_another_namespace() -> None:
    edited = EditedBinding()
    assert edited.edit(secret_in("team-b", "kubeconfig")) == START
    (message,) = edited.refused
    assert "team-b/kubeconfig" in message and "still using team-a/worker" in message
    assert edited.edit(secret_in("team-b", "kubeconfig")) == START
    assert len(edited.refused) == 1  # the same reference is reported once


def test_a_binding_is_followed_within_its_namespace_and_into_the_system_namespace() -> None:
    edited = EditedBinding()
    for reference in (secret_in("team-a", "other"), secret_in(DEFAULT.system_namespace), START):
        assert edited.edit(reference) == reference
    assert not edited.refused


def test_a_refused_binding_may_name_the_former_secret_again() -> None:
    edited = EditedBinding()
    edited.edit(secret_in("team-b"))
    assert edited.edit(START) == START
    edited.edit(secret_in("team-b"))
    assert len(edited.refused) == 2


def test_the_flag_allows_more_namespaces() -> None:
    assert EditedBinding("team-a", "team-b").edit(secret_in("team-b")) == secret_in("team-b")
    assert EditedBinding(ANY_NAMESPACE).edit(secret_in("team-b")) == secret_in("team-b")


def test_a_secret_outside_the_namespaces_of_the_flag_is_an_error_at_the_start() -> None:
    with pytest.raises(ConfigError, match="team-a/worker"):
        kubeconfig_namespaces(START, frozenset({"team-b"}), DEFAULT)

"""Where a binding's Secret may be."""

from __future__ import annotations

import base64

import msgspec
import pytest

from kubeocean.api.binding import ClusterBinding, SecretReference
from kubeocean.api.group import DEFAULT
from kubeocean.bound.rotation import ANY_NAMESPACE, Rotation, kubeconfig_namespaces
from kubeocean.bound.workers import KubeconfigSecret, SecretAccess
from kubeocean.errors import ConfigError
from kubeocean.runtime.client import Client
from scripted import Scripted

HOME = SecretReference(namespace="team-a", name="worker")
KUBECONFIG = b"""
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://worker:6443"}}]
users: [{name: u, user: {token: t}}]
"""


def binding(reference: SecretReference) -> ClusterBinding:
    named = {"namespace": reference.namespace, "name": reference.name}
    spec = {"clusterID": "c", "secretRef": named}
    return msgspec.convert({"metadata": {"name": "b"}, "spec": spec}, ClusterBinding)


def elsewhere(namespace: str, name: str = "worker") -> SecretReference:
    return SecretReference(namespace=namespace, name=name)


class Following:
    """A rotation whose binding is edited."""

    def __init__(self, *named: str) -> None:
        content = base64.b64encode(KUBECONFIG).decode()
        secret = KubeconfigSecret(data={"kubeconfig": content})
        self.refused: list[str] = []
        self.rotation = Rotation(
            Client(Scripted()),
            SecretAccess(secret),
            HOME,
            namespaces=kubeconfig_namespaces(HOME, frozenset(named), DEFAULT),
            refused=lambda _, said: self.refused.append(said),
        )

    def edit(self, reference: SecretReference) -> SecretReference:
        self.rotation.follow(None, binding(reference))
        return self.rotation.reference


def test_a_binding_is_not_followed_into_another_namespace() -> None:
    following = Following()
    assert following.edit(elsewhere("team-b", "kubeconfig")) == HOME
    (said,) = following.refused
    assert "team-b/kubeconfig" in said and "still using team-a/worker" in said
    assert following.edit(elsewhere("team-b", "kubeconfig")) == HOME
    assert len(following.refused) == 1  # the same is no news


def test_it_is_followed_at_home_and_into_the_system_namespace() -> None:
    following = Following()
    for reference in (elsewhere("team-a", "other"), elsewhere(DEFAULT.system_namespace), HOME):
        assert following.edit(reference) == reference
    assert not following.refused


def test_it_may_come_back_after_it_was_refused() -> None:
    following = Following()
    following.edit(elsewhere("team-b"))
    assert following.edit(HOME) == HOME
    following.edit(elsewhere("team-b"))
    assert len(following.refused) == 2


def test_a_flag_names_more_namespaces() -> None:
    assert Following("team-a", "team-b").edit(elsewhere("team-b")) == elsewhere("team-b")
    assert Following(ANY_NAMESPACE).edit(elsewhere("team-b")) == elsewhere("team-b")


def test_who_starts_outside_the_namespaces_of_the_flag_does_not_start() -> None:
    with pytest.raises(ConfigError, match="team-a/worker"):
        kubeconfig_namespaces(HOME, frozenset({"team-b"}), DEFAULT)

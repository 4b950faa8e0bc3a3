"""References of a pod to objects of its namespace, in every field that may have one."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.referenced_objects import TokenSource, references, token_secret


def pod(**spec: Any) -> Json:
    return {"metadata": {"name": "web", "namespace": "team"}, "spec": spec}


def volume(**source: Any) -> Json:
    return pod(volumes=[{"name": "v", **source}])


def projected(*sources: Json) -> Json:
    return volume(projected={"sources": list(sources)})


def env(kind: str, **ref: Any) -> Json:
    return {"name": "c", "env": [{"name": "X", "valueFrom": {kind: {"key": "k", **ref}}}]}


CONFIG_MAPS = {
    "volume": volume(configMap={"name": "cm"}),
    "projected": projected({"configMap": {"name": "cm"}}),
    "env": pod(containers=[env("configMapKeyRef", name="cm")]),
    "env of an init container": pod(initContainers=[env("configMapKeyRef", name="cm")]),
    "env of an ephemeral container": pod(ephemeralContainers=[env("configMapKeyRef", name="cm")]),
    "envFrom": pod(containers=[{"envFrom": [{"configMapRef": {"name": "cm"}}]}]),
}

SECRETS = {
    "volume": volume(secret={"secretName": "s"}),
    "projected": projected({"secret": {"name": "s"}}),
    "env": pod(containers=[env("secretKeyRef", name="s")]),
    "env of an init container": pod(initContainers=[env("secretKeyRef", name="s")]),
    "env of an ephemeral container": pod(ephemeralContainers=[env("secretKeyRef", name="s")]),
    "envFrom": pod(containers=[{"envFrom": [{"secretRef": {"name": "s"}}]}]),
    "csi": volume(csi={"driver": "d", "nodePublishSecretRef": {"name": "s"}}),
    "azureFile": volume(azureFile={"secretName": "s", "shareName": "x"}),
    "cephfs": volume(cephfs={"monitors": ["m"], "secretRef": {"name": "s"}}),
    "cinder": volume(cinder={"volumeID": "x", "secretRef": {"name": "s"}}),
    "flexVolume": volume(flexVolume={"driver": "d", "secretRef": {"name": "s"}}),
    "iscsi": volume(iscsi={"targetPortal": "p", "secretRef": {"name": "s"}}),
    "rbd": volume(rbd={"image": "i", "secretRef": {"name": "s"}}),
    "scaleIO": volume(scaleIO={"gateway": "g", "secretRef": {"name": "s"}}),
    "storageos": volume(storageos={"volumeName": "x", "secretRef": {"name": "s"}}),
}


@pytest.mark.parametrize("given", CONFIG_MAPS.values(), ids=CONFIG_MAPS)
def test_a_config_map_is_found(given: Json) -> None:
    refs = references(given)
    assert (refs.config_maps, refs.secrets) == ({"cm": False}, {})


@pytest.mark.parametrize("given", SECRETS.values(), ids=SECRETS)
def test_a_secret_is_found(given: Json) -> None:
    refs = references(given)
    assert (refs.secrets, refs.config_maps) == ({"s": False}, {})


def test_a_name_is_optional_only_if_every_reference_to_it_is() -> None:
    sure, perhaps = {"name": "a"}, {"name": "a", "optional": True}
    for first, second in ((sure, perhaps), (perhaps, sure)):
        refs = references(projected({"configMap": first}, {"configMap": second}))
        assert refs.config_maps == {"a": False}
    assert references(projected({"secret": perhaps}, {"secret": perhaps})).secrets == {"a": True}


def test_an_empty_name_refers_to_nothing() -> None:
    given = pod(
        imagePullSecrets=[{}, {"name": ""}],
        volumes=[{"name": "v", "flexVolume": {"driver": "d", "secretRef": {}}}],
    )
    refs = references(given)
    assert (refs.secrets, refs.pull_secrets) == ({}, ())


def test_pull_secrets_are_listed_once() -> None:
    given = pod(imagePullSecrets=[{"name": "b"}, {"name": "a"}, {"name": "b"}])
    assert references(given).pull_secrets == ("b", "a")


def test_claims_of_the_pod_and_of_ephemeral_volumes_are_listed_apart() -> None:
    given = pod(
        volumes=[
            {"name": "v1", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "v2", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        ]
    )
    refs = references(given)
    assert refs.claims == ("data",)
    assert refs.ephemeral_claims == ("web-scratch",)
    assert refs.all_claims == ("data", "web-scratch")


def test_each_token_of_a_volume_has_a_secret_of_its_own() -> None:
    refs = references(
        projected(
            {"serviceAccountToken": {"path": "token"}},
            {"configMap": {"name": "ca"}},
            {"serviceAccountToken": {"path": "v", "audience": "vault", "expirationSeconds": 600}},
        )
    )
    first = TokenSource("v", 0, "token", "", 3600)
    second = TokenSource("v", 1, "v", "vault", 600)
    assert refs.tokens == (first, second)
    names = [token_secret(each, "web", "team", uid="u") for each in refs.tokens]
    assert names[0] == naming.token_secret("web", "team", volume="v", uid="u")
    assert names[1] != names[0]


def test_sources_of_env_from_are_listed_once_with_their_kind() -> None:
    sources = [
        {"configMapRef": {"name": "a"}},
        {"secretRef": {"name": "a", "optional": True}},
        {"configMapRef": {"name": "a"}, "prefix": "P_"},
    ]
    given = pod(containers=[{"name": "c", "envFrom": sources, "env": []}])
    assert references(given).env_from == (("configMap", "a"), ("secret", "a"))


def test_a_pod_without_references_refers_to_nothing() -> None:
    refs = references(pod(containers=[{"name": "c"}]))
    assert not any((refs.config_maps, refs.secrets, refs.claims, refs.pull_secrets))
    assert not any((refs.tokens, refs.all_claims))

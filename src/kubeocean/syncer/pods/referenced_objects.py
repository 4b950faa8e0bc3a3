"""References: the objects of its namespace that a pod refers to.

A name is required unless every reference to it is optional. An empty name refers to nothing. All
parts of a pod are covered: volumes of all kinds, projected sources, variables of all containers
(also ephemeral ones), pull secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubeocean.api import naming
from kubeocean.runtime.objects import Json

__all__ = [
    "CONFIG_MAP",
    "CONTAINERS",
    "SECRET",
    "SECRET_VOLUMES",
    "References",
    "TokenSource",
    "ephemeral_claim",
    "references",
    "token_secret",
]

CONFIG_MAP: Final = "configMap"
SECRET: Final = "secret"  # noqa: S105 - as in the names of fields
CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")

# Kinds of volumes that name a Secret of the pod's namespace, and the field with the name
SECRET_VOLUMES: Final = {
    "azureFile": "secretName",
    "cephfs": "secretRef",
    "cinder": "secretRef",
    "csi": "nodePublishSecretRef",
    "flexVolume": "secretRef",
    "iscsi": "secretRef",
    "rbd": "secretRef",
    "scaleIO": "secretRef",
    "storageos": "secretRef",
}

_TOKEN_LIFE_S: Final = 3600  # the default of API servers


@dataclass(frozen=True, slots=True)
class TokenSource:
    """A service account token that a volume of a pod projects.

    `index` counts the tokens of that volume; an empty audience means that of the API server.
    """

    volume: str
    index: int
    path: str
    audience: str = ""
    expiration_s: int = _TOKEN_LIFE_S


@dataclass(frozen=True, slots=True)
class References:
    """The names of objects in a pod's namespace that the pod refers to.

    ConfigMaps and Secrets map to whether the reference is optional.
    """

    config_maps: Mapping[str, bool]
    secrets: Mapping[str, bool]
    claims: tuple[str, ...]  # named by the pod
    ephemeral_claims: tuple[str, ...]  # created by a controller for this pod, which owns them
    pull_secrets: tuple[str, ...]  # never required
    tokens: tuple[TokenSource, ...]
    env_from: tuple[tuple[str, str], ...] = ()  # kind and name of each source of `envFrom`
    pod: Json = field(default_factory=dict)  # for kinds that are named elsewhere in a pod

    @property
    def all_claims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.claims, *self.ephemeral_claims)))


def references(pod: Json) -> References:
    """Return all objects that a pod refers to."""
    spec: Json = pod["spec"]
    volumes: list[Json] = spec.get("volumes") or []
    containers: list[Json] = [c for kind in CONTAINERS for c in spec.get(kind) or ()]
    config_maps = [*_volume_config_maps(volumes), *_env(containers, CONFIG_MAP)]
    secrets = [*_volume_secrets(volumes), *_env(containers, SECRET)]
    pod_name: str = pod["metadata"]["name"]
    ephemeral = [v["name"] for v in volumes if v.get("ephemeral") is not None]
    return References(
        config_maps=_optional(config_maps),
        secrets=_optional(secrets),
        claims=_unique(
            v["persistentVolumeClaim"]["claimName"]
            for v in _having(volumes, "persistentVolumeClaim")
        ),
        ephemeral_claims=tuple(ephemeral_claim(pod_name, name) for name in ephemeral),
        pull_secrets=_unique(each.get("name", "") for each in spec.get("imagePullSecrets") or ()),
        tokens=tuple(_tokens(volumes)),
        env_from=tuple(dict.fromkeys(_env_from(containers))),
        pod=pod,
    )


def ephemeral_claim(pod: str, volume: str) -> str:
    """Return the name of the claim of a generic ephemeral volume."""
    return f"{pod}-{volume}"


def token_secret(source: TokenSource, pod: str, namespace: str, *, uid: str) -> str:
    """Return the name of the Secret that holds a token in the worker.

    The first token of a volume has the volume's name, as in every version. No volume is named
    `<volume>.<n>`, so the names of further tokens are unique.
    """
    volume = f"{source.volume}.{source.index}" if source.index else source.volume
    return naming.token_secret(pod, namespace, volume=volume, uid=uid)


def _volume_config_maps(volumes: list[Json]) -> Iterator[tuple[str, bool]]:
    for source in (*_sources(volumes), *volumes):
        if (config_map := source.get("configMap")) is not None:
            yield config_map.get("name", ""), bool(config_map.get("optional"))


def _volume_secrets(volumes: list[Json]) -> Iterator[tuple[str, bool]]:
    for source in _sources(volumes):
        if (secret := source.get("secret")) is not None:
            yield secret.get("name", ""), bool(secret.get("optional"))
    for volume in volumes:
        if (secret := volume.get("secret")) is not None:
            yield secret.get("secretName", ""), bool(secret.get("optional"))
        for kind, key in SECRET_VOLUMES.items():
            ref: Any = (volume.get(kind) or {}).get(key)
            if ref:
                yield (ref if isinstance(ref, str) else ref.get("name", "")), False


def _env(containers: Iterable[Json], kind: str) -> Iterator[tuple[str, bool]]:
    for container in containers:
        for each in container.get("envFrom") or ():
            if (ref := each.get(f"{kind}Ref")) is not None:
                yield ref.get("name", ""), bool(ref.get("optional"))
        for each in container.get("env") or ():
            if (ref := (each.get("valueFrom") or {}).get(f"{kind}KeyRef")) is not None:
                yield ref.get("name", ""), bool(ref.get("optional"))


def _env_from(containers: Iterable[Json]) -> Iterator[tuple[str, str]]:
    for container in containers:
        for each in container.get("envFrom") or ():
            for kind in (CONFIG_MAP, SECRET):
                if name := (each.get(f"{kind}Ref") or {}).get("name"):
                    yield kind, name


def _tokens(volumes: list[Json]) -> Iterator[TokenSource]:
    for volume in volumes:
        tokens = (s.get("serviceAccountToken") for s in _sources([volume]))
        for index, token in enumerate(token for token in tokens if token is not None):
            yield TokenSource(
                volume=volume["name"],
                index=index,
                path=token["path"],
                audience=token.get("audience", ""),
                expiration_s=token.get("expirationSeconds") or _TOKEN_LIFE_S,
            )


def _sources(volumes: list[Json]) -> Iterator[Json]:
    for volume in volumes:
        yield from (volume.get("projected") or {}).get("sources") or ()


def _having(volumes: list[Json], kind: str) -> Iterator[Json]:
    return (volume for volume in volumes if volume.get(kind) is not None)


def _optional(mentions: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    names: dict[str, bool] = {}
    for name, optional in mentions:
        if name:
            names[name] = optional and names.get(name, True)
    return names


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))

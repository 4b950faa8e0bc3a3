"""Volumes of a physical pod: the same files as in the computing cluster, from copies.

Each object of the pod's namespace that a volume names is replaced by its copy. Tokens are issued by
the computing cluster and copied in Secrets; the claim of a generic ephemeral volume is copied as
any other. Sources that only the worker could fill, in its own name, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.env import translate_items
from kubeocean.syncer.pods.forge_context import Context, Refused
from kubeocean.syncer.pods.referenced_objects import SECRET_VOLUMES, ephemeral_claim

__all__ = ["TOKEN_KEY", "translate_volumes", "volume_problems"]

TOKEN_KEY: Final = "token"  # noqa: S105 - the key of a token in its Secret


def volume_problems(pod: Json) -> Iterator[Refused]:
    """Yield the volume sources of a pod that a worker cannot provide."""
    for i, volume in enumerate(pod["spec"].get("volumes") or ()):
        for j, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
            yield from _source_problems(pod, source, f"spec.volumes[{i}].projected.sources[{j}]")


def translate_volumes(pod: Json, context: Context) -> list[Json]:
    """Return the volumes of the physical pod; `volume_problems` must have found none."""
    return [_volume(pod, context, volume) for volume in pod["spec"].get("volumes") or ()]


def _source_problems(pod: Json, source: Json, field: str) -> Iterator[Refused]:
    """Yield the sources of certificates, and of tokens if the pod has no service account.

    Certificates of the two clusters differ.
    """
    if "podCertificate" in source:
        message = "certificates of pods are issued by the cluster that runs them; not supported"
        yield Refused(f"{field}.podCertificate", message)
    bundle = source.get("clusterTrustBundle")
    if bundle is not None and not bundle.get("optional"):
        message = "the computing cluster's trust bundles are not known in the worker; not supported"
        yield Refused(f"{field}.clusterTrustBundle", message)
    if "serviceAccountToken" in source and not pod["spec"].get("serviceAccountName"):
        yield Refused(f"{field}.serviceAccountToken", "the pod has no service account")


def _volume(pod: Json, context: Context, volume: Json) -> Json:
    names, result = context.names, dict(volume)
    if (config_map := volume.get("configMap")) is not None:
        result["configMap"] = config_map | {"name": names.config_map(config_map["name"])}
    if (secret := volume.get("secret")) is not None:
        result["secret"] = secret | {"secretName": names.secret(secret["secretName"])}
    if (claim := volume.get("persistentVolumeClaim")) is not None:
        result["persistentVolumeClaim"] = claim | {"claimName": names.claim(claim["claimName"])}
    if result.pop("ephemeral", None) is not None:
        claim_name = names.claim(ephemeral_claim(pod["metadata"]["name"], volume["name"]))
        result["persistentVolumeClaim"] = {"claimName": claim_name}
    if (downward := volume.get("downwardAPI")) is not None:
        result["downwardAPI"] = translate_items(downward, context.domain)
    if (projected := volume.get("projected")) is not None:
        result["projected"] = _projected(context, volume["name"], projected)
    for kind, key in SECRET_VOLUMES.items():
        if (source := volume.get(kind)) is not None and (named := source.get(key)):
            result[kind] = source | {key: _secret(named, context)}
    return result


def _secret(named: str | Json, context: Context) -> str | Json:
    """Return the reference of a volume to a Secret, with the name of the Secret's copy.

    The reference is a string, or an object whose name may be empty.
    """
    if isinstance(named, str):
        return context.names.secret(named)
    return named | {"name": context.names.secret(named["name"])} if named.get("name") else named


def _projected(context: Context, volume: str, projected: Json) -> Json:
    sources: list[Json] = []
    tokens = 0
    for source in projected.get("sources") or ():
        if (token := source.get("serviceAccountToken")) is not None:
            items = [{"key": TOKEN_KEY, "path": token["path"]}]
            sources.append(
                {"secret": {"name": context.names.token(volume, tokens), "items": items}}
            )
            tokens += 1
        elif "clusterTrustBundle" not in source:  # only optional ones pass `volume_problems`
            sources.append(_source(source, context))
    return projected | {"sources": _without_hidden(sources)}


def _without_hidden(sources: list[Json]) -> list[Json]:
    """Return projected sources without the files that a later source overwrites.

    An API server lets a token overwrite a file. In the worker the token is in a Secret, and of
    Secrets and ConfigMaps the server accepts no path twice.
    """
    written: set[str] = set()
    kept: list[Json] = []
    for source in reversed(sources):
        result: Json = {}
        for kind, projection in source.items():  # a source has one kind
            items = projection.get("items") or []
            visible = [item for item in items if item["path"] not in written]
            written |= {item["path"] for item in visible}
            if visible or not items:  # a source without items would project all keys
                result[kind] = projection | {"items": visible} if items else projection
        if result:
            kept.append(result)
    return kept[::-1]


def _source(source: Json, context: Context) -> Json:
    names, result = context.names, dict(source)
    if (config_map := source.get("configMap")) is not None:
        result["configMap"] = config_map | {"name": names.config_map(config_map["name"])}
    if (secret := source.get("secret")) is not None:
        result["secret"] = secret | {"name": names.secret(secret["name"])}
    if (downward := source.get("downwardAPI")) is not None:
        result["downwardAPI"] = translate_items(downward, context.domain)
    return result

"""Volumes of a physical pod: the same files, from copies.

Whatever a volume takes from the pod's namespace is renamed to its copy. Tokens are minted above and
lie in Secrets; a claim that a controller above makes for one pod is a claim like any other below.
What only the worker could give, and would give in its own name, is refused.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.downward import translate_items
from kubeocean.syncer.forge.podcontext import Context, Refused
from kubeocean.syncer.forge.references import SECRET_VOLUMES, ephemeral_claim

__all__ = ["TOKEN_KEY", "translate_volumes"]

TOKEN_KEY: Final = "token"  # noqa: S105 - where a token lies in its Secret


def translate_volumes(pod: Json, context: Context) -> list[Json]:
    """All volumes of a pod, as they are below."""
    volumes: list[Json] = pod["spec"].get("volumes") or []
    return [_volume(pod, context, volume, f"spec.volumes[{i}]") for i, volume in enumerate(volumes)]


def _volume(pod: Json, context: Context, volume: Json, field: str) -> Json:
    names, then = context.names, dict(volume)
    if (config_map := volume.get("configMap")) is not None:
        then["configMap"] = config_map | {"name": names.config_map(config_map["name"])}
    if (secret := volume.get("secret")) is not None:
        then["secret"] = secret | {"secretName": names.secret(secret["secretName"])}
    if (claim := volume.get("persistentVolumeClaim")) is not None:
        then["persistentVolumeClaim"] = claim | {"claimName": names.claim(claim["claimName"])}
    if then.pop("ephemeral", None) is not None:
        made = names.claim(ephemeral_claim(pod["metadata"]["name"], volume["name"]))
        then["persistentVolumeClaim"] = {"claimName": made}
    if (downward := volume.get("downwardAPI")) is not None:
        then["downwardAPI"] = translate_items(downward, context.domain)
    if (projected := volume.get("projected")) is not None:
        then["projected"] = _projected(pod, context, volume, f"{field}.projected", projected)
    for kind, key in SECRET_VOLUMES.items():
        if (source := volume.get(kind)) is not None and (named := source.get(key)):
            then[kind] = source | {key: _secret(named, context)}
    return then


def _secret(named: str | Json, context: Context) -> str | Json:
    """A Secret by its name, or by an object that holds its name; none stays none."""
    if isinstance(named, str):
        return context.names.secret(named)
    return named | {"name": context.names.secret(named["name"])} if named.get("name") else named


def _projected(pod: Json, context: Context, volume: Json, field: str, projected: Json) -> Json:
    then: list[Json] = []
    tokens = 0
    for i, source in enumerate(projected.get("sources") or ()):
        where = f"{field}.sources[{i}]"
        if (token := source.get("serviceAccountToken")) is not None:
            then.append(_token(pod, context, volume["name"], where, token, tokens))
            tokens += 1
        elif not _of_the_worker(source, where):
            then.append(_source(source, context))
    return projected | {"sources": _unhidden(then)}


def _unhidden(sources: list[Json]) -> list[Json]:
    """Sources without the files that a later one writes again.

    A server lets a token do that, and the later file is the one to be seen; of anything else, which
    a token is below, it takes no path twice.
    """
    written: set[str] = set()
    kept: list[Json] = []
    for source in reversed(sources):
        then: Json = {}
        for kind, said in source.items():  # there is one
            items = said.get("items") or []
            seen = [item for item in items if item["path"] not in written]
            written |= {item["path"] for item in seen}
            if seen or not items:  # to leave out all items would be to ask for all keys
                then[kind] = said | {"items": seen} if items else said
        if then:
            kept.append(then)
    return kept[::-1]


def _source(source: Json, context: Context) -> Json:
    names, then = context.names, dict(source)
    if (config_map := source.get("configMap")) is not None:
        then["configMap"] = config_map | {"name": names.config_map(config_map["name"])}
    if (secret := source.get("secret")) is not None:
        then["secret"] = secret | {"name": names.secret(secret["name"])}
    if (downward := source.get("downwardAPI")) is not None:
        then["downwardAPI"] = translate_items(downward, context.domain)
    return then


def _token(pod: Json, context: Context, volume: str, field: str, token: Json, index: int) -> Json:
    if not pod["spec"].get("serviceAccountName"):
        raise Refused(f"{field}.serviceAccountToken", "the pod has no service account")
    secret = context.names.token(volume, index)
    return {"secret": {"name": secret, "items": [{"key": TOKEN_KEY, "path": token["path"]}]}}


def _of_the_worker(source: Json, field: str) -> bool:
    """Whether a source can only be the worker's own, and may be left out; refused if it may not.

    Certificates that the worker issues or trusts are not those of the computing cluster.
    """
    if source.get("podCertificate") is not None:
        message = "certificates of pods are issued by the cluster that runs them; not supported"
        raise Refused(f"{field}.podCertificate", message)
    bundle = source.get("clusterTrustBundle")
    if bundle is not None and not bundle.get("optional"):
        message = "the computing cluster's trust bundles are not known in the worker; not supported"
        raise Refused(f"{field}.clusterTrustBundle", message)
    return bundle is not None

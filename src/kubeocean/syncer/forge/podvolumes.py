"""Volumes of a physical pod: the same files, from copies.

Whatever a volume takes from the pod's namespace is renamed to its copy. Tokens are minted above and
lie in Secrets; a claim that a controller above makes for one pod is a claim like any other below.
What only the worker could give, and would give in its own name, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.downward import translate_items
from kubeocean.syncer.forge.podcontext import Context, Refused
from kubeocean.syncer.forge.references import SECRET_VOLUMES, ephemeral_claim

__all__ = ["TOKEN_KEY", "translate_volumes", "volume_problems"]

TOKEN_KEY: Final = "token"  # noqa: S105 - where a token lies in its Secret


def volume_problems(pod: Json) -> Iterator[Refused]:
    """What no worker can give; translated are only pods without."""
    for i, volume in enumerate(pod["spec"].get("volumes") or ()):
        for j, source in enumerate((volume.get("projected") or {}).get("sources") or ()):
            yield from _source_problems(pod, source, f"spec.volumes[{i}].projected.sources[{j}]")


def translate_volumes(pod: Json, context: Context) -> list[Json]:
    """All volumes of a pod, as they are below."""
    return [_volume(pod, context, volume) for volume in pod["spec"].get("volumes") or ()]


def _source_problems(pod: Json, source: Json, field: str) -> Iterator[Refused]:
    """Certificates that the worker issues or trusts are not those of the computing cluster."""
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
        then["projected"] = _projected(context, volume["name"], projected)
    for kind, key in SECRET_VOLUMES.items():
        if (source := volume.get(kind)) is not None and (named := source.get(key)):
            then[kind] = source | {key: _secret(named, context)}
    return then


def _secret(named: str | Json, context: Context) -> str | Json:
    """A Secret by its name, or by an object that holds its name; none stays none."""
    if isinstance(named, str):
        return context.names.secret(named)
    return named | {"name": context.names.secret(named["name"])} if named.get("name") else named


def _projected(context: Context, volume: str, projected: Json) -> Json:
    then: list[Json] = []
    tokens = 0
    for source in projected.get("sources") or ():
        if (token := source.get("serviceAccountToken")) is not None:
            items = [{"key": TOKEN_KEY, "path": token["path"]}]
            then.append({"secret": {"name": context.names.token(volume, tokens), "items": items}})
            tokens += 1
        elif "clusterTrustBundle" not in source:  # that is left was optional
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

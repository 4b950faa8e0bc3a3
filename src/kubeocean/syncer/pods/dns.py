"""DNS of a physical pod: names resolve as they do in the virtual pod's namespace.

A pod that uses cluster DNS uses the computing cluster's, with the search domains of its virtual
namespace; its own `dnsConfig` is merged as a kubelet does. A pod in the host's network uses its
node's DNS, unless its policy is `ClusterFirstWithHostNet`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge_context import Context

__all__ = ["hostname", "translate_dns", "translate_hosts", "uses_cluster_dns"]

_CLUSTER_FIRST: Final = "ClusterFirst"
_WITH_HOST_NET: Final = "ClusterFirstWithHostNet"
_NDOTS: Final = {"name": "ndots", "value": "5"}

# Limits of API servers
_MOST_NAMESERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_MOST_SEARCH_CHARACTERS: Final = 2048
_LONGEST_LABEL: Final = 63


def uses_cluster_dns(pod: Json) -> bool:
    """Whether a pod resolves names by its cluster's DNS."""
    policy = pod["spec"].get("dnsPolicy") or _CLUSTER_FIRST
    on_host = bool(pod["spec"].get("hostNetwork"))
    return policy == _WITH_HOST_NET or (policy == _CLUSTER_FIRST and not on_host)


def translate_dns(pod: Json, context: Context) -> Json:
    """Return `dnsPolicy` and `dnsConfig` of the physical pod."""
    spec: Json = pod["spec"]
    policy: str = spec.get("dnsPolicy") or _CLUSTER_FIRST
    config: Json = spec.get("dnsConfig") or {}
    unchanged = {"dnsConfig": config} if config else {}
    if policy not in (_CLUSTER_FIRST, _WITH_HOST_NET):
        return {"dnsPolicy": policy, **unchanged}
    if not uses_cluster_dns(pod) or context.dns is None:
        return {"dnsPolicy": "Default", **unchanged}
    searches = _searches(pod["metadata"]["namespace"], context.cluster_domain)
    merged = {
        "nameservers": _merged([context.dns], config.get("nameservers"))[:_MOST_NAMESERVERS],
        "searches": _fitting(_merged(searches, config.get("searches"))),
        "options": _options([_NDOTS, *(config.get("options") or ())]),
    }
    return {"dnsPolicy": "None", "dnsConfig": merged}


def translate_hosts(pod: Json, context: Context) -> list[Json]:
    """Return the `hostAliases` of the physical pod: the pod's own, and the API server's names."""
    aliases: list[Json] = list(pod["spec"].get("hostAliases") or ())
    if context.server is None or not _is_address(context.server.host):
        return aliases
    names = ["kubernetes.default.svc", "kubernetes.default", "kubernetes"]
    if context.cluster_domain:
        names.append(f"kubernetes.default.svc.{context.cluster_domain}")
    return [*aliases, {"ip": context.server.host, "hostnames": names}]


def hostname(name: str) -> str:
    """Return the hostname of a pod that sets none: its name, shortened to a DNS label.

    A kubelet keeps dots, but `spec.hostname` may not have them.
    """
    return name.replace(".", "-")[:_LONGEST_LABEL].rstrip("-")


def _searches(namespace: str, domain: str) -> list[str]:
    return [f"{namespace}.svc.{domain}", f"svc.{domain}", domain] if domain else []


def _merged(first: Sequence[str], then: Iterable[str] | None) -> list[str]:
    return list(dict.fromkeys((*first, *(then or ()))))


def _fitting(searches: list[str]) -> list[str]:
    """Return as many of the first search domains as API servers accept."""
    kept: list[str] = []
    for search in searches[:_MOST_SEARCHES]:
        if len(" ".join((*kept, search))) > _MOST_SEARCH_CHARACTERS:
            break
        kept.append(search)
    return kept


def _options(options: Iterable[Json]) -> list[Json]:
    """Return the last DNS option of each name, at the position of the first of that name."""
    return list({option["name"]: option for option in options}.values())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

"""DNS of a physical pod: names mean what they mean in the pod's own namespace above.

A pod that asks for the cluster's DNS asks the computing cluster's, with the search domains of its
virtual namespace; what it configures itself is added as a kubelet would. With the host's network
such a pod means its node's DNS, unless it insists.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.podcontext import Context

__all__ = ["hostname", "translate_dns", "translate_hosts"]

_CLUSTER_FIRST: Final = "ClusterFirst"
_EVEN_WITH_HOST_NET: Final = "ClusterFirstWithHostNet"
_NDOTS: Final = {"name": "ndots", "value": "5"}

# What an API server accepts
_MOST_NAMESERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_MOST_SEARCH_CHARACTERS: Final = 2048
_LONGEST_LABEL: Final = 63


def translate_dns(pod: Json, context: Context) -> Json:
    """The pod's `dnsPolicy`, and its `dnsConfig` if it has one."""
    spec: Json = pod["spec"]
    policy: str = spec.get("dnsPolicy") or _CLUSTER_FIRST
    config: Json = spec.get("dnsConfig") or {}
    ours = {"dnsConfig": config} if config else {}
    if policy not in (_CLUSTER_FIRST, _EVEN_WITH_HOST_NET):
        return {"dnsPolicy": policy, **ours}
    on_host = policy == _CLUSTER_FIRST and bool(spec.get("hostNetwork"))
    if on_host or context.dns is None:
        return {"dnsPolicy": "Default", **ours}
    searches = _searches(pod["metadata"]["namespace"], context.cluster_domain)
    merged = {
        "nameservers": _merged([context.dns], config.get("nameservers"))[:_MOST_NAMESERVERS],
        "searches": _fitting(_merged(searches, config.get("searches"))),
        "options": _options([_NDOTS, *(config.get("options") or ())]),
    }
    return {"dnsPolicy": "None", "dnsConfig": merged}


def translate_hosts(pod: Json, context: Context) -> list[Json]:
    """The pod's `hostAliases`, and the names by which every pod knows its API server."""
    aliases: list[Json] = list(pod["spec"].get("hostAliases") or ())
    if context.server is None or not _is_address(context.server.host):
        return aliases
    names = ["kubernetes.default.svc", "kubernetes.default", "kubernetes"]
    if context.cluster_domain:
        names.append(f"kubernetes.default.svc.{context.cluster_domain}")
    return [*aliases, {"ip": context.server.host, "hostnames": names}]


def hostname(name: str) -> str:
    """What a pod that does not say is called by its own kernel: its name, as far as a label goes.

    A kubelet keeps dots, a pod's spec may not have them.
    """
    return name.replace(".", "-")[:_LONGEST_LABEL].rstrip("-")


def _searches(namespace: str, domain: str) -> list[str]:
    return [f"{namespace}.svc.{domain}", f"svc.{domain}", domain] if domain else []


def _merged(first: Sequence[str], then: Iterable[str] | None) -> list[str]:
    return list(dict.fromkeys((*first, *(then or ()))))


def _fitting(searches: list[str]) -> list[str]:
    """As many as a resolver's configuration holds, the first ones first."""
    kept: list[str] = []
    for search in searches[:_MOST_SEARCHES]:
        if len(" ".join((*kept, search))) > _MOST_SEARCH_CHARACTERS:
            break
        kept.append(search)
    return kept


def _options(options: Iterable[Json]) -> list[Json]:
    """The last one of each name; where the first one was."""
    return list({option["name"]: option for option in options}.values())


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

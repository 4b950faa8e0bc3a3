"""Names of the objects that Kubeocean creates, as functions of the objects that they represent.

A second attempt to create an object conflicts with the first, because the name is the same. The
rules are exactly those of the earlier implementation, because its objects are adopted. The rules
differ only where that implementation computes a name that no API server accepts:

- a cut that ends in a dot loses the dot (`a.-…` is no DNS name);
- a name that is longer than its kind allows is cut, and a hash of the whole name is appended.

Given DNS names, all results are DNS names: labels where the kind asks for one, else subdomains of
at most 63 characters, or 253 for signing requests and election leases, which hold a binding's name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

from kubeocean.api.group import DEFAULT, PROXIER_PORT_FIRST, PROXIER_PORT_LAST, Domain
from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import check_label_value

__all__ = [
    "HOST_PORT_PREFIX",
    "VNODE_PREFIX",
    "host_port_pod",
    "is_namespace",
    "label_value",
    "log_config",
    "manager_election",
    "physical_name",
    "proxier_deployment",
    "proxier_port",
    "proxier_ports",
    "proxier_service",
    "second_physical_name",
    "signing_request",
    "signing_request_prefix",
    "syncer_deployment",
    "syncer_election",
    "syncer_ring",
    "tls_secret",
    "token_secret",
    "virtual_node",
    "virtual_node_prefix",
]

VNODE_PREFIX: Final = "vnode-"
HOST_PORT_PREFIX: Final = "fake-pod-for-hostport-"

_LONGEST: Final = 63
_LONGEST_SUBDOMAIN: Final = 253
_HEAD: Final = 30  # characters before a hash
_LONGEST_RING: Final = 40  # the name of a ring is a part of label keys
_TAIL: Final = 33  # a dash and the hash
_LOG_CONFIG_HEAD: Final = 54
_LOG_CONFIG_HASH: Final = 6
_PORTS: Final = PROXIER_PORT_LAST - PROXIER_PORT_FIRST + 1
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NOT_IN_LABELS: Final = re.compile(r"[^A-Za-z0-9_.-]")


def is_namespace(name: str) -> bool:
    """Whether a namespace can have this name."""
    return _NAMESPACE.fullmatch(name) is not None


# Virtual nodes, and copies of virtual objects


def virtual_node(cluster_id: str, node: str) -> str:
    """Return the name of the virtual node of a worker's node, and of its Lease and CSINode."""
    name = f"{VNODE_PREFIX}{cluster_id}-{node}"
    return _bounded(name, _LONGEST)


def virtual_node_prefix(cluster_id: str) -> str:
    """Return the prefix of the names of a worker's virtual nodes; it may not be unique."""
    return _cut(f"{VNODE_PREFIX}{cluster_id}-", _HEAD)


def physical_name(name: str, namespace: str = "") -> str:
    """Return the name of the copy of a Pod, ConfigMap, Secret, claim or (no namespace) volume."""
    return f"{_cut(name, _HEAD)}-{_md5(f'{namespace}/{name}')}"


def second_physical_name(name: str, namespace: str = "", *, uid: str) -> str:
    """Return the name of a physical object whose first name is taken by a foreign object."""
    return f"{_cut(name, _HEAD)}-{_md5(f'{namespace}/{name}/{uid}')}"


def token_secret(pod: str, namespace: str, *, volume: str, uid: str) -> str:
    """Return the name of the Secret with the token that a volume of a pod projects."""
    return physical_name(f"{pod}-{volume}-{uid}", namespace)


def log_config(virtual: str, group: int | None = None) -> str:
    """Return the name of the copy of a LogConfig, or of one of the groups it is split into."""
    base = virtual if group is None else f"{virtual}-g{group}"
    digest = hashlib.sha256(base.encode()).hexdigest()
    return f"{_cut(base, _LOG_CONFIG_HEAD)}-{digest[:_LOG_CONFIG_HASH]}"


def host_port_pod(vnode: str, ports: Iterable[tuple[str, str, int]]) -> str:
    """Return the name of the pod that reserves host ports of a virtual node.

    Each port is an address, a protocol and a number. The ports of a pod cannot change: another set
    of ports is another pod with another name.
    """
    held = ",".join(f"{address}/{protocol}/{port}" for address, protocol, port in sorted(ports))
    return HOST_PORT_PREFIX + _md5(f"{vnode}/{held}")


# Objects of a binding


def syncer_deployment(cluster_id: str, domain: Domain = DEFAULT) -> str:
    return f"{domain.syncer}-{cluster_id}"


def proxier_deployment(cluster_id: str, domain: Domain = DEFAULT) -> str:
    return f"{domain.proxier}-{cluster_id}"


def proxier_service(cluster_id: str, domain: Domain = DEFAULT) -> str:
    return f"{domain.proxier}-{cluster_id}-svc"


def tls_secret(cluster_id: str) -> str:
    """Return the default name of the Secret with the proxier's certificate."""
    return f"{cluster_id}-logs-proxy-tls"


def manager_election(domain: Domain = DEFAULT) -> str:
    """Return the name of the Lease with which managers elect a leader."""
    return f"{domain.manager}-leader"


def syncer_election(binding: str, domain: Domain = DEFAULT) -> str:
    """Return the default name of the Lease with which a binding's syncers elect a leader."""
    return _bounded(f"{domain.syncer}-{binding}", _LONGEST_SUBDOMAIN)


def syncer_ring(binding: str, domain: Domain = DEFAULT) -> str:
    """Return the name of the ring in which the syncers of a binding share their work."""
    return _bounded(f"{domain.syncer}-{binding}", _LONGEST_RING)


def signing_request(binding: str, pod: str, *, now_ns: int, domain: Domain = DEFAULT) -> str:
    """Return the name of one CertificateSigningRequest of one pod."""
    name = f"{domain.proxier}-{binding}-{pod or 'unknown-pod'}-{now_ns}"
    return _bounded(name, _LONGEST_SUBDOMAIN)


def signing_request_prefix(binding: str, domain: Domain = DEFAULT) -> str:
    """Return the prefix of the names of a binding's CertificateSigningRequests.

    Requests of a binding `a-b` begin like those of `a`; a label names the binding.
    """
    return _cut(f"{domain.proxier}-{binding}-", _LONGEST_SUBDOMAIN - _TAIL)


# Ports and label values


def proxier_port(vnode: str) -> int:
    """Return the port on which the proxier serves a virtual node, if that port is free."""
    return PROXIER_PORT_FIRST + _fnv1a32(vnode.encode()) % _PORTS


def proxier_ports(vnode: str) -> Iterator[int]:
    """Yield all ports of the proxier in the order in which they are tried for a virtual node.

    The order is upwards from `proxier_port(vnode)`, then upwards from the lowest port.
    """
    first = proxier_port(vnode)
    yield from range(first, PROXIER_PORT_LAST + 1)
    yield from range(PROXIER_PORT_FIRST, first)


def label_value(text: str) -> str:
    """Return `text` if it is a valid label value, else its valid beginning followed by a hash.

    Names of nodes and bindings may be longer than a label value, and an IPv6 address has colons;
    the full text is in an annotation or in the object's name.
    """
    try:
        check_label_value(text)
    except ConfigError:
        readable = _NOT_IN_LABELS.sub("-", text)[:_HEAD].strip("-_.")
        return f"{readable}-{_md5(text)}".lstrip("-")
    return text


def _bounded(name: str, longest: int) -> str:
    """Return the name; if it is too long, its beginning and a hash of the whole name."""
    return name if len(name) <= longest else f"{_cut(name, longest - _TAIL)}-{_md5(name)}"


def _cut(name: str, length: int) -> str:
    return name[:length].removesuffix(".")


def _md5(text: str) -> str:
    """Return the MD5 digest that keeps names distinct; no security depends on it."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _fnv1a32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of `data`."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value

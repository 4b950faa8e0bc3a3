"""Environment and downward API of a physical pod, as a kubelet of the computing cluster sets them.

A kubelet sets variables of the API server and, unless the pod declines, of the Services of its
namespace. The worker's kubelet would set those of the worker's Services: `enableServiceLinks` is
turned off, and the variables of the virtual namespace are written into the containers. They come
first, so that a container's own variables may refer to them and override them. Variables from
`envFrom` override them, too: a Service variable of the same name is left out, by the keys that the
ConfigMap or Secret has when the pod is created.

There are two differences from a kubelet. The API server's host and port override a container's own
(which are right only near the API server), and `HOSTNAME` is always the pod's name.

The worker knows the physical pod by another name, UID, node and service account. Those of the
virtual pod are in annotations of the physical pod, and fields of the downward API are redirected to
these. Labels, annotations and addresses are the physical pod's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kubeocean.api.group import ENV_HOSTNAME, ENV_SERVICE_HOST, ENV_SERVICE_PORT, Domain
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge_context import (
    Context,
    CopyNames,
    Endpoint,
    ServiceEnv,
    ServicePort,
)
from kubeocean.syncer.pods.referenced_objects import CONFIG_MAP, SECRET

__all__ = [
    "inherited",
    "redirected_fields",
    "service_variables",
    "translate_env",
    "translate_field",
    "translate_items",
]

_API_SERVER: Final = "kubernetes"
_DEFAULT_PORT: Final = 443
_FORCED: Final = frozenset({ENV_SERVICE_HOST, ENV_SERVICE_PORT})
_HEADLESS: Final = "None"
# A pod has to fit into one request (1.5 MiB) together with everything else in it.
_MOST_BYTES: Final = 512 * 1024


def translate_env(pod: Json, container: Json, context: Context, common: Mapping[str, str]) -> Json:
    """Return a container with the environment that it has in the worker.

    `common` are the variables that all containers of the pod inherit.
    """
    result = dict(container)
    env = _own(pod, container.get("env") or (), context)
    forced = _FORCED & common.keys()
    kept = [variable for variable in env if variable["name"] not in forced]
    if sources := container.get("envFrom"):
        result["envFrom"] = [_source(source, context.names) for source in sources]
        hidden = _names_from(sources, context.names) - forced
        common = {name: value for name, value in common.items() if name not in hidden}
    result["env"] = [*_inherited_by(kept, common), *kept]
    return result


def inherited(pod: Json, context: Context) -> dict[str, str]:
    """Return the variables of Services that all containers of a pod inherit, by name."""
    server = {} if context.server is None else _server_variables(context.server)
    if pod["spec"].get("enableServiceLinks") is False:
        return server
    # The API server overrides a Service with the name of its own Service.
    services = (service for service in context.services if service.name != _API_SERVER)
    links = service_variables(services)
    # A pod with more could not be created at all.
    containers = sum(len(pod["spec"].get(kind) or ()) for kind in ("containers", "initContainers"))
    size = sum(
        len(name) + len(value) + len('{"name":"","value":""},') for name, value in links.items()
    )
    return server if size * containers > _MOST_BYTES else links | server


def service_variables(services: Iterable[ServiceEnv]) -> dict[str, str]:
    """Return the variables that a kubelet sets for Services, in the order of their names."""
    variables: dict[str, str] = {}
    for service in sorted(services, key=lambda service: service.name):
        if service.ports and service.address and service.address != _HEADLESS:
            variables |= _variables(service)
    return variables


def _variables(service: ServiceEnv) -> dict[str, str]:
    prefix, first = _upper(service.name), service.ports[0]
    variables = {
        f"{prefix}_SERVICE_HOST": service.address,
        f"{prefix}_SERVICE_PORT": str(first.number),
    }
    for port in service.ports:
        if port.name:
            variables[f"{prefix}_SERVICE_PORT_{_upper(port.name)}"] = str(port.number)
    variables[f"{prefix}_PORT"] = _url(service.address, first)
    for port in service.ports:
        link = f"{prefix}_PORT_{port.number}_{port.protocol.upper()}"
        variables |= _link(link, service.address, port)
    return variables


def _link(prefix: str, address: str, port: ServicePort) -> dict[str, str]:
    """Return the variables in the format of Docker links for one port of a Service."""
    return {
        prefix: _url(address, port),
        f"{prefix}_PROTO": port.protocol.lower(),
        f"{prefix}_PORT": str(port.number),
        f"{prefix}_ADDR": address,
    }


def _server_variables(server: Endpoint) -> dict[str, str]:
    """Return the variables of the API server, also for the default port, as a kubelet sets them."""
    port = ServicePort(server.port, server.port_name)
    default = _link(f"{_upper(_API_SERVER)}_PORT_{_DEFAULT_PORT}_TCP", server.host, port)
    return default | _variables(ServiceEnv(_API_SERVER, server.host, (port,)))


def _own(pod: Json, env: Sequence[Json], context: Context) -> list[Json]:
    """Return the container's own variables, and `HOSTNAME` with the virtual pod's name."""
    host = {"name": ENV_HOSTNAME, "value": pod["metadata"]["name"]}
    variables = [host if v["name"] == ENV_HOSTNAME else _variable(v, context) for v in env]
    return variables if host in variables else [*variables, host]


def _inherited_by(own: Sequence[Json], common: Mapping[str, str]) -> list[Json]:
    """Return the inherited variables that a container does not set itself.

    An inherited variable is also returned if a variable of the container refers to its name.
    """
    names = {variable["name"] for variable in own}
    values = [variable.get("value") or "" for variable in own]
    return [
        {"name": name, "value": value}
        for name, value in common.items()
        if name not in names or any(f"$({name})" in text for text in values)
    ]


def _variable(variable: Json, context: Context) -> Json:
    source: Json = variable.get("valueFrom") or {}
    result = dict(source)
    if (ref := source.get("fieldRef")) is not None:
        result["fieldRef"] = translate_field(ref, context.domain)
    if (ref := source.get("configMapKeyRef")) is not None:
        result["configMapKeyRef"] = ref | {"name": context.names.config_map(ref["name"])}
    if (ref := source.get("secretKeyRef")) is not None:
        result["secretKeyRef"] = ref | {"name": context.names.secret(ref["name"])}
    return variable | {"valueFrom": result} if result else variable


def _names_from(sources: Iterable[Json], names: CopyNames) -> set[str]:
    """Return the names of the variables that `envFrom` sets."""
    return {
        f"{source.get('prefix') or ''}{key}"
        for source in sources
        for kind in (CONFIG_MAP, SECRET)
        for key in names.keys.get((kind, (source.get(f"{kind}Ref") or {}).get("name", "")), ())
    }


def _source(source: Json, names: CopyNames) -> Json:
    result = dict(source)
    if (ref := source.get("configMapRef")) is not None:
        result["configMapRef"] = ref | {"name": names.config_map(ref["name"])}
    if (ref := source.get("secretRef")) is not None:
        result["secretRef"] = ref | {"name": names.secret(ref["name"])}
    return result


def _url(address: str, port: ServicePort) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{port.protocol.lower()}://{host}:{port.number}"


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


# Downward API


def redirected_fields(domain: Domain) -> dict[str, str]:
    """Return the annotation that holds the virtual value of each downward API field."""
    return {
        "metadata.name": domain.virtual_pod_name,
        "metadata.namespace": domain.virtual_pod_namespace,
        "metadata.uid": domain.virtual_pod_uid,
        "spec.nodeName": domain.virtual_node_name,
        "spec.serviceAccountName": domain.service_account,
    }


def translate_field(ref: Json, domain: Domain) -> Json:
    """Return a fieldRef that gives the virtual pod's value in the worker."""
    annotation = redirected_fields(domain).get(ref["fieldPath"])
    if annotation is None:
        return ref
    return ref | {"fieldPath": f"metadata.annotations['{annotation}']"}


def translate_items(source: Json, domain: Domain) -> Json:
    """Return a downwardAPI source of a volume whose fields have the virtual pod's values."""
    items: list[Json] = [
        item | {"fieldRef": translate_field(item["fieldRef"], domain)}
        if "fieldRef" in item
        else item
        for item in source.get("items") or ()
    ]
    return source | {"items": items} if items else source

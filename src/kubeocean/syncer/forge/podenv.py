"""Environment of a physical pod's containers: what a kubelet above would have set.

Kubelets tell each container of the API server and, unless the pod declines, of the Services of its
namespace. The worker's kubelet would tell of the worker's: it is asked not to, and the variables of
the virtual namespace are written into the containers. They come first, so that a container's own
variables may refer to them and win over them, as they do above. Those that come from `envFrom` win
over them, too: a Service's of that name is left out, by the keys of the moment.

Two differences from a kubelet are of old. The API server's host and port win over a container's own
(its own were right where the API server is near), and `HOSTNAME` is always the pod's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kubeocean.api.group import ENV_HOSTNAME, ENV_SERVICE_HOST, ENV_SERVICE_PORT
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.downward import translate_field
from kubeocean.syncer.forge.podcontext import Context, Endpoint, Names, ServiceEnv, ServicePort
from kubeocean.syncer.forge.references import CONFIG_MAP, SECRET

__all__ = ["inherited", "service_variables", "translate_env"]

_API_SERVER: Final = "kubernetes"
_USUAL_PORT: Final = 443
_FORCED: Final = frozenset({ENV_SERVICE_HOST, ENV_SERVICE_PORT})
_HEADLESS: Final = "None"
# A pod has to fit into one request (1.5 MiB) together with all else that is in it.
_MOST_BYTES: Final = 512 * 1024


def translate_env(pod: Json, container: Json, context: Context, around: Mapping[str, str]) -> Json:
    """A container with its environment below; `around` is what every container inherits."""
    then = dict(container)
    env = _own(pod, container.get("env") or (), context)
    forced = _FORCED & around.keys()
    kept = [variable for variable in env if variable["name"] not in forced]
    if sources := container.get("envFrom"):
        then["envFrom"] = [_source(source, context.names) for source in sources]
        hidden = _given(sources, context.names) - forced
        around = {name: value for name, value in around.items() if name not in hidden}
    then["env"] = [*_first(around, kept), *kept]
    return then


def inherited(pod: Json, context: Context) -> dict[str, str]:
    """What all containers of a pod are told of Services, by name of the variable."""
    server = {} if context.server is None else _server_variables(context.server)
    if pod["spec"].get("enableServiceLinks") is False:
        return server
    # Whatever is called like the API server gives way to it.
    services = (service for service in context.services if service.name != _API_SERVER)
    links = service_variables(services)
    # Beyond that a pod could not be written at all; who has so many Services cannot want them.
    containers = sum(len(pod["spec"].get(kind) or ()) for kind in ("containers", "initContainers"))
    size = sum(
        len(name) + len(value) + len('{"name":"","value":""},') for name, value in links.items()
    )
    return server if size * containers > _MOST_BYTES else links | server


def service_variables(services: Iterable[ServiceEnv]) -> dict[str, str]:
    """What a kubelet sets for Services, in the order of their names."""
    found: dict[str, str] = {}
    for service in sorted(services, key=lambda service: service.name):
        if service.ports and service.address and service.address != _HEADLESS:
            found |= _variables(service)
    return found


def _variables(service: ServiceEnv) -> dict[str, str]:
    prefix, first = _upper(service.name), service.ports[0]
    found = {
        f"{prefix}_SERVICE_HOST": service.address,
        f"{prefix}_SERVICE_PORT": str(first.number),
    }
    for port in service.ports:
        if port.name:
            found[f"{prefix}_SERVICE_PORT_{_upper(port.name)}"] = str(port.number)
    found[f"{prefix}_PORT"] = _url(service.address, first)
    for port in service.ports:
        found |= _link(
            f"{prefix}_PORT_{port.number}_{port.protocol.upper()}", service.address, port
        )
    return found


def _link(prefix: str, address: str, port: ServicePort) -> dict[str, str]:
    """The variables that links of Docker had once."""
    return {
        prefix: _url(address, port),
        f"{prefix}_PROTO": port.protocol.lower(),
        f"{prefix}_PORT": str(port.number),
        f"{prefix}_ADDR": address,
    }


def _server_variables(server: Endpoint) -> dict[str, str]:
    """Those of the API server; the worker's kubelet tells of its own on the usual port, too."""
    port = ServicePort(server.port, server.port_name)
    usual = _link(f"{_upper(_API_SERVER)}_PORT_{_USUAL_PORT}_TCP", server.host, port)
    return usual | _variables(ServiceEnv(_API_SERVER, server.host, (port,)))


def _own(pod: Json, env: Sequence[Json], context: Context) -> list[Json]:
    """The container's own variables, and its host name."""
    host = {"name": ENV_HOSTNAME, "value": pod["metadata"]["name"]}
    then = [host if v["name"] == ENV_HOSTNAME else _variable(v, context) for v in env]
    return then if host in then else [*then, host]


def _first(around: Mapping[str, str], own: Sequence[Json]) -> list[Json]:
    """What is inherited, but for what the container sets itself without referring to it."""
    names = {variable["name"] for variable in own}
    values = [variable.get("value") or "" for variable in own]
    return [
        {"name": name, "value": value}
        for name, value in around.items()
        if name not in names or any(f"$({name})" in text for text in values)
    ]


def _variable(variable: Json, context: Context) -> Json:
    source: Json = variable.get("valueFrom") or {}
    then = dict(source)
    if (ref := source.get("fieldRef")) is not None:
        then["fieldRef"] = translate_field(ref, context.domain)
    if (ref := source.get("configMapKeyRef")) is not None:
        then["configMapKeyRef"] = ref | {"name": context.names.config_map(ref["name"])}
    if (ref := source.get("secretKeyRef")) is not None:
        then["secretKeyRef"] = ref | {"name": context.names.secret(ref["name"])}
    return variable | {"valueFrom": then} if then else variable


def _given(sources: Iterable[Json], names: Names) -> set[str]:
    """The variables that sources set."""
    return {
        f"{source.get('prefix') or ''}{key}"
        for source in sources
        for kind in (CONFIG_MAP, SECRET)
        for key in names.keys.get((kind, (source.get(f"{kind}Ref") or {}).get("name", "")), ())
    }


def _source(source: Json, names: Names) -> Json:
    then = dict(source)
    if (ref := source.get("configMapRef")) is not None:
        then["configMapRef"] = ref | {"name": names.config_map(ref["name"])}
    if (ref := source.get("secretRef")) is not None:
        then["secretRef"] = ref | {"name": names.secret(ref["name"])}
    return then


def _url(address: str, port: ServicePort) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{port.protocol.lower()}://{host}:{port.number}"


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()

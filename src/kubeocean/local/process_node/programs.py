"""Pod programs: containers of Kubeocean, run as ordinary processes of this machine. Pure.

A program of a process node runs as the user of this machine, who has the administrators'
kubeconfigs. So only pods of the system namespace run, only with Kubeocean's image, and only as
manager, syncer or proxier; only known variables are passed on, and Python runs isolated from its
environment and user packages.

All pods share one network, so each has an address of its own and listens only there; ports stay the
same unless another program of this machine uses them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.install.values import IMAGE
from kubeocean.runtime.objects import Json

__all__ = ["MARK", "ContainerProgram", "PodPlace", "environment", "listens", "program", "refusal"]

MARK: Final = "kubeocean_pod"  # identifies the processes of a pod, also in `ps`

_ENTRIES: Final = {
    "/manager": (group.COMPONENT_MANAGER,),
    "/syncer": (group.COMPONENT_SYNCER,),
    "/proxier": (group.COMPONENT_PROXIER,),
    "kubeocean": (),
}
_BOTH: Final = {
    "metrics-bind-address": group.METRICS_PORT,
    "health-probe-bind-address": group.HEALTH_PORT,
}
# The flags that set where a program listens, with their default ports; 0 is no port.
_LISTENS: Final = {
    group.COMPONENT_MANAGER: _BOTH,
    group.COMPONENT_SYNCER: _BOTH,
    group.COMPONENT_PROXIER: {
        "metrics-bind-address": 0,
        "health-probe-bind-address": 0,
        "listen-port": group.KUBELET_PORT,
        "prometheus-vnode-base-port": group.VNODE_METRICS_PORT,
    },
}
_TEMPLATES: Final = {
    group.ENV_SYNCER_TEMPLATES: group.SYNCER_TEMPLATES,
    group.ENV_PROXIER_TEMPLATES: group.PROXIER_TEMPLATES,
}
_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")
_VARIABLES: Final = frozenset(
    {group.ENV_POD_NAME, group.ENV_POD_NAMESPACE, group.ENV_POD_IP, group.ENV_BINDING_NAME}
)
_OWN_VARIABLES: Final = "KUBEOCEAN_"
# A kubeconfig of a pod could name any program of this machine.
_REFUSED_FLAGS: Final = frozenset({"kubeconfig", "allow-exec-plugins"})
_MAPPED: Final = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_REPOSITORY: Final = IMAGE.rpartition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """Address, kubeconfig and mounts of a pod on this machine."""

    address: str
    kubeconfig: Path
    root: Path
    mounts: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContainerProgram:
    """The command line and environment of a container's program."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def refusal(pod: Json, domain: Domain = group.DEFAULT) -> str:
    """Return why a process node does not run this pod; empty if it does."""
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    if namespace != domain.system_namespace:
        return (
            f"a process node runs only pods of namespace {domain.system_namespace}; this pod is in"
            f" {namespace or 'no namespace'}"
        )
    if spec.get("initContainers"):
        return "a process node runs only pods without init containers; this pod has init containers"
    reasons = (_container_refusal(container) for container in spec["containers"])
    return next(filter(None, reasons), "")


def _container_refusal(container: Json) -> str:
    image, command = container.get("image", ""), container.get("command") or ()
    if image.rpartition(":")[0] != _REPOSITORY and image != _REPOSITORY:
        return f"only {_REPOSITORY} is run here, not {image}"
    words = [*command, *(container.get("args") or ())]
    if command and (len(command) > 1 or command[0] not in _ENTRIES):
        return f"only Kubeocean's programs run on this node, not {' '.join(words)}"
    program_name, *flags = _words(container) or ("",)
    if program_name not in _LISTENS:
        return f"only {', '.join(_LISTENS)} are run here, not {' '.join(words) or 'kubeocean'}"
    for flag, _ in _flags(flags):
        if flag in _REFUSED_FLAGS:
            return f"flag --{flag} is not allowed here"
    for variable in container.get("env") or ():
        name, source = variable["name"], variable.get("valueFrom") or {}
        if name not in _VARIABLES and not name.startswith(_OWN_VARIABLES):
            return f"variable {name} is not passed on here"
        if source and "fieldRef" not in source:
            return f"variable {name} comes from {next(iter(source))}"
    return ""


def listens(container: Json) -> dict[str, int]:
    """Return the ports that a container's program will listen on, by flag."""
    words = _words(container)
    if not words or words[0] not in _LISTENS:
        return {}
    flags = dict(_flags(words[1:]))
    ports: dict[str, int] = {}
    for flag, default in _LISTENS[words[0]].items():
        port = flags.get(flag, str(default)).rpartition(":")[2]
        if port.isascii() and port.isdigit() and int(port):
            ports[flag] = int(port)
    return ports


def program(
    container: Json, pod: Json, place: PodPlace, ports: Mapping[str, int]
) -> ContainerProgram:
    """Return the program of a container; `ports` are its assigned ports by flag."""
    words = _words(container)
    listening = [
        f"--{flag}={place.address}:{port}" if flag in _BOTH else f"--{flag}={port}"
        for flag, port in ports.items()
    ]
    if words and words[0] == group.COMPONENT_PROXIER:
        listening.append(f"--listen-address={place.address}")
    # -I: no variables of Python, no packages of the user, no modules of the working directory.
    python = (sys.executable, "-I", "-X", f"{MARK}={place.root}", "-m", "kubeocean")
    return ContainerProgram((*python, *words, *listening), _variables(container, pod, place))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that programs of pods inherit: as little as possible."""
    return {name: environ[name] for name in _INHERITED if name in environ} | {"TZ": "UTC"}


def _words(container: Json) -> tuple[str, ...]:
    entry = _ENTRIES[(container.get("command") or ("kubeocean",))[0]]
    return (*entry, *(container.get("args") or ()))


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags and their values, written as `--flag=value` or `--flag value`."""
    following = iter((*words[1:], ""))
    for word in words:
        after = next(following)
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-"):
            yield name, value if equals else after


def _variables(container: Json, pod: Json, place: PodPlace) -> dict[str, str]:
    variables = {
        group.ENV_HOSTNAME: pod["metadata"]["name"],
        "KUBECONFIG": str(place.kubeconfig),
        **_TEMPLATES,
    }
    for variable in container.get("env") or ():
        path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
        value = _field(pod, path, place.address) if path else variable.get("value", "")
        variables[variable["name"]] = value
    mounted = tuple(_mounted(container, place))
    return {name: _moved(value, mounted) for name, value in variables.items()}


def _mounted(container: Json, place: PodPlace) -> Iterable[tuple[str, Path]]:
    for mount in container.get("volumeMounts") or ():
        if (directory := place.mounts.get(mount["name"])) is not None:
            yield mount["mountPath"].rstrip("/"), directory


def _moved(value: str, mounted: Iterable[tuple[str, Path]]) -> str:
    """Return the path on this machine for a path in a container's mount."""
    for path, directory in mounted:
        if value == path or value.startswith(f"{path}/"):
            return f"{directory}{value.removeprefix(path)}"
    return value


def _field(pod: Json, path: str, address: str) -> str:
    """Return the value of a pod's field that the downward API exposes."""
    if (keyed := _MAPPED.fullmatch(path)) is not None:
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    if path in ("status.podIP", "status.podIPs", "status.hostIP"):
        return address
    part, _, name = path.partition(".")
    return str((pod.get(part) or {}).get(name, ""))

"""Privileges: what of the worker's nodes a pod asks for, by itself or by its volumes.

By default all is allowed that a pod of the worker itself would be allowed; the worker's own
admission has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.api.binding import ClusterBinding
from kubeocean.runtime.objects import Json
from kubeocean.syncer.forge.podcontext import Privileges, Refused
from kubeocean.syncer.forge.references import CONTAINERS

__all__ = ["container_problems", "privileges_of", "problems", "volume_problem"]

_WHY: Final = "the binding does not allow it"
# A volume of either kind is a directory of the node, whoever made it.
_ON_HOST: Final = ("hostPath", "local")


def privileges_of(binding: ClusterBinding | None) -> Privileges:
    """What pods may do on their node: all that the binding does not deny; nothing, without."""
    if binding is None:
        return Privileges(*[False] * 5)
    denied = binding.spec.pod_privileges.denied
    return Privileges(
        host_network="hostNetwork" not in denied,
        host_pid="hostPID" not in denied,
        host_ipc="hostIPC" not in denied,
        host_path="hostPath" not in denied,
        privileged="privileged" not in denied,
    )


def problems(spec: Json, privileges: Privileges) -> Iterator[Refused]:
    """Everything in a pod's spec that is not allowed, apart from its ephemeral containers."""
    for key, allowed in (
        ("hostNetwork", privileges.host_network),
        ("hostPID", privileges.host_pid),
        ("hostIPC", privileges.host_ipc),
    ):
        if spec.get(key) and not allowed:
            yield Refused(f"spec.{key}", _WHY, value=True)
    for i, volume in enumerate(spec.get("volumes") or ()):
        path = volume.get("hostPath")
        if path is not None and not privileges.host_path:
            yield Refused(f"spec.volumes[{i}].hostPath", _WHY, value=path.get("path"))
    if _host_process(spec) and not privileges.privileged:
        yield Refused("spec.securityContext.windowsOptions.hostProcess", _WHY, value=True)
    for kind in CONTAINERS[:-1]:
        for i, container in enumerate(spec.get(kind) or ()):
            yield from container_problems(container, f"spec.{kind}[{i}]", privileges)


def volume_problem(volume: Json, privileges: Privileges) -> Refused | None:
    """What a PersistentVolume asks of the node and may not."""
    spec: Json = volume.get("spec") or {}
    for kind in _ON_HOST if not privileges.host_path else ():
        if (source := spec.get(kind)) is not None:
            return Refused(f"spec.{kind}", _WHY, value=source.get("path"))
    return None


def container_problems(container: Json, field: str, privileges: Privileges) -> Iterator[Refused]:
    """Everything in a container that is not allowed."""
    if privileges.privileged:
        return
    if (container.get("securityContext") or {}).get("privileged"):
        yield Refused(f"{field}.securityContext.privileged", _WHY, value=True)
    if _host_process(container):
        yield Refused(f"{field}.securityContext.windowsOptions.hostProcess", _WHY, value=True)


def _host_process(holder: Json) -> bool:
    """The privileged containers of another operating system."""
    options = (holder.get("securityContext") or {}).get("windowsOptions") or {}
    return bool(options.get("hostProcess"))

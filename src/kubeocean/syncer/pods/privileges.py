"""Privileges: what a pod requests of the worker's nodes, itself or through its volumes.

By default a pod may request everything that a pod of the worker itself may; the worker's own
admission still applies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.api.bindings import ClusterBinding
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge_context import Privileges, Refused
from kubeocean.syncer.pods.references import CONTAINERS

__all__ = ["container_problems", "privileges_of", "problems", "volume_problem"]

_DENIED: Final = "the binding does not allow it"
# A volume of either kind is a directory of the node.
_ON_HOST: Final = ("hostPath", "local")


def privileges_of(binding: ClusterBinding | None) -> Privileges:
    """What pods may request: all that the binding does not deny; nothing without a binding."""
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
    """The fields of a pod's spec that are denied, except for its ephemeral containers."""
    for key, allowed in (
        ("hostNetwork", privileges.host_network),
        ("hostPID", privileges.host_pid),
        ("hostIPC", privileges.host_ipc),
    ):
        if spec.get(key) and not allowed:
            yield Refused(f"spec.{key}", _DENIED, value=True)
    for i, volume in enumerate(spec.get("volumes") or ()):
        path = volume.get("hostPath")
        if path is not None and not privileges.host_path:
            yield Refused(f"spec.volumes[{i}].hostPath", _DENIED, value=path.get("path"))
    if _host_process(spec) and not privileges.privileged:
        yield Refused("spec.securityContext.windowsOptions.hostProcess", _DENIED, value=True)
    for kind in CONTAINERS[:-1]:
        for i, container in enumerate(spec.get(kind) or ()):
            yield from container_problems(container, f"spec.{kind}[{i}]", privileges)


def volume_problem(volume: Json, privileges: Privileges) -> Refused | None:
    """The field of a PersistentVolume that is denied, if any."""
    spec: Json = volume.get("spec") or {}
    for kind in _ON_HOST if not privileges.host_path else ():
        if (source := spec.get(kind)) is not None:
            return Refused(f"spec.{kind}", _DENIED, value=source.get("path"))
    return None


def container_problems(container: Json, field: str, privileges: Privileges) -> Iterator[Refused]:
    """The fields of a container that are denied."""
    if privileges.privileged:
        return
    if (container.get("securityContext") or {}).get("privileged"):
        yield Refused(f"{field}.securityContext.privileged", _DENIED, value=True)
    if _host_process(container):
        yield Refused(f"{field}.securityContext.windowsOptions.hostProcess", _DENIED, value=True)


def _host_process(holder: Json) -> bool:
    """Whether a pod or container is a Windows host process, which is privileged."""
    options = (holder.get("securityContext") or {}).get("windowsOptions") or {}
    return bool(options.get("hostProcess"))

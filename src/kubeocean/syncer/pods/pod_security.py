"""Pod security: requests of pods for access to nodes, by Kubernetes' Pod Security Standards.

The controls are those of k8s.io/pod-security-admission, read at v0.34: each is a function here that
returns the fields of a pod or container that violate it. A binding denies single privileges, or
sets a level: `baseline` denies all five privileges, which together are the controls of the baseline
standard; `restricted` adds the controls of the restricted one. Privilege and level may both be set,
and the stricter one counts. Without either, a pod may request everything that a pod of the worker
may; the worker's own admission still applies.

| privilege | controls |
|---|---|
| hostNetwork | the host's network, host ports, probes and hooks of other hosts |
| hostPID, hostIPC | the host's processes, its shared memory |
| hostPath | volumes that are files of the node |
| privileged | privileged containers, Windows host processes, capabilities, /proc, seccomp, AppArmor, SELinux, sysctls |
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from kubeocean.api.bindings import ClusterBinding, PodSecurityLevel
from kubeocean.runtime.objects import Json
from kubeocean.syncer.pods.forge_context import Privileges, Refused
from kubeocean.syncer.pods.referenced_objects import CONTAINERS

__all__ = ["container_problems", "privileges_of", "problems", "volume_problem"]

_DENIED: Final = "the binding does not allow it"
_RESTRICTED: Final = "the binding allows restricted pods only"
# A volume of either kind is a directory of the node.
_ON_HOST: Final = ("hostPath", "local")
_CAPABILITIES: Final = frozenset(
    {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
)
_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
_SELINUX_TYPES: Final = frozenset(
    {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
)
_PROFILES: Final = ("RuntimeDefault", "Localhost")
_APP_ARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_RESTRICTED_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS: Final = ("postStart", "preStop")

_Problems: TypeAlias = Iterator[Refused]


def privileges_of(binding: ClusterBinding | None) -> Privileges:
    """Return the privileges that pods may request: all that the binding does not deny.

    Without a binding, none.
    """
    if binding is None:
        return Privileges(False, False, False, False, False, restricted=True)
    privileges = binding.spec.pod_privileges
    denied = privileges.denied
    return Privileges(
        host_network="hostNetwork" not in denied,
        host_pid="hostPID" not in denied,
        host_ipc="hostIPC" not in denied,
        host_path="hostPath" not in denied,
        privileged="privileged" not in denied,
        restricted=privileges.effective_level is PodSecurityLevel.RESTRICTED,
    )


def problems(pod: Json, privileges: Privileges) -> _Problems:
    """Yield the fields of a pod that its privileges do not allow, except ephemeral containers."""
    spec: Json = pod["spec"]
    for key, allowed in (
        ("hostNetwork", privileges.host_network),
        ("hostPID", privileges.host_pid),
        ("hostIPC", privileges.host_ipc),
    ):
        if spec.get(key) and not allowed:
            yield Refused(f"spec.{key}", _DENIED, value=True)
    yield from _volumes(spec, privileges)
    if not privileges.privileged:
        context: Json = spec.get("securityContext") or {}
        yield from _confinement(context, "spec.securityContext")
        yield from _sysctls(context)
        yield from _app_armor_annotations(pod)
    if privileges.restricted:
        yield from _explicit_root(spec, "spec")
    for kind in CONTAINERS[:-1]:
        for i, container in enumerate(spec.get(kind) or ()):
            yield from container_problems(container, f"spec.{kind}[{i}]", spec, privileges)


def container_problems(
    container: Json, field: str, spec: Json, privileges: Privileges
) -> _Problems:
    """Yield the fields of a container that are not allowed; `spec` is that of its pod."""
    context: Json = container.get("securityContext") or {}
    if not privileges.host_network:
        yield from _host_ports(container, field)
        yield from _other_hosts(container, field)
    if not privileges.privileged:
        yield from _privileged(context, f"{field}.securityContext")
        yield from _confinement(context, f"{field}.securityContext")
    if privileges.restricted:
        yield from _explicit_root(container, field)
        yield from _not_restricted(context, f"{field}.securityContext", spec)


def volume_problem(volume: Json, privileges: Privileges) -> Refused | None:
    """Return the field of a PersistentVolume that is not allowed, if any."""
    spec: Json = volume.get("spec") or {}
    for kind in _ON_HOST if not privileges.host_path else ():
        if (source := spec.get(kind)) is not None:
            return Refused(f"spec.{kind}", _DENIED, value=source.get("path"))
    return None


# Controls of the baseline standard


def _volumes(spec: Json, privileges: Privileges) -> _Problems:
    for i, volume in enumerate(spec.get("volumes") or ()):
        path = volume.get("hostPath")
        if path is not None and not privileges.host_path:
            yield Refused(f"spec.volumes[{i}].hostPath", _DENIED, value=path.get("path"))
        kinds = {key for key, source in volume.items() if key != "name" and source is not None}
        if privileges.restricted and not kinds <= _RESTRICTED_VOLUMES:
            (kind, *_) = sorted(kinds - _RESTRICTED_VOLUMES)
            yield Refused(f"spec.volumes[{i}].{kind}", _RESTRICTED, value=volume.get("name"))


def _host_ports(container: Json, field: str) -> _Problems:
    for i, port in enumerate(container.get("ports") or ()):
        if port.get("hostPort"):
            yield Refused(f"{field}.ports[{i}].hostPort", _DENIED, value=port["hostPort"])


def _other_hosts(container: Json, field: str) -> _Problems:
    """Yield probes and hooks that a kubelet would send to another host than the pod."""
    lifecycle: Json = container.get("lifecycle") or {}
    handlers = {f"{field}.{name}": container.get(name) or {} for name in _PROBES}
    handlers |= {f"{field}.lifecycle.{name}": lifecycle.get(name) or {} for name in _HOOKS}
    for path, handler in handlers.items():
        for kind in ("httpGet", "tcpSocket"):
            if host := (handler.get(kind) or {}).get("host"):
                yield Refused(f"{path}.{kind}.host", _DENIED, value=host)


def _privileged(context: Json, field: str) -> _Problems:
    if context.get("privileged"):
        yield Refused(f"{field}.privileged", _DENIED, value=True)
    added: list[str] = (context.get("capabilities") or {}).get("add") or []
    if extra := [each for each in added if each not in _CAPABILITIES]:
        yield Refused(f"{field}.capabilities.add", _DENIED, value=extra[0])
    if (mount := context.get("procMount")) not in (None, "Default"):
        yield Refused(f"{field}.procMount", _DENIED, value=mount)


def _confinement(context: Json, field: str) -> _Problems:
    """Yield the profiles of a security context that the baseline standard does not allow."""
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield Refused(f"{field}.windowsOptions.hostProcess", _DENIED, value=True)
    for key in ("seccompProfile", "appArmorProfile"):
        profile = (context.get(key) or {}).get("type")
        if context.get(key) is not None and profile not in _PROFILES:
            yield Refused(f"{field}.{key}.type", _DENIED, value=profile)
    options: Json = context.get("seLinuxOptions") or {}
    if (options.get("type") or "") not in _SELINUX_TYPES:
        yield Refused(f"{field}.seLinuxOptions.type", _DENIED, value=options["type"])
    for key in ("user", "role"):
        if options.get(key):
            yield Refused(f"{field}.seLinuxOptions.{key}", _DENIED, value=options[key])


def _sysctls(context: Json) -> _Problems:
    for i, each in enumerate(context.get("sysctls") or ()):
        if each.get("name") not in _SYSCTLS:
            field = f"spec.securityContext.sysctls[{i}].name"
            yield Refused(field, _DENIED, value=each.get("name"))


def _app_armor_annotations(pod: Json) -> _Problems:
    """Yield the annotations with AppArmor profiles, as before Kubernetes 1.30, that are denied."""
    annotations: dict[str, str] = pod["metadata"].get("annotations") or {}
    for key, value in annotations.items():
        allowed = value in ("", "runtime/default") or value.startswith("localhost/")
        if key.startswith(_APP_ARMOR) and not allowed:
            yield Refused(f"metadata.annotations[{key}]", _DENIED, value=value)


# Controls of the restricted standard


def _explicit_root(holder: Json, field: str) -> _Problems:
    """Yield the fields by which a pod or container requests to run as root."""
    context: Json = holder.get("securityContext") or {}
    if context.get("runAsNonRoot") is False:
        yield Refused(f"{field}.securityContext.runAsNonRoot", _RESTRICTED, value=False)
    if context.get("runAsUser") == 0:
        yield Refused(f"{field}.securityContext.runAsUser", _RESTRICTED, value=0)


def _not_restricted(context: Json, field: str, spec: Json) -> _Problems:
    """Yield the fields that the restricted standard requires and neither container nor pod sets."""
    pods: Json = spec.get("securityContext") or {}
    if context.get("runAsNonRoot") is None and not pods.get("runAsNonRoot"):
        yield Refused(f"{field}.runAsNonRoot", f"must be true: {_RESTRICTED}")
    if (spec.get("os") or {}).get("name") == "windows":
        return  # the other fields cannot be set for Windows
    if context.get("allowPrivilegeEscalation") is not False:
        yield Refused(f"{field}.allowPrivilegeEscalation", f"must be false: {_RESTRICTED}")
    capabilities: Json = context.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield Refused(f"{field}.capabilities.drop", f"must include ALL: {_RESTRICTED}")
    for each in capabilities.get("add") or ():
        if each != "NET_BIND_SERVICE":
            yield Refused(f"{field}.capabilities.add", _RESTRICTED, value=each)
    profile: Json = context.get("seccompProfile") or pods.get("seccompProfile") or {}
    if profile.get("type") not in _PROFILES:
        message = f"must be {' or '.join(_PROFILES)}: {_RESTRICTED}"
        yield Refused(f"{field}.seccompProfile.type", message)

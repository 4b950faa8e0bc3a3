"""Pods that each level of the Pod Security Standards allows and forbids.

Each case is a change of a pod that meets the restricted standard, and the strictest level that
still allows the result. The same table is checked against the rules of the forge and against the
admission of a real API server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kubeocean.api.bindings import PodSecurityLevel
from kubeocean.runtime.objects import Json

__all__ = ["CASES", "SecurityCase", "restricted_pod"]

PRIVILEGED: Final = PodSecurityLevel.PRIVILEGED
BASELINE: Final = PodSecurityLevel.BASELINE
RESTRICTED: Final = PodSecurityLevel.RESTRICTED


_FORBIDDEN_CAPABILITIES: Final = (
    "ALL",
    "BPF",
    "CHECKPOINT_RESTORE",
    "DAC_READ_SEARCH",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "NET_ADMIN",
    "NET_RAW",
    "PERFMON",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_TIME",
)


@dataclass(frozen=True)
class SecurityCase:
    """A change of the restricted pod, and the strictest level that allows the result."""

    name: str
    change: Callable[[Json], object]
    level: PodSecurityLevel

    @property
    def pod(self) -> Json:
        pod = restricted_pod()
        self.change(pod)
        return pod


def restricted_pod() -> Json:
    """Return a pod that meets the restricted standard."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {}},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": [_container("i")],
            "containers": [_container("c")],
            "volumes": [],
        },
    }


def _container(name: str) -> Json:
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": "none", "securityContext": context}


def _spec(**fields: Any) -> Callable[[Json], object]:
    return lambda pod: pod["spec"].update(fields)


def _pod_context(**fields: Any) -> Callable[[Json], object]:
    return lambda pod: pod["spec"]["securityContext"].update(fields)


def _context(kind: str = "containers", **fields: Any) -> Callable[[Json], object]:
    return lambda pod: pod["spec"][kind][0]["securityContext"].update(fields)


def _init_fields(**fields: Any) -> Callable[[Json], object]:
    return lambda pod: pod["spec"]["initContainers"][0].update(fields)


def _apparmor_annotation(pod: Json) -> None:
    key = "container.apparmor.security.beta.kubernetes.io/c"
    pod["metadata"]["annotations"][key] = "unconfined"


def _container_fields(**fields: Any) -> Callable[[Json], object]:
    return lambda pod: pod["spec"]["containers"][0].update(fields)


def _without(*path: str) -> Callable[[Json], object]:
    def remove(pod: Json) -> None:
        holder: Any = pod["spec"]
        for key in path[:-1]:
            holder = holder[int(key)] if key.isdigit() else holder[key]
        del holder[path[-1]]

    return remove


def _both(*changes: Callable[[Json], object]) -> Callable[[Json], object]:
    def apply(pod: Json) -> None:
        for change in changes:
            change(pod)

    return apply


def _volume(kind: str, **source: Any) -> Callable[[Json], object]:
    return _spec(volumes=[{"name": "v", kind: source}])


def _cases() -> Iterator[SecurityCase]:
    def case(name: str, change: Callable[[Json], object], level: PodSecurityLevel) -> SecurityCase:
        return SecurityCase(name, change, level)

    yield case("nothing", lambda pod: None, RESTRICTED)

    # Host namespaces
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        yield case(field, _spec(**{field: True}), PRIVILEGED)
        yield case(f"no {field}", _spec(**{field: False}), RESTRICTED)

    # Privileged containers, Windows host processes
    for kind in ("containers", "initContainers"):
        privileged = _context(kind, privileged=True, allowPrivilegeEscalation=True)
        yield case(f"privileged {kind}", privileged, PRIVILEGED)
    sidecar = _both(privileged, _init_fields(restartPolicy="Always"))
    yield case("privileged sidecar", sidecar, PRIVILEGED)
    yield case("not privileged", _context(privileged=False), RESTRICTED)
    windows = _both(
        _spec(os={"name": "windows"}, hostNetwork=True),
        _without("securityContext", "seccompProfile"),
        *(
            _without(kind, "0", "securityContext", key)
            for kind in ("containers", "initContainers")
            for key in ("allowPrivilegeEscalation", "capabilities")
        ),
    )
    process = {"windowsOptions": {"hostProcess": True}}
    yield case("host process of the pod", _both(windows, _pod_context(**process)), PRIVILEGED)
    processes = (_context(kind, **process) for kind in ("containers", "initContainers"))
    yield case("host process of the containers", _both(windows, *processes), PRIVILEGED)
    plain_windows = _both(windows, _spec(hostNetwork=False))
    yield case("windows", plain_windows, RESTRICTED)
    yield case("windows as root", _both(plain_windows, _pod_context(runAsNonRoot=None)), BASELINE)

    # Capabilities
    for name in _FORBIDDEN_CAPABILITIES:
        add = _context(capabilities={"add": [name], "drop": ["ALL"]})
        yield case(f"capability {name}", add, PRIVILEGED)
    add = _context("initContainers", capabilities={"add": ["SYS_ADMIN"], "drop": ["ALL"]})
    yield case("capability of an init container", add, PRIVILEGED)
    for name in ("CHOWN", "MKNOD", "SETFCAP", "SETPCAP", "SYS_CHROOT", "AUDIT_WRITE", "KILL"):
        add = _context(capabilities={"add": [name], "drop": ["ALL"]})
        yield case(f"capability {name}", add, BASELINE)
    bind = _context(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]})
    yield case("capability NET_BIND_SERVICE", bind, RESTRICTED)
    yield case("capabilities kept", _context(capabilities={"drop": ["NET_RAW"]}), BASELINE)
    yield case("capabilities unset", _context("initContainers", capabilities=None), BASELINE)

    # Volumes
    for path in ("/", "/proc", "/var/run/docker.sock", "/var/lib/kubelet", "/etc/kubernetes"):
        yield case(f"hostPath {path}", _volume("hostPath", path=path), PRIVILEGED)
    empty = {"emptyDir": {}, "configMap": {"name": "x"}, "secret": {"secretName": "x"}}
    allowed: Json = {
        **empty,
        "persistentVolumeClaim": {"claimName": "x"},
        "downwardAPI": {},
        "csi": {"driver": "x.io"},
        "projected": {"sources": []},
        "ephemeral": {
            "volumeClaimTemplate": {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                }
            }
        },
    }
    for kind, source in allowed.items():
        yield case(f"volume {kind}", _volume(kind, **source), RESTRICTED)
    others: Json = {
        "nfs": {"server": "x", "path": "/"},
        "iscsi": {"targetPortal": "x", "iqn": "iqn.2001-04.com.example:x", "lun": 0},
        "flexVolume": {"driver": "x/y"},
        "cephfs": {"monitors": ["x"]},
        "fc": {"targetWWNs": ["x"], "lun": 0},
        "gitRepo": {"repository": "x"},
        "azureFile": {"secretName": "x", "shareName": "x"},
        "rbd": {"monitors": ["x"], "image": "x"},
    }
    for kind, source in others.items():
        yield case(f"volume {kind}", _volume(kind, **source), BASELINE)

    # Host ports
    port = {"containerPort": 80, "hostPort": 80}
    yield case("hostPort", _container_fields(ports=[port]), PRIVILEGED)
    for name, more in {
        "UDP": {"protocol": "UDP"},
        "of one address": {"hostIP": "127.0.0.1"},
    }.items():
        yield case(f"hostPort {name}", _container_fields(ports=[port | more]), PRIVILEGED)
    yield case("hostPort of an init container", _init_fields(ports=[port]), PRIVILEGED)
    yield case("port", _container_fields(ports=[{"containerPort": 80}]), RESTRICTED)

    # Probes and hooks of other hosts
    get = {"httpGet": {"host": "10.0.0.1", "port": 80}}
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        yield case(f"{probe} of a host", _container_fields(**{probe: get}), PRIVILEGED)
    tcp = {"tcpSocket": {"host": "10.0.0.1", "port": 80}}
    yield case("tcp probe of a host", _container_fields(livenessProbe=tcp), PRIVILEGED)
    yield case("hook of a host", _container_fields(lifecycle={"preStop": get}), PRIVILEGED)
    yield case("start hook of a host", _container_fields(lifecycle={"postStart": get}), PRIVILEGED)
    yield case("tcp readiness of a host", _container_fields(readinessProbe=tcp), PRIVILEGED)
    own = {"httpGet": {"port": 80}}
    yield case("probe of the pod", _container_fields(livenessProbe=own), RESTRICTED)

    # AppArmor
    unconfined = {"appArmorProfile": {"type": "Unconfined"}}
    yield case("AppArmor of the pod unconfined", _pod_context(**unconfined), PRIVILEGED)
    yield case("AppArmor unconfined", _context(**unconfined), PRIVILEGED)
    yield case(
        "AppArmor of an init container", _context("initContainers", **unconfined), PRIVILEGED
    )
    yield case("AppArmor by annotation", _apparmor_annotation, PRIVILEGED)
    default = {"appArmorProfile": {"type": "RuntimeDefault"}}
    yield case("AppArmor default", _context(**default), RESTRICTED)
    local = {"appArmorProfile": {"type": "Localhost", "localhostProfile": "x"}}
    yield case("AppArmor local", _context(**local), RESTRICTED)

    # SELinux
    for type_ in ("spc_t", "unconfined_t"):
        yield case(f"SELinux {type_}", _context(seLinuxOptions={"type": type_}), PRIVILEGED)
    yield case("SELinux of the pod", _pod_context(seLinuxOptions={"type": "spc_t"}), PRIVILEGED)
    yield case("SELinux user", _pod_context(seLinuxOptions={"user": "system_u"}), PRIVILEGED)
    yield case("SELinux role", _context(seLinuxOptions={"role": "system_r"}), PRIVILEGED)
    selinux = {"seLinuxOptions": {"type": "super_t"}}
    yield case("SELinux of an init container", _context("initContainers", **selinux), PRIVILEGED)
    for type_ in ("container_t", "container_init_t", "container_kvm_t", "container_engine_t"):
        options = {"type": type_, "level": "s0:c1,c2"}
        yield case(f"SELinux {type_}", _context(seLinuxOptions=options), RESTRICTED)

    # /proc
    unmasked = _both(_spec(hostUsers=False), _context(procMount="Unmasked"))
    yield case("procMount unmasked", unmasked, PRIVILEGED)
    unmasked = _both(_spec(hostUsers=False), _context("initContainers", procMount="Unmasked"))
    yield case("procMount of an init container", unmasked, PRIVILEGED)
    yield case("procMount default", _context(procMount="Default"), RESTRICTED)

    # seccomp
    off = {"seccompProfile": {"type": "Unconfined"}}
    yield case("seccomp of the pod unconfined", _pod_context(**off), PRIVILEGED)
    yield case("seccomp unconfined", _context("initContainers", **off), PRIVILEGED)
    yield case("seccomp of a container unconfined", _context(**off), PRIVILEGED)
    yield case("seccomp unset", _without("securityContext", "seccompProfile"), BASELINE)
    profile = {"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}}
    yield case("seccomp local", _context(**profile), RESTRICTED)

    # sysctls
    for name in ("kernel.msgmax", "net.core.somaxconn", "vm.swappiness", "net.ipv4.ip_forward"):
        sysctls = [{"name": name, "value": "1"}]
        yield case(f"sysctl {name}", _pod_context(sysctls=sysctls), PRIVILEGED)
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.ip_local_port_range", "kernel.shm_rmid_forced"):
        sysctls = [{"name": name, "value": "1"}]
        yield case(f"sysctl {name}", _pod_context(sysctls=sysctls), RESTRICTED)

    # Root
    yield case("escalation", _context(allowPrivilegeEscalation=True), BASELINE)
    yield case("escalation unset", _context(allowPrivilegeEscalation=None), BASELINE)
    yield case("root may be", _pod_context(runAsNonRoot=False), BASELINE)
    yield case("root may be in a container", _context(runAsNonRoot=False), BASELINE)
    yield case("root unset", _pod_context(runAsNonRoot=None), BASELINE)
    yield case("user 0", _pod_context(runAsUser=0), BASELINE)
    yield case("user 0 in a container", _context(runAsUser=0), BASELINE)
    yield case("user 1000", _context(runAsUser=1000), RESTRICTED)


CASES: Final = tuple(_cases())

"""Components: command lines and configuration files of a control plane. Pure.

A `ControlPlanePlan` has the names, paths and ports of one control plane; `command` returns the
command line of a component, and the other functions return the files that command lines refer to.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import yaml

from kubeocean.errors import ConfigError
from kubeocean.local.pki import Subject
from kubeocean.runtime.objects import Json

__all__ = [
    "COMPONENTS",
    "ControlPlanePlan",
    "Ports",
    "audit_policy",
    "authorities",
    "check_components",
    "command",
    "identities",
    "scheduler_config",
]

# In the order of their start.
COMPONENTS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")

_SERVICE_RANGE = "10.96.0.0/16"
_SERVICE_IP = "10.96.0.1"  # the first of the range is the `kubernetes` service
# An API server must advertise an address that is not loopback. With no endpoints to publish no
# client uses the address, so it can be one that is reserved for documentation (RFC 5737).
_NOWHERE = "192.0.2.1"
_SERVICE_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
_ISSUER = "https://kubernetes.default.svc"
_FRONT_PROXY = "front-proxy-client"


class Ports(NamedTuple):
    """Ports of a control plane's components; 0 is not chosen yet."""

    api: int = 0
    etcd: int = 0
    etcd_peer: int = 0
    controller_manager: int = 0
    scheduler: int = 0


@dataclass(frozen=True, slots=True)
class ControlPlanePlan:
    """Names, paths, ports and flags of one control plane."""

    name: str
    root: Path
    components: tuple[str, ...]
    ports: Ports = field(default_factory=Ports)
    listen: str = "127.0.0.1"
    sans: tuple[str, ...] = ()
    audit: bool = False
    ephemeral: bool = False
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """Host under which clients on this machine reach the API server."""
        return "127.0.0.1" if self.listen == "0.0.0.0" else self.listen  # noqa: S104 compared only

    @property
    def server(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.ports.api}"

    @property
    def etcd(self) -> str:
        return f"https://127.0.0.1:{self.ports.etcd}"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def users(self) -> Path:
        return self.root / "users"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.root / "admin.kubeconfig"

    def health(self, component: str) -> str:
        """Return the URL that answers 200 when the component serves."""
        match component:
            case "etcd":
                return f"{self.etcd}/health"
            case "kube-apiserver":
                return f"{self.server}/readyz"  # which includes the bootstrap of RBAC
            case "kube-controller-manager":
                return f"https://127.0.0.1:{self.ports.controller_manager}/healthz"
            case _:
                return f"https://127.0.0.1:{self.ports.scheduler}/readyz"

    def kubeconfig(self, component: str) -> Path:
        return self.config / f"{component}.kubeconfig"


def command(plan: ControlPlanePlan, component: str) -> list[str]:
    """Return the command line of a component; the user's flags come last and win."""
    flags = _FLAGS[component](plan)
    return [*flags, *_gates(plan, component), *plan.extra_args.get(component, ())]


def authorities(plan: ControlPlanePlan) -> dict[str, str]:
    """Return the common names of the certificate authorities, by file name."""
    return {
        "ca": f"{plan.name}-ca",
        "etcd-ca": f"{plan.name}-etcd-ca",
        "front-proxy-ca": f"{plan.name}-front-proxy-ca",
    }


def identities(plan: ControlPlanePlan) -> dict[str, tuple[str, Subject]]:
    """Return the subjects of the components' certificates, by file name, with their signers."""
    local = ("localhost", "127.0.0.1")
    addresses = dict.fromkeys((*local, *_SERVICE_NAMES, _SERVICE_IP, plan.host, *plan.sans))
    masters = ("system:masters",)
    return {
        "etcd": ("etcd-ca", Subject("etcd", sans=local, client=True, server=True)),
        "etcd-client": ("etcd-ca", Subject("kube-apiserver-etcd-client", client=True)),
        "apiserver": ("ca", Subject("kube-apiserver", sans=tuple(addresses), server=True)),
        "controllers": ("ca", Subject("controllers", sans=local, server=True)),
        "kubelet-client": (
            "ca",
            Subject("kube-apiserver-kubelet-client", masters, client=True),
        ),
        "front-proxy": ("front-proxy-ca", Subject(_FRONT_PROXY, client=True)),
        "admin": ("ca", Subject("kubernetes-admin", masters, client=True)),
        "kube-controller-manager": ("ca", Subject("system:kube-controller-manager", client=True)),
        "kube-scheduler": ("ca", Subject("system:kube-scheduler", client=True)),
    }


def audit_policy() -> bytes:
    """Return the audit policy: one line per answered request, without the server's own requests."""
    policy: Json = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "omitManagedFields": True,
        "rules": [
            {"level": "None", "users": ["system:apiserver"]},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*"]},
            {"level": "Metadata"},
        ],
    }
    return msgspec.json.encode(policy)


def scheduler_config(plan: ControlPlanePlan) -> bytes:
    """Return the scheduler's configuration: defaults, without the limit of 50 requests a second."""
    config: Json = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(plan.kubeconfig("kube-scheduler")),
            "qps": 1000,
            "burst": 2000,
        },
    }
    return yaml.safe_dump(config, sort_keys=False).encode()


def _etcd(plan: ControlPlanePlan) -> list[str]:
    peer = f"https://127.0.0.1:{plan.ports.etcd_peer}"
    pki = plan.pki
    return [
        f"--name={plan.name}",
        f"--data-dir={plan.root / 'etcd'}",
        f"--listen-client-urls={plan.etcd}",
        f"--advertise-client-urls={plan.etcd}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={plan.name}={peer}",
        # Other users of the machine can reach its loopback.
        f"--cert-file={pki / 'etcd.crt'}",
        f"--key-file={pki / 'etcd.key'}",
        f"--trusted-ca-file={pki / 'etcd-ca.crt'}",
        "--client-cert-auth=true",
        f"--peer-cert-file={pki / 'etcd.crt'}",
        f"--peer-key-file={pki / 'etcd.key'}",
        f"--peer-trusted-ca-file={pki / 'etcd-ca.crt'}",
        "--peer-client-cert-auth=true",
        # A single member need not wait for others; with the defaults the first election takes a
        # second.
        "--heartbeat-interval=50",
        "--election-timeout=250",
        f"--quota-backend-bytes={8 << 30}",
        *(["--unsafe-no-fsync=true"] if plan.ephemeral else []),
    ]


def _apiserver(plan: ControlPlanePlan) -> list[str]:
    pki = plan.pki
    return [
        *_apiserver_network(plan),
        f"--etcd-servers={plan.etcd}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd-client.crt'}",
        f"--etcd-keyfile={pki / 'etcd-client.key'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        f"--service-account-issuer={_ISSUER}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--allow-privileged=true",
        *_aggregation(pki),
        *_without_controllers(plan),
        *(_audit(plan) if plan.audit else []),
    ]


def _apiserver_network(plan: ControlPlanePlan) -> list[str]:
    flags = [
        f"--bind-address={plan.listen}",
        f"--secure-port={plan.ports.api}",
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
    ]
    address = ipaddress.ip_address(plan.listen)
    if address.is_loopback:
        return [*flags, f"--advertise-address={_NOWHERE}", "--endpoint-reconciler-type=none"]
    if address.is_unspecified:
        return flags
    return [*flags, f"--advertise-address={plan.listen}"]


def _aggregation(pki: Path) -> list[str]:
    return [
        f"--requestheader-client-ca-file={pki / 'front-proxy-ca.crt'}",
        f"--requestheader-allowed-names={_FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
        f"--proxy-client-key-file={pki / 'front-proxy.key'}",
        # Service addresses are not routed on this machine; endpoints are reached directly.
        "--enable-aggregator-routing=true",
    ]


def _without_controllers(plan: ControlPlanePlan) -> list[str]:
    if "kube-controller-manager" in plan.components:
        return []
    # No controller would create the `default` service accounts, and no pod would be admitted.
    return ["--disable-admission-plugins=ServiceAccount"]


def _audit(plan: ControlPlanePlan) -> list[str]:
    return [
        f"--audit-policy-file={plan.config / 'audit-policy.json'}",
        f"--audit-log-path={plan.audit_log}",
        "--audit-log-maxsize=4096",  # MB; readers remember offsets, so the log should not rotate
    ]


def _controller_manager(plan: ControlPlanePlan) -> list[str]:
    pki = plan.pki
    return [
        f"--kubeconfig={plan.kubeconfig('kube-controller-manager')}",
        *_health(plan, "kube-controller-manager", plan.ports.controller_manager),
        f"--service-account-private-key-file={pki / 'sa.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--service-cluster-ip-range={_SERVICE_RANGE}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def _scheduler(plan: ControlPlanePlan) -> list[str]:
    return [
        f"--config={plan.config / 'kube-scheduler.yaml'}",
        *_health(plan, "kube-scheduler", plan.ports.scheduler),
    ]


def _health(plan: ControlPlanePlan, component: str, port: int) -> list[str]:
    """Return the flags of the HTTPS server on which a controller serves its health."""
    kubeconfig = plan.kubeconfig(component)
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={plan.pki / 'controllers.crt'}",
        f"--tls-private-key-file={plan.pki / 'controllers.key'}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]


def _gates(plan: ControlPlanePlan, component: str) -> list[str]:
    if component == "etcd" or not plan.feature_gates:
        return []
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in plan.feature_gates.items())
    return [f"--feature-gates={gates}"]


_FLAGS: Final = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
}


def check_components(names: Sequence[str]) -> tuple[str, ...]:
    """Return the components `names` in the order of their start.

    :raises ConfigError: a component is unknown, or one that others need is missing.
    """
    for name in names:
        if name not in COMPONENTS:
            raise ConfigError(
                f"must be one of {', '.join(COMPONENTS)}", field="components", value=name
            )
    for needed in COMPONENTS[:2]:
        if needed not in names:
            raise ConfigError(f"must include {needed}", field="components", value=list(names))
    return tuple(name for name in COMPONENTS if name in names)

"""Values of an installation: the options of the commands and the values of the charts.

All objects are functions of these values, so that commands, charts and manifests create equal
objects from equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kubeocean import __version__
from kubeocean.api import group
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.validation import zone_names
from kubeocean.errors import ConfigError
from kubeocean.install.data_files import read_object
from kubeocean.install.roles import DEFAULT_ADD_ONS, AddOn
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity
from kubeocean.runtime.selectors import LabelSelector, check_subdomain
from kubeocean.worker_access.rotation import ANY_NAMESPACE

__all__ = [
    "IMAGE",
    "LENDABLE",
    "PRODUCTION_MANAGERS",
    "PodSecurity",
    "Size",
    "Values",
    "WorkerValues",
    "add_ons",
    "amounts",
    "node_selector",
    "pod_security",
    "toleration",
]

IMAGE: Final = f"kubeocean/kubeocean:{__version__}"
PRODUCTION_MANAGERS: Final = 3  # replicas of the manager in the production preset
_LEVELS: Final = ("debug", "info", "warn", "error")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# Copies of Services in the mount namespace have the type ClusterIP only.
_QUOTA: Final = {"services.loadbalancers": "0", "services.nodeports": "0"}
_MAX_GRACE_S: Final = 3600
_SCALED: Final = (group.COMPONENT_SYNCER, group.COMPONENT_PROXIER)
_MAX_CPU_PERCENT: Final = 500
# Nodes that may be lent unless the owner names others: all but those of the control plane.
LENDABLE: Final[Json] = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [
                {"key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist"}
            ]
        }
    ]
}


class PodSecurity(StrEnum):
    """Levels of the Pod Security Standards, from the weakest to the strictest."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


class Size(StrEnum):
    """Size of the largest worker cluster: up to 100 nodes, up to 1000, or more."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"

    @property
    def resources(self) -> Json:
        """Requests and limits of a container for workers of this size."""
        resources: Json = read_object("sizes.yaml")[self]
        return resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values of an installation in a computing cluster."""

    domain: Domain = DEFAULT
    image: str = IMAGE
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()  # taints in the syntax of `kubectl taint`
    replicas: int = 2  # of the manager, and of each syncer and proxier
    component_replicas: Mapping[str, int] = field(default_factory=dict)  # of single components
    near_control_plane: bool = False  # the manager prefers nodes of the control plane
    management: str = ""  # UID of the cluster in which the programs run; empty: the computing one
    shard_syncers: bool = False  # all replicas of a syncer work, each on its shards
    max_replicas: Mapping[str, int] = field(default_factory=dict)  # of autoscaled components
    target_cpu_percent: int = 80  # of the requested CPU, which autoscalers aim at
    size: Size = Size.SMALL
    log_level: str = "info"
    kubeconfig_namespaces: tuple[str, ...] = ()  # besides the system namespace; `*`: all
    time_zone: str = ""  # of policies without a time zone; empty means UTC
    network_policies: bool = True
    monitoring: bool = False  # objects of the Prometheus operator, and a dashboard
    admission: bool = True  # whether the API server has ValidatingAdmissionPolicies

    def __post_init__(self) -> None:
        if not self.image or any(mark in self.image for mark in " \t\n'\""):
            raise ConfigError(
                "must be an image reference without spaces or quotes",
                field="image",
                value=self.image,
            )
        for number in (self.replicas, *self.component_replicas.values()):
            if number < 1:
                raise ConfigError("must be at least 1", field="replicas", value=number)
        self._check_scaling()
        if self.log_level not in _LEVELS:
            message = f"must be one of {', '.join(_LEVELS)}"
            raise ConfigError(message, field="log level", value=self.log_level)
        if self.time_zone and self.time_zone not in zone_names():
            message = "must be an IANA time zone such as Europe/Berlin"
            raise ConfigError(message, field="time zone", value=self.time_zone)
        for text in self.tolerations:
            toleration(text)
        for each in self.kubeconfig_namespaces:
            if each != ANY_NAMESPACE:
                check_subdomain(each, field="kubeconfig namespace")

    def _check_scaling(self) -> None:
        """Check the values of autoscalers.

        :raises ConfigError: an autoscaler could not work with a value.
        """
        if not 1 <= self.target_cpu_percent <= _MAX_CPU_PERCENT:
            message = f"must be between 1 and {_MAX_CPU_PERCENT} percent"
            raise ConfigError(message, field="autoscaling CPU", value=self.target_cpu_percent)
        for component, number in self.max_replicas.items():
            if component not in _SCALED:
                message = f"must be set for {' or '.join(_SCALED)} only"
                raise ConfigError(message, field="maximum of replicas", value=component)
            if number < (least := self.replicas_of(component)):
                message = f"must be at least the number of replicas of each {component} ({least})"
                raise ConfigError(message, field=f"{component} maximum of replicas", value=number)
        if group.COMPONENT_SYNCER in self.max_replicas and not self.shard_syncers:
            message = (
                "needs sharded syncers (--shard-syncers): otherwise further replicas are standbys"
            )
            number = self.max_replicas[group.COMPONENT_SYNCER]
            raise ConfigError(message, field="syncer maximum of replicas", value=number)

    def replicas_of(self, component: str) -> int:
        """Return the number of replicas of the manager, or of each syncer or proxier."""
        return self.component_replicas.get(component, self.replicas)

    @property
    def secret_namespaces(self) -> tuple[str, ...]:
        """Namespaces in which kubeconfig Secrets of workers may be."""
        return tuple(dict.fromkeys((self.namespace, *self.kubeconfig_namespaces)))

    @property
    def namespace(self) -> str:
        """The system namespace, in which Kubeocean's programs run."""
        return self.domain.system_namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerValues:
    """Values of an installation in a worker cluster."""

    domain: Domain = DEFAULT
    namespace: str = ""  # mount namespace; empty means the default
    add_ons: tuple[AddOn, ...] = DEFAULT_ADD_ONS
    quota: Mapping[str, str] = field(default_factory=lambda: dict(_QUOTA))
    isolated: bool = False  # admit no traffic from other namespaces
    pod_security: PodSecurity = PodSecurity.BASELINE  # of all pods of the mount namespace
    egress: bool = True  # keep pods from metadata addresses and the worker's API server
    api_servers: tuple[tuple[str, int], ...] = ()  # addresses and ports of the worker's API servers
    admission: bool = True  # whether the API server has ValidatingAdmissionPolicies
    nodes: Json | None = field(default_factory=lambda: LENDABLE)  # a NodeSelector; None: all
    priority_classes: tuple[str, ...] = ()  # which pods may have besides the domain's own
    max_grace_s: int = _MAX_GRACE_S  # longest grace period of a pod

    def __post_init__(self) -> None:
        check_subdomain(self.mount_namespace, field="mount namespace")
        for name in self.priority_classes:
            check_subdomain(name, field="priority class")
        if self.max_grace_s < 0:
            raise ConfigError("must not be negative", field="max grace", value=self.max_grace_s)
        if self.nodes is not None:
            NodeSelector.from_document(self.nodes, field="nodes")

    @property
    def mount_namespace(self) -> str:
        return self.namespace or self.domain.worker_namespace

    @property
    def account(self) -> str:
        """Name of the ServiceAccount in the mount namespace, and of its Role."""
        return self.domain.syncer

    @property
    def cluster_role(self) -> str:
        """Name of the mount namespace's ClusterRole; add-ons differ between mount namespaces."""
        return f"{self.account}{self._suffix}"

    @property
    def fleet_role(self) -> str:
        """Name of the ClusterRole with which the worker can be a fleet member without an agent."""
        return f"{self.account}-fleet{self._suffix}"

    @property
    def metrics_account(self) -> str:
        """Name of the ServiceAccount that reads metrics of kubelets."""
        return self.domain.metrics

    @property
    def metrics_role(self) -> str:
        return f"{self.metrics_account}{self._suffix}"

    @property
    def _suffix(self) -> str:
        is_default = self.mount_namespace == self.domain.worker_namespace
        return "" if is_default else f"-{self.mount_namespace}"


def add_ons(names: Iterable[str], *, source: str = "add-ons") -> tuple[AddOn, ...]:
    """Parse names of add-ons, `none` or `all`; return the add-ons in the order of the enum.

    :raises ConfigError: a name is unknown.
    """
    words = [word for name in names for word in name.replace(",", " ").split()]
    if words == ["none"]:
        return ()
    if words == ["all"]:
        return tuple(AddOn)
    known = {str(each) for each in AddOn}
    for word in words:
        if word not in known:
            message = f"must be none, all, or some of {', '.join(AddOn)}"
            raise ConfigError(message, source=source, value=word)
    return tuple(each for each in AddOn if each in words)


def pod_security(text: str, *, source: str = "--guests") -> PodSecurity:
    """Parse a level of the Pod Security Standards.

    :raises ConfigError: there is no such level.
    """
    try:
        return PodSecurity(text)
    except ValueError:
        message = f"must be one of {', '.join(PodSecurity)}"
        raise ConfigError(message, source=source, value=text) from None


def node_selector(text: str, *, source: str = "--nodes") -> Json | None:
    """Parse a label selector of nodes, such as `pool=batch,!gpu`; `all` means every node.

    :raises ConfigError: the text is no label selector.
    """
    if text.strip() == "all":
        return None
    try:
        requirements = LabelSelector.parse(text).requirements
    except ConfigError as error:
        raise ConfigError(f"must be all or a label selector: {error}", source=source) from None
    if not requirements:
        raise ConfigError("must be all or a label selector", source=source, value=text)
    expressions = [
        {"key": each.key, "operator": str(each.operator)}
        | ({"values": list(each.values)} if each.values else {})
        for each in requirements
    ]
    return {"nodeSelectorTerms": [{"matchExpressions": expressions}]}


def amounts(text: str, *, source: str) -> dict[str, str]:
    """Parse amounts such as `pods=100,requests.cpu=20`.

    :raises ConfigError: an entry is not `name=quantity`.
    """
    parsed: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = (part.strip() for part in entry.partition("="))
        if not (name and equals and amount):
            raise ConfigError("must be name=quantity, with commas", source=source, value=entry)
        if name in parsed:
            raise ConfigError(f"names {name} twice", source=source, value=text)
        try:
            Quantity.parse(amount)
        except ConfigError:
            message = "must be a quantity such as 10, 500m or 1.5Gi"
            raise ConfigError(message, source=source, field=name, value=amount) from None
        parsed[name] = amount
    return parsed


def toleration(text: str) -> Json:
    """Parse `key`, `key=value` or either with `:Effect` into an entry of a pod's tolerations.

    :raises ConfigError: the text has none of these forms.
    """
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or (colon and effect not in _EFFECTS):
        message = f"must be key[=value][:effect], with an effect of {', '.join(_EFFECTS)}"
        raise ConfigError(message, field="toleration", value=text)
    entry: Json = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key}
    if not equals:
        entry["operator"] = "Exists"
    return entry | ({"effect": effect} if effect else {})

"""Values: the few things that differ between installations.

They are the values of the charts and the options of the commands. Everything else is a function of
them, so two who say the same get the same objects, by whichever way they install.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kubeocean import __version__
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.api.zones import zone_names
from kubeocean.bound.rotation import ANY_NAMESPACE
from kubeocean.errors import ConfigError
from kubeocean.installation.roles import DEFAULT_ADD_ONS, AddOn
from kubeocean.runtime.labels import check_subdomain
from kubeocean.runtime.objects import Json
from kubeocean.runtime.quantity import Quantity

__all__ = ["IMAGE", "Size", "Values", "WorkerValues", "add_ons", "amounts", "toleration"]

IMAGE: Final = f"kubeocean/kubeocean:{__version__}"
_LEVELS: Final = ("debug", "info", "warn", "error")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# Pods of the mount namespace have Services of type ClusterIP only; nobody else opens doors there.
_QUOTA: Final = {"services.loadbalancers": "0", "services.nodeports": "0"}


class Size(StrEnum):
    """How many nodes a worker has: up to a hundred, up to a thousand, more."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"

    @property
    def resources(self) -> Json:
        """What a container gets."""
        return {
            Size.SMALL: _resources("100m", "128Mi", "500m", "512Mi"),
            Size.MEDIUM: _resources("200m", "256Mi", "1", "1Gi"),
            Size.LARGE: _resources("500m", "512Mi", "2", "2Gi"),
        }[self]


def _resources(cpu: str, memory: str, most_cpu: str, most_memory: str) -> Json:
    return {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"cpu": most_cpu, "memory": most_memory},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The computing cluster's side."""

    domain: Domain = DEFAULT
    image: str = IMAGE
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()  # of taints, written as for `kubectl taint`
    replicas: int = 2
    size: Size = Size.SMALL
    log_level: str = "info"
    kubeconfig_namespaces: tuple[str, ...] = ()  # of workers, beside our own; `*`: all
    time_zone: str = ""  # of policies that name none; empty means UTC, as in any container
    network_policies: bool = True
    monitoring: bool = False  # objects of the Prometheus operator, and a dashboard

    def __post_init__(self) -> None:
        if not self.image or any(mark in self.image for mark in " \t\n'\""):
            raise ConfigError("must name an image", field="image", value=self.image)
        if self.replicas < 1:
            raise ConfigError("must be at least 1", field="replicas", value=self.replicas)
        if self.log_level not in _LEVELS:
            said = f"must be one of {', '.join(_LEVELS)}"
            raise ConfigError(said, field="log level", value=self.log_level)
        if self.time_zone and self.time_zone not in zone_names():
            said = "must be an IANA time zone such as Europe/Berlin"
            raise ConfigError(said, field="time zone", value=self.time_zone)
        for written in self.tolerations:
            toleration(written)
        for each in self.kubeconfig_namespaces:
            if each != ANY_NAMESPACE:
                check_subdomain(each, field="kubeconfig namespace")

    @property
    def secret_namespaces(self) -> tuple[str, ...]:
        """Where kubeconfigs of workers may be."""
        return tuple(dict.fromkeys((self.namespace, *self.kubeconfig_namespaces)))

    @property
    def namespace(self) -> str:
        """Where our programs run; other programs look for them there."""
        return self.domain.system_namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerValues:
    """The side of one worker."""

    domain: Domain = DEFAULT
    namespace: str = ""  # where pods run; empty means the domain's own
    add_ons: tuple[AddOn, ...] = DEFAULT_ADD_ONS
    quota: Mapping[str, str] = field(default_factory=lambda: dict(_QUOTA))
    isolated: bool = False  # let nobody from other namespaces in

    def __post_init__(self) -> None:
        check_subdomain(self.mount_namespace, field="mount namespace")

    @property
    def mount_namespace(self) -> str:
        return self.namespace or self.domain.worker_namespace

    @property
    def account(self) -> str:
        """The name of the ServiceAccount and of its Role."""
        return self.domain.syncer

    @property
    def cluster_role(self) -> str:
        """Other mount namespaces of the same worker may have other add-ons."""
        return f"{self.account}{self._suffix}"

    @property
    def metrics_account(self) -> str:
        """The name of the ServiceAccount that kubelets are asked with."""
        return self.domain.metrics

    @property
    def metrics_role(self) -> str:
        return f"{self.metrics_account}{self._suffix}"

    @property
    def _suffix(self) -> str:
        own = self.mount_namespace == self.domain.worker_namespace
        return "" if own else f"-{self.mount_namespace}"


def add_ons(names: Iterable[str], *, source: str = "add-ons") -> tuple[AddOn, ...]:
    """Add-ons by their names, in our order; `none` is none of them, `all` all."""
    words = [word for name in names for word in name.replace(",", " ").split()]
    if words == ["none"]:
        return ()
    if words == ["all"]:
        return tuple(AddOn)
    known = {str(each) for each in AddOn}
    for word in words:
        if word not in known:
            said = f"must be none, all, or some of {', '.join(AddOn)}"
            raise ConfigError(said, source=source, value=word)
    return tuple(each for each in AddOn if each in words)


def amounts(written: str, *, source: str) -> dict[str, str]:
    """`pods=100,requests.cpu=20` as a mapping.

    :raises ConfigError: an entry is no `name=quantity`.
    """
    found: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in written.split(","))):
        name, equals, amount = (part.strip() for part in entry.partition("="))
        if not (name and equals and amount):
            raise ConfigError("must be name=quantity, with commas", source=source, value=entry)
        if name in found:
            raise ConfigError(f"names {name} twice", source=source, value=written)
        try:
            Quantity.parse(amount)
        except ConfigError:
            said = "must be a quantity such as 10, 500m or 1.5Gi"
            raise ConfigError(said, source=source, field=name, value=amount) from None
        found[name] = amount
    return found


def toleration(written: str) -> Json:
    """`key`, `key=value` or either with `:Effect`, as an entry of a pod's tolerations.

    :raises ConfigError: it is none of these.
    """
    taint, colon, effect = written.partition(":")
    key, equals, value = taint.partition("=")
    if not key or (colon and effect not in _EFFECTS):
        said = f"must be key[=value][:effect], with an effect of {', '.join(_EFFECTS)}"
        raise ConfigError(said, field="toleration", value=written)
    found: Json = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key}
    if not equals:
        found["operator"] = "Exists"
    return found | ({"effect": effect} if effect else {})

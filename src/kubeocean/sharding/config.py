"""Configuration of a sharded controller.

One YAML file with the sections `sharding`, `node`, `state`, `metrics` and `logging`; the
environment variable CONFIG_FILE names the file. Every key has a default, so the file is optional. A
mistake raises a ConfigError at the start, which names the file, the key and the value.

    config = load(os.environ)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kubeocean.errors import ConfigError
from kubeocean.runtime.documents import parse_yaml
from kubeocean.runtime.logs import LEVELS, configure
from kubeocean.runtime.selectors import check_subdomain
from kubeocean.sharding.algorithms import Algorithm, ShardRange, algorithm
from kubeocean.sharding.balance import Policy
from kubeocean.sharding.config_fields import (
    at_least,
    between,
    boolean,
    check_known,
    choice,
    fraction,
    key,
    located,
    port,
    positive,
    read_section,
    seconds,
    text,
    url_path,
)
from kubeocean.sharding.names import DEFAULT_DOMAIN, Names
from kubeocean.sharding.timing import Timing

__all__ = [
    "ALGORITHMS",
    "FILTERS",
    "Config",
    "LoggingSection",
    "MetricsSection",
    "NodeSection",
    "ShardingSection",
    "StateSection",
    "load",
    "read_config",
]

ENV_FILE: Final = "CONFIG_FILE"
ALGORITHMS: Final = ("slots", "hash", "consistent-hash", "range", "custom")
FILTERS: Final = ("auto", "shard-selector", "label", "metadata")
_MOST_SLOTS: Final = 65_536
_MOST_VIRTUAL_NODES: Final = 10_000
_LEAST_CAPACITY: Final = 0.001
_MOST_CAPACITY: Final = 1000.0
_SHORTEST_S: Final = 0.1
_LONGEST: Final = 253  # characters, as of the name of a pod
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def _short_text(written: object, path: str) -> str:
    value = text(written, path)
    if len(value) > _LONGEST or not value.isprintable():
        message = f"must be at most {_LONGEST} characters that can be printed"
        raise ConfigError(message, field=path, value=value)
    return value


def _import_path(written: object, path: str) -> str:
    name = text(written, path)
    if name and not _is_import_path(name):
        raise ConfigError("must be package.module:Class", field=path, value=written)
    return name


def _is_import_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), attribute))


def _object_name(written: object, path: str) -> str:
    name = text(written, path)
    if name:
        check_subdomain(name, field=path)
    return name


def _namespace(written: object, path: str) -> str:
    name = text(written, path)
    if not _NAMESPACE.fullmatch(name):
        message = "must be the name of a namespace: 1 to 63 lower-case letters, digits and '-'"
        raise ConfigError(message, field=path, value=written)
    return name


def _capacity(written: object, path: str) -> float:
    number = positive(written, path)
    if not _LEAST_CAPACITY <= number <= _MOST_CAPACITY:
        message = f"must be from {_LEAST_CAPACITY:g} to {_MOST_CAPACITY:g}"
        raise ConfigError(message, field=path, value=written)
    return number


def _period(written: object, path: str) -> float:
    """Parse a duration after which a request is sent or a table is checked, again and again."""
    length = seconds(written, path)
    if length < _SHORTEST_S:
        raise ConfigError(f"must be at least {_SHORTEST_S:g}s", field=path, value=written)
    return length


def _ranges(written: object, path: str) -> tuple[ShardRange, ...]:
    """Parse `sharding.ranges`: half-open ranges without gaps, each starting where the one before
    ends."""
    if not isinstance(written, list | tuple):
        raise ConfigError("must be a list", field=path, value=written)
    ranges = tuple(_range(each, f"{path}[{at}]") for at, each in enumerate(written))
    for at, this in enumerate(ranges):
        begins = ranges[at - 1].end if at else ""
        if at and not begins:
            message = f"overlaps {path}[{at - 1}], which has no end"
            raise ConfigError(message, field=f"{path}[{at}].start", value=this.start)
        if this.start < begins:
            message = f"overlaps {path}[{at - 1}], which ends before {begins!r}"
            raise ConfigError(message, field=f"{path}[{at}].start", value=this.start)
        if this.start > begins:
            message = f"leaves a gap: it must begin where the range before it ends, at {begins!r}"
            raise ConfigError(message, field=f"{path}[{at}].start", value=this.start)
    if ranges and ranges[-1].end:
        message = "must be empty: the last range has to reach the end of all keys"
        raise ConfigError(message, field=f"{path}[{len(ranges) - 1}].end", value=ranges[-1].end)
    return ranges


def _range(written: object, path: str) -> ShardRange:
    if not isinstance(written, Mapping):
        raise ConfigError("must be a mapping of start, end and shard", field=path, value=written)
    check_known(written, ("start", "end", "shard"), path=path)
    if "shard" not in written:
        raise ConfigError("is required", field=f"{path}.shard")
    start = text(written.get("start") or "", f"{path}.start")
    end = text(written.get("end") or "", f"{path}.end")
    if end and end <= start:
        raise ConfigError(f"must come after start ({start!r})", field=f"{path}.end", value=end)
    return ShardRange(start, end, at_least(0)(written["shard"], f"{path}.shard"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSection:
    """Section `sharding`: algorithm, number of shards, filter."""

    ring: str = key("ring", text, "sharded-controller")
    namespace: str = key("namespace", _namespace, "default")
    domain: str = key("domain", text, DEFAULT_DOMAIN)
    election: str = key("election", _object_name, "")
    algorithm: str = key("algorithm", choice(*ALGORITHMS), "slots")
    custom: str = key("custom", _import_path, "")
    slots: int = key("slots", between(1, _MOST_SLOTS), 1024)
    virtual_nodes: int = key("virtualNodes", between(1, _MOST_VIRTUAL_NODES), 150)
    ranges: tuple[ShardRange, ...] = key("ranges", _ranges, ())
    rebalance_threshold: float = key("rebalanceThreshold", positive, 0.1)
    rebalance_interval_s: float = key("rebalanceInterval", seconds, "30s")
    churn_budget: float = key("churnBudget", fraction, 0.1)
    settle_s: float = key("settlePeriod", seconds, "30s")
    drain_s: float = key("drainDeadline", seconds, "30s")
    cancel_s: float = key("cancelDeadline", seconds, "5s")
    handover_s: float = key("handoverDeadline", seconds, "1m")
    margin_s: float = key("safetyMargin", seconds, "500ms")
    filter: str = key("filter", choice(*FILTERS), "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSection:
    """Section `node`: this replica, and its timeouts for other replicas.

    `template` is the version of the program: in a rolling update, a replica of another version gets
    the shards of the replica that leaves. A replica that does not renew its Lease for
    `state.leaseDuration` loses its shards; after `nodeTimeout` its Lease is deleted, and the
    replica is no longer reported. `address` is published for other replicas (`NodeInfo.address`).
    """

    identity: str = key("identity", _short_text, "")
    address: str = key("address", _short_text, "")
    predecessor: str = key("predecessor", _short_text, "")
    template: str = key("template", _short_text, "")
    capacity: float = key("capacity", _capacity, 1.0)
    health_check_interval_s: float = key("healthCheckInterval", seconds, "10s")
    health_check_timeout_s: float = key("healthCheckTimeout", seconds, "5s")
    node_timeout_s: float = key("nodeTimeout", seconds, "60s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSection:
    """Section `state`: durations of Leases and of their renewal."""

    sync_interval_s: float = key("syncInterval", _period, "10s")
    lease_s: float = key("leaseDuration", seconds, "15s")
    renew_s: float = key("renewDeadline", seconds, "10s")
    retry_s: float = key("retryPeriod", _period, "2s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection:
    """Section `metrics`: the port and the path at which metrics are served."""

    enabled: bool = key("enabled", boolean, True)
    port: int = key("port", port, 8080)
    path: str = key("path", url_path, "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSection:
    """Section `logging`: level and format of log lines."""

    level: str = key("level", choice(*LEVELS), "info")
    format: str = key("format", choice("json", "console"), "json")

    def apply(self) -> None:
        """Set the level and the format of this process's log lines."""
        configure(format="json" if self.format == "json" else "console", level=self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Configuration of a sharded controller, with one attribute for each section of the file."""

    sharding: ShardingSection = field(default_factory=ShardingSection)
    node: NodeSection = field(default_factory=NodeSection)
    state: StateSection = field(default_factory=StateSection)
    metrics: MetricsSection = field(default_factory=MetricsSection)
    logging: LoggingSection = field(default_factory=LoggingSection)
    source: str = ""

    def __post_init__(self) -> None:
        self._check_state()
        self._check_sharding()

    @property
    def names(self) -> Names:
        sharding = self.sharding
        return Names(sharding.ring, sharding.domain, sharding.election)

    def timing(self) -> Timing:
        """Return the durations of Leases and drains in this ring."""
        state, sharding = self.state, self.sharding
        return Timing(
            lease_s=state.lease_s,
            renew_s=state.renew_s,
            retry_s=state.retry_s,
            margin_s=sharding.margin_s,
            drain_s=sharding.drain_s,
            cancel_s=sharding.cancel_s,
            handover_s=sharding.handover_s,
            forget_s=self.node.node_timeout_s,
        )

    def policy(self) -> Policy:
        """Return the policy by which the planner moves shards for balance."""
        sharding = self.sharding
        return Policy(
            threshold=sharding.rebalance_threshold,
            interval_s=sharding.rebalance_interval_s,
            churn=sharding.churn_budget,
            settle_s=sharding.settle_s,
        )

    def algorithm(self) -> Algorithm:
        """Return the configured sharding algorithm.

        :raises ConfigError: the algorithm cannot be constructed.
        """
        sharding = self.sharding
        try:
            return algorithm(
                sharding.algorithm,
                virtual_nodes=sharding.virtual_nodes,
                ranges=sharding.ranges,
                custom=sharding.custom,
            )
        except ConfigError as error:
            raise located(error, self.source) from None

    def _check_state(self) -> None:
        state = self.state
        if state.renew_s >= state.lease_s:
            self._refuse(
                f"must be shorter than state.leaseDuration ({state.lease_s:g}s), or a replica "
                "would continue after its shards moved to another one",
                "state.renewDeadline",
                f"{state.renew_s:g}s",
            )
        if self.node.node_timeout_s < state.lease_s:
            self._refuse(
                f"must be at least state.leaseDuration ({state.lease_s:g}s)",
                "node.nodeTimeout",
                f"{self.node.node_timeout_s:g}s",
            )
        try:
            self.timing().validate()
        except ConfigError as error:
            raise located(error, self.source) from None

    def _check_sharding(self) -> None:
        sharding = self.sharding
        try:
            Names(sharding.ring, sharding.domain)
        except ConfigError as error:
            raise located(error, self.source) from None
        if sharding.algorithm == "custom" and not sharding.custom:
            self._refuse("is required for the algorithm custom", "sharding.custom", None)
        if sharding.algorithm == "range" and not sharding.ranges:
            self._refuse("is required for the algorithm range", "sharding.ranges", None)
        if sharding.algorithm != "range" and sharding.ranges:
            self._refuse("is for the algorithm range only", "sharding.ranges", sharding.algorithm)
        for at, each in enumerate(sharding.ranges):
            if each.shard >= sharding.slots:
                where = f"sharding.ranges[{at}].shard"
                self._refuse(f"must be below sharding.slots ({sharding.slots})", where, each.shard)

    def _refuse(self, message: str, at: str, value: object) -> None:
        raise ConfigError(message, field=at, value=value, source=self.source)


_SECTIONS: Final[dict[str, type]] = {
    "sharding": ShardingSection,
    "node": NodeSection,
    "state": StateSection,
    "metrics": MetricsSection,
    "logging": LoggingSection,
}


def read_config(document: object, *, source: str = "") -> Config:
    """Return the configuration in a parsed YAML document.

    :raises ConfigError: a key is unknown, or its value is invalid.
    """
    content = {} if document is None else document
    if not isinstance(content, Mapping):
        raise ConfigError("must be a mapping of sections", value=content, source=source)
    check_known(content, _SECTIONS, path="", source=source)
    read: dict[str, Any] = {
        name: read_section(section, content.get(name), path=name, source=source)
        for name, section in _SECTIONS.items()
    }
    return Config(**read, source=source)


def load(environ: Mapping[str, str]) -> Config:
    """Return the configuration in the file that CONFIG_FILE names; the defaults without
    CONFIG_FILE.

    :raises ConfigError: the file cannot be read, or its content is invalid.
    """
    name = environ.get(ENV_FILE, "")
    if not name:
        return Config()
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", field=ENV_FILE, value=name) from None
    return read_config(parse_yaml(content, source=name, unique=True), source=name)

"""Identity of a ring: the settings that all of its replicas must share.

Two replicas that map keys to slots by different rules would work on one key at a time, each in
another slot. So the settings that decide which slot a key is in, and through which filter and names
replicas find objects and each other, are stored beside the table. A replica whose settings differ
refuses to start. Periods are not among them: replicas may differ in these during a rolling update,
because each Lease states its own duration.

An identity is a mapping of configuration keys to texts. A key that only one side has is no
difference: it is a setting that the other side does not use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms import Algorithm
from kubeocean.sharding.config import Config

__all__ = [
    "EARLIER",
    "SLOTS_FIELD",
    "ConfigurationRecord",
    "Identity",
    "SettingDifference",
    "differences",
    "filter_field",
    "identity_of",
    "refusal",
    "with_filter",
]

Identity: TypeAlias = Mapping[str, str]
EARLIER: Final = 5  # how many earlier configurations a ring remembers
SLOTS_FIELD: Final = "sharding.slots"
_FILTER: Final = "sharding.filter of "
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """Earlier configuration of a ring, and the time at which it was replaced."""

    identity: Identity
    until: str


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """Setting in which a replica differs from its ring."""

    field: str
    ours: str
    theirs: str


def identity_of(config: Config, algorithm: Algorithm) -> dict[str, str]:
    """Return the identity of a ring as a configuration has it, without the filters, which are
    known when the API server was probed."""
    sharding = config.sharding
    identity = {
        SLOTS_FIELD: str(sharding.slots),
        "sharding.algorithm": algorithm.name,
        "sharding.domain": sharding.domain,
        "sharding.election": config.names.assigner,
    }
    if algorithm.name == "consistent-hash":
        identity["sharding.virtualNodes"] = str(sharding.virtual_nodes)
    if algorithm.name == "range":
        ranges = [(each.start, each.end, each.shard) for each in sharding.ranges]
        identity["sharding.ranges"] = msgspec.json.encode(ranges).decode()
    if algorithm.name == "custom":
        identity["sharding.custom"] = str(getattr(algorithm, "identity", "") or sharding.custom)
    return identity


def filter_field(controller: str) -> str:
    """Return the name of the field for the filter that a controller uses."""
    return f"{_FILTER}{controller}"


def with_filter(identity: Identity, recorded: Identity, filter_: str) -> dict[str, str]:
    """Return an identity with the filters of the recorded controllers set to a configured one;
    for `auto` without them, so that the first replica chooses."""
    fields = [field for field in recorded if field.startswith(_FILTER)]
    return {**identity, **(dict.fromkeys(fields, filter_) if filter_ != "auto" else {})}


def differences(ours: Identity, theirs: Identity) -> list[SettingDifference]:
    """Return the fields that both have with different values, in our order."""
    return [
        SettingDifference(field, value, theirs[field])
        for field, value in ours.items()
        if theirs.get(field, value) != value
    ]


def refusal(
    ring: str, differing: Sequence[SettingDifference], replicas: Sequence[str]
) -> ConfigError:
    """Return the error of a replica that differs from its ring."""
    if replicas:
        others = ", ".join(sorted(replicas)[:_NAMED])
        more = f" and {len(replicas) - _NAMED} more" if len(replicas) > _NAMED else ""
        whose = f"replicas {others}{more} of ring {ring} have"
        remedy = "use the same configuration, or stop them and run `kubeocean shards switch`"
    else:
        whose = f"ring {ring} last ran with"
        remedy = "use that configuration, or run `kubeocean shards switch`"
    first, *rest = differing
    also = "".join(f"; {each.field}: {each.theirs!r}, here {each.ours!r}" for each in rest)
    return ConfigError(
        f"{whose} {first.theirs!r}{also}; {remedy}", field=first.field, value=first.ours
    )

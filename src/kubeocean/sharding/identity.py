"""Identity of a ring: the settings that all of its replicas must share.

Two replicas that map keys to slots by different rules would work on one key at a time, each in
another slot. So the settings that decide which slot a key is in, and through which filter and names
replicas find objects and each other, are stored with the table. A replica whose settings differ
refuses to start. Durations are not among these settings: replicas may have different ones during a
rolling update, because each Lease states its own duration.

An identity is a mapping of configuration keys to texts. A key that only one of two identities has
is no difference: the other replica does not use this setting.
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
    """Setting in which a replica differs from its ring (the replicas that share a controller's
    keys)."""

    field: str
    ours: str
    theirs: str


def identity_of(config: Config, algorithm: Algorithm) -> dict[str, str]:
    """Return the identity of a ring that a configuration describes, without the filters, which are
    only known after the API server was probed."""
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
    """Return the identity's key for the filter that a controller uses."""
    return f"{_FILTER}{controller}"


def with_filter(identity: Identity, recorded: Identity, filter_: str) -> dict[str, str]:
    """Return `identity` with the filter `filter_` for each controller in `recorded`; with `auto`,
    no filters are included, so that the first replica chooses."""
    fields = [field for field in recorded if field.startswith(_FILTER)]
    return {**identity, **(dict.fromkeys(fields, filter_) if filter_ != "auto" else {})}


def differences(ours: Identity, theirs: Identity) -> list[SettingDifference]:
    """Return the settings that two identities both have with different values, in the order of
    `ours`."""
    return [
        SettingDifference(field, value, theirs[field])
        for field, value in ours.items()
        if theirs.get(field, value) != value
    ]


def refusal(
    ring: str, differing: Sequence[SettingDifference], replicas: Sequence[str]
) -> ConfigError:
    """Return the error that makes a replica refuse to start in a ring with other settings."""
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

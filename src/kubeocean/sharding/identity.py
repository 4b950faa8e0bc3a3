"""Identity of a ring: the settings that all of its replicas must share.

Two replicas that map keys to slots by different rules would work on one key at a time, each in
another slot. So the settings that decide which slot a key is in, and through which filter and names
replicas find objects and each other, are stored with the table. A replica whose settings differ
refuses to start. Durations are not among these settings: replicas may have different ones during a
rolling update, because each Lease states its own duration.

An identity is a mapping of configuration keys to texts. A key that only one of two identities has
is no difference: the other replica does not use this setting. But if two replicas have no
controller in common, two programs use one ring, and each leaves the keys in the other's slots
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.sharding.algorithms import Algorithm
from kubeocean.sharding.config import Config
from kubeocean.sharding.members import MemberRecord

__all__ = [
    "EARLIER",
    "SLOTS_FIELD",
    "ConfigurationRecord",
    "RingIdentity",
    "SettingDifference",
    "controllers_of",
    "differences",
    "filter_field",
    "identity_of",
    "merged",
    "other_controllers",
    "program_difference",
    "refusal",
    "ring_keeper",
    "with_filter",
]

RingIdentity: TypeAlias = Mapping[str, str]
EARLIER: Final = 5  # how many earlier configurations a ring remembers
SLOTS_FIELD: Final = "sharding.slots"
_FILTER: Final = "sharding.filter of "
_CONTROLLERS: Final = "controllers"
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class ConfigurationRecord:
    """Earlier configuration of a ring, and the time at which it was replaced."""

    identity: RingIdentity
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


def with_filter(identity: RingIdentity, recorded: RingIdentity, filter_: str) -> dict[str, str]:
    """Return `identity` with the filter `filter_` for each controller in `recorded`; with `auto`,
    no filters are included, so that the first replica chooses."""
    fields = [field for field in recorded if _is_filter(field)]
    return {**identity, **(dict.fromkeys(fields, filter_) if filter_ != "auto" else {})}


def differences(ours: RingIdentity, theirs: RingIdentity) -> list[SettingDifference]:
    """Return the settings that two identities both have with different values, in the order of
    `ours`."""
    return [
        SettingDifference(field, value, theirs[field])
        for field, value in ours.items()
        if theirs.get(field, value) != value
    ]


def other_controllers(ours: RingIdentity, theirs: RingIdentity) -> SettingDifference | None:
    """Return the difference between the controllers of two identities if both have some, and none
    in common: then two programs use one ring."""
    mine, other = controllers_of(ours), controllers_of(theirs)
    if not mine or not other or not mine.isdisjoint(other):
        return None
    return _other_program(mine, other)


def _other_program(ours: Iterable[str], theirs: Iterable[str]) -> SettingDifference:
    return SettingDifference(_CONTROLLERS, ", ".join(sorted(ours)), ", ".join(sorted(theirs)))


def ring_keeper(
    own: MemberRecord, others: Iterable[MemberRecord], recorded: RingIdentity
) -> MemberRecord | None:
    """Return the replica of another program that may use the ring; None if the program of the
    replica `own` may use it.

    Of several programs, the one that the ring has `recorded` may use the ring, else the one whose
    replica joined first. All replicas conclude the same, whatever the order in which they see each
    other: a replica that joined first is seen by all that join later.
    """
    known = controllers_of(recorded)

    def order(record: MemberRecord) -> tuple[bool, int, str]:
        return known.isdisjoint(_controllers(record, known)), record.joined, record.uid

    first = min((own, *others), key=order)
    ours, theirs = _controllers(own, known), _controllers(first, known)
    if first.id == own.id or not ours or not theirs or not ours.isdisjoint(theirs):
        return None
    if known & ours and known & theirs:
        return None  # a third version of the program has controllers of both
    return first


def _controllers(record: MemberRecord, recorded: frozenset[str]) -> frozenset[str]:
    """Return the controllers of a replica; one of an earlier version publishes none, and has those
    of its ring."""
    return frozenset(record.controllers) or recorded


def program_difference(
    own: MemberRecord, keeper: MemberRecord, recorded: RingIdentity
) -> SettingDifference:
    """Return how the controllers of the replica `own` differ from those of the replica `keeper`,
    whose program may use the ring."""
    known = controllers_of(recorded)
    return _other_program(_controllers(own, known), _controllers(keeper, known))


def merged(ours: RingIdentity, theirs: RingIdentity) -> dict[str, str]:
    """Return the identity to store for a replica with `ours` in a ring that has stored `theirs`.

    Controllers that only some replicas have stay recorded. Those of another program, which used the
    ring before, are forgotten.
    """
    foreign = other_controllers(ours, theirs) is not None
    kept = {key: value for key, value in theirs.items() if not (foreign and _is_filter(key))}
    return {**kept, **ours}


def _is_filter(key: str) -> bool:
    return key.startswith(_FILTER)


def controllers_of(identity: RingIdentity) -> frozenset[str]:
    """Return the names of the controllers whose filters an identity has."""
    return frozenset(key.removeprefix(_FILTER) for key in identity if _is_filter(key))


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
    if first.field == _CONTROLLERS:
        remedy = (
            "give each program a ring of its own with sharding.ring or, if the controllers of this "
            "one were renamed, stop all of its replicas first"
        )
    also = "".join(f"; {each.field}: {each.theirs!r}, here {each.ours!r}" for each in rest)
    return ConfigError(
        f"{whose} {first.theirs!r}{also}; {remedy}", field=first.field, value=first.ours
    )

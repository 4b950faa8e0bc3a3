"""Names: every label, annotation and object name that a ring shares with its users.

All names begin with one domain, so that the names of two installations, or of another program, do
not collide. Objects of a ring are named after the ring: `<ring>-table`, `<ring>-assigner`,
`<ring>-<replica>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from kubeocean.errors import ConfigError
from kubeocean.runtime.selectors import check_label_value, check_subdomain

__all__ = ["DEFAULT_DOMAIN", "Names", "check_name"]

DEFAULT_DOMAIN: Final = "sharding.kubeocean.io"
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_RING_LONGEST: Final = 40  # used as label value, and in label keys and object names
_OBJECT_LONGEST: Final = 253


@dataclass(frozen=True, slots=True)
class Names:
    """The labels, annotations and object names of one ring (replicas that share a controller's
    keys)."""

    ring: str
    domain: str = DEFAULT_DOMAIN
    election: str = ""

    def __post_init__(self) -> None:
        check_subdomain(self.domain, field="sharding.domain")
        check_name(self.ring, field="sharding.ring")
        if len(self.ring) > _RING_LONGEST:
            message = f"must be at most {_RING_LONGEST} characters"
            raise ConfigError(message, field="sharding.ring", value=self.ring)

    # Labels

    @property
    def ring_label(self) -> str:
        """Key of the label on the ring's own objects whose value is the ring's name."""
        return f"{self.domain}/ring"

    @property
    def role_label(self) -> str:
        """Key of the label on the ring's own objects whose value is `member`, `table` or
        `handover`."""
        return f"{self.domain}/role"

    @property
    def slot_label(self) -> str:
        """Key of the label on sharded objects whose value is their slot, which never changes."""
        return f"slot.{self.domain}/{self.ring}"

    def finalizer(self, controller: str) -> str:
        """Return the finalizer that keeps objects until a controller has handled their deletion.

        :raises ConfigError: the controller's name cannot be a part of a finalizer.
        """
        check_name(controller, field="controller name")
        return f"{controller}.{self.domain}/{self.ring}"

    # Annotations

    @property
    def epoch(self) -> str:
        """Annotation on sharded objects: the epoch of the grant under which they were last
        written."""
        return f"epoch.{self.domain}/{self.ring}"

    @property
    def writer(self) -> str:
        """Annotation on sharded objects: the ID of the replica that wrote them last."""
        return f"writer.{self.domain}/{self.ring}"

    @property
    def record(self) -> str:
        """Annotation on a member's Lease: the member's record, as JSON."""
        return f"{self.domain}/member"

    @property
    def loads(self) -> str:
        """Annotation on a member's Lease: the loads of the member's slots."""
        return f"{self.domain}/loads"

    @property
    def principal(self) -> str:
        """Annotation on a member's Lease: the member's pod UID or user name, as the API server
        reports it."""
        return f"{self.domain}/principal"

    # Objects

    @property
    def table(self) -> str:
        """Name of the ConfigMap with the ring's table, its key in a state store."""
        return f"{self.ring}-table"

    @property
    def assigner(self) -> str:
        """Name of the Lease on which the planner is elected."""
        return self.election or f"{self.ring}-assigner"

    def member(self, member: str) -> str:
        """Return the name of the Lease of one incarnation of a replica; every incarnation has
        another one."""
        name, _, nonce = member.rpartition("_")
        plain = f"{self.ring}-member-{name}-{nonce}"
        if _NAME.fullmatch(plain) and len(plain) <= _OBJECT_LONGEST:
            return plain
        return f"{self.ring}-member-{blake2b(member.encode(), digest_size=16).hexdigest()}"

    def selects(self, role: str) -> str:
        """Return the label selector of the ring's own objects with this role."""
        return f"{self.ring_label}={self.ring},{self.role_label}={role}"

    def labels(self, role: str) -> dict[str, str]:
        """Return the labels of a ring's own object with this role."""
        return {self.ring_label: self.ring, self.role_label: role}


def check_name(name: str, *, field: str) -> None:
    """Raise ConfigError if the name cannot be a label value or a part of an object's name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "must be lower-case letters, digits, '-' and '.', and begin and end with a letter or "
            "digit",
            field=field,
            value=name,
        )
    check_label_value(name, field=field)

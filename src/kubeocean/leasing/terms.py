"""Terms: a policy that makes sense, read once and ready to be asked.

What is written is either all valid or not taken at all; `kubeocean.api.policy.problems` says what
is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from kubeocean.api.policy import PolicySpec, problems
from kubeocean.api.problems import blocking
from kubeocean.errors import ConfigError
from kubeocean.leasing.limits import Limit, parse_limits
from kubeocean.leasing.windows import Calendar, zone_of
from kubeocean.runtime.nodeselectors import NodeSelector

__all__ = ["Terms"]


@dataclass(frozen=True, slots=True)
class Terms:
    """Which nodes are lent, when, and how much of them; the spec has the rules of taking back."""

    spec: PolicySpec
    selector: NodeSelector
    calendar: Calendar
    limits: tuple[Limit, ...]

    @classmethod
    def of(cls, spec: PolicySpec, *, local: tzinfo) -> Terms:
        """Read a policy; `local` is the zone of one that names none.

        The first problem that one cannot work with is a `ConfigError`.
        """
        wrong = blocking(problems(spec))
        if wrong:
            raise ConfigError(wrong[0].message, field=wrong[0].field, value=wrong[0].value)
        zone = zone_of(spec.time_zone, local=local)
        return cls(
            spec=spec,
            selector=NodeSelector.from_document(spec.node_selector or {}),
            calendar=Calendar.of(spec.time_windows, zone),
            limits=parse_limits(spec.resource_limits),
        )

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node of this name, with these labels, is lent; without terms, all are."""
        return not self.selector.terms or self.selector.matches(name, labels)

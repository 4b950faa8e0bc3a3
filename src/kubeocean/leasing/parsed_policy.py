"""Parses the spec of a ResourceLeasingPolicy: selector, time windows and limits.

A policy is either valid as a whole or not used at all; `kubeocean.api.policies.problems` lists its
mistakes. The rules of a reclaim are read from the spec by `leasing.decision.reclaim_rules_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from kubeocean.api.policies import PolicySpec, problems
from kubeocean.api.validation import blocking
from kubeocean.errors import ConfigError
from kubeocean.leasing.limits import Limit, parse_limits
from kubeocean.leasing.windows import Calendar, zone_of
from kubeocean.runtime.node_selectors import NodeSelector

__all__ = ["ParsedPolicy"]


@dataclass(frozen=True, slots=True)
class ParsedPolicy:
    """A valid ResourceLeasingPolicy, parsed: which nodes are lent, when, and how much of them."""

    spec: PolicySpec  # includes the rules of a reclaim
    selector: NodeSelector
    calendar: Calendar
    limits: tuple[Limit, ...]

    @classmethod
    def of(cls, spec: PolicySpec, *, local: tzinfo) -> ParsedPolicy:
        """Parse the spec of a policy; `local` is the time zone of a policy that names none.

        :raises ConfigError: the first problem that makes the policy invalid.
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
        """Whether the policy selects a node; without selector terms, the policy selects all
        nodes."""
        return not self.selector.terms or self.selector.matches(name, labels)

"""Findings about policies that name a binding, which status, doctor and explain share.

Pure. Mistakes in the spec are recognised here. Mistakes that only the worker's nodes and the other
policies reveal are in the conditions that the syncer writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.api import conditions
from kubeocean.api.policies import ResourceLeasingPolicy, problems
from kubeocean.api.validation import describe
from kubeocean.inspect.findings import Finding, Severity
from kubeocean.runtime.objects import find_condition

__all__ = ["policy_findings", "policy_warnings"]

_REMEDIES: Final = {  # by the type of a condition that is True if there is a mistake
    conditions.UNKNOWN_RESOURCE: "correct the name in policy {policy}",
    conditions.OVERLAPPING: "a nodeSelector in policy {policy} without these nodes, or delete one"
    " of the policies",
}


def policy_findings(
    policy: ResourceLeasingPolicy, about: str, *, check: str = ""
) -> Iterator[Finding]:
    """Yield an error if the policy is invalid, and warnings about probable mistakes.

    `about` is the subject of the findings. A condition counts only if the syncer has reported it
    on the present spec.
    """
    if wrong := problems(policy.spec):
        severity = Severity.ERROR if any(each.blocks for each in wrong) else Severity.WARNING
        remedy = f"correct these fields in policy {policy.name}"
        yield Finding(severity, about, describe(wrong), remedy, check=check)
    if policy.deleting:
        return
    for type_, remedy in _REMEDIES.items():
        condition = find_condition(policy.status.conditions, type_)
        if condition is None or condition.status != "True":
            continue
        if condition.observed_generation == policy.metadata.generation:
            remedy = remedy.format(policy=policy.name)
            yield Finding(Severity.WARNING, about, condition.message, remedy, check=check)


def policy_warnings(policy: ResourceLeasingPolicy) -> Iterator[Finding]:
    """Yield the findings about a policy that are not errors."""
    findings = policy_findings(policy, f"policy {policy.name}")
    return (each for each in findings if each.severity is Severity.WARNING)

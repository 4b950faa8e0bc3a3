"""RBAC rules as data, and the single permissions that the rules grant.

A `Rule` is one RBAC rule for one API group; `Rights` are the rules of an account for the whole
cluster and for single namespaces. `permissions` lists single permissions, for access reviews.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubeocean.runtime.objects import Json

__all__ = ["Permission", "Rights", "Rule"]


class Permission(NamedTuple):
    """A verb on a resource (`pods`, `pods/log`), in all namespaces or in one."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        name = f" {self.name}" if self.name else ""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{group}{name}{where}"

    def attributes(self) -> Json:
        """Return the resource attributes for an access review."""
        resource, _, subresource = self.resource.partition("/")
        attributes = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {key: value for key, value in attributes.items() if value}


@dataclass(frozen=True, slots=True)
class Rule:
    """An RBAC rule: verbs on resources of one group, or on named objects, or on URLs."""

    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    group: str = ""
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()  # instead of resources

    def document(self) -> Json:
        """Return the rule as an entry of a Role."""
        if self.urls:
            return {"nonResourceURLs": list(self.urls), "verbs": list(self.verbs)}
        named = {"resourceNames": list(self.names)} if self.names else {}
        return {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            **named,
            "verbs": list(self.verbs),
        }

    def permissions(self, namespace: str = "") -> Iterator[Permission]:
        for resource in self.resources:
            for verb in self.verbs:
                for name in self.names or ("",):
                    yield Permission(verb, self.group, resource, namespace, name)


@dataclass(frozen=True, slots=True)
class Rights:
    """The RBAC rules of an account: for the whole cluster, and by namespace."""

    everywhere: tuple[Rule, ...] = ()
    within: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)

    def permissions(self) -> Iterator[Permission]:
        """Yield each single permission that the rules grant."""
        for rule in self.everywhere:
            yield from rule.permissions()
        for namespace, rules in self.within.items():
            for rule in rules:
                yield from rule.permissions(namespace)

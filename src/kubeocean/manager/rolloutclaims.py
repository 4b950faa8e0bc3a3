"""Claims: whose an object with a name of ours is.

    its owner is this binding                                     ours
    no owner, and its labels name this binding                    takeable
    its owner is another binding, or an earlier one of that name  foreign
    anything else                                                 foreign

Objects of the earlier implementation are ours or takeable: they are owned or labelled as ours are.
What is foreign is never written and never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.runtime.objects import Object, OwnerReference

__all__ = ["Claimed", "binding_of", "claim"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Whether we may write it, and if not, whose it is."""

    ours: bool
    whose: str = ""


def claim(there: Object, binding: ClusterBinding, domain: Domain) -> Claimed:
    """Whose it is, from this binding's point of view."""
    owners = there.metadata.owner_references or ()
    if any(_is_binding(owner) and owner.uid == binding.uid for owner in owners):
        return Claimed(True)
    for owner in owners:
        if _is_binding(owner) and owner.name == binding.name:
            return Claimed(False, "belongs to an earlier ClusterBinding of that name")
        if _is_binding(owner):
            return Claimed(False, f"belongs to ClusterBinding {owner.name}")
        if owner.controller:
            return Claimed(False, f"belongs to {owner.kind} {owner.name}")
    named = {there.labels.get(group.APP_INSTANCE), there.labels.get(domain.cluster_binding)}
    named.discard(None)
    if named == {naming.label_value(binding.name)}:
        return Claimed(True)
    said = "nothing says that it belongs to this ClusterBinding"
    return Claimed(False, f"{said} (label {group.APP_INSTANCE} or an owner would)")


def binding_of(there: Object) -> OwnerReference | None:
    """The binding that owns an object, if one does."""
    return next((o for o in there.metadata.owner_references or () if _is_binding(o)), None)


def _is_binding(owner: OwnerReference) -> bool:
    # Of any version: those that come may be served by the same group.
    same = owner.api_version.partition("/")[0] == group.GROUP
    return same and owner.kind == CLUSTER_BINDINGS.kind

"""Admission policies of a worker, by which its API server limits Kubeocean's account there.

The policies are in `data/worker/admission.yaml`, with what each of them refuses and why.

The values that the owner chose are variables of the policy for pods, in JSON; `read_limits` reads
them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.install.credentials import LIFETIME
from kubeocean.install.data_files import read_objects
from kubeocean.install.roles import AddOn
from kubeocean.install.values import PodSecurity, WorkerValues
from kubeocean.runtime.objects import Json

__all__ = [
    "PodLimits",
    "admission_objects",
    "credential_names",
    "read_limits",
    "selector_of",
    "terms_of",
    "token_policy",
]

_FIELD: Final = "field "
_NODES: Final = "nodes"
_CLASSES: Final = "priorityClasses"
_GRACE: Final = "maxGraceSeconds"


@dataclass(frozen=True, slots=True)
class PodLimits:
    """Limits that a worker's admission policy sets for pods."""

    nodes: tuple[tuple[str, ...], ...]
    priority_classes: tuple[str, ...]
    max_grace_s: int


def terms_of(selector: Json | None) -> list[list[str]]:
    """Return the terms of a NodeSelector, each a list of texts `key operator values`.

    A requirement on a field of the node begins with `field`. Without a selector there are no terms.
    """
    return [
        [
            *(_text(each) for each in term.get("matchExpressions") or ()),
            *(f"{_FIELD}{_text(each)}" for each in term.get("matchFields") or ()),
        ]
        for term in (selector or {}).get("nodeSelectorTerms") or ()
    ]


def selector_of(terms: Iterable[Iterable[str]]) -> Json | None:
    """Return the NodeSelector of terms as `terms_of` returns them; None without terms."""
    documents = []
    for term in terms:
        document: Json = {}
        for text in term:
            field = text.startswith(_FIELD)
            requirement = _requirement(text.removeprefix(_FIELD) if field else text)
            document.setdefault("matchFields" if field else "matchExpressions", []).append(
                requirement
            )
        documents.append(document)
    return {"nodeSelectorTerms": documents} if documents else None


def _requirement(text: str) -> Json:
    key, operator, *values = text.split(" ", 2)
    return {"key": key, "operator": operator} | ({"values": values[0].split(",")} if values else {})


def _text(requirement: Mapping[str, Any]) -> str:
    values = ",".join(requirement.get("values") or ())
    return " ".join(filter(None, (requirement["key"], requirement["operator"], values)))


def admission_objects(values: WorkerValues) -> list[Json]:
    """Return the admission policies of a mount namespace's account, and their bindings."""
    objects = read_objects(
        "worker/admission.yaml",
        domain=values.domain,
        namespace=values.mount_namespace,
        account=values.account,
        role=values.cluster_role,
        nodes=_json(terms_of(values.nodes)),
        priority_classes=_json([values.domain.priority_class, *values.priority_classes]),
        max_grace_seconds=_json(values.max_grace_s),
        credential_names=credential_names(values),
        lifetime_s=int(LIFETIME.total_seconds()),
        lifetime_days=LIFETIME.days,
    )
    if values.pod_security is PodSecurity.PRIVILEGED:
        volumes = next(each for each in objects if _is_of(each, values, "volumes"))
        volumes["spec"]["validations"].pop()  # it refuses volumes on nodes
    if AddOn.RENEWAL in values.add_ons:
        return objects
    return [each for each in objects if not _is_of(each, values, "tokens")]


def token_policy(values: WorkerValues) -> list[Json]:
    """Return the admission policy of the add-on `renewal`, and its binding."""
    return [each for each in admission_objects(values) if _is_of(each, values, "tokens")]


def _is_of(policy: Json, values: WorkerValues, subject: str) -> bool:
    return bool(policy["metadata"]["name"] == f"{values.cluster_role}-{subject}")


def credential_names(values: WorkerValues) -> str:
    """Return a regular expression for the names of Secrets to which credentials are bound.

    No copy of a Secret has such a name: the name of a copy ends in 32 hexadecimal digits.
    """
    return f"^{values.domain.product}-.+-[0-9a-f]{{8}}$"


def read_limits(policy: Json) -> PodLimits | None:
    """Return the limits in the admission policy for pods; None if it has no such variables."""
    expressions = {
        each.get("name"): each.get("expression", "")
        for each in (policy.get("spec") or {}).get("variables") or ()
    }
    try:
        return PodLimits(
            msgspec.json.decode(expressions[_NODES], type=tuple[tuple[str, ...], ...]),
            msgspec.json.decode(expressions[_CLASSES], type=tuple[str, ...]),
            msgspec.json.decode(expressions[_GRACE], type=int),
        )
    except (KeyError, msgspec.DecodeError):
        return None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()

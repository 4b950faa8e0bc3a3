"""Admission policies of a worker, by which its API server limits Kubeocean's account there.

RBAC grants verbs on kinds of objects. It cannot distinguish pods by their priority class, nor a
node's labels from its taints. ValidatingAdmissionPolicies can:

- a pod is created only in the mount namespace, on nodes that the owner lends, with a priority class
  that the owner allows, with a bounded grace period, and as no service account with permissions;
- of a Node only the label changes that names its policy;
- the spec of a ResourceLeasingPolicy does not change;
- a PersistentVolume is no directory of a node, and volumes that Kubeocean did not create are
  neither changed nor deleted;
- a Secret is no token of a service account, which would stay valid after the binding's credential
  is revoked, and has no name of a Secret to which credentials are bound;
- a token of the account itself is bound to a Secret with such a name, which the owner deletes to
  revoke the token, and is valid for a year at most (only with the add-on `renewal`);
- a Service is reached within the worker only.

An admission policy cannot read Nodes. A pod must therefore carry the owner's node selector as its
required node affinity: the worker's scheduler and kubelets compare it with the labels of the node,
which the account cannot change. Time windows and limits cannot be expressed: an admission policy
has no clock, and does not add up the requests of several pods.

The values that the owner chose are variables of the policy for pods, in JSON; `read_limits` reads
them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.api.group import GROUP
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES
from kubeocean.install.credentials import LIFETIME
from kubeocean.install.object_parts import (
    admission_policy,
    admission_rule,
    by_account,
    validation,
    worker_labels,
)
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
_REQUIREMENT: Final = "x.key + ' ' + x.operator + (has(x.values) ? ' ' + x.values.join(',') : '')"
_AFFINITY: Final = (
    "has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && "
    "has(object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution)"
)
_TERMS: Final = (
    "object.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms"
)
_OFFERED: Final = (
    f"variables.terms.map(t, (has(t.matchExpressions) ? t.matchExpressions.map(x, {_REQUIREMENT}) "
    f": []) + (has(t.matchFields) ? t.matchFields.map(x, '{_FIELD}' + {_REQUIREMENT}) : []))"
)


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
    return [
        *_policy(
            values,
            "pods",
            [admission_rule("pods", "CREATE")],
            _pod_rules(values),
            _variables(values),
        ),
        *_policy(values, "nodes", [admission_rule("nodes", "UPDATE")], _node_rules(values)),
        *_policy(
            values,
            "policies",
            [admission_rule(RESOURCE_LEASING_POLICIES.plural, "UPDATE", group=GROUP)],
            [validation("object.spec == oldObject.spec", "the owner alone changes the spec")],
        ),
        *_policy(
            values,
            "volumes",
            [admission_rule("persistentvolumes", "CREATE", "UPDATE", "DELETE")],
            _volume_rules(values),
        ),
        *_policy(
            values,
            "secrets",
            [admission_rule("secrets", "CREATE", "UPDATE")],
            _secret_rules(values),
        ),
        *token_policy(values),
        *_policy(
            values, "services", [admission_rule("services", "CREATE", "UPDATE")], _service_rules()
        ),
    ]


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


def _variables(values: WorkerValues) -> list[Json]:
    expressions = {
        _NODES: _json(terms_of(values.nodes)),
        _CLASSES: _json([values.domain.priority_class, *values.priority_classes]),
        _GRACE: _json(values.max_grace_s),
        "terms": f"{_AFFINITY} ? {_TERMS} : []",
        "offered": _OFFERED,
    }
    return [{"name": name, "expression": text} for name, text in expressions.items()]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _pod_rules(values: WorkerValues) -> list[Json]:
    namespace = values.mount_namespace
    return [
        validation(
            f"request.namespace == '{namespace}'", f"pods may be created in {namespace} only"
        ),
        validation(
            "variables.nodes.size() == 0 || (variables.offered.size() > 0 && "
            "variables.offered.all(o, variables.nodes.exists(n, n.all(r, r in o))))",
            "each term of the required node affinity must have the requirements of a node "
            "selector that the owner lends by",
        ),
        validation(
            "has(object.spec.priorityClassName) && "
            "object.spec.priorityClassName in variables.priorityClasses",
            "the priority class must be one that the owner allows",
        ),
        validation(
            "!has(object.spec.terminationGracePeriodSeconds) || "
            "object.spec.terminationGracePeriodSeconds <= variables.maxGraceSeconds",
            "the grace period is longer than the owner allows",
        ),
        validation(
            "!has(object.spec.serviceAccountName) || object.spec.serviceAccountName == 'default'",
            "the service account must be default",
        ),
    ]


def _node_rules(values: WorkerValues) -> list[Json]:
    label = values.domain.policy_applied
    unchanged = (
        "(has({0}.metadata.labels) ? {0}.metadata.labels : {{}}).all(k, k == '{2}' || "
        "(has({1}.metadata.labels) && k in {1}.metadata.labels && "
        "{1}.metadata.labels[k] == {0}.metadata.labels[k]))"
    )
    same = " && ".join(
        f"(has(object.{field}) ? object.{field} : {empty}) == "
        f"(has(oldObject.{field}) ? oldObject.{field} : {empty})"
        for field, empty in (("metadata.annotations", "{}"), ("metadata.finalizers", "[]"))
    )
    labels = " && ".join(
        unchanged.format(*objects, label)
        for objects in (("object", "oldObject"), ("oldObject", "object"))
    )
    return [
        validation(
            f"object.spec == oldObject.spec && {same} && {labels}",
            f"only the label {label} of a node may be changed",
        )
    ]


def _volume_rules(values: WorkerValues) -> list[Json]:
    domain = values.domain
    is_ours = (
        f"(has(oldObject.metadata.labels) && '{domain.managed_by}' in oldObject.metadata.labels && "
        f"oldObject.metadata.labels['{domain.managed_by}'] == '{domain.product}') || "
        "(has(oldObject.metadata.annotations) && "
        f"'{domain.virtual_uid}' in oldObject.metadata.annotations)"
    )
    rules = [
        validation(
            f"request.operation == 'CREATE' || {is_ours}",
            "only volumes that Kubeocean created may be changed or deleted",
        )
    ]
    if values.pod_security is not PodSecurity.PRIVILEGED:
        rules.append(
            validation(
                "request.operation == 'DELETE' || "
                "(!has(object.spec.hostPath) && !has(object.spec.local))",
                "volumes on nodes are allowed at level privileged only",
            )
        )
    return rules


def _secret_rules(values: WorkerValues) -> list[Json]:
    return [
        validation(
            "!has(object.type) || object.type != 'kubernetes.io/service-account-token'",
            "tokens of service accounts may not be created as Secrets",
        ),
        validation(
            "request.operation != 'CREATE' || "
            f"!object.metadata.name.matches('{credential_names(values)}')",
            "names of Secrets to which credentials are bound are the owner's",
        ),
    ]


def token_policy(values: WorkerValues) -> list[Json]:
    """Return the admission policy of the add-on `renewal`, and its binding."""
    if AddOn.RENEWAL not in values.add_ons:
        return []
    days = LIFETIME.days
    bound = (
        f"request.name != '{values.account}' || (has(object.spec.boundObjectRef) && "
        "has(object.spec.boundObjectRef.kind) && object.spec.boundObjectRef.kind == 'Secret' && "
        "has(object.spec.boundObjectRef.name) && "
        f"object.spec.boundObjectRef.name.matches('{credential_names(values)}'))"
    )
    lifetime = f"object.spec.expirationSeconds <= {int(LIFETIME.total_seconds())}"
    return _policy(
        values,
        "tokens",
        [admission_rule("serviceaccounts/token", "CREATE")],
        [
            validation(bound, "the token must be bound to the Secret of the credential"),
            validation(lifetime, f"tokens may be valid for {days} days at most"),
        ],
    )


def credential_names(values: WorkerValues) -> str:
    """Return a regular expression for the names of Secrets to which credentials are bound.

    No copy of a Secret has such a name: the name of a copy ends in 32 hexadecimal digits.
    """
    return f"^{values.domain.product}-.+-[0-9a-f]{{8}}$"


def _service_rules() -> list[Json]:
    return [
        validation(
            "(!has(object.spec.type) || object.spec.type == 'ClusterIP') && "
            "(!has(object.spec.externalIPs) || object.spec.externalIPs.size() == 0)",
            "a Service must be of type ClusterIP and without externalIPs",
        )
    ]


def _policy(
    values: WorkerValues,
    subject: str,
    rules: list[Json],
    validations: list[Json],
    variables: list[Json] | None = None,
) -> list[Json]:
    return admission_policy(
        f"{values.cluster_role}-{subject}",
        labels=worker_labels(values.domain),
        requested_by=by_account(values.mount_namespace, values.account),
        rules=rules,
        validations=validations,
        variables=variables,
    )

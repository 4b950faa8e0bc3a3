"""ValidatingAdmissionPolicy that makes the API server refuse writes of replicas that lost a slot.

The policy compares a write to a sharded object with the ring's table, which is its parameter:

- the epoch on the object must not be lower than that of the shard's grant, nor than the epoch
  already on the object: a replica that was frozen and resumes is refused, also for creates;
- the writer must be the shard's recorded owner, by the UID of its pod, or by its user name where
  tokens are not bound to pods. This check refuses a late delete, which carries no epoch.

Only writes of the ring's own replicas are checked, and only on objects that have a slot; without a
table nothing is refused. The API server follows the table by a watch and may be some milliseconds
behind: the API server may then still admit an old owner, which the epoch on the object stops once
the new owner has written.

Replicas of one Deployment share a service account. Their tokens are bound to their pods, so the API
server distinguishes the replicas by the pod's UID; without a pod, the user name is the principal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.errors import ApiError, ConfigError
from kubeocean.runtime.client import Client
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Resource
from kubeocean.sharding.names import Names

__all__ = ["POD_UID", "Guarded", "admission_objects", "guard", "own_principal", "principal_of"]

POD_UID: Final = "authentication.kubernetes.io/pod-uid"
_PATH: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_BODY: Final = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}

_log = get_logger(__name__)


async def own_principal(client: Client) -> str:
    """Return the principal (pod UID or user name) of `client` as the API server reports it; empty
    if the API server reports none."""
    try:
        answer = await client.request("POST", _PATH, body=_BODY, idempotent=True)
        return principal_of(msgspec.json.decode(answer)["status"]["userInfo"])
    except (ApiError, msgspec.DecodeError, KeyError, TypeError) as error:
        _log.warning("Could not read user name of this replica from API server", error=str(error))
        return ""


def principal_of(user: dict[str, Any]) -> str:
    """Return the principal of a `user` that the API server reported: the UID of the pod if the
    token is bound to a pod, else the user name."""
    bound = (user.get("extra") or {}).get(POD_UID) or [""]
    return bound[0] or str(user.get("username", ""))


_API: Final = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Guarded:
    """Resource whose writes the admission policy checks; `status` includes its status
    subresource."""

    group: str
    version: str
    plural: str
    status: bool = False


def guard(resource: Resource[Any], *, status: bool = False) -> Guarded:
    """Return the entry that makes the admission policy check writes to a resource."""
    return Guarded(resource.group, resource.version, resource.plural, status)


def admission_objects(
    names: Names,
    *,
    namespace: str,
    guarded: Sequence[Guarded],
    users: Sequence[str] = (),
    groups: Sequence[str] = (),
    check_writer: bool = True,
) -> list[Json]:
    """Return the ValidatingAdmissionPolicy of a ring and its ValidatingAdmissionPolicyBinding.

    `users` and `groups` are those of the replicas: `system:serviceaccount:<namespace>:<name>`.
    """
    if not guarded:
        raise ConfigError("must name at least one resource", field="guarded")
    if not users and not groups:
        raise ConfigError("must name the replicas' users, if there are no groups", field="users")
    policy = {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": f"{names.ring}-shards", "labels": names.labels("admission")},
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {
                "resourceRules": [_rule(each) for each in guarded],
                "objectSelector": {
                    "matchExpressions": [{"key": names.slot_label, "operator": "Exists"}]
                },
            },
            "matchConditions": [
                {"name": "by-a-replica", "expression": _by_a_replica(users, groups)},
                {"name": "in-a-shard", "expression": _in_a_shard(names.slot_label)},
            ],
            "variables": _variables(names),
            "validations": _validations(check_writer),
        },
    }
    binding = {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"{names.ring}-shards", "labels": names.labels("admission")},
        "spec": {
            "policyName": f"{names.ring}-shards",
            "validationActions": ["Deny"],
            "paramRef": {
                "name": names.table,
                "namespace": namespace,
                # Otherwise a missing table would refuse every write before any condition is
                # evaluated: those of users, and that of the planner which has to write the table.
                "parameterNotFoundAction": "Allow",
            },
        },
    }
    return [policy, binding]


def _rule(guarded: Guarded) -> Json:
    resources = [guarded.plural, *([f"{guarded.plural}/status"] if guarded.status else [])]
    return {
        "apiGroups": [guarded.group],
        "apiVersions": [guarded.version],
        "resources": resources,
        "operations": ["CREATE", "UPDATE", "DELETE"],
    }


def _by_a_replica(users: Sequence[str], groups: Sequence[str]) -> str:
    named = f"request.userInfo.username in {_list(users)}"
    member = (
        f"has(request.userInfo.groups) && request.userInfo.groups.exists(g, g in {_list(groups)})"
    )
    return f"({named}) || ({member})"


def _in_a_shard(label: str) -> str:
    """Return the CEL expression that is true for an object with a slot label, except for the write
    that adds the label."""
    labelled = "has({0}.metadata.labels) && '{1}' in {0}.metadata.labels"
    old, new = labelled.format("oldObject", label), labelled.format("object", label)
    same = f"object.metadata.labels['{label}'] == oldObject.metadata.labels['{label}']"
    return (
        f"request.operation == 'CREATE' ? ({new}) : request.operation == 'DELETE' ? ({old}) : "
        f"(({old}) && ({new}) && {same})"
    )


def _variables(names: Names) -> list[Json]:
    epoch = "has({0}.metadata.annotations) && '{1}' in {0}.metadata.annotations ? "
    epoch += "int({0}.metadata.annotations['{1}']) : 0"
    user = "request.userInfo"
    pod = f"has({user}.extra) && '{POD_UID}' in {user}.extra"
    expressions = {
        "meta": "request.operation == 'DELETE' ? oldObject.metadata : object.metadata",
        "slot": f"int(variables.meta.labels['{names.slot_label}'])",
        "granted": "int(params.data.grants.split(',')[variables.slot])",
        "epoch": f"request.operation == 'DELETE' ? 0 : ({epoch.format('object', names.epoch)})",
        "stored": f"request.operation != 'UPDATE' ? 0 : ({epoch.format('oldObject', names.epoch)})",
        "writer": f"{pod} ? {user}.extra['{POD_UID}'][0] : {user}.username",
        "owner": (
            "params.data.principals.split('\\n')"
            "[int(params.data.owners.split(',')[variables.slot])]"
        ),
    }
    return [{"name": name, "expression": expression} for name, expression in expressions.items()]


def _validations(check_writer: bool) -> list[Json]:
    shard = "'shard ' + string(variables.slot)"
    rules = [
        {
            "expression": "request.operation == 'DELETE' || variables.epoch >= variables.granted",
            "messageExpression": (
                f"{shard} + ' is granted at epoch ' + string(variables.granted) + ', this was "
                "written under ' + string(variables.epoch)"
            ),
            "reason": "Forbidden",
        },
        {
            "expression": "variables.epoch >= variables.stored || request.operation == 'DELETE'",
            "messageExpression": (
                f"{shard} + ': the object was written at epoch ' + string(variables.stored) + "
                "', this was written under ' + string(variables.epoch)"
            ),
            "reason": "Forbidden",
        },
    ]
    if check_writer:
        # If the epoch is higher than the table's, the new table has not reached this API server
        # yet.
        rules.append(
            {
                "expression": (
                    "variables.epoch > variables.granted || variables.owner == '' || "
                    "variables.owner == variables.writer"
                ),
                "messageExpression": (
                    f"{shard} + ' belongs to ' + variables.owner + ', not to ' + variables.writer"
                ),
                "reason": "Forbidden",
            }
        )
    return rules


def _list(words: Sequence[str]) -> str:
    quoted = (word.replace("\\", "\\\\").replace("'", "\\'") for word in words)
    return "[" + ", ".join(f"'{word}'" for word in quoted) + "]"

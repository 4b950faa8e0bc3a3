"""Admission policies of the computing cluster, by which its API server limits Kubeocean's accounts.

RBAC grants verbs on kinds of objects, and on single names at best. Virtual nodes and pods change
constantly, so their names are in no role. The name of a syncer's account ends in the clusterID of
its binding, and so does the prefix of its virtual nodes' names. ValidatingAdmissionPolicies compare
the two:

- a syncer writes only virtual nodes of its own binding, with their Leases and CSINodes;
- a syncer creates and deletes pods, and writes their status, only on these nodes;
- a syncer changes no content of Secrets and ConfigMaps, and in the system namespace no Secret or
  ConfigMap at all, except ConfigMaps by which sharded syncers divide their work;
- a token that a syncer requests is bound to a pod on these nodes, valid for a day at most, and of
  no namespace whose pods stay in the computing cluster;
- a proxier approves only certificates that it has requested itself;
- the manager writes only cluster roles that have the names of syncers and proxiers.

A request for a pod's token does not name the node of the pod. A policy can read further objects
only as parameters, which are selected by labels: all pods of the namespace are read for each token
of a syncer. TokenRequests of syncers have a label, without which they are refused, and the policy
reads no pods for requests without the label, as kubelets send them. Evictions are not limited to
the syncer's own nodes.

For accounts that all bindings share (see `computing_objects`), only the rules that need no
clusterID apply.
"""

from __future__ import annotations

from typing import Final

from kubeocean.api import naming
from kubeocean.api.group import NODE_LEASE_NAMESPACE, TRUE
from kubeocean.install.object_parts import (
    RBAC,
    PodParameter,
    admission_policy,
    admission_rule,
    by_account,
    labels,
    user_of,
    validation,
)
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json
from kubeocean.sharding.names import Names

__all__ = ["TOKEN_LIFETIME_S", "computing_admission"]

TOKEN_LIFETIME_S: Final = 86_400  # longest validity of a token that a syncer requests
# Longer prefixes are cut, and a cut name may lose a dot: see `naming.virtual_node_prefix`.
_PREFIX_LENGTH: Final = 29
_CREATE, _UPDATE, _DELETE = "CREATE", "UPDATE", "DELETE"
_STORED: Final = "(oldObject == null ? object : oldObject)"
_UNCHANGED: Final = (
    "has(object.{0}) == has(oldObject.{0}) && (!has(object.{0}) || object.{0} == oldObject.{0})"
)


def computing_admission(values: Values) -> list[Json]:
    """Return all admission policies of the computing cluster, with their bindings."""
    return [
        *_tokens(values),
        *_nodes(values),
        *_pods(values),
        *_sources(values),
        *_certificates(values),
        *_roles(values),
    ]


def _tokens(values: Values) -> list[Json]:
    """Return the admission policies for tokens that syncers request.

    RBAC lets syncers request tokens of any ServiceAccount, because pods of any namespace may run in
    a worker. The policies require that a token is bound to a pod of the syncer, as kubelets request
    it; the API server refuses a pod with another ServiceAccount.

    The UID is required because the API server's cache, from which policies get pods, shows a new
    pod a moment after its creation: names of pods can be guessed before, UIDs cannot.
    """
    domain, hours = values.domain, TOKEN_LIFETIME_S // 3600
    kept = ", ".join(f"'{each}'" for each in sorted(domain.system_namespaces))
    shared, own = by_account(values.namespace, domain.syncer), _own_nodes(values)
    bound = "object.spec.boundObjectRef"
    label = f"'{domain.token_request}'"
    labelled = f"{label} in object.metadata.labels && object.metadata.labels[{label}] == '{TRUE}'"
    of_binding = admission_policy(
        f"{domain.syncer}-pod-tokens",
        labels=labels(domain),
        requested_by=_by_own(values, domain.syncer),
        rules=[admission_rule("serviceaccounts/token", _CREATE)],
        of_pod=PodParameter(f"{bound}.name", domain.token_request),
        variables=own,
        validations=[
            validation(
                "has(params.spec.nodeName) && params.spec.nodeName.startsWith(variables.prefix)",
                "tokens must be of pods on the syncer's own virtual nodes",
            )
        ],
    )
    of_any = admission_policy(
        f"{domain.syncer}-tokens",
        labels=labels(domain),
        requested_by=_by_any(values, domain.syncer),
        rules=[admission_rule("serviceaccounts/token", _CREATE)],
        validations=[
            validation(
                f"has({bound}) && has({bound}.kind) && {bound}.kind == 'Pod'",
                "tokens must be bound to a pod",
            ),
            validation(
                f"{shared} || (has({bound}.uid) && {bound}.uid != '')",
                "tokens must be bound to a pod by its UID",
            ),
            validation(
                f"{shared} || (has(object.metadata.labels) && {labelled})",
                f"requests for tokens must have the label {domain.token_request}={TRUE}",
            ),
            validation(
                f"object.spec.expirationSeconds <= {TOKEN_LIFETIME_S}",
                f"tokens may be valid for {hours} hours at most",
            ),
            validation(
                f"!(request.namespace in [{kept}])",
                "tokens may not be of a namespace whose pods stay in the computing cluster",
            ),
        ],
    )
    return [*of_any, *of_binding]


def _nodes(values: Values) -> list[Json]:
    """Return the admission policy for a syncer's virtual nodes, with their Leases and CSINodes."""
    domain = values.domain
    identified = f"'{domain.physical_cluster_id}'"
    found = "variables.stored.metadata.labels"
    rules = [
        admission_rule("nodes", _CREATE, _UPDATE, _DELETE),
        admission_rule("nodes/status", _UPDATE),
        admission_rule("csinodes", _CREATE, _UPDATE, _DELETE, group="storage.k8s.io"),
        admission_rule("leases", _CREATE, _UPDATE, _DELETE, group="coordination.k8s.io"),
    ]
    return admission_policy(
        f"{domain.syncer}-nodes",
        labels=labels(domain),
        requested_by=_by_own(values, domain.syncer),
        rules=rules,
        variables=[*_own_nodes(values), _variable("stored", _STORED)],
        validations=[
            validation(
                "(request.resource.resource == 'leases' && "
                f"request.namespace != '{NODE_LEASE_NAMESPACE}') || "
                "variables.stored.metadata.name.startsWith(variables.prefix)",
                "a syncer may write its own virtual nodes only",
            ),
            validation(
                # Another value may be a user's edit that the syncer reverts.
                f"!has({found}) || !({identified} in {found}) || "
                f"{found}[{identified}] == variables.id || "
                "!variables.stored.metadata.name.startsWith("
                f"'{naming.VNODE_PREFIX}' + {found}[{identified}] + '-')",
                "the virtual node belongs to another binding",
            ),
        ],
    )


def _pods(values: Values) -> list[Json]:
    domain = values.domain
    rules = [admission_rule("pods", _CREATE, _DELETE), admission_rule("pods/status", _UPDATE)]
    return admission_policy(
        f"{domain.syncer}-pods",
        labels=labels(domain),
        requested_by=_by_own(values, domain.syncer),
        rules=rules,
        variables=[*_own_nodes(values), _variable("stored", _STORED)],
        validations=[
            validation(
                "has(variables.stored.spec.nodeName) && "
                "variables.stored.spec.nodeName.startsWith(variables.prefix)",
                "a syncer may write pods of its own virtual nodes only",
            )
        ],
    )


def _sources(values: Values) -> list[Json]:
    """Return the admission policy for Secrets and ConfigMaps, which syncers only label."""
    domain = values.domain
    found, role = "oldObject.metadata.labels", Names(domain.syncer, domain.sharding).role_label
    ring = (
        f"request.resource.resource == 'configmaps' && request.namespace == '{values.namespace}' "
        f"&& has({found}) && '{role}' in {found}"
    )
    return admission_policy(
        f"{domain.syncer}-sources",
        labels=labels(domain),
        requested_by=_by_any(values, domain.syncer),
        rules=[admission_rule("secrets", _UPDATE), admission_rule("configmaps", _UPDATE)],
        variables=[_variable("ring", ring)],
        validations=[
            validation(
                f"variables.ring || request.namespace != '{values.namespace}'",
                "a syncer may not change objects of the system namespace",
            ),
            *(
                validation(
                    f"variables.ring || ({_UNCHANGED.format(field)})",
                    f"a syncer may not change {field}",
                )
                for field in ("data", "binaryData")
            ),
        ],
    )


def _certificates(values: Values) -> list[Json]:
    """Return the admission policy for CertificateSigningRequests that proxiers approve.

    RBAC lets a proxier approve all requests of the signer.
    """
    domain = values.domain
    approval = "certificatesigningrequests/approval"
    return admission_policy(
        f"{domain.proxier}-certificates",
        labels=labels(domain),
        requested_by=_by_any(values, domain.proxier),
        rules=[admission_rule(approval, _UPDATE, group="certificates.k8s.io")],
        validations=[
            validation(
                "oldObject.spec.username == request.userInfo.username",
                "a proxier may approve only certificates that it has requested",
            )
        ],
    )


def _roles(values: Values) -> list[Json]:
    """Return the admission policy for ClusterRoles that the manager writes.

    RBAC cannot limit ClusterRoles by a prefix of their names.
    """
    domain = values.domain
    ours = " || ".join(
        f"{_STORED}.metadata.name.startsWith('{prefix}-')"
        for prefix in (domain.syncer, domain.proxier)
    )
    return admission_policy(
        f"{domain.manager}-roles",
        labels=labels(domain),
        requested_by=by_account(values.namespace, domain.manager),
        rules=[
            admission_rule(kind, _CREATE, _UPDATE, _DELETE, group=RBAC)
            for kind in ("clusterroles", "clusterrolebindings")
        ],
        validations=[
            validation(ours, "the manager may write cluster roles of syncers and proxiers only")
        ],
    )


def _by_own(values: Values, component: str) -> str:
    """Return the CEL expression that selects requests of a component's per-binding accounts."""
    return f"request.userInfo.username.startsWith('{_own_user(values, component)}')"


def _by_any(values: Values, component: str) -> str:
    """Return the CEL expression for requests of all accounts of a component.

    These are the accounts that belong to one binding each, and the account that all bindings share.
    """
    return f"{by_account(values.namespace, component)} || {_by_own(values, component)}"


def _own_user(values: Values, component: str) -> str:
    """Return the prefix of the user names of a component's accounts, up to the clusterID."""
    return f"{user_of(values.namespace, component)}-"


def _own_nodes(values: Values) -> list[Json]:
    """Return CEL variables: clusterID of the account, and prefix of its virtual nodes' names."""
    # CEL computes the length: in a chart, the label domain is known to Helm only.
    beginning = f"'{_own_user(values, values.domain.syncer)}'.size()"
    whole = f"('{naming.VNODE_PREFIX}' + variables.id + '-')"
    cut = f"{whole}.size() > {_PREFIX_LENGTH} ? {whole}.substring(0, {_PREFIX_LENGTH}) : {whole}"
    return [
        _variable("id", f"request.userInfo.username.substring({beginning})"),
        _variable("prefix", cut),
    ]


def _variable(name: str, expression: str) -> Json:
    return {"name": name, "expression": expression}

"""Templates of syncers and proxiers, which the manager renders for each binding.

The templates are Go text templates with the variables of the earlier implementation, so that
adapted templates stay usable with either manager. The earlier manager ignores the files of
accounts, which use further variables. A conditional encloses whole list entries.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.install.data_files import read_object
from kubeocean.install.limits import disruption_budget
from kubeocean.install.object_parts import (
    accounts,
    cluster_role_binding,
    cluster_role_of,
    role_binding,
    role_of,
)
from kubeocean.install.roles import (
    binding_syncer_rights,
    binding_syncer_role,
    proxier_own_rights,
    syncer_own_rights,
)
from kubeocean.install.values import Values, toleration
from kubeocean.runtime.documents import PlainDumper
from kubeocean.runtime.objects import Json

__all__ = [
    "AUTOSCALER_FILE",
    "component_autoscaler",
    "computing_secret",
    "management_values",
    "program_values",
    "proxier_deployment",
    "proxier_files",
    "ring_role",
    "syncer_deployment",
    "syncer_files",
    "template_hash",
    "text",
]

_BINDING: Final = "{{.ClusterBindingName}}"
_NAME: Final = "{{.DeploymentName}}"
_SECRET: Final = "{{.SecretName}}"  # noqa: S105 - the name of a variable
# True for an account of the binding's own; the variables are those of the earlier implementation.
_SECRETS_FLAG: Final = "--secrets-by-namespace={{eq .ServiceAccountName .DeploymentName}}"
_SHARED_ROLE: Final = "{{.ClusterRoleName}}"
_SYNCER_NAMESPACE: Final = "{{.SyncerNamespace}}"
_PROXIER_NAMESPACE: Final = "{{.ProxierNamespace}}"
AUTOSCALER_FILE: Final = "horizontalpodautoscaler.yaml"
_TEMPLATE_HASH: Final = "POD_TEMPLATE_HASH"
_ACTION: Final = re.compile(r"^ *- '(?P<action>\{\{- [^']* \}\})'$", re.MULTILINE)


class _BlockDumper(PlainDumper):
    """YAML dumper that writes multi-line texts as blocks."""


_BlockDumper.add_representer(
    str,
    lambda dumper, data: dumper.represent_scalar(
        "tag:yaml.org,2002:str", data, style="|" if "\n" in data else None
    ),
)


def text(body: Json) -> str:
    """Return the YAML of a template; an entry `{{- … }}` of a list becomes a line of its own."""
    document = yaml.dump(body, Dumper=_BlockDumper, sort_keys=False, width=1000)
    return _ACTION.sub(lambda match: match["action"], document)


def syncer_files(values: Values) -> dict[str, str]:
    """Return the files of the syncers' template directory, by name."""
    return {
        "deployment.yaml": text(syncer_deployment(values)),
        "poddisruptionbudget.yaml": text(_budget(syncer_deployment(values))),
        **_autoscaler_file(values, group.COMPONENT_SYNCER),
        **_own_account(values, _syncer_account(values)),
        "serviceAccountName": values.domain.syncer,
        "syncerNamespace": values.namespace,
        "roleName": values.domain.syncer,
        "roleBindingName": values.domain.syncer,
    }


def proxier_files(values: Values) -> dict[str, str]:
    """Return the files of the proxiers' template directory, by name."""
    return {
        "deployment.yaml": text(proxier_deployment(values)),
        "service.yaml": text(read_object("templates/proxier/service.yaml", domain=values.domain)),
        "poddisruptionbudget.yaml": text(_budget(proxier_deployment(values))),
        **_autoscaler_file(values, group.COMPONENT_PROXIER),
        **_own_account(values, _proxier_account()),
        "serviceAccountName": values.domain.proxier,
        "proxierNamespace": values.namespace,
        "clusterRoleName": values.domain.proxier,
        "clusterRoleBindingName": values.domain.proxier,
    }


def syncer_deployment(values: Values) -> Json:
    """Return the Deployment of a binding's syncers."""
    body = read_object(
        "templates/syncer/deployment.yaml",
        secrets=None if values.management else _SECRETS_FLAG,
        time_zone=f"--time-zone={values.time_zone}" if values.time_zone else None,
        sharding="--sharding" if values.shard_syncers else None,
        **_template_values(values, group.COMPONENT_SYNCER),
    )
    if not values.shard_syncers:
        variables = body["spec"]["template"]["spec"]["containers"][0]["env"]
        variables.remove(template_hash(variables))
    return body


def template_hash(variables: list[Json]) -> Json:
    """Return the entry of the variable with the pod template's hash, of sharded syncers."""
    return next(each for each in variables if each["name"] == _TEMPLATE_HASH)


def proxier_deployment(values: Values) -> Json:
    """Return the Deployment of a binding's proxiers."""
    component = group.COMPONENT_PROXIER
    return read_object("templates/proxier/deployment.yaml", **_template_values(values, component))


def _template_values(values: Values, component: str) -> Json:
    return {
        "kubeconfig_namespaces": ",".join(values.secret_namespaces),
        "replicas": values.replicas_of(component),
        **program_values(values),
        **management_values(values, component),
    }


def _syncer_account(values: Values) -> dict[str, str]:
    """Return the template files of the ServiceAccount for the syncers of one binding."""
    own = syncer_own_rights(
        binding=_BINDING, secret=_SECRET, lease=_NAME, namespace=_SYNCER_NAMESPACE
    )
    subject = {"kind": "ServiceAccount", "name": _NAME, "namespace": _SYNCER_NAMESPACE}
    role = {"subject": subject, "labels": {}}
    shared = values.domain.syncer
    ring = role_binding(
        f"{_NAME}-sharding", _SYNCER_NAMESPACE, role=ring_role(values.domain), **role
    )
    return _own_account_files(
        {
            "serviceaccount.yaml": accounts((_NAME,), _SYNCER_NAMESPACE, labels={}),
            "role.yaml": [
                role_of(_NAME, namespace, rules, labels={})
                for namespace, rules in own.within.items()
            ],
            "rolebinding.yaml": [
                role_binding(_NAME, _SYNCER_NAMESPACE, role=_NAME, **role),
                *(
                    role_binding(_NAME, namespace, role=shared, **role)
                    for namespace in binding_syncer_rights(values.domain).within
                ),
                *([ring] if values.shard_syncers else []),
            ],
            "clusterrole.yaml": [cluster_role_of(_NAME, own.everywhere, labels={})],
            "clusterrolebinding.yaml": [
                cluster_role_binding(_NAME, role=_NAME, **role),
                # Not `-shared`: that of an earlier version refers to another role, and a role
                # reference cannot be changed.
                cluster_role_binding(
                    f"{_NAME}-common", role=binding_syncer_role(values.domain), **role
                ),
            ],
        }
    )


def ring_role(domain: Domain) -> str:
    """Return the name of the Role that lets syncers divide the work of a binding."""
    return f"{domain.syncer}-sharding"


def _proxier_account() -> dict[str, str]:
    """Return the template files of the ServiceAccount for the proxiers of one binding."""
    secrets = (_SECRET, "{{- if .TLSEnabled }}", "{{.TLSSecretName}}", "{{- end }}")
    own = proxier_own_rights(secrets, _PROXIER_NAMESPACE)
    subject = {"kind": "ServiceAccount", "name": _NAME, "namespace": _PROXIER_NAMESPACE}
    role = {"subject": subject, "labels": {}}
    return _own_account_files(
        {
            "serviceaccount.yaml": accounts((_NAME,), _PROXIER_NAMESPACE, labels={}),
            "role.yaml": [
                role_of(_NAME, namespace, rules, labels={})
                for namespace, rules in own.within.items()
            ],
            "rolebinding.yaml": [role_binding(_NAME, _PROXIER_NAMESPACE, role=_NAME, **role)],
            "clusterrolebinding.yaml": [
                cluster_role_binding(f"{_NAME}-shared", role=_SHARED_ROLE, **role)
            ],
        }
    )


def _own_account(values: Values, files: dict[str, str]) -> dict[str, str]:
    """Return the files by which each binding has an account of its own.

    There are none for a management cluster: its programs have credentials of the accounts in the
    computing cluster that all bindings share.
    """
    return {} if values.management else files | {"accountPerBinding": group.TRUE}


def _own_account_files(objects: dict[str, list[Json]]) -> dict[str, str]:
    """Return template files that render to nothing for a binding with the shared account."""
    return {
        file: "{{- if .OwnAccount }}\n" + "---\n".join(map(text, bodies)) + "{{- end }}\n"
        for file, bodies in objects.items()
    }


def _budget(deployment: Json) -> Json:
    """Return the PodDisruptionBudget of a binding's syncers or proxiers."""
    metadata, selector = deployment["metadata"], deployment["spec"]["selector"]["matchLabels"]
    return disruption_budget(
        metadata["name"], metadata["namespace"], selector, labels=metadata["labels"]
    )


def component_autoscaler(values: Values, component: str) -> Json:
    """Return the autoscaler of a binding's syncers or proxiers.

    :raises KeyError: the values do not scale the component.
    """
    deployments = {
        group.COMPONENT_SYNCER: syncer_deployment,
        group.COMPONENT_PROXIER: proxier_deployment,
    }
    metadata = deployments[component](values)["metadata"]
    return read_object(
        "templates/horizontalpodautoscaler.yaml",
        namespace=metadata["namespace"],
        labels=metadata["labels"],
        min_replicas=values.replicas_of(component),
        max_replicas=values.max_replicas[component],
        cpu_percent=values.target_cpu_percent,
    )


def _autoscaler_file(values: Values, component: str) -> dict[str, str]:
    if component not in values.max_replicas:
        return {}
    return {AUTOSCALER_FILE: text(component_autoscaler(values, component))}


def program_values(values: Values) -> Json:
    """Return the values of placeholders that the pods of all programs have."""
    return {
        "values": values,
        "domain": values.domain,
        "pull_secrets": [{"name": name} for name in values.pull_secrets] or None,
        "tolerations": [toleration(taint) for taint in values.tolerations] or None,
    }


def management_values(values: Values, component: str) -> Json:
    """Return the values of placeholders by which a program in a management cluster reaches the
    computing cluster."""
    if not values.management:
        names = ("management_arguments", "management_mounts", "management_volumes")
        return dict.fromkeys(names)
    fields = read_object("management_access.yaml", secret=computing_secret(values, component))
    return {
        "management_arguments": fields["args"],
        "management_mounts": fields["volumeMounts"],
        "management_volumes": fields["volumes"],
    }


def computing_secret(values: Values, component: str) -> str:
    """Return the name of the management cluster's Secret with a kubeconfig of the computing one."""
    return f"{values.domain.product}-{component}-computing"

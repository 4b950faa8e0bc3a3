"""Objects of an installation in the computing cluster, in the order of creation.

The objects are deleted in the opposite order. The ClusterBinding CRD is deleted only on request,
because all ClusterBindings are deleted with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from kubeocean.api import group
from kubeocean.api.crds import binding_definition
from kubeocean.api.group import Domain
from kubeocean.install.data_files import read_object, read_objects, read_text
from kubeocean.install.limits import computing_guards, shared_budgets
from kubeocean.install.object_parts import (
    RBAC,
    accounts,
    cluster_role_of,
    granted,
    labels,
    role_binding,
    title,
    user_of,
)
from kubeocean.install.permissions import Rights, Rule
from kubeocean.install.roles import (
    AUTHENTICATION_READER,
    binding_syncer_rights,
    binding_syncer_role,
    manager_rights,
    proxier_rights,
    secret_role,
    secret_rules,
    shared_proxier_rights,
    shared_syncer_rights,
    syncer_rights,
)
from kubeocean.install.templates import (
    management_values,
    program_values,
    proxier_files,
    ring_role,
    syncer_files,
)
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json

__all__ = [
    "alert_rules",
    "computing_admission",
    "computing_objects",
    "dashboard",
    "kept",
    "manager_deployment",
    "metrics_reader",
    "monitoring",
    "namespaces",
    "near_control_plane",
    "program_objects",
    "sharding_objects",
    "template_config_map",
    "template_config_maps",
    "withdrawn_objects",
]

# Lets the replicas of a sharded syncer divide the work of a binding.
_RING: Final = (
    Rule(
        ("leases",),
        ("get", "list", "watch", "create", "patch", "delete"),
        "coordination.k8s.io",
    ),
    Rule(("configmaps",), ("get", "list", "watch", "create", "patch")),
)
# The manager deletes the objects of a ring with its binding.
_REMOVAL: Final = (
    Rule(("leases",), ("list", "delete"), "coordination.k8s.io"),
    Rule(("configmaps",), ("get", "delete")),
)


def computing_objects(values: Values) -> list[Json]:
    """Return all objects of an installation in the computing cluster, in the order of creation.

    Objects of programs are among them only if the programs run in the computing cluster.
    """
    return [
        kept(binding_definition()),
        *namespaces(values),
        *_accounts(values),
        *(sharding_objects(values) if values.shard_syncers else ()),
        *(program_objects(values) if not values.management else ()),
        *(computing_admission(values) if values.admission else ()),
    ]


def computing_admission(values: Values) -> list[Json]:
    """Return the admission policies by which the API server limits Kubeocean's accounts."""
    domain = values.domain
    return read_objects(
        "computing/admission.yaml",
        domain=domain,
        manager_user=user_of(values.namespace, domain.manager),
        syncer_user=user_of(values.namespace, domain.syncer),
        proxier_user=user_of(values.namespace, domain.proxier),
        kept_namespaces=", ".join(f"'{each}'" for each in sorted(domain.system_namespaces)),
        secret_role=secret_role(domain),
    )


def program_objects(values: Values) -> list[Json]:
    """Return the manager, its templates, and the limits and monitoring objects of all programs."""
    return [
        *template_config_maps(values),
        manager_deployment(values),
        *computing_guards(values),
        *(monitoring(values) if values.monitoring else ()),
    ]


def withdrawn_objects(values: Values) -> list[Json]:
    """Return the objects that only other values or earlier versions would create."""
    values = replace(values, management="")  # the programs' objects are wherever these run
    titles = {title(each) for each in computing_objects(values)}
    everything = replace(
        values, network_policies=True, monitoring=True, admission=True, shard_syncers=True
    )
    return [
        each
        for each in (
            *computing_objects(everything),
            *shared_budgets(values),
            *_earlier_roles(values),
        )
        if title(each) not in titles
    ]


def kept(body: Json) -> Json:
    """Return the object with the annotation that keeps it when a Helm release is uninstalled."""
    metadata = body["metadata"]
    annotations = {**metadata.get("annotations", {}), group.ANNOTATION_HELM_KEEP: "keep"}
    return body | {"metadata": metadata | {"annotations": annotations}}


def namespaces(values: Values) -> list[Json]:
    """Return the system namespace, and the namespace of host port placeholders."""
    return read_objects(
        "computing/namespaces.yaml", domain=values.domain, management=values.management or None
    )


def _accounts(values: Values) -> list[Json]:
    """Return the ServiceAccounts and roles of the manager, of syncers and of proxiers.

    The manager binds the roles of syncers and proxiers, and in single namespaces the role for
    Secrets, to the accounts that it creates for each binding. Templates that name an account, and
    bindings with a Secret in another namespace, use the accounts that all bindings share.
    """
    domain, namespace, ours = values.domain, values.namespace, labels(values.domain)
    objects = accounts((domain.manager, domain.syncer, domain.proxier), namespace, labels=ours)
    for name, account, rights in (
        (domain.manager, domain.manager, manager_rights(domain)),
        (domain.syncer, domain.syncer, syncer_rights(domain)),
        (f"{domain.product}-shared-syncer", domain.syncer, shared_syncer_rights(domain)),
        (domain.proxier, domain.proxier, proxier_rights()),
        (f"{domain.product}-shared-proxier", domain.proxier, shared_proxier_rights(domain)),
    ):
        objects += granted(name, rights, account=account, namespace=namespace, labels=ours)
    for role, rules in (
        (binding_syncer_role(domain), binding_syncer_rights(domain).everywhere),
        (secret_role(domain), secret_rules()),
    ):
        objects.append(cluster_role_of(role, rules, labels=ours))
    # For future accounts, too. The role only allows to read public certificates.
    everyone = {"kind": "Group", "apiGroup": RBAC, "name": f"system:serviceaccounts:{namespace}"}
    reader = role_binding(
        f"{domain.proxier}-authentication",
        group.SYSTEM_NAMESPACE,
        role=AUTHENTICATION_READER,
        subject=everyone,
        labels=ours,
    )
    return [*objects, reader, *(() if values.management else (metrics_reader(domain),))]


def metrics_reader(domain: Domain) -> Json:
    """Return the ClusterRole, of the cluster with our programs, that lets an account read their
    metrics."""
    metrics = Rule((), ("get",), urls=("/metrics",))
    return cluster_role_of(f"{domain.product}-metrics-reader", (metrics,), labels=labels(domain))


def sharding_objects(values: Values) -> list[Json]:
    """Return the further roles that sharded syncers, and the manager that deletes them, need.

    The manager binds the role to the accounts that it creates for the syncers of each binding.
    """
    domain, namespace = values.domain, values.namespace
    binds = Rule(("roles",), ("bind",), RBAC, (ring_role(domain),))
    objects: list[Json] = []
    for name, account, rules in (
        (ring_role(domain), domain.syncer, _RING),
        (f"{domain.manager}-unsharding", domain.manager, (*_REMOVAL, binds)),
    ):
        rights = Rights(within={namespace: rules})
        objects += granted(
            name, rights, account=account, namespace=namespace, labels=labels(domain)
        )
    return objects


def _earlier_roles(values: Values) -> list[Json]:
    """Return the roles that earlier versions gave shared accounts in the system namespace."""
    domain, namespace, ours = values.domain, values.namespace, labels(values.domain)
    objects = []
    for name in (domain.syncer, domain.proxier):
        rights = Rights(within={namespace: ()})
        objects += granted(name, rights, account=name, namespace=namespace, labels=ours)
    return objects


def template_config_maps(values: Values) -> list[Json]:
    """Return the ConfigMaps with the templates of syncers and proxiers."""
    return [
        template_config_map(values, group.COMPONENT_SYNCER, syncer_files(values)),
        template_config_map(values, group.COMPONENT_PROXIER, proxier_files(values)),
    ]


def template_config_map(values: Values, component: str, files: dict[str, str]) -> Json:
    """Return the ConfigMap with the templates of one component."""
    return read_object(
        "templates/config_map.yaml", domain=values.domain, component=component, files=files
    )


def manager_deployment(values: Values) -> Json:
    """Return the Deployment of the manager."""
    component, fields = group.COMPONENT_MANAGER, program_values(values)
    preferences: list[Json] | None = None
    if values.near_control_plane:
        near = near_control_plane()
        preferences = near["preferences"]
        fields["tolerations"] = [*(fields["tolerations"] or ()), near["toleration"]]
    return read_object(
        "computing/manager.yaml",
        replicas=values.replicas_of(component),
        near_control_plane=preferences,
        **fields,
        **management_values(values, component),
    )


def near_control_plane() -> Json:
    """Return the preferences and the toleration of a manager near the control plane."""
    return read_object("computing/near_control_plane.yaml")


def monitoring(values: Values) -> list[Json]:
    """Return a Service for all metrics ports, its ServiceMonitor, the alerts and the dashboard."""
    return read_objects(
        "monitoring/objects.yaml",
        domain=values.domain,
        alerts=alert_rules(values.domain),
        dashboard=dashboard(indent=1),
    )


def alert_rules(domain: Domain) -> Json:
    """Return the alerts as a group of Prometheus rules."""
    return read_object("monitoring/alerts.yaml", domain=domain)


def dashboard(*, indent: int) -> str:
    """Return the JSON of the Grafana dashboard."""
    return f"{msgspec.json.format(read_text('monitoring/dashboard.json'), indent=indent)}\n"

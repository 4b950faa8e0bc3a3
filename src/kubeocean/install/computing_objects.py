"""Objects of an installation in the computing cluster, in the order of creation.

The objects are deleted in the opposite order. The ClusterBinding CRD is deleted only on request,
because all ClusterBindings are deleted with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.crds import binding_definition
from kubeocean.api.group import Domain
from kubeocean.install.computing_admission import computing_admission
from kubeocean.install.limits import computing_guards, shared_budgets
from kubeocean.install.monitoring import monitoring
from kubeocean.install.object_parts import (
    RBAC,
    accounts,
    cluster_role_of,
    granted,
    labels,
    named,
    role_binding,
    title,
)
from kubeocean.install.permissions import Rights, Rule
from kubeocean.install.roles import (
    AUTHENTICATION_READER,
    manager_rights,
    proxier_rights,
    shared_proxier_rights,
    shared_syncer_rights,
    syncer_rights,
)
from kubeocean.install.scaling import sharding_objects
from kubeocean.install.templates import (
    container,
    metrics_flags,
    pod_spec,
    proxier_files,
    syncer_files,
    use_management,
)
from kubeocean.install.values import Values
from kubeocean.runtime.objects import Json

__all__ = [
    "CONTROL_PLANE_TOLERATION",
    "NEAR_CONTROL_PLANE",
    "PREFERRED",
    "computing_objects",
    "kept",
    "manager_deployment",
    "metrics_reader",
    "namespaces",
    "program_objects",
    "template_config_map",
    "template_config_maps",
    "withdrawn_objects",
]

_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
NEAR_CONTROL_PLANE: Final[Json] = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": _CONTROL_PLANE, "operator": "Exists"}]},
}
CONTROL_PLANE_TOLERATION: Final[Json] = {
    "key": _CONTROL_PLANE,
    "operator": "Exists",
    "effect": "NoSchedule",
}
_SYNCER_VOLUME: Final = "syncer-template"
_PROXIER_VOLUME: Final = "proxier-template"


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
    domain = values.domain
    ours = labels(domain)
    restricted = {group.LABEL_POD_SECURITY: "restricted"}
    # Placeholder pods reserve host ports; no kubelet runs them.
    privileged = {domain.managed_by: domain.product, group.LABEL_POD_SECURITY: "privileged"}
    # Bindings and virtual nodes are kept by Helm; their kubeconfigs and syncers must be, too.
    system = kept(named("Namespace", "v1", values.namespace, labels=ours | restricted))
    if values.management:
        system["metadata"]["annotations"][domain.management_cluster_id] = values.management
    return [
        system,
        kept(named("Namespace", "v1", domain.host_port_namespace, labels=ours | privileged)),
    ]


def _accounts(values: Values) -> list[Json]:
    """Return the ServiceAccounts and roles of the manager, of syncers and of proxiers.

    The manager binds the roles of syncers and proxiers to the accounts that it creates for each
    binding. Templates that name an account, and bindings with a Secret in another namespace, use
    the accounts that all bindings share.
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
    return named(
        "ConfigMap",
        "v1",
        f"{values.domain.product}-{component}-template",
        namespace=values.namespace,
        labels=labels(values.domain),
        data=files,
    )


def manager_deployment(values: Values) -> Json:
    """Return the Deployment of the manager."""
    domain, component = values.domain, group.COMPONENT_MANAGER
    arguments = [
        *metrics_flags(),
        f"--health-probe-bind-address=:{group.HEALTH_PORT}",
        "--leader-elect=true",
        f"--leader-election-id={naming.manager_election(domain)}",
        f"--label-domain={domain.name}",
        "--zap-encoder=json",
        f"--zap-log-level={values.log_level}",
    ]
    program = container(values, component, arguments)
    program["volumeMounts"] = [
        *program.get("volumeMounts", ()),
        {"name": _SYNCER_VOLUME, "mountPath": group.SYNCER_TEMPLATES, "readOnly": True},
        {"name": _PROXIER_VOLUME, "mountPath": group.PROXIER_TEMPLATES, "readOnly": True},
    ]
    selector = {group.APP_NAME: domain.manager}
    pod = pod_spec(values, account=domain.manager, containers=[program], selector=selector)
    use_management(values, component, pod)
    if values.near_control_plane:
        pod["affinity"]["nodeAffinity"] |= {PREFERRED: [NEAR_CONTROL_PLANE]}
        pod["tolerations"] = [*pod.get("tolerations", ()), CONTROL_PLANE_TOLERATION]
    pod["volumes"] = [
        *pod.get("volumes", ()),
        *(
            {"name": name, "configMap": {"name": f"{domain.product}-{name}"}}
            for name in (_SYNCER_VOLUME, _PROXIER_VOLUME)
        ),
    ]
    ours = labels(domain, component)
    return named(
        "Deployment",
        "apps/v1",
        domain.manager,
        namespace=values.namespace,
        labels=ours,
        spec={
            "replicas": values.replicas_of(component),
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": ours}, "spec": pod},
        },
    )

"""Templates of syncers and proxiers, which the manager renders for each binding.

The templates are Go text templates with the variables of the earlier implementation, so that
adapted templates stay usable with either manager. The earlier manager ignores the files of
accounts, which use further variables. A conditional encloses whole list entries.
"""

from __future__ import annotations

from typing import Final

import yaml

from kubeocean.api import group
from kubeocean.install.limits import disruption_budget
from kubeocean.install.object_parts import (
    accounts,
    cluster_role_binding,
    cluster_role_of,
    labels,
    named,
    role_binding,
    role_of,
)
from kubeocean.install.roles import proxier_own_rights, syncer_own_rights, syncer_rights
from kubeocean.install.scaling import TEMPLATE_HASH, autoscaler, ring_role
from kubeocean.install.values import Values, toleration
from kubeocean.process.settings import IN_CLUSTER
from kubeocean.runtime.documents import PlainDumper
from kubeocean.runtime.objects import Json

__all__ = [
    "AUTOSCALER_FILE",
    "component_autoscaler",
    "computing_secret",
    "container",
    "metrics_flags",
    "pod_spec",
    "proxier_deployment",
    "proxier_files",
    "proxier_service",
    "syncer_deployment",
    "syncer_files",
    "text",
    "use_management",
]

_BINDING: Final = "{{.ClusterBindingName}}"
_NAME: Final = "{{.DeploymentName}}"
_ACCOUNT: Final = "{{.ServiceAccountName}}"
_SECRET: Final = "{{.SecretName}}"  # noqa: S105 - the name of a variable
_SHARED_ROLE: Final = "{{.ClusterRoleName}}"
_SYNCER_NAMESPACE: Final = "{{.SyncerNamespace}}"
_PROXIER_NAMESPACE: Final = "{{.ProxierNamespace}}"
_NAMESPACES: Final = {
    group.COMPONENT_SYNCER: _SYNCER_NAMESPACE,
    group.COMPONENT_PROXIER: _PROXIER_NAMESPACE,
}
AUTOSCALER_FILE: Final = "horizontalpodautoscaler.yaml"
_COMPUTING: Final = "/etc/kubeocean/computing"
_COMPUTING_VOLUME: Final = "computing"
_IF: Final = "#if "
_END: Final = "#end"
_USER: Final = 65532
_GRACE_S: Final = 30
_PROXIER_GRACE_S: Final = 60  # time for exec and log sessions to end


class _BlockDumper(PlainDumper):
    """YAML dumper that writes multi-line texts as blocks."""


_BlockDumper.add_representer(
    str,
    lambda dumper, data: dumper.represent_scalar(
        "tag:yaml.org,2002:str", data, style="|" if "\n" in data else None
    ),
)


def text(body: Json) -> str:
    """Return the YAML of a template; `#if` and `#end` entries of lists become conditionals."""
    document = yaml.dump(body, Dumper=_BlockDumper, sort_keys=False, width=1000)
    lines = []
    for line in document.splitlines():
        entry = line.strip().removeprefix("- ").strip("'")
        if entry.startswith(_IF):
            lines.append(f"{{{{- if .{entry.removeprefix(_IF)} }}}}")
        elif entry == _END:
            lines.append("{{- end }}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def syncer_files(values: Values) -> dict[str, str]:
    """Return the files of the syncers' template directory, by name."""
    return {
        "deployment.yaml": text(syncer_deployment(values)),
        "poddisruptionbudget.yaml": text(_budget(values, group.COMPONENT_SYNCER)),
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
        "service.yaml": text(proxier_service(values)),
        "poddisruptionbudget.yaml": text(_budget(values, group.COMPONENT_PROXIER)),
        **_autoscaler_file(values, group.COMPONENT_PROXIER),
        **_own_account(values, _proxier_account()),
        "serviceAccountName": values.domain.proxier,
        "proxierNamespace": values.namespace,
        "clusterRoleName": values.domain.proxier,
        "clusterRoleBindingName": values.domain.proxier,
    }


def syncer_deployment(values: Values) -> Json:
    """Return the Deployment of a binding's syncers."""
    arguments = [
        f"--cluster-binding-name={_BINDING}",
        *metrics_flags(),
        f"--health-probe-bind-address=:{group.HEALTH_PORT}",
        "--leader-elect=true",
        f"--leader-election-id={_NAME}",
        *_common(values),
        *([f"--time-zone={values.time_zone}"] if values.time_zone else []),
        *(["--sharding"] if values.shard_syncers else []),
    ]
    component = group.COMPONENT_SYNCER
    body = _deployment(values, component, arguments, namespace=_SYNCER_NAMESPACE)
    if values.shard_syncers:
        body["spec"]["template"]["spec"]["containers"][0]["env"].append(TEMPLATE_HASH)
    return body


def proxier_deployment(values: Values) -> Json:
    """Return the Deployment of a binding's proxiers."""
    component = group.COMPONENT_PROXIER
    arguments = [
        f"--cluster-binding-name={_BINDING}",
        f"--listen-port={group.KUBELET_PORT}",
        *metrics_flags(),
        f"--health-probe-bind-address=:{group.HEALTH_PORT}",
        *_common(values),
        f"{_IF}TLSEnabled",
        "--tls-secret-name={{.TLSSecretName}}",
        "--tls-secret-namespace={{.TLSSecretNamespace}}",
        _END,
    ]
    body = _deployment(values, component, arguments, namespace=_PROXIER_NAMESPACE)
    pod = body["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = _PROXIER_GRACE_S
    proxier = pod["containers"][0]
    # Virtual nodes point to a proxier while its pod is ready, so a proxier that hangs must become
    # unready soon.
    proxier["readinessProbe"] = _probe("/readyz", delay_s=1, period_s=2) | {"failureThreshold": 2}
    proxier["ports"] += [
        {"name": "kubelet", "containerPort": group.KUBELET_PORT},
        {"name": "vnode-metrics", "containerPort": group.VNODE_METRICS_PORT},
    ]
    return body


def proxier_service(values: Values) -> Json:
    """Return the Service of a binding's proxiers."""
    component = group.COMPONENT_PROXIER
    return named(
        "Service",
        "v1",
        "{{.ServiceName}}",
        namespace=_PROXIER_NAMESPACE,
        labels=_labels(values, component),
        spec={
            "selector": _selector(values, component),
            "ports": [
                {"name": "kubelet", "port": group.KUBELET_PORT, "targetPort": "kubelet"},
                {
                    "name": "vnode-metrics",
                    "port": group.VNODE_METRICS_PORT,
                    "targetPort": "vnode-metrics",
                },
            ],
        },
    )


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
                    for namespace in syncer_rights(values.domain).within
                ),
                *([ring] if values.shard_syncers else []),
            ],
            "clusterrole.yaml": [cluster_role_of(_NAME, own.everywhere, labels={})],
            "clusterrolebinding.yaml": [
                cluster_role_binding(_NAME, role=_NAME, **role),
                cluster_role_binding(f"{_NAME}-shared", role=_SHARED_ROLE, **role),
            ],
        }
    )


def _proxier_account() -> dict[str, str]:
    """Return the template files of the ServiceAccount for the proxiers of one binding."""
    secrets = (_SECRET, f"{_IF}TLSEnabled", "{{.TLSSecretName}}", _END)
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


def _budget(values: Values, component: str) -> Json:
    """Return the PodDisruptionBudget of a binding's syncers or proxiers."""
    selector = _selector(values, component)
    return disruption_budget(
        _NAME, _NAMESPACES[component], selector, labels=_labels(values, component)
    )


def component_autoscaler(values: Values, component: str) -> Json:
    """Return the autoscaler of a binding's syncers or proxiers."""
    return autoscaler(
        values,
        component,
        name=_NAME,
        namespace=_NAMESPACES[component],
        labels=_labels(values, component),
    )


def _autoscaler_file(values: Values, component: str) -> dict[str, str]:
    if component not in values.max_replicas:
        return {}
    return {AUTOSCALER_FILE: text(component_autoscaler(values, component))}


def _common(values: Values) -> list[str]:
    return [
        f"--label-domain={values.domain.name}",
        f"--kubeconfig-namespaces={','.join(values.secret_namespaces)}",
        "--zap-encoder=json",
        f"--zap-log-level={values.log_level}",
    ]


def _selector(values: Values, component: str) -> dict[str, str]:
    return {
        group.APP_NAME: f"{values.domain.product}-{component}",
        group.APP_INSTANCE: _BINDING,
    }


def _labels(values: Values, component: str) -> dict[str, str]:
    domain = values.domain
    return {
        **labels(domain, component),
        group.APP_INSTANCE: _BINDING,
        group.APP_MANAGED_BY: domain.manager,
        group.LABEL_K8S_APP: _NAME,
        domain.cluster_binding: _BINDING,
    }


def _deployment(values: Values, component: str, arguments: list[str], *, namespace: str) -> Json:
    pod_labels = _labels(values, component)
    selector = _selector(values, component)
    pod = pod_spec(
        values,
        account=_ACCOUNT,
        containers=[
            container(
                values,
                component,
                arguments,
                env=[{"name": group.ENV_BINDING_NAME, "value": _BINDING}],
            )
        ],
        selector=selector,
    )
    use_management(values, component, pod)
    return named(
        "Deployment",
        "apps/v1",
        _NAME,
        namespace=namespace,
        labels=pod_labels,
        spec={
            "replicas": values.replicas_of(component),
            "selector": {"matchLabels": selector},
            "template": {"metadata": {"labels": pod_labels}, "spec": pod},
        },
    )


def pod_spec(
    values: Values, *, account: str, containers: list[Json], selector: dict[str, str]
) -> Json:
    """Return the spec of unprivileged pods that are not scheduled to virtual nodes."""
    not_virtual = {
        "key": group.LABEL_INSTANCE_TYPE,
        "operator": "NotIn",
        "values": [group.INSTANCE_TYPE_VNODE],
    }
    terms = [{"matchExpressions": [not_virtual]}]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pulled = [{"name": name} for name in values.pull_secrets]
    tolerated = [toleration(taint) for taint in values.tolerations]
    return {
        "serviceAccountName": account,
        **({"imagePullSecrets": pulled} if pulled else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}},
        **({"tolerations": tolerated} if tolerated else {}),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": group.LABEL_HOSTNAME,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector},
            }
        ],
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": containers,
    }


def use_management(values: Values, component: str, pod: Json) -> None:
    """Let the program of a pod in the management cluster reach the computing cluster."""
    if not values.management:
        return
    (program,) = pod["containers"]
    program["args"] += [
        f"--kubeconfig={_COMPUTING}/{group.KUBECONFIG_KEY}",
        f"--management-kubeconfig={IN_CLUSTER}",
    ]
    mount = {"name": _COMPUTING_VOLUME, "mountPath": _COMPUTING, "readOnly": True}
    secret = {"secretName": computing_secret(values, component)}
    program.setdefault("volumeMounts", []).append(mount)
    pod.setdefault("volumes", []).append({"name": _COMPUTING_VOLUME, "secret": secret})


def computing_secret(values: Values, component: str) -> str:
    """Return the name of the management cluster's Secret with a kubeconfig of the computing one."""
    return f"{values.domain.product}-{component}-computing"


def metrics_flags() -> list[str]:
    """Return the flags with which programs serve metrics to authorized callers."""
    return [f"--metrics-bind-address=:{group.METRICS_PORT}", "--metrics-secure=true"]


def container(
    values: Values, component: str, arguments: list[str], *, env: list[Json] | None = None
) -> Json:
    """Return the container that runs one of Kubeocean's programs."""
    return {
        "name": component,
        "image": values.image,
        "imagePullPolicy": values.pull_policy,
        "args": [component, *arguments],
        "env": [
            _field(group.ENV_POD_NAME, "metadata.name"),
            _field(group.ENV_POD_NAMESPACE, "metadata.namespace"),
            _field(group.ENV_POD_IP, "status.podIP"),
            *(env or []),
        ],
        "ports": [
            {"name": "metrics", "containerPort": group.METRICS_PORT},
            {"name": "health", "containerPort": group.HEALTH_PORT},
        ],
        "livenessProbe": _probe("/healthz", delay_s=15, period_s=20),
        "readinessProbe": _probe("/readyz", delay_s=5, period_s=10),
        "resources": values.size.resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probe(path: str, *, delay_s: int, period_s: int) -> Json:
    return {
        "httpGet": {"path": path, "port": "health"},
        "initialDelaySeconds": delay_s,
        "periodSeconds": period_s,
    }

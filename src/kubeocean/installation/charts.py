"""Charts: both sides for Helm, made from the same objects as everything else.

Values have the names of the earlier implementation's charts. The label domain is the usual one;
`kubeocean install` has it as an option.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import yaml

from kubeocean import __version__
from kubeocean.api import group
from kubeocean.installation import computing, templates, workerside
from kubeocean.installation.charting import Marks
from kubeocean.installation.guards import computing_guards
from kubeocean.installation.monitoring import monitoring
from kubeocean.installation.rights import Rule
from kubeocean.installation.roles import DEFAULT_ADD_ONS, AddOn, worker_rights
from kubeocean.installation.values import IMAGE, Size, Values, WorkerValues
from kubeocean.runtime.objects import Json

__all__ = ["computing_chart", "worker_chart"]

_COMPONENTS: Final = (group.COMPONENT_MANAGER, group.COMPONENT_SYNCER, group.COMPONENT_PROXIER)
_NOTE: Final = "# Made by scripts/manifests; do not edit.\n"
_HELPERS: Final = """\
{{- define "kubeocean.image" -}}
{{- $image := .component.image -}}
{{- with .root.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "kubeocean.resources" -}}
{{- if .component.resources }}
{{- toYaml .component.resources }}
{{- else if hasKey .root.Values.sizes .root.Values.size }}
{{- toYaml (index .root.Values.sizes .root.Values.size) }}
{{- else }}
{{- fail (printf "size: must be small, medium or large (got %q)" .root.Values.size) }}
{{- end }}
{{- end }}
"""
_WORKER_HELPERS: Final = """\
{{- define "kubeocean.suffix" -}}
{{- if eq .Values.namespace.name "default" }}
{{- fail "namespace.name: must not be default; use kubeocean join for that" }}
{{- end -}}
{{ if ne .Values.namespace.name "kubeocean-worker" }}-{{ .Values.namespace.name }}{{ end }}
{{- end }}
"""
# Each is absent unless it is given.
_POD_OPTIONS: Final = "\n".join(
    f"{{{{- with .Values.global.{value} }}}}\n"
    f"\t{value}: {{{{- toYaml . | nindent {{depth}} }}}}\n{{{{- end }}}}"
    for value in ("imagePullSecrets", "nodeSelector", "tolerations")
)


def computing_chart() -> dict[str, str]:
    """The files of `charts/kubeocean`, by name."""
    values, marks = Values(), Marks()
    network = computing_guards(values)
    budgets = computing_guards(replace(values, network_policies=False))
    everything = computing.computing_objects(values)
    definition, namespaces = everything[0], computing.namespaces(values)
    roles = [
        each
        for each in everything
        if each["kind"] == "ServiceAccount" or "rbac." in each["apiVersion"]
    ]
    manager = _marked(computing.manager_deployment(values), group.COMPONENT_MANAGER, marks, at=6)
    return {
        "Chart.yaml": _chart("kubeocean", "The computing cluster's side of Kubeocean."),
        "values.yaml": _NOTE + _dump(_values()),
        "templates/_helpers.tpl": _HELPERS,
        "templates/definition.yaml": marks.text([definition], condition=".Values.crd.enabled"),
        "templates/namespace.yaml": marks.text(
            namespaces[:1], condition=".Values.namespace.create"
        ),
        "templates/reservations.yaml": marks.text(namespaces[1:]),
        "templates/roles.yaml": marks.text(roles),
        "templates/templates.yaml": marks.text(_template_maps(values, marks)),
        "templates/manager.yaml": marks.text([manager]),
        "templates/budgets.yaml": marks.text(budgets),
        "templates/networkpolicies.yaml": marks.text(
            network[len(budgets) :], condition=".Values.networkPolicies.enabled"
        ),
        "templates/monitoring.yaml": marks.text(
            monitoring(values), condition=".Values.monitoring.enabled"
        ),
    }


def _template_maps(values: Values, marks: Marks) -> list[Json]:
    syncer = _marked(templates.syncer_deployment(values), group.COMPONENT_SYNCER, marks, at=10)
    zone = "{{- with .Values.syncer.timeZone }}\n\t- --time-zone={{ . }}\n{{- end }}"
    syncer["spec"]["template"]["spec"]["containers"][0]["args"].append(marks.line(zone))
    proxier = _marked(templates.proxier_deployment(values), group.COMPONENT_PROXIER, marks, at=10)
    files = {
        group.COMPONENT_SYNCER: (templates.syncer_files(values), syncer),
        group.COMPONENT_PROXIER: (templates.proxier_files(values), proxier),
    }
    return [
        computing.template_config_map(
            values, component, found | {"deployment.yaml": templates.text(deployment)}
        )
        for component, (found, deployment) in files.items()
    ]


def _marked(deployment: Json, component: str, marks: Marks, *, at: int) -> Json:
    """A Deployment with values instead of ours; its pod's fields stand at column `at`."""
    which = f'(dict "root" $ "component" .Values.{component})'
    deployment["spec"]["replicas"] = marks.value(f".Values.{component}.replicas")
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["image"] = marks.value(f'include "kubeocean.image" {which}')
    container["imagePullPolicy"] = marks.value(
        f".Values.{component}.image.pullPolicy | default .Values.global.imagePullPolicy"
    )
    container["resources"] = marks.tree(f'include "kubeocean.resources" {which}')
    own = Values().namespace
    said = {
        "--zap-log-level": ".Values.logging.level",
        "--kubeconfig-namespaces": f'join "," (prepend .Values.kubeconfigNamespaces "{own}")',
    }
    flags = ((each, each.partition("=")[0]) for each in container["args"])
    container["args"] = [
        f"{flag}={marks.value(said[flag])}" if flag in said else each for each, flag in flags
    ]
    pod[marks.line(_POD_OPTIONS.replace("{depth}", str(at + 2)))] = ""
    return deployment


def _values() -> Json:
    repository, _, _ = IMAGE.partition(":")
    image = {"repository": repository, "tag": "", "pullPolicy": ""}
    found: Json = {
        "global": {
            "imageRegistry": "",
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": [],
            "nodeSelector": {},
            "tolerations": [],
        },
        "size": str(Size.SMALL),
        "sizes": {str(size): size.resources for size in Size},
    }
    for component in _COMPONENTS:
        found[component] = {"image": dict(image), "replicas": 2, "resources": {}}
    found[group.COMPONENT_SYNCER]["timeZone"] = ""
    return found | {
        "namespace": {"create": True},
        "crd": {"enabled": True},
        "logging": {"level": "info"},
        "kubeconfigNamespaces": [],
        "networkPolicies": {"enabled": True},
        "monitoring": {"enabled": False},
    }


# The worker


def worker_chart() -> dict[str, str]:
    """The files of `charts/kubeocean-worker`, by name."""
    marks = Marks()
    namespace = marks.value(".Values.namespace.name")
    values = WorkerValues(namespace=namespace, add_ons=tuple(AddOn), isolated=True)
    suffix = marks.value('include "kubeocean.suffix" .')
    roles = {
        values.cluster_role: f"{values.account}{suffix}",
        values.metrics_role: f"{values.metrics_account}{suffix}",
    }
    metrics = workerside.metrics_objects(values)
    everything = _worker_objects(values, marks)
    objects = [_renamed(each, roles) for each in everything if each not in metrics]
    by_kind = {kind: [each for each in objects if each["kind"] == kind] for kind in _kinds(objects)}
    quota = by_kind.pop("ResourceQuota")
    quota[0]["spec"]["hard"] = marks.tree("toYaml .Values.quota")
    walls = by_kind.pop("NetworkPolicy")
    return {
        "Chart.yaml": _chart("kubeocean-worker", "A worker's side of Kubeocean."),
        "values.yaml": _NOTE + _dump(_worker_values()),
        "templates/_helpers.tpl": _WORKER_HELPERS,
        "templates/definition.yaml": marks.text(
            by_kind.pop("CustomResourceDefinition"), condition=".Values.crd.enabled"
        ),
        "templates/namespace.yaml": marks.text(
            by_kind.pop("Namespace"), condition=".Values.namespace.create"
        ),
        "templates/roles.yaml": marks.text(each for kind in by_kind.values() for each in kind),
        "templates/metrics.yaml": marks.text(
            (_renamed(each, roles) for each in metrics), condition=_chosen(AddOn.METRICS)
        ),
        "templates/quota.yaml": marks.text(quota, condition=".Values.quota"),
        "templates/networkpolicy.yaml": marks.text(walls, condition=".Values.isolated"),
    }


def _kinds(objects: list[Json]) -> list[str]:
    return list(dict.fromkeys(each["kind"] for each in objects))


def _worker_objects(values: WorkerValues, marks: Marks) -> list[Json]:
    """All objects, with each add-on's rules between conditions."""
    mount = values.mount_namespace
    bare = worker_rights(mount, ())
    more = {each: worker_rights(mount, (each,), values.domain) for each in AddOn}
    objects = workerside.worker_objects(values)
    for body in objects:
        kind, name = body["kind"], body["metadata"]["name"]
        if (kind, name) == ("ClusterRole", values.cluster_role):
            gained = {each: rights.everywhere for each, rights in more.items()}
            body["rules"] = _conditional(bare.everywhere, gained, marks)
        elif (kind, name) == ("Role", values.account):
            gained = {each: rights.within[mount] for each, rights in more.items()}
            body["rules"] = _conditional(bare.within[mount], gained, marks)
    return objects


def _conditional(
    always: tuple[Rule, ...], gained: dict[AddOn, tuple[Rule, ...]], marks: Marks
) -> list[Json | str]:
    """Rules that are there always, and those that an add-on has on top of them."""
    found: list[Json | str] = [rule.document() for rule in always]
    for add_on, rules in gained.items():
        if own := rules[len(always) :]:
            begins = marks.line(f"{{{{- if {_chosen(add_on)} }}}}")
            found += [begins, *(rule.document() for rule in own), marks.line("{{- end }}")]
    return found


def _chosen(add_on: AddOn) -> str:
    return f'has "{add_on}" .Values.addOns'


def _renamed(body: Json, roles: dict[str, str]) -> Json:
    """The same, with marks in the names of cluster roles."""
    metadata = body["metadata"]
    if (name := roles.get(metadata["name"])) is not None:
        body = body | {"metadata": metadata | {"name": name}}
    reference = body.get("roleRef", {})
    if (name := roles.get(reference.get("name"))) is not None:
        body = body | {"roleRef": reference | {"name": name}}
    return body


def _worker_values() -> Json:
    values = WorkerValues()
    return {
        "namespace": {"create": True, "name": values.mount_namespace},
        "crd": {"enabled": True},
        "addOns": [str(each) for each in DEFAULT_ADD_ONS],
        "quota": dict(values.quota),
        "isolated": values.isolated,
    }


def _chart(name: str, description: str) -> str:
    return _NOTE + _dump(
        {
            "apiVersion": "v2",
            "name": name,
            "description": description,
            "type": "application",
            "version": __version__,
            "appVersion": __version__,
            "kubeVersion": ">=1.28.0-0",
        }
    )


def _dump(document: Json) -> str:
    return yaml.safe_dump(document, sort_keys=False)

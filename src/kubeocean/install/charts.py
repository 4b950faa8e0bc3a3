"""Renders the Helm charts for computing clusters, workers, hubs and members.

Values have the names of the earlier implementation's charts.

`_Marks` creates placeholders (marks) for Helm values; the label domain is one of them. Marks are
put into objects, and replaced by Helm expressions in the YAML of the objects. Text that is a
template already, such as the manager's templates, is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec
import yaml

from kubeocean import __version__
from kubeocean.api import group
from kubeocean.api.fleet.names import CERT_MANAGER_CERTIFICATE
from kubeocean.api.group import Domain
from kubeocean.install import computing_objects, fleet, templates, worker_admission, worker_objects
from kubeocean.install.computing_admission import computing_admission
from kubeocean.install.computing_objects import (
    CONTROL_PLANE_TOLERATION,
    NEAR_CONTROL_PLANE,
    PREFERRED,
)
from kubeocean.install.fleet_webhooks import WebhookValues
from kubeocean.install.limits import computing_guards
from kubeocean.install.monitoring import monitoring
from kubeocean.install.object_parts import labels, named
from kubeocean.install.permissions import Rule
from kubeocean.install.roles import DEFAULT_ADD_ONS, AddOn, worker_rights
from kubeocean.install.scaling import TEMPLATE_HASH, sharding_objects
from kubeocean.install.values import (
    IMAGE,
    PRODUCTION_MANAGERS,
    PodSecurity,
    Size,
    Values,
    WorkerValues,
)
from kubeocean.install.worker_admission import admission_objects, terms_of
from kubeocean.runtime.objects import Json

__all__ = ["computing_chart", "hub_chart", "member_chart", "worker_chart"]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


_COMPONENTS: Final = (group.COMPONENT_MANAGER, group.COMPONENT_SYNCER, group.COMPONENT_PROXIER)
_NOTE: Final = "# Made by scripts/manifests; do not edit.\n"
_PRODUCT: Final = """\
{{- define "kubeocean.product" -}}
{{- $domain := .Values.labelDomain -}}
{{- $label := "[a-z0-9]([a-z0-9-]*[a-z0-9])?" -}}
{{- if not (regexMatch (printf "^%s([.]%s)*$" $label $label) $domain) }}
{{- fail (printf "labelDomain: must be a lowercase DNS subdomain (got %q)" $domain) }}
{{- end -}}
{{ splitList "." $domain | first }}
{{- end }}

"""
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
{{- define "kubeocean.namespace" -}}
{{- if eq .Values.namespace.name "default" }}
{{- fail "namespace.name: must not be default; use kubeocean join for that" }}
{{- end -}}
{{ .Values.namespace.name | default (printf "%s-worker" (include "kubeocean.product" .)) }}
{{- end }}

{{- define "kubeocean.suffix" -}}
{{- $namespace := include "kubeocean.namespace" . -}}
{{- $own := printf "%s-worker" (include "kubeocean.product" .) -}}
{{ if ne $namespace $own }}-{{ $namespace }}{{ end }}
{{- end }}

{{- define "kubeocean.guests" -}}
{{- if not (has .Values.guests (list "privileged" "baseline" "restricted")) }}
{{- fail (printf "guests: must be privileged, baseline or restricted (got %q)" .Values.guests) }}
{{- end -}}
{{ .Values.guests }}
{{- end }}
"""
# The values of `kubeocean install --preset production`, for `helm install -f`.
_PRODUCTION: Final[Json] = {
    group.COMPONENT_MANAGER: {"replicas": PRODUCTION_MANAGERS, "nearControlPlane": True}
}
_MEMBER_HELPERS: Final = """\
{{- define "kubeocean.member" -}}
{{- $name := required "name: must be the name of the MemberCluster" .Values.name | toString -}}
{{- if gt (len $name) 50 }}
{{- fail (printf "name: must have at most 50 characters (got %q)" $name) }}
{{- end -}}
{{ $name }}
{{- end }}

{{- define "kubeocean.hub" -}}
{{- required "hub.url: must be the URL of the hub's API server" .Values.hub.url -}}
{{- end }}
"""
_HUB_HELPERS: Final = """\
{{- define "kubeocean.connection" -}}
{{- $type := .Values.webhookClientConnectionType -}}
{{- if not (has $type (list "service" "url")) }}
{{- fail (printf "webhookClientConnectionType: must be service or url (got %q)" $type) }}
{{- end -}}
{{ $type }}
{{- end }}
"""
_HUB: Final = "hub"
_MEMBER: Final = "member"
_WEBHOOKS: Final = ".Values.enableWebhook"
_CERTIFICATES: Final = f"and {_WEBHOOKS} .Values.useCertManager"
_CERTIFICATE_SECRET: Final = ".Values.webhookCertSecretName"  # noqa: S105 - the name of a value
_HUB_AUTHORITY: Final = (
    "{{- if and .Values.hub.certificateAuthority (not .Values.hub.insecure) }}\n"
    "\t- name: HUB_CERTIFICATE_AUTHORITY\n"
    "\t  value: {{ .Values.hub.certificateAuthority | b64enc | quote }}\n"
    "{{- end }}"
)
_MORE_ARGUMENTS: Final = (
    "{{{{- range .Values.{component}.args }}}}\n\t- {{{{ . | quote }}}}\n{{{{- end }}}}"
)
# Parts of a member's Deployment that mount the ConfigMap of health checks; the checksum restarts
# the agent when they change.
_CHECKS: Final = ".Values.member.healthChecks"
_CHECKS_DIRECTORY: Final = "/etc/kubeocean/health-checks"
_CHECKS_ARGUMENT: Final = (
    f"{{{{- if {_CHECKS} }}}}\n\t- --health-checks={_CHECKS_DIRECTORY}/checks.yaml\n{{{{- end }}}}"
)
_CHECKS_MOUNT: Final = (
    f"{{{{- if {_CHECKS} }}}}\n"
    "\tvolumeMounts:\n"
    "\t- name: health-checks\n"
    f"\t  mountPath: {_CHECKS_DIRECTORY}\n"
    "\t  readOnly: true\n"
    "{{- end }}"
)
_CHECKS_VOLUME: Final = (
    f"{{{{- if {_CHECKS} }}}}\n"
    "\tvolumes:\n"
    "\t- name: health-checks\n"
    "\t  configMap:\n"
    f"\t    name: {fleet.HEALTH_CHECKS}\n"
    "{{- end }}"
)
_CHECKS_SUM: Final = (
    f"{{{{- if {_CHECKS} }}}}\n"
    "\tannotations:\n"
    f"\t  checksum/health-checks: {{{{ {_CHECKS} | toYaml | sha256sum }}}}\n"
    "{{- end }}"
)
_HAS_ADMISSION: Final = 'semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version'
_UNLESS_PRIVILEGED: Final = '{{- if ne .Values.guests "privileged" }}'
# Each field is absent unless its value is set.
_POD_OPTIONS: Final = "\n".join(
    f"{{{{- with .Values.global.{value} }}}}\n"
    f"\t{value}: {{{{- toYaml . | nindent {{depth}} }}}}\n{{{{- end }}}}"
    for value in ("imagePullSecrets", "nodeSelector", "tolerations")
)
_SHARDING_ARGUMENT: Final = "{{- if .Values.syncer.sharding }}\n\t- --sharding\n{{- end }}"
_SHARDING_VARIABLE: Final = (
    f"{{{{- if .Values.syncer.sharding }}}}\n\t- {_json(TEMPLATE_HASH)}\n{{{{- end }}}}"
)
_NEEDS_SHARDING: Final = """\
{{- if not .Values.syncer.sharding }}
{{- fail "syncer.autoscaling.enabled: needs syncer.sharding; else further replicas are standbys" }}
{{- end }}"""
_MAX_REPLICAS: Final = 6
_WITH_TOLERATIONS: Final = "{{- with .Values.global.tolerations }}"
_CONTROL_PLANE: Final = (
    "{{- $tolerations := .Values.global.tolerations }}\n"
    "{{- if .Values.manager.nearControlPlane }}\n"
    "{{- $tolerations = append $tolerations "
    f"(fromJson `{_json(CONTROL_PLANE_TOLERATION)}`) }}}}\n"
    "{{- end }}\n"
)
_NEAR_CONTROL_PLANE: Final = (
    "{{- if .Values.manager.nearControlPlane }}\n"
    f"\t{PREFERRED}: {_json([NEAR_CONTROL_PLANE])}\n"
    "{{- end }}"
)
# Letters and digits only, so that a mark is a valid name and needs no quotes.
_MARK: Final = re.compile(r"zzhelm(\d+)zz")
# The domain of objects in charts, whose name and product are replaced in the text.
_DOMAIN: Final = Domain("zzdomainzz.io")
_TEMPLATE_ACTION: Final = re.compile(r"\{\{.*?\}\}")
_ENTRY: Final = re.compile(r"^(?P<indent>\s*)(?:- )?'?(?P<mark>zzhelm\d+zz)'?(?:: ?'?'?)?$")
_VALUE: Final = re.compile(r"^(?P<indent>\s*)(?P<key>[\w-]+): (?P<mark>zzhelm\d+zz)$")


class _Marks:
    """Placeholders (marks) in objects of a chart, and the Helm expressions that replace them."""

    def __init__(self) -> None:
        self._inline: dict[str, str] = {}
        self._lines: dict[str, str] = {}
        self._trees: dict[str, str] = {}

    def value(self, expression: str) -> str:
        """Return a mark that is replaced by a Helm expression within a line."""
        return self._new(self._inline, f"{{{{ {expression} }}}}")

    def tree(self, expression: str) -> str:
        """Return a mark that is replaced by a Helm expression for a mapping or list, as a value."""
        return self._new(self._trees, expression)

    def line(self, lines: str) -> str:
        """Return a mark for a whole list entry or key; `\\t` is replaced by its indent."""
        return self._new(self._lines, lines)

    def text(self, objects: Iterable[Json], *, condition: str = "") -> str:
        """Return the objects as the text of a Helm template, with marks replaced."""
        body = "---\n".join(self._one(each) for each in objects)
        return f"{{{{- if {condition} }}}}\n{body}{{{{- end }}}}\n" if condition else body

    def _new(self, table: dict[str, str], content: str) -> str:
        number = len(self._inline) + len(self._lines) + len(self._trees)
        mark = f"zzhelm{number}zz"
        table[mark] = content
        return mark

    def _one(self, body: Json) -> str:
        escaped = _TEMPLATE_ACTION.sub(
            lambda match: f"{{{{ `{match[0]}` }}}}", templates.text(body)
        )
        return "".join(f"{self._replaced(line)}\n" for line in escaped.splitlines())

    def _replaced(self, line: str) -> str:
        return _with_domain(self._filled(line))

    def _filled(self, line: str) -> str:
        entry = _ENTRY.match(line)
        if entry is not None and entry["mark"] in self._lines:
            return self._substituted(self._lines[entry["mark"]].replace("\t", entry["indent"]))
        value = _VALUE.match(line)
        if value is not None and value["mark"] in self._trees:
            depth = len(value["indent"]) + 2
            expression = self._trees[value["mark"]]
            return f"{value['indent']}{value['key']}: {{{{- {expression} | nindent {depth} }}}}"
        return self._substituted(line)

    def _substituted(self, text: str) -> str:
        return _MARK.sub(lambda match: self._inline[match[0]], text)


def _with_domain(text: str) -> str:
    """Return the text with the domain and the product of the chart's values.

    `$` is the root also where a `with` or `range` has changed the dot.
    """
    named_domain = text.replace(_DOMAIN.name, "{{ $.Values.labelDomain }}")
    return named_domain.replace(_DOMAIN.product, '{{ include "kubeocean.product" $ }}')


def computing_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean`, by name."""
    values, marks = Values(domain=_DOMAIN), _Marks()
    network = computing_guards(values)
    budgets = computing_guards(replace(values, network_policies=False))
    everything = computing_objects.computing_objects(values)
    definition, namespaces = everything[0], computing_objects.namespaces(values)
    roles = [
        each
        for each in everything
        if each["kind"] == "ServiceAccount" or "rbac." in each["apiVersion"]
    ]
    manager = _marked(
        computing_objects.manager_deployment(values), group.COMPONENT_MANAGER, marks, at=6
    )
    return {
        "Chart.yaml": _chart("kubeocean", "The computing cluster's side of Kubeocean."),
        "values.yaml": _NOTE + _dump(_values()),
        "values-production.yaml": _NOTE + _dump(_PRODUCTION),
        "templates/_helpers.tpl": _PRODUCT + _HELPERS,
        "templates/definition.yaml": marks.text([definition], condition=".Values.crd.enabled"),
        "templates/namespace.yaml": marks.text(
            namespaces[:1], condition=".Values.namespace.create"
        ),
        "templates/reservations.yaml": marks.text(namespaces[1:]),
        "templates/roles.yaml": marks.text(roles),
        "templates/sharding.yaml": marks.text(
            sharding_objects(values), condition=".Values.syncer.sharding"
        ),
        "templates/templates.yaml": marks.text(_template_maps(values, marks)),
        "templates/manager.yaml": marks.text([manager]),
        "templates/check.yaml": marks.text([_check_job(values, marks)]),
        "templates/budgets.yaml": marks.text(budgets),
        "templates/admission.yaml": marks.text(
            computing_admission(values), condition=_HAS_ADMISSION
        ),
        "templates/networkpolicies.yaml": marks.text(
            network[len(budgets) :], condition=".Values.networkPolicies.enabled"
        ),
        "templates/monitoring.yaml": marks.text(
            monitoring(values), condition=".Values.monitoring.enabled"
        ),
    }


def _check_job(values: Values, marks: _Marks) -> Json:
    """Return the Job by which Helm refuses to uninstall a release while workers are bound."""
    name, domain = f"{values.domain.product}-uninstall", values.domain
    container = templates.container(
        values, "uninstall", ["--check", f"--label-domain={domain.name}"]
    )
    for probe in ("livenessProbe", "readinessProbe", "ports"):
        del container[probe]
    selector = {group.APP_NAME: name}
    pod = templates.pod_spec(
        values, account=domain.manager, containers=[container], selector=selector
    )
    pod["restartPolicy"] = "Never"
    body = named(
        "Job",
        "batch/v1",
        name,
        namespace=values.namespace,
        labels=labels(domain),
        spec={"template": {"metadata": {"labels": labels(domain) | selector}, "spec": pod}},
    )
    body["metadata"]["annotations"] = {
        "helm.sh/hook": "pre-delete",
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    }
    marked = _marked(body, group.COMPONENT_MANAGER, marks, at=6)
    del marked["spec"]["replicas"]
    return body | {"spec": {"backoffLimit": 0, **marked["spec"]}}


def _template_maps(values: Values, marks: _Marks) -> list[Json]:
    syncer = _marked(templates.syncer_deployment(values), group.COMPONENT_SYNCER, marks, at=10)
    zone = "{{- with .Values.syncer.timeZone }}\n\t- --time-zone={{ . }}\n{{- end }}"
    container = syncer["spec"]["template"]["spec"]["containers"][0]
    container["args"] += [marks.line(zone), marks.line(_SHARDING_ARGUMENT)]
    container["env"].append(marks.line(_SHARDING_VARIABLE))
    proxier = _marked(templates.proxier_deployment(values), group.COMPONENT_PROXIER, marks, at=10)
    files = {
        group.COMPONENT_SYNCER: (templates.syncer_files(values), syncer),
        group.COMPONENT_PROXIER: (templates.proxier_files(values), proxier),
    }
    return [
        computing_objects.template_config_map(
            values,
            component,
            content
            | {"deployment.yaml": templates.text(deployment)}
            | (_syncer_role_bindings(values, marks) if deployment is syncer else {})
            | _autoscaler_file(values, component, marks),
        )
        for component, (content, deployment) in files.items()
    ]


def _syncer_role_bindings(values: Values, marks: _Marks) -> dict[str, str]:
    """Return the role bindings of syncers, with that of sharding in a conditional."""
    file, end = "rolebinding.yaml", "{{- end }}\n"
    always, sharded = (
        templates.syncer_files(each)[file].removesuffix(end)
        for each in (values, replace(values, shard_syncers=True))
    )
    begins = marks.line("{{- if .Values.syncer.sharding }}")
    ring = sharded.removeprefix(always)
    return {file: f"{always}{begins}\n{ring}{marks.line('{{- end }}')}\n{end}"}


def _autoscaler_file(values: Values, component: str, marks: _Marks) -> dict[str, str]:
    """Return the autoscaler's template in a conditional."""
    scaled = replace(values, shard_syncers=True, max_replicas={component: values.replicas})
    body = templates.component_autoscaler(scaled, component)
    body["spec"] |= {
        "minReplicas": marks.value(f".Values.{component}.replicas"),
        "maxReplicas": marks.value(f".Values.{component}.autoscaling.maxReplicas"),
    }
    (metric,) = body["spec"]["metrics"]
    metric["resource"]["target"]["averageUtilization"] = marks.value(
        f".Values.{component}.autoscaling.targetCPUUtilizationPercentage"
    )
    begins = f"{{{{- if .Values.{component}.autoscaling.enabled }}}}"
    if component == group.COMPONENT_SYNCER:
        begins += f"\n{_NEEDS_SHARDING}"
    return {
        marks.line(begins): "",
        templates.AUTOSCALER_FILE: templates.text(body),
        marks.line("{{- end }}"): "",
    }


def _marked(deployment: Json, component: str, marks: _Marks, *, at: int) -> Json:
    """Return a Deployment with marks for Helm values; its pod's fields start at column `at`."""
    arguments = f'(dict "root" $ "component" .Values.{component})'
    deployment["spec"]["replicas"] = marks.value(f".Values.{component}.replicas")
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["image"] = marks.value(f'include "kubeocean.image" {arguments}')
    container["imagePullPolicy"] = marks.value(
        f".Values.{component}.image.pullPolicy | default .Values.global.imagePullPolicy"
    )
    container["resources"] = marks.tree(f'include "kubeocean.resources" {arguments}')
    own = '(printf "%s-system" (include "kubeocean.product" .))'
    expressions = {
        "--zap-log-level": ".Values.logging.level",
        "--kubeconfig-namespaces": f'join "," (prepend .Values.kubeconfigNamespaces {own})',
        "--enable-webhook": _WEBHOOKS,
        "--webhook-service-name": ".Values.webhookServiceName",
        "--webhook-client-connection-type": 'include "kubeocean.connection" .',
        "--enable-guard-rail": ".Values.enableGuardRail",
        "--use-cert-manager": ".Values.useCertManager",
    }
    flags = ((each, each.partition("=")[0]) for each in container["args"])
    container["args"] = [
        f"{flag}={marks.value(expressions[flag])}" if flag in expressions else each
        for each, flag in flags
    ]
    options = _POD_OPTIONS.replace("{depth}", str(at + 2))
    if component == group.COMPONENT_MANAGER:
        pod["affinity"]["nodeAffinity"][marks.line(_NEAR_CONTROL_PLANE)] = ""
        options = options.replace(
            _WITH_TOLERATIONS, f"{_CONTROL_PLANE}{{{{- with $tolerations }}}}"
        )
    pod[marks.line(options)] = ""
    return deployment


def _values() -> Json:
    repository, _, _ = IMAGE.partition(":")
    image = {"repository": repository, "tag": "", "pullPolicy": ""}
    values: Json = {
        "labelDomain": group.DEFAULT.name,
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
        values[component] = {"image": dict(image), "replicas": 2, "resources": {}}
    values[group.COMPONENT_MANAGER]["nearControlPlane"] = False
    values[group.COMPONENT_SYNCER] |= {"timeZone": "", "sharding": False}
    for component in (group.COMPONENT_SYNCER, group.COMPONENT_PROXIER):
        values[component]["autoscaling"] = {
            "enabled": False,
            "maxReplicas": _MAX_REPLICAS,
            "targetCPUUtilizationPercentage": Values().target_cpu_percent,
        }
    return values | {
        "namespace": {"create": True},
        "crd": {"enabled": True},
        "logging": {"level": "info"},
        "kubeconfigNamespaces": [],
        "networkPolicies": {"enabled": True},
        "monitoring": {"enabled": False},
    }


def worker_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean-worker`, by name."""
    marks = _Marks()
    namespace = marks.value('include "kubeocean.namespace" .')
    values = WorkerValues(domain=_DOMAIN, namespace=namespace, add_ons=tuple(AddOn), isolated=True)
    suffix = marks.value('include "kubeocean.suffix" .')
    policies = _admission(values, marks)
    renewal = worker_admission.token_policy(values)
    own = f"{values.account}{suffix}"
    roles = {
        values.cluster_role: own,
        values.metrics_role: f"{values.metrics_account}{suffix}",
        **{
            (name := each["metadata"]["name"]): own + name.removeprefix(values.cluster_role)
            for each in policies
        },
    }
    metrics = worker_objects.metrics_objects(values)
    everything = _worker_objects(replace(values, admission=False), marks)
    objects = [_renamed(each, roles) for each in everything if each not in metrics]
    by_kind = {kind: [each for each in objects if each["kind"] == kind] for kind in _kinds(objects)}
    quota = by_kind.pop("ResourceQuota")
    quota[0]["spec"]["hard"] = marks.tree("toYaml .Values.quota")
    isolation, egress = by_kind.pop("NetworkPolicy")
    blocked = "{{- range .Values.egress.blocked }}\n\t- {{ . }}\n{{- end }}"
    for rule in egress["spec"]["egress"]:
        for peer in rule.get("to", ()):
            if peer.get("ipBlock", {}).get("cidr") == "0.0.0.0/0":
                peer["ipBlock"]["except"].append(marks.line(blocked))
    (mount_namespace,) = by_kind.pop("Namespace")
    mount_namespace["metadata"]["labels"][group.LABEL_POD_SECURITY] = marks.value(
        'include "kubeocean.guests" .'
    )
    return {
        "Chart.yaml": _chart("kubeocean-worker", "A worker's side of Kubeocean."),
        "values.yaml": _NOTE + _dump(_worker_values()),
        "templates/_helpers.tpl": _PRODUCT + _WORKER_HELPERS,
        "templates/definition.yaml": marks.text(
            by_kind.pop("CustomResourceDefinition"), condition=".Values.crd.enabled"
        ),
        "templates/namespace.yaml": marks.text(
            [mount_namespace], condition=".Values.namespace.create"
        ),
        "templates/priorityclass.yaml": marks.text(
            by_kind.pop("PriorityClass"), condition=".Values.priorityClass.create"
        ),
        "templates/admission.yaml": marks.text(
            (_renamed(each, roles) for each in policies if each not in renewal),
            condition=_HAS_ADMISSION,
        ),
        "templates/renewal.yaml": marks.text(
            (_renamed(each, roles) for each in renewal), condition=_add_on_condition(AddOn.RENEWAL)
        ),
        "templates/roles.yaml": marks.text(each for kind in by_kind.values() for each in kind),
        "templates/metrics.yaml": marks.text(
            (_renamed(each, roles) for each in metrics), condition=_add_on_condition(AddOn.METRICS)
        ),
        "templates/quota.yaml": marks.text(quota, condition=".Values.quota"),
        "templates/networkpolicy.yaml": marks.text([isolation], condition=".Values.isolated"),
        "templates/egress.yaml": marks.text([egress], condition=".Values.egress.enabled"),
    }


def _admission(values: WorkerValues, marks: _Marks) -> list[Json]:
    """Return the admission policies with marks for the limits that the owner chooses."""
    expressions = {
        "nodes": "toJson .Values.nodes | quote",
        "priorityClasses": (
            "toJson (prepend .Values.priorityClasses "
            '(printf "%s-default" (include "kubeocean.product" .))) | quote'
        ),
        "maxGraceSeconds": "int64 .Values.maxGraceSeconds | quote",
    }
    objects = admission_objects(values)
    always = admission_objects(replace(values, pod_security=PodSecurity.PRIVILEGED))
    for body, bare in zip(objects, always, strict=True):
        for variable in body["spec"].get("variables", ()):
            if (expression := expressions.get(variable["name"])) is not None:
                variable["expression"] = marks.value(expression)
        if (rules := body["spec"].get("validations")) and rules != bare["spec"]["validations"]:
            rules.insert(len(bare["spec"]["validations"]), marks.line(_UNLESS_PRIVILEGED))
            rules.append(marks.line("{{- end }}"))
    return objects


def _kinds(objects: list[Json]) -> list[str]:
    return list(dict.fromkeys(each["kind"] for each in objects))


def _worker_objects(values: WorkerValues, marks: _Marks) -> list[Json]:
    """Return all objects of a worker's chart, with the rules of each add-on in a conditional."""
    mount = values.mount_namespace
    bare = worker_rights(mount, (), values.domain)
    with_add_on = {each: worker_rights(mount, (each,), values.domain) for each in AddOn}
    objects = worker_objects.worker_objects(values)
    for body in objects:
        kind, name = body["kind"], body["metadata"]["name"]
        if (kind, name) == ("ClusterRole", values.cluster_role):
            gained = {each: rights.everywhere for each, rights in with_add_on.items()}
            body["rules"] = _conditional(bare.everywhere, gained, marks)
        elif (kind, name) == ("Role", values.account):
            gained = {each: rights.within[mount] for each, rights in with_add_on.items()}
            body["rules"] = _conditional(bare.within[mount], gained, marks)
    return objects


def _conditional(
    always: tuple[Rule, ...], gained: dict[AddOn, tuple[Rule, ...]], marks: _Marks
) -> list[Json | str]:
    """Return RBAC rules: those always granted, then those of add-ons in Helm conditionals."""
    documents: list[Json | str] = [rule.document() for rule in always]
    for add_on, rules in gained.items():
        if own := rules[len(always) :]:
            begins = marks.line(f"{{{{- if {_add_on_condition(add_on)} }}}}")
            documents += [begins, *(rule.document() for rule in own), marks.line("{{- end }}")]
    return documents


def _add_on_condition(add_on: AddOn) -> str:
    chosen = f'has "{add_on}" .Values.addOns'
    return f"and ({chosen}) ({_HAS_ADMISSION})" if add_on is AddOn.RENEWAL else chosen


def _renamed(body: Json, roles: dict[str, str]) -> Json:
    """Return an object of a worker's chart with marks for the names of ClusterRoles."""
    metadata = body["metadata"]
    if (name := roles.get(metadata["name"])) is not None:
        body = body | {"metadata": metadata | {"name": name}}
    if (name := roles.get(body.get("spec", {}).get("policyName"))) is not None:
        body = body | {"spec": body["spec"] | {"policyName": name}}
    reference = body.get("roleRef", {})
    if (name := roles.get(reference.get("name"))) is not None:
        body = body | {"roleRef": reference | {"name": name}}
    return body


def _worker_values() -> Json:
    values = WorkerValues()
    return {
        "labelDomain": group.DEFAULT.name,
        "namespace": {"create": True, "name": ""},  # empty: that of the domain
        "crd": {"enabled": True},
        "addOns": [str(each) for each in DEFAULT_ADD_ONS],
        "quota": dict(values.quota),
        "isolated": values.isolated,
        "egress": {"enabled": values.egress, "blocked": []},
        "guests": str(values.pod_security),
        "nodes": terms_of(values.nodes),
        "priorityClass": {"create": True},
        "priorityClasses": list(values.priority_classes),
        "maxGraceSeconds": values.max_grace_s,
    }


def hub_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean-fleet-hub`, by name."""
    marks = _Marks()
    webhooks = WebhookValues(
        service=marks.value(".Values.webhookServiceName"),
        certificate_secret=marks.value(_CERTIFICATE_SECRET),
    )
    *others, deployment = fleet.hub_workload(Values(), webhooks)
    by_kind = {each["kind"]: each for each in others}
    _program(_marked(deployment, _HUB, marks, at=6))["args"].append(
        marks.line(_MORE_ARGUMENTS.format(component=_HUB))
    )
    _mount_if_used(deployment, marks)
    return {
        "Chart.yaml": _chart("kubeocean-fleet-hub", "The hub of a fleet of clusters."),
        "values.yaml": _NOTE + _dump(_hub_values()),
        "templates/_helpers.tpl": f"{_HELPERS}\n{_HUB_HELPERS}",
        **_account_files(fleet.hub_objects(), marks),
        "templates/budget.yaml": marks.text([by_kind["PodDisruptionBudget"]]),
        "templates/webhook.yaml": marks.text([by_kind["Service"]], condition=_WEBHOOKS),
        "templates/certificate.yaml": marks.text(
            [by_kind["Issuer"], by_kind["Certificate"]], condition=_CERTIFICATES
        ),
        "templates/hub.yaml": marks.text([deployment]),
    }


def _mount_if_used(deployment: Json, marks: _Marks) -> None:
    """Put the volume of cert-manager's certificate, and its mount, into Helm conditionals."""
    pod = deployment["spec"]["template"]["spec"]
    for part, field in ((pod, "volumes"), (_program(deployment), "volumeMounts")):
        written = {field: part.pop(field)}
        text = yaml.safe_dump(written, sort_keys=False)
        lines = "\n".join(f"\t{line}" for line in text.splitlines())
        part[marks.line(f"{{{{- if {_CERTIFICATES} }}}}\n{lines}\n{{{{- end }}}}")] = ""


def _hub_values() -> Json:
    webhooks = WebhookValues()
    return _fleet_values(_HUB) | {
        "enableWebhook": webhooks.enabled,
        "webhookServiceName": webhooks.service,
        "webhookClientConnectionType": webhooks.connection,
        "enableGuardRail": webhooks.guard_rail,
        "useCertManager": bool(webhooks.certificate_secret),
        "webhookCertSecretName": CERT_MANAGER_CERTIFICATE,
    }


def member_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean-fleet-member`, by name."""
    marks = _Marks()
    connection = fleet.HubConnection(
        marks.value('include "kubeocean.member" . | quote'),
        marks.value('include "kubeocean.hub" . | quote'),
    )
    deployment = fleet.member_deployment(Values(), connection)
    program = _program(_marked(deployment, _MEMBER, marks, at=6))
    program["env"].append(marks.line(_HUB_AUTHORITY))
    program["args"] += [
        marks.line("{{- if .Values.hub.insecure }}\n\t- --tls-insecure\n{{- end }}"),
        marks.line(_CHECKS_ARGUMENT),
        marks.line(_MORE_ARGUMENTS.format(component=_MEMBER)),
    ]
    program[marks.line(_CHECKS_MOUNT)] = ""
    template = deployment["spec"]["template"]
    template["metadata"][marks.line(_CHECKS_SUM)] = ""
    template["spec"][marks.line(_CHECKS_VOLUME)] = ""
    checks = fleet.health_checks_map(marks.value(f"{_CHECKS} | toYaml | quote"))
    secret = fleet.token_secret("")
    secret["data"]["token"] = marks.value(".Values.hub.token | b64enc")
    hub = {"url": "", "certificateAuthority": "", "insecure": False, "token": ""}
    values: Json = {"name": "", "hub": hub} | _fleet_values(_MEMBER)
    values[_MEMBER]["healthChecks"] = {}
    return {
        "Chart.yaml": _chart("kubeocean-fleet-member", "The agent of a member of a fleet."),
        "values.yaml": _NOTE + _dump(values),
        "templates/_helpers.tpl": f"{_HELPERS}\n{_MEMBER_HELPERS}",
        **_account_files(fleet.member_objects(), marks),
        "templates/token.yaml": marks.text([secret], condition=".Values.hub.token"),
        "templates/health-checks.yaml": marks.text([checks], condition=_CHECKS),
        "templates/member.yaml": marks.text([deployment]),
    }


def _account_files(objects: list[Json], marks: _Marks) -> dict[str, str]:
    """Return the chart files for definitions, namespace, account and roles of a fleet program."""
    by_kind = {kind: [each for each in objects if each["kind"] == kind] for kind in _kinds(objects)}
    definitions = by_kind.pop("CustomResourceDefinition")
    namespace = by_kind.pop("Namespace")
    return {
        "templates/definitions.yaml": marks.text(definitions, condition=".Values.crd.enabled"),
        "templates/namespace.yaml": marks.text(namespace, condition=".Values.namespace.create"),
        "templates/roles.yaml": marks.text(each for kind in by_kind.values() for each in kind),
    }


def _program(deployment: Json) -> Json:
    container: Json = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def _fleet_values(component: str) -> Json:
    values = _values()
    shared = ("global", "size", "sizes")
    own = {"image": values[group.COMPONENT_MANAGER]["image"], "replicas": 2, "resources": {}}
    return {name: values[name] for name in shared} | {
        component: own | {"args": []},
        "namespace": {"create": True},
        "crd": {"enabled": True},
        "logging": {"level": "info"},
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

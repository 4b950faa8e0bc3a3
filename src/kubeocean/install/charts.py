"""Renders the Helm charts for computing clusters, workers, hubs and members.

Chart.yaml, values and helpers of each chart are in `data/charts`. Values have the names of the
earlier implementation's charts.

The templates are the objects of an installation. `_Marks` creates placeholders (marks) for Helm
values; the label domain is one of them. Marks are put into objects, and replaced by the Helm
expressions of `data/charts/helm.yaml` in the YAML of the objects. Text that is a template already,
such as the manager's templates, is escaped.
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
from kubeocean.api.group import Domain
from kubeocean.install import computing_objects, fleet, templates, worker_admission, worker_objects
from kubeocean.install.data_files import fill, read_object, read_text, read_unfilled
from kubeocean.install.limits import computing_guards
from kubeocean.install.permissions import Rule
from kubeocean.install.roles import AddOn, worker_rights
from kubeocean.install.values import (
    PRODUCTION_MANAGERS,
    PodSecurity,
    Size,
    Values,
    WorkerValues,
)
from kubeocean.install.worker_admission import admission_objects
from kubeocean.runtime.objects import Json

__all__ = ["computing_chart", "hub_chart", "member_chart", "worker_chart"]

_COMPUTING: Final = "kubeocean"
_WORKER: Final = "kubeocean-worker"
_FLEET_HUB: Final = "kubeocean-fleet-hub"
_FLEET_MEMBER: Final = "kubeocean-fleet-member"
_HUB: Final = "hub"
_MEMBER: Final = "member"
_NOTE: Final = "# Made by scripts/manifests; do not edit.\n"
_HELM: Final = "charts/helm.yaml"
_WEBHOOKS: Final = ".Values.enableWebhook"
_CERTIFICATES: Final = f"and {_WEBHOOKS} .Values.useCertManager"
_HAS_ADMISSION: Final = 'semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version'
_ACTION: Final = "{{-"
_COLUMN: Final = "COLUMN"
# Letters and digits only, so that a mark is a valid name and needs no quotes.
_MARK: Final = re.compile(r"zzhelm(\d+)zz")
# The domain of objects in charts, whose name and product are replaced in the text.
_DOMAIN: Final = Domain("zzdomainzz.io")
_TEMPLATE_ACTION: Final = re.compile(r"\{\{.*?\}\}")
_ENTRY: Final = re.compile(r"^(?P<indent>\s*)(?:- )?'?(?P<mark>zzhelm\d+zz)'?(?:: ?'?'?)?$")
_VALUE: Final = re.compile(r"^(?P<indent>\s*)(?P<key>[\w-]+): (?P<mark>zzhelm\d+zz)$")


class _Marks:
    """Placeholders (marks) in objects of a chart, and the Helm expressions that replace them.

    The expressions and lines are those of `data/charts/helm.yaml`, by name.
    """

    def __init__(self) -> None:
        self._helm = read_unfilled(_HELM)
        self._inline: dict[str, str] = {}
        self._lines: dict[str, str] = {}
        self._trees: dict[str, str] = {}

    def value(self, name: str, **values: str) -> str:
        """Return a mark that is replaced by a Helm expression within a line."""
        return self._new(self._inline, f"{{{{ {self._filled_in('expressions', name, values)} }}}}")

    def tree(self, name: str, **values: str) -> str:
        """Return a mark that is replaced by a Helm expression for a mapping or list, as a value."""
        return self._new(self._trees, self._filled_in("expressions", name, values))

    def line(self, name: str, **values: str) -> str:
        """Return a mark that is replaced by lines, for a whole list entry or key."""
        return self._new(self._lines, self._filled_in("lines", name, values).rstrip("\n"))

    def flag(self, argument: str) -> str:
        """Return an argument of a program with a mark for its value, if Helm has a value for it."""
        return self._known("flags", argument.partition("=")[0], argument)

    def limit(self, variable: str, expression: str) -> str:
        """Return the expression of an admission policy's variable, or a mark for Helm's value."""
        return self._known("limits", variable, expression)

    def text(self, objects: Iterable[Json], *, condition: str = "") -> str:
        """Return the objects as the text of a Helm template, with marks replaced."""
        body = "---\n".join(self._one(each) for each in objects)
        return f"{{{{- if {condition} }}}}\n{body}{{{{- end }}}}\n" if condition else body

    def _filled_in(self, kind: str, name: str, values: dict[str, str]) -> str:
        (text,) = fill([self._helm[kind][name]], values, file=f"{_HELM}, {name}")
        return str(text)

    def _known(self, kind: str, name: str, otherwise: str) -> str:
        if name not in self._helm[kind]:
            return otherwise
        mark = self._new(self._inline, f"{{{{ {self._helm[kind][name]} }}}}")
        return f"{name}={mark}" if kind == "flags" else mark

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
            return self._substituted(_indented(self._lines[entry["mark"]], entry["indent"]))
        value = _VALUE.match(line)
        if value is not None and value["mark"] in self._trees:
            depth = len(value["indent"]) + 2
            expression = self._trees[value["mark"]]
            return f"{value['indent']}{value['key']}: {{{{- {expression} | nindent {depth} }}}}"
        return self._substituted(line)

    def _substituted(self, text: str) -> str:
        return _MARK.sub(lambda match: self._inline[match[0]], text)


def _indented(lines: str, indent: str) -> str:
    """Return lines of a Helm template with this indent, except those that begin with an action."""
    own = (line if line.startswith(_ACTION) else f"{indent}{line}" for line in lines.splitlines())
    return "\n".join(own).replace(_COLUMN, str(len(indent) + 2))


def _with_domain(text: str) -> str:
    """Return the text with Helm expressions in place of the default domain and product name.

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
    manager = _marked(computing_objects.manager_deployment(values), group.COMPONENT_MANAGER, marks)
    return {
        **_chart_files(_COMPUTING, sizes=_sizes()),
        "values-production.yaml": _file(
            f"charts/{_COMPUTING}/values-production.yaml", managers=PRODUCTION_MANAGERS
        ),
        "templates/_helpers.tpl": _helpers("product.tpl", "programs.tpl"),
        "templates/definition.yaml": marks.text([definition], condition=".Values.crd.enabled"),
        "templates/namespace.yaml": marks.text(
            namespaces[:1], condition=".Values.namespace.create"
        ),
        "templates/reservations.yaml": marks.text(namespaces[1:]),
        "templates/roles.yaml": marks.text(roles),
        "templates/sharding.yaml": marks.text(
            computing_objects.sharding_objects(values), condition=".Values.syncer.sharding"
        ),
        "templates/templates.yaml": marks.text(_template_maps(values, marks)),
        "templates/manager.yaml": marks.text([manager]),
        "templates/check.yaml": marks.text([_check_job(values, marks)]),
        "templates/budgets.yaml": marks.text(budgets),
        "templates/admission.yaml": marks.text(
            computing_objects.computing_admission(values), condition=_HAS_ADMISSION
        ),
        "templates/networkpolicies.yaml": marks.text(
            network[len(budgets) :], condition=".Values.networkPolicies.enabled"
        ),
        "templates/monitoring.yaml": marks.text(
            computing_objects.monitoring(values), condition=".Values.monitoring.enabled"
        ),
    }


def _chart_files(chart: str, **values: object) -> dict[str, str]:
    return {
        "Chart.yaml": _file(f"charts/{chart}/Chart.yaml", version=__version__),
        "values.yaml": _file(f"charts/{chart}/values.yaml", **values),
    }


def _file(name: str, **values: object) -> str:
    return _NOTE + yaml.safe_dump(read_object(name, **values), sort_keys=False)


def _helpers(*names: str) -> str:
    return "\n".join(read_text(f"charts/{name}") for name in names)


def _sizes() -> Json:
    return {str(size): size.resources for size in Size}


def _check_job(values: Values, marks: _Marks) -> Json:
    """Return the Job by which Helm refuses to uninstall a release while workers are bound."""
    job = read_object(
        f"charts/{_COMPUTING}/uninstall_check.yaml", values=values, domain=values.domain
    )
    return _marked(job, group.COMPONENT_MANAGER, marks)


def _template_maps(values: Values, marks: _Marks) -> list[Json]:
    syncer = _marked(templates.syncer_deployment(values), group.COMPONENT_SYNCER, marks)
    container = _program(syncer)
    container["args"] += [marks.line("time_zone"), marks.line("sharding_argument")]
    sharded = _program(templates.syncer_deployment(replace(values, shard_syncers=True)))
    variable = _json(templates.template_hash(sharded["env"]))
    container["env"].append(marks.line("sharding_variable", variable=variable))
    proxier = _marked(templates.proxier_deployment(values), group.COMPONENT_PROXIER, marks)
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
    ring = sharded.removeprefix(always)
    return {file: f"{always}{marks.line('if_sharding')}\n{ring}{marks.line('end')}\n{end}"}


def _autoscaler_file(values: Values, component: str, marks: _Marks) -> dict[str, str]:
    """Return the autoscaler's template in a conditional."""
    scaled = replace(values, shard_syncers=True, max_replicas={component: values.replicas})
    body = templates.component_autoscaler(scaled, component)
    body["spec"] |= {
        "minReplicas": marks.value("replicas", component=component),
        "maxReplicas": marks.value("max_replicas", component=component),
    }
    (metric,) = body["spec"]["metrics"]
    metric["resource"]["target"]["averageUtilization"] = marks.value(
        "cpu_percent", component=component
    )
    return {
        marks.line(f"if_{component}_autoscaling"): "",
        templates.AUTOSCALER_FILE: templates.text(body),
        marks.line("end"): "",
    }


def _marked(workload: Json, component: str, marks: _Marks) -> Json:
    """Return a Deployment, or a Job, with marks for Helm values."""
    if "replicas" in workload["spec"]:
        workload["spec"]["replicas"] = marks.value("replicas", component=component)
    pod, container = workload["spec"]["template"]["spec"], _program(workload)
    container["image"] = marks.value("image", component=component)
    container["imagePullPolicy"] = marks.value("pull_policy", component=component)
    container["resources"] = marks.tree("resources", component=component)
    container["args"] = list(map(marks.flag, container["args"]))
    if component == group.COMPONENT_MANAGER:
        near = computing_objects.near_control_plane()
        preferred = marks.line("near_control_plane", preferences=_json(near["preferences"]))
        pod["affinity"]["nodeAffinity"][preferred] = ""
        pod[marks.line("manager_pod_options", toleration=_json(near["toleration"]))] = ""
    else:
        pod[marks.line("pod_options")] = ""
    return workload


def _program(workload: Json) -> Json:
    container: Json = workload["spec"]["template"]["spec"]["containers"][0]
    return container


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def worker_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean-worker`, by name."""
    marks = _Marks()
    namespace = marks.value("namespace")
    values = WorkerValues(domain=_DOMAIN, namespace=namespace, add_ons=tuple(AddOn), isolated=True)
    suffix = marks.value("suffix")
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
    quota[0]["spec"]["hard"] = marks.tree("quota")
    isolation, egress = by_kind.pop("NetworkPolicy")
    for rule in egress["spec"]["egress"]:
        for peer in rule.get("to", ()):
            if peer.get("ipBlock", {}).get("cidr") == "0.0.0.0/0":
                peer["ipBlock"]["except"].append(marks.line("blocked"))
    (mount_namespace,) = by_kind.pop("Namespace")
    mount_namespace["metadata"]["labels"][group.LABEL_POD_SECURITY] = marks.value("guests")
    return {
        **_chart_files(_WORKER),
        "templates/_helpers.tpl": _helpers("product.tpl", f"{_WORKER}/_helpers.tpl"),
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
    objects = admission_objects(values)
    always = admission_objects(replace(values, pod_security=PodSecurity.PRIVILEGED))
    for body, bare in zip(objects, always, strict=True):
        for variable in body["spec"].get("variables", ()):
            variable["expression"] = marks.limit(variable["name"], variable["expression"])
        if (rules := body["spec"].get("validations")) and rules != bare["spec"]["validations"]:
            rules.insert(len(bare["spec"]["validations"]), marks.line("unless_privileged"))
            rules.append(marks.line("end"))
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
            begins = marks.line("if", condition=_add_on_condition(add_on))
            documents += [begins, *(rule.document() for rule in own), marks.line("end")]
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


def hub_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean-fleet-hub`, by name."""
    marks = _Marks()
    webhooks = fleet.WebhookValues(
        service=marks.value("webhook_service"),
        certificate_secret=marks.value("certificate_secret"),
    )
    *others, deployment = fleet.hub_workload(Values(), webhooks)
    by_kind = {each["kind"]: each for each in others}
    more = marks.line("more_arguments", component=_HUB)
    _program(_marked(deployment, _HUB, marks))["args"].append(more)
    _mount_if_used(deployment, marks)
    return {
        **_chart_files(_FLEET_HUB, sizes=_sizes()),
        "templates/_helpers.tpl": _helpers("programs.tpl", f"{_FLEET_HUB}/_helpers.tpl"),
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
        text = yaml.safe_dump({field: part.pop(field)}, sort_keys=False)
        part[marks.line("if_certificate", field=text.rstrip("\n"))] = ""


def member_chart() -> dict[str, str]:
    """Return the files of `charts/kubeocean-fleet-member`, by name."""
    marks = _Marks()
    connection = fleet.HubConnection(marks.value("member"), marks.value("hub_url"))
    deployment = fleet.member_deployment(Values(), connection)
    program = _program(_marked(deployment, _MEMBER, marks))
    program["env"].append(marks.line("hub_authority"))
    program["args"] += [
        marks.line("insecure"),
        marks.line("health_checks_argument"),
        marks.line("more_arguments", component=_MEMBER),
    ]
    program[marks.line("health_checks_mount")] = ""
    template = deployment["spec"]["template"]
    template["metadata"][marks.line("health_checks_sum")] = ""
    template["spec"][marks.line("health_checks_volume")] = ""
    checks = fleet.health_checks_map(marks.value("health_checks"))
    secret = fleet.token_secret("")
    secret["data"]["token"] = marks.value("hub_token")
    return {
        **_chart_files(_FLEET_MEMBER, sizes=_sizes()),
        "templates/_helpers.tpl": _helpers("programs.tpl", f"{_FLEET_MEMBER}/_helpers.tpl"),
        **_account_files(fleet.member_objects(), marks),
        "templates/token.yaml": marks.text([secret], condition=".Values.hub.token"),
        "templates/health-checks.yaml": marks.text(
            [checks], condition=".Values.member.healthChecks"
        ),
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

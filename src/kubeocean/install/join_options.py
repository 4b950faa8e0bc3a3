"""Options of a repeated join: an option that is not given keeps its present value.

`read_present` reads the values that an earlier join, a chart or a user wrote to both clusters;
`requested` merges the options into them; `changes` describes the changes that a join would make.
Values of the mount namespace apply to all bindings in it.

The URL of `--server` is recorded on the Secret of the kubeconfig. Without that record the server of
the administrator's kubeconfig is used, because the address of a worker may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from kubeocean.api.bindings import CLUSTER_BINDINGS, BindingSpec
from kubeocean.api.group import DEFAULT, LABEL_POD_SECURITY, Domain
from kubeocean.api.policies import (
    RESOURCE_LEASING_POLICIES,
    PolicySpec,
    ReclaimSpec,
    ResourceLimit,
    TimeWindow,
)
from kubeocean.errors import ConfigError, NotFound
from kubeocean.install.apply import Applier
from kubeocean.install.credentials import secret_name, server_option
from kubeocean.install.join import JoinRequest
from kubeocean.install.object_parts import title
from kubeocean.install.roles import AddOn, add_on_rule
from kubeocean.install.values import LENDABLE, PodSecurity, WorkerValues
from kubeocean.install.worker_admission import read_limits, selector_of, terms_of
from kubeocean.install.worker_objects import (
    credential_selector,
    metrics_objects,
    with_everything,
    worker_objects,
)
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.objects import Json

__all__ = ["GRACE_S", "JoinOptions", "Present", "changes", "read_present", "requested"]

GRACE_S: Final = 300  # default time between the end of a window and the first eviction
_UNLIMITED: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """Options of `kubeocean join`; None or UNSET means that an option was not given."""

    name: str
    domain: Domain = DEFAULT
    cluster_id: str | None = None
    mount_namespace: str | None = None
    limits: tuple[ResourceLimit, ...] | None = None
    windows: tuple[TimeWindow, ...] | None = None
    time_zone: str | None = None
    force_reclaim: bool | None = None
    grace_s: int | None = None
    add_ons: tuple[AddOn, ...] | None = None
    quota: Mapping[str, str] | None = None
    isolated: bool | None = None
    egress: bool | None = None
    pod_security: PodSecurity | None = None
    nodes: Json | UnsetType | None = UNSET  # None: all nodes
    priority_class: str | None = None
    max_grace_s: int | None = None
    service_namespaces: tuple[str, ...] | None = None
    direct_scheduling: bool | None = None
    server: str | None = None
    shared: bool = False
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Values in both clusters before a join; None for objects that do not exist yet."""

    binding: BindingSpec | None = None
    policy: PolicySpec | None = None
    worker: WorkerValues | None = None
    outdated: bool = False  # whether a version without PodSecurity levels prepared the worker
    neighbours: tuple[str, ...] = ()  # other bindings of the mount namespace
    server: str = ""  # value of an earlier --server


async def read_present(options: JoinOptions, computing: Applier, worker: Applier) -> Present:
    """Read the values of an earlier join from both clusters."""
    binding = await _binding(options, computing)
    stored = binding.mount_namespace if binding is not None else ""
    values = WorkerValues(domain=options.domain, namespace=options.mount_namespace or stored)
    try:
        policy = (await worker.client.get(RESOURCE_LEASING_POLICIES, options.name)).spec
    except NotFound:
        policy = None
    stored_values, outdated = await _worker_values(values, worker)
    return Present(
        binding=binding,
        policy=policy,
        worker=stored_values,
        outdated=outdated,
        neighbours=await _neighbours(options, values, worker),
        server=await _server(options, computing),
    )


async def _binding(options: JoinOptions, computing: Applier) -> BindingSpec | None:
    try:
        return (await computing.client.get(CLUSTER_BINDINGS, options.name)).spec
    except NotFound:
        return None


async def _server(options: JoinOptions, computing: Applier) -> str:
    name, namespace = secret_name(options.name), options.domain.system_namespace
    try:
        secret = await computing.client.get(SECRETS, name, namespace)
    except NotFound:
        return ""
    return secret.annotations.get(server_option(options.domain), "")


async def _neighbours(
    options: JoinOptions, values: WorkerValues, worker: Applier
) -> tuple[str, ...]:
    anchors = await worker.client.list(
        SECRETS, values.mount_namespace, labels=credential_selector(values)
    )
    names = {each.labels.get(options.domain.cluster_binding, "") for each in anchors.items}
    return tuple(sorted(names - {options.name, ""}))


async def _worker_values(values: WorkerValues, worker: Applier) -> tuple[WorkerValues | None, bool]:
    """Return the values of the mount namespace, and whether it has no PodSecurity level.

    The values are None if the namespace has no ServiceAccount of Kubeocean.
    """
    stored: dict[str, Json] = {}
    for body in worker_objects(with_everything(values)):
        if body["kind"] in _READ and (each := await worker.find(body)) is not None:
            stored[title(body)] = each.content()
    mount, account = values.mount_namespace, values.account
    if f"ServiceAccount {mount}/{account}" not in stored:
        return None, False
    labels = stored.get(f"Namespace {mount}", {}).get("metadata", {}).get("labels") or {}
    rules = stored.get(f"ClusterRole {values.cluster_role}", {}).get("rules") or []
    quota = stored.get(f"ResourceQuota {mount}/{account}", {}).get("spec", {}).get("hard") or {}
    level = labels.get(LABEL_POD_SECURITY, "")
    limits = read_limits(stored.get(f"ValidatingAdmissionPolicy {values.cluster_role}-pods", {}))
    present = replace(
        values,
        add_ons=_granted(values, rules, stored),
        quota=quota,
        isolated=f"NetworkPolicy {mount}/{account}" in stored,
        egress=f"NetworkPolicy {mount}/{account}-egress" in stored,
        pod_security=_level(level),
        admission=await worker.has_admission_policies(),
        nodes=None,
    )
    if limits is not None:
        own = values.domain.priority_class
        present = replace(
            present,
            nodes=selector_of(limits.nodes),
            priority_classes=tuple(each for each in limits.priority_classes if each != own),
            max_grace_s=limits.max_grace_s,
        )
    return present, not level


_READ: Final = frozenset(
    {
        "Namespace",
        "ServiceAccount",
        "ClusterRole",
        "ResourceQuota",
        "NetworkPolicy",
        "ValidatingAdmissionPolicy",
    }
)


def _granted(
    values: WorkerValues, rules: list[Json], stored: Mapping[str, Json]
) -> tuple[AddOn, ...]:
    """Return the add-ons that the owner of a worker has granted.

    An add-on is granted if the ClusterRole has its rules; `metrics` if its ServiceAccount exists,
    `renewal` if its admission policy does.
    """
    signs = {
        AddOn.METRICS: title(metrics_objects(values)[0]),
        AddOn.RENEWAL: f"ValidatingAdmissionPolicy {values.cluster_role}-tokens",
    }
    return tuple(
        add_on
        for add_on in AddOn
        if (signs[add_on] in stored if add_on in signs else add_on_rule(add_on) in rules)
    )


def _level(label: str) -> PodSecurity:
    """Return the Pod Security level in a namespace's label; `privileged` if absent or unknown."""
    return PodSecurity(label) if label in tuple(PodSecurity) else PodSecurity.PRIVILEGED


def requested(options: JoinOptions, present: Present) -> JoinRequest:
    """Return the request of a join: given options, and present values of the other options.

    :raises ConfigError: an option needs another one, or a value is invalid.
    """
    binding = present.binding or BindingSpec()
    selector = _node_selector(options, present)
    return JoinRequest(
        name=options.name,
        cluster_id=_either(options.cluster_id, binding.cluster_id),
        worker=_requested_worker(options, present, selector),
        lease=_lease(options, present.policy),
        service_namespaces=_either(options.service_namespaces, binding.service_namespaces or ()),
        direct_scheduling=_either(options.direct_scheduling, binding.direct_scheduling),
        node_selector=selector,
        priority_class=_either(options.priority_class, binding.pod_priority_class_name),
        server=_either(options.server, present.server),
        shared=options.shared,
        insecure=options.insecure,
    )


def _either(given: Any, present: Any) -> Any:
    return present if given is None else given


def _node_selector(options: JoinOptions, present: Present) -> Json | None:
    if not isinstance(options.nodes, UnsetType):
        return options.nodes
    return present.binding.node_selector if present.binding is not None else LENDABLE


def _requested_worker(
    options: JoinOptions, present: Present, selector: Json | None
) -> WorkerValues:
    """Return the values of the mount namespace that a join applies.

    Values that an earlier version did not have get their defaults. Nodes and priority classes of
    other bindings of the mount namespace stay allowed.
    """
    stored = present.binding.mount_namespace if present.binding is not None else ""
    new = WorkerValues(domain=options.domain, namespace=options.mount_namespace or stored)
    worker = present.worker or new
    if present.outdated:
        worker = replace(worker, pod_security=new.pod_security, egress=new.egress)
    nodes = selector
    if present.neighbours and present.worker is not None:
        nodes = _union(selector, present.worker.nodes)
    given = {
        name: value
        for name in ("add_ons", "quota", "isolated", "egress", "pod_security", "max_grace_s")
        if (value := getattr(options, name)) is not None
    }
    classes = worker.priority_classes if present.neighbours else ()
    return replace(worker, **given, nodes=nodes, priority_classes=classes)


def _union(selector: Json | None, others: Json | None) -> Json | None:
    """Return a node selector that selects the nodes of either selector; None selects all."""
    if selector is None or others is None:
        return None
    terms = [*others["nodeSelectorTerms"]]
    terms += [each for each in selector["nodeSelectorTerms"] if each not in terms]
    return {"nodeSelectorTerms": terms}


def _lease(options: JoinOptions, present: PolicySpec | None) -> PolicySpec | None:
    """Return the spec of the ResourceLeasingPolicy; None if no option concerns the policy."""
    given = {
        "--lease": options.limits,
        "--between": options.windows,
        "--zone": options.time_zone,
        "--force-reclaim": options.force_reclaim,
        "--grace": options.grace_s,
    }
    if all(value is None for value in given.values()):
        return None
    if present is None and options.limits is None and options.windows is None:
        option, value = next((o, v) for o, v in given.items() if v is not None)
        raise ConfigError("needs --lease or --between", source=option, value=value)
    # In a new policy, tolerations do not let pods stay after a window: borrowers write them.
    new = PolicySpec(options.name, reclaim=ReclaimSpec(respect_tolerations=False))
    base = present if present is not None else new
    windows = options.windows if options.windows is not None else base.time_windows
    limits = options.limits if options.limits is not None else base.resource_limits
    # With the first window, the owner's nodes are reclaimed by force when the window ends.
    first_window = bool(windows) and not base.time_windows
    force = first_window or base.force_reclaim
    force = options.force_reclaim if options.force_reclaim is not None else force
    grace_s = base.graceful_reclaim_period_seconds
    if first_window and force and not grace_s:
        grace_s = GRACE_S
    return msgspec.structs.replace(
        base,
        cluster=options.name,
        time_windows=windows or None,
        resource_limits=limits or None,
        force_reclaim=force,
        graceful_reclaim_period_seconds=_either(options.grace_s, grace_s),
        time_zone=_either(options.time_zone, base.time_zone),
    )


class _Shown(NamedTuple):
    """A value of a join as it is shown in a list of changes."""

    subject: str
    value: str


def changes(present: Present, request: JoinRequest) -> tuple[str, ...]:
    """Return descriptions of the present values that a join would change."""
    lines: list[str] = []
    if present.worker is not None:
        after = replace(request.worker, admission=present.worker.admission)
        lines += _differences(_of_worker(present.worker), _of_worker(after))
    if present.binding is not None:
        lines += _differences(_of_binding(present.binding), _of_binding(request.spec))
    if present.policy is not None and request.lease is not None:
        lines += _differences(_of_policy(present.policy), _of_policy(request.lease))
    return tuple(lines)


def _differences(before: Iterator[_Shown], after: Iterator[_Shown]) -> Iterator[str]:
    for old, new in zip(before, after, strict=True):
        if old != new:
            yield f"{old.subject}: {old.value} -> {new.value}"


def _of_worker(values: WorkerValues) -> Iterator[_Shown]:
    yield _Shown("add-ons", ", ".join(values.add_ons) or _UNLIMITED)
    yield _Shown("quota", _pairs(values.quota))
    yield _Shown("isolated from other namespaces", _yes(values.isolated))
    yield _Shown("egress policy", _yes(values.egress))
    yield _Shown("PodSecurity level", str(values.pod_security))
    if values.admission:
        yield _Shown("nodes that pods may use", _selector(values.nodes))
        yield _Shown("longest grace period", f"{values.max_grace_s} s")


def _of_binding(spec: BindingSpec) -> Iterator[_Shown]:
    yield _Shown("nodes", _selector(spec.node_selector))
    yield _Shown("priority class", spec.pod_priority_class_name or "Kubeocean's own")
    yield _Shown("service namespaces", ", ".join(spec.service_namespaces or ()) or _UNLIMITED)
    yield _Shown("direct scheduling", _yes(spec.direct_scheduling))


def _of_policy(spec: PolicySpec) -> Iterator[_Shown]:
    limits = {each.resource: _amount(each) for each in spec.resource_limits or ()}
    yield _Shown("limits", _pairs(limits))
    windows = (f"{w.start}-{w.end} {','.join(w.days or ())}" for w in spec.time_windows or ())
    yield _Shown("windows", "; ".join(each.strip() for each in windows) or "always")
    yield _Shown("time zone", spec.time_zone or "of the syncer")
    yield _Shown("eviction when a window ends", _yes(spec.force_reclaim))
    yield _Shown("grace", f"{spec.graceful_reclaim_period_seconds} s")


def _amount(limit: ResourceLimit) -> str:
    parts = [str(limit.quantity)] if limit.quantity is not None else []
    parts += [f"{limit.percent}%"] if limit.percent is not None else []
    return " and ".join(parts)


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(values.items())) or _UNLIMITED


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _selector(selector: Json | None) -> str:
    return " or ".join(" and ".join(term) for term in terms_of(selector)) or "all"

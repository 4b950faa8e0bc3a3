"""Rendering: the objects of a binding, as the templates want them.

A side (syncer, proxier) is a directory of files: templates of objects, one each, and plain names.
What comes out carries the labels that such objects always had, the binding as its owner, and a
digest of itself, by which a change of the template or of the binding is noticed. Only what a user
may say of an object is taken from a template: name, namespace, labels, annotations and content.

The worker's kubeconfig is no part of any object: who runs reads it again by himself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.installation.applying import resource_of
from kubeocean.manager.gotemplates import Template, Value
from kubeocean.manager.rolloutviews import DEPLOYMENTS
from kubeocean.runtime.documents import read_document
from kubeocean.runtime.fields import parse_yaml
from kubeocean.runtime.labels import check_subdomain
from kubeocean.runtime.objects import Json, Key, Object, Resource

__all__ = [
    "KINDS",
    "OBJECT_FILES",
    "PLAIN_FILES",
    "AnyResource",
    "Component",
    "Files",
    "Wanted",
    "home",
    "names",
    "render",
    "required_files",
]

Files: TypeAlias = Mapping[str, str]
AnyResource: TypeAlias = Resource[Any]


class Component(StrEnum):
    """The two sides of a binding."""

    SYNCER = group.COMPONENT_SYNCER
    PROXIER = group.COMPONENT_PROXIER


# What each file is for, in the order in which the objects are made. The earlier implementation knew
# the last two; the others are there for who gives each binding an account or a budget of its own.
OBJECT_FILES: Final = {
    "serviceaccount.yaml": ("v1", "ServiceAccount"),
    "role.yaml": ("rbac.authorization.k8s.io/v1", "Role"),
    "rolebinding.yaml": ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    "configmap.yaml": ("v1", "ConfigMap"),
    "networkpolicy.yaml": ("networking.k8s.io/v1", "NetworkPolicy"),
    "poddisruptionbudget.yaml": ("policy/v1", "PodDisruptionBudget"),
    "service.yaml": ("v1", "Service"),
    "deployment.yaml": ("apps/v1", "Deployment"),
}
PLAIN_FILES: Final = (
    "serviceAccountName",
    "syncerNamespace",
    "proxierNamespace",
    "roleName",
    "roleBindingName",
    "clusterRoleName",
    "clusterRoleBindingName",
)
_DEPLOYMENT: Final = "deployment.yaml"
_REQUIRED: Final = {
    Component.SYNCER: (_DEPLOYMENT,),
    Component.PROXIER: (_DEPLOYMENT, "service.yaml"),
}
_LABEL_MAPS: Final = frozenset(("labels", "matchLabels", "selector"))
_DIGEST: Final = 16

_sorted = msgspec.json.Encoder(order="sorted").encode


def _resource(api_version: str, kind: str) -> AnyResource:
    if kind == DEPLOYMENTS.kind:
        return DEPLOYMENTS
    return resource_of({"apiVersion": api_version, "kind": kind, "metadata": {"name": ""}})


KINDS: Final[Mapping[str, AnyResource]] = {
    kind: _resource(api_version, kind) for api_version, kind in OBJECT_FILES.values()
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One object that a binding should have."""

    component: Component
    resource: AnyResource
    key: Key
    body: Json
    digest: str

    @property
    def title(self) -> str:
        return f"{self.resource.kind} {self.key}"


def required_files(component: Component) -> tuple[str, ...]:
    """Without these there is no such side."""
    return _REQUIRED[component]


def home(component: Component, files: Files, domain: Domain) -> str:
    """The namespace of a side."""
    return _plain(files, f"{component}Namespace") or domain.system_namespace


def names(
    component: Component, files: Files, binding: ClusterBinding, domain: Domain
) -> dict[str, Value]:
    """The variables of a side's templates.

    :raises ConfigError: a file or an annotation should hold a name, and does not.
    """
    syncs = component is Component.SYNCER
    account = domain.syncer if syncs else domain.proxier
    named = naming.syncer_deployment if syncs else naming.proxier_deployment
    namespace = home(component, files, domain)
    found: dict[str, Value] = {
        "ClusterBindingName": binding.name,
        "ClusterID": binding.spec.cluster_id,
        "DeploymentName": named(binding.spec.cluster_id, domain),
        "ServiceAccountName": _plain(files, "serviceAccountName") or account,
        "RoleName": _plain(files, "roleName") or account,
        "RoleBindingName": _plain(files, "roleBindingName") or account,
        "ClusterRoleName": _plain(files, "clusterRoleName") or account,
        "ClusterRoleBindingName": _plain(files, "clusterRoleBindingName") or account,
    }
    if syncs:
        return found | {"SyncerNamespace": namespace}
    found["ProxierNamespace"] = namespace
    found["ServiceName"] = naming.proxier_service(binding.spec.cluster_id, domain)
    return found | _tls(binding, namespace, domain)


def render(
    component: Component,
    files: Files,
    variables: Mapping[str, Value],
    *,
    binding: ClusterBinding,
    domain: Domain,
) -> tuple[Wanted, ...]:
    """All objects of a side, in the order in which they are to be made.

    :raises ConfigError: a template makes no object; the error names file and line or field.
    """
    found = []
    for file, (api_version, kind) in OBJECT_FILES.items():
        if file not in files:
            if file in required_files(component):
                raise ConfigError("is missing", source=_source(component, file))
            continue
        source = _source(component, file)
        text = Template(files[file], source=source).render(variables)
        body = _object(parse_yaml(text.encode(), source=source), api_version, kind, source=source)
        body["metadata"].setdefault("namespace", home(component, files, domain))
        _label(body, component, binding=binding, domain=domain)
        _fit(body, binding.name)
        body["metadata"]["ownerReferences"] = [_owner(binding)]
        found.append(_wanted(component, body, domain))
    return tuple(found)


def _wanted(component: Component, body: Json, domain: Domain) -> Wanted:
    digest = hashlib.sha256(_sorted(body)).hexdigest()[:_DIGEST]
    meta = body["metadata"]
    meta["annotations"] = meta.get("annotations", {}) | {domain.rollout_digest: digest}
    key = Key(meta["namespace"], meta["name"])
    return Wanted(component, KINDS[body["kind"]], key, body, digest)


# Variables


def _plain(files: Files, name: str) -> str:
    """What a file of one name holds; Go's templates got it without its line end."""
    value = files.get(name, "").strip()
    if value:
        check_subdomain(value, field=name)  # it becomes a piece of YAML
    return value


def _tls(binding: ClusterBinding, namespace: str, domain: Domain) -> dict[str, Value]:
    """Which certificate proxiers are told to use; none unless one is named and switched on."""
    said = binding.annotations
    secret = said.get(domain.logs_proxy_secret_name, "")
    if said.get(domain.logs_proxy_enabled) != group.TRUE or not secret:
        return {"TLSEnabled": False, "TLSSecretName": "", "TLSSecretNamespace": ""}
    where = said.get(domain.logs_proxy_secret_namespace) or namespace
    # Whoever may annotate a binding must not be able to write whatever he likes into a Deployment.
    check_subdomain(secret, field=f"metadata.annotations[{domain.logs_proxy_secret_name}]")
    check_subdomain(where, field=f"metadata.annotations[{domain.logs_proxy_secret_namespace}]")
    return {"TLSEnabled": True, "TLSSecretName": secret, "TLSSecretNamespace": where}


# Objects


class _Metadata(msgspec.Struct, omit_defaults=True):
    """What a template may say of an object."""

    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


def _object(document: object, api_version: str, kind: str, *, source: str) -> Json:
    cleaned = _cleaned(document, source)
    if not isinstance(cleaned, dict):
        raise ConfigError("must be an object", source=source)
    for field, wanted in (("apiVersion", api_version), ("kind", kind)):
        if cleaned.get(field) != wanted:
            said = f"must be {wanted}"
            raise ConfigError(said, field=field, value=cleaned.get(field, ""), source=source)
    try:
        meta = read_document(cleaned.get("metadata", {}), _Metadata, field="metadata")
        check_subdomain(meta.name, field="metadata.name")
        if meta.namespace:
            check_subdomain(meta.namespace, field="metadata.namespace")
        if kind == DEPLOYMENTS.kind:
            read_document(cleaned.get("spec"), _DeploymentShape, field="spec")
    except ConfigError as error:
        raise ConfigError(f"{error}", source=source) from None
    rest = {name: value for name, value in cleaned.items() if name not in ("metadata", "status")}
    return rest | {"metadata": msgspec.to_builtins(meta)}


class _Labelled(msgspec.Struct):
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _PodShape(msgspec.Struct):
    spec: Json
    metadata: _Labelled = msgspec.field(default_factory=_Labelled)


class _DeploymentShape(msgspec.Struct):
    """As much as labels are written into."""

    template: _PodShape


def _cleaned(value: object, source: str) -> object:
    """Without nulls, which say nothing; keys are texts."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError("a key must be text: quote it", value=key, source=source)
        return {key: _cleaned(each, source) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_cleaned(each, source) for each in value]
    return value


def _label(body: Json, component: Component, *, binding: ClusterBinding, domain: Domain) -> None:
    """Labels by which objects and pods are found; of these only the owner's are not the template's
    to choose."""
    meta = body["metadata"]
    usual = {group.APP_NAME: f"{domain.product}-{component}", group.APP_COMPONENT: str(component)}
    if body["kind"] == DEPLOYMENTS.kind:
        usual[group.LABEL_K8S_APP] = meta["name"]
    ours = {
        group.APP_INSTANCE: binding.name,
        group.APP_PART_OF: domain.product,
        group.APP_MANAGED_BY: domain.manager,
        domain.cluster_binding: binding.name,
    }
    meta["labels"] = usual | meta.get("labels", {}) | ours
    if body["kind"] == DEPLOYMENTS.kind:
        pods = body["spec"]["template"].setdefault("metadata", {})
        pods["labels"] = usual | ours | pods.get("labels", {})


def _fit(body: object, name: str) -> None:
    """Where a label holds the binding's name it holds what fits of it."""
    fitting = naming.label_value(name)
    if fitting != name:
        for labels in _label_maps(body):
            labels.update({key: fitting for key, value in labels.items() if value == name})


def _label_maps(body: object) -> Iterator[dict[str, Any]]:
    if isinstance(body, list):
        for each in body:
            yield from _label_maps(each)
    elif isinstance(body, dict):
        for key, value in body.items():
            if key in _LABEL_MAPS and isinstance(value, dict):
                yield value
            yield from _label_maps(value)


def _owner(binding: Object) -> Json:
    return {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": CLUSTER_BINDINGS.kind,
        "name": binding.name,
        "uid": binding.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _source(component: Component, file: str) -> str:
    """How a file is spoken of."""
    return f"{component} template {file}"

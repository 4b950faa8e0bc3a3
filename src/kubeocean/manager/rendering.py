"""Renders the objects of a binding from the templates of syncers and proxiers.

Each component (syncer, proxier) has a directory of files: templates of objects, and plain values. A
rendered object has the labels of the earlier implementation, the binding as its owner, and a digest
of itself that shows changes of the template or of the binding. Of the metadata, only name,
namespace, labels and annotations are taken from a template. The worker's kubeconfig is in no
object: the programs read the Secret.

Kubeocean's own templates give the syncers and the proxiers of each binding a service account, named
like their Deployment, and roles (`OwnAccount`). All bindings share one account if the directory has
no file `accountPerBinding`, as that of the earlier implementation, or if its `serviceAccountName`
is another than the usual one. A binding with Secrets in another namespace has the shared account,
too, because the manager cannot grant permissions there.

A directory is usually a mounted ConfigMap, which changes all files at once by swapping a link. A
check for changes costs one `stat` per file. Objects of a directory with a file that cannot be read
stay unchanged: only a file that does not exist is absent. Rendered objects are cached until the
templates or the binding change.

If the proxier of a binding runs in another namespace than Kubeocean's own, the syncer finds its
pods by an environment variable that the manager adds to any template: unlike a flag, programs that
do not know the variable ignore it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from kubeocean.api import group, naming
from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.install.apply import resource_of
from kubeocean.install.object_parts import RBAC
from kubeocean.manager.go_template import Template, Value
from kubeocean.runtime.documents import parse_yaml, read_document
from kubeocean.runtime.files import FileSet
from kubeocean.runtime.kinds import DEPLOYMENTS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Object, Resource
from kubeocean.runtime.selectors import check_subdomain

__all__ = [
    "ACCOUNT_KINDS",
    "KINDS",
    "OBJECT_FILES",
    "PLAIN_FILES",
    "AnyResource",
    "Directory",
    "Files",
    "RenderedObject",
    "Renderer",
    "RolloutComponent",
    "TemplateFiles",
    "names",
    "namespace_of",
    "owner_of",
    "render",
    "required_files",
]

Files: TypeAlias = Mapping[str, str]
AnyResource: TypeAlias = Resource[Any]


class RolloutComponent(StrEnum):
    """The two programs that are rolled out for a binding: syncer and proxier."""

    SYNCER = group.COMPONENT_SYNCER
    PROXIER = group.COMPONENT_PROXIER


_RBAC: Final = f"{RBAC}/v1"
# The kind in each file, in the order of creation. The earlier implementation knew Services and
# Deployments; the others give each binding a service account, a disruption budget or an autoscaler
# of its own.
OBJECT_FILES: Final = {
    "serviceaccount.yaml": ("v1", "ServiceAccount"),
    "role.yaml": (_RBAC, "Role"),
    "rolebinding.yaml": (_RBAC, "RoleBinding"),
    "clusterrole.yaml": (_RBAC, "ClusterRole"),
    "clusterrolebinding.yaml": (_RBAC, "ClusterRoleBinding"),
    "configmap.yaml": ("v1", "ConfigMap"),
    "networkpolicy.yaml": ("networking.k8s.io/v1", "NetworkPolicy"),
    "poddisruptionbudget.yaml": ("policy/v1", "PodDisruptionBudget"),
    "service.yaml": ("v1", "Service"),
    "deployment.yaml": ("apps/v1", "Deployment"),
    "horizontalpodautoscaler.yaml": ("autoscaling/v2", "HorizontalPodAutoscaler"),
}
# Without these, pods of the component would run with fewer permissions than they need.
ACCOUNT_KINDS: Final = frozenset(
    ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
)
PLAIN_FILES: Final = (
    "accountPerBinding",
    "serviceAccountName",
    "syncerNamespace",
    "proxierNamespace",
    "roleName",
    "roleBindingName",
    "clusterRoleName",
    "clusterRoleBindingName",
)
_DEPLOYMENT: Final = "deployment.yaml"
_AUTOSCALER_FILE: Final = "horizontalpodautoscaler.yaml"
_AUTOSCALER: Final = OBJECT_FILES[_AUTOSCALER_FILE][1]
_REQUIRED: Final = {
    RolloutComponent.SYNCER: (_DEPLOYMENT,),
    RolloutComponent.PROXIER: (_DEPLOYMENT, "service.yaml"),
}
_SEPARATOR: Final = re.compile(r"^---\s*$", re.MULTILINE)
_LABEL_MAPS: Final = frozenset(("labels", "matchLabels", "selector"))
_DIGEST_LENGTH: Final = 16

_sorted = msgspec.json.Encoder(order="sorted").encode


def _resource(api_version: str, kind: str) -> AnyResource:
    if kind == DEPLOYMENTS.kind:
        return DEPLOYMENTS
    return resource_of({"apiVersion": api_version, "kind": kind, "metadata": {"name": ""}})


KINDS: Final[Mapping[str, AnyResource]] = {
    kind: _resource(api_version, kind) for api_version, kind in OBJECT_FILES.values()
}


@dataclass(frozen=True, slots=True)
class RenderedObject:
    """An object of a binding as rendered from a template."""

    component: RolloutComponent
    resource: AnyResource
    key: Key
    body: Json
    digest: str
    scale: tuple[int, int] | None = None  # bounds of the replicas of an autoscaled Deployment

    @property
    def title(self) -> str:
        return f"{self.resource.kind} {self.key}"


def required_files(component: RolloutComponent) -> tuple[str, ...]:
    """Return the names of the files that the directory of a component must have."""
    return _REQUIRED[component]


def namespace_of(component: RolloutComponent, files: Files, domain: Domain) -> str:
    """Return the namespace in which a component (syncer or proxier) runs, by its files."""
    return _plain(files, f"{component}Namespace") or domain.system_namespace


def names(
    component: RolloutComponent, files: Files, binding: ClusterBinding, domain: Domain
) -> dict[str, Value]:
    """Return the variables of a component's templates.

    :raises ConfigError: a file or an annotation does not hold a valid name.
    """
    is_syncer = component is RolloutComponent.SYNCER
    account = domain.syncer if is_syncer else domain.proxier
    deployment = naming.syncer_deployment if is_syncer else naming.proxier_deployment
    namespace, secret = namespace_of(component, files, domain), binding.spec.secret_ref
    variables: dict[str, Value] = {
        "ClusterBindingName": binding.name,
        "ClusterID": binding.spec.cluster_id,
        "DeploymentName": deployment(binding.spec.cluster_id, domain),
        "ServiceAccountName": _plain(files, "serviceAccountName") or account,
        "RoleName": _plain(files, "roleName") or account,
        "RoleBindingName": _plain(files, "roleBindingName") or account,
        "ClusterRoleName": _plain(files, "clusterRoleName") or account,
        "ClusterRoleBindingName": _plain(files, "clusterRoleBindingName") or account,
        "SecretName": secret.name,
    }
    if secret.name:
        check_subdomain(secret.name, field="spec.secretRef.name")  # the name is inserted into YAML
    secret_namespaces = {secret.namespace}
    if is_syncer:
        variables["SyncerNamespace"] = namespace
    else:
        variables["ProxierNamespace"] = namespace
        variables["ServiceName"] = naming.proxier_service(binding.spec.cluster_id, domain)
        variables |= (tls := _tls(binding, namespace, domain))
        secret_namespaces.add(str(tls["TLSSecretNamespace"]) or namespace)
    own = (
        files.get("accountPerBinding", "").strip() == group.TRUE
        and variables["ServiceAccountName"] == account
        and secret_namespaces == {namespace}
    )
    if own:
        variables["ServiceAccountName"] = variables["DeploymentName"]
    return variables | {"OwnAccount": own}


def render(
    component: RolloutComponent,
    files: Files,
    variables: Mapping[str, Value],
    *,
    binding: ClusterBinding,
    domain: Domain,
    owned: bool = True,
    proxier_namespace: str = "",
) -> tuple[RenderedObject, ...]:
    """Render all objects of a component, in the order of creation.

    A file that a component can do without may render to several objects, or to none. Objects that
    are not `owned` have an annotation instead of the owner reference: in another cluster than the
    binding's, garbage collection would delete them. `proxier_namespace` is set for syncers, unless
    it is empty or Kubeocean's own.

    :raises ConfigError: a template is invalid; the error names file and line or field.
    """
    objects = []
    for file, (api_version, kind) in OBJECT_FILES.items():
        if file not in files:
            if file in required_files(component):
                raise ConfigError("is missing", source=_source(component, file))
            continue
        source = _source(component, file)
        text = Template(files[file], source=source).render(variables)
        required = file in required_files(component)
        for document in (text,) if required else _SEPARATOR.split(text):
            parsed = parse_yaml(document.encode(), source=source)
            if parsed is None and not required:
                continue
            body = _object(parsed, api_version, kind, source=source)
            if KINDS[kind].namespaced:
                body["metadata"].setdefault("namespace", namespace_of(component, files, domain))
            _label(body, component, binding=binding, domain=domain)
            _shorten_labels(body, binding.name)
            if kind == DEPLOYMENTS.kind and proxier_namespace not in ("", domain.system_namespace):
                _set_variable(body, group.ENV_PROXIER_NAMESPACE, proxier_namespace)
            _assign(body, binding, domain, owned=owned)
            objects.append(_rendered(component, body, domain))
    return _with_scale(objects)


def _set_variable(deployment: Json, name: str, value: str) -> None:
    """Add a variable to the environment of all containers, except where the template has it."""
    containers = deployment["spec"]["template"]["spec"].get("containers")
    for container in _objects(containers):
        environment = container.setdefault("env", [])
        if isinstance(environment, list) and all(
            each.get("name") != name for each in _objects(environment)
        ):
            environment.append({"name": name, "value": value})


def _objects(value: object) -> list[Json]:
    """Return the mappings in a list of a template; the API server refuses other items."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _assign(body: Json, binding: ClusterBinding, domain: Domain, *, owned: bool) -> None:
    """Add an owner reference to the binding, or an annotation with its name, to an object."""
    metadata = body["metadata"]
    if owned:
        metadata["ownerReferences"] = [owner_of(binding)]
        return
    rolled_out_for = {domain.rolled_out_for: f"{binding.name}/{binding.uid}"}
    metadata["annotations"] = metadata.get("annotations", {}) | rolled_out_for


class _ScaleTarget(msgspec.Struct):
    kind: str
    name: str


class _AutoscalerSpec(msgspec.Struct, rename="camel"):
    """The fields of an autoscaler's spec that name the scaled object and the bounds."""

    scale_target_ref: _ScaleTarget
    max_replicas: int
    min_replicas: int = 1


def _with_scale(objects: list[RenderedObject]) -> tuple[RenderedObject, ...]:
    """Return the objects, with the bounds of autoscalers at the Deployments that these scale."""
    bounds: dict[Key, tuple[int, int]] = {}
    for each in objects:
        if each.resource is KINDS[_AUTOSCALER]:
            spec = _autoscaler_spec(each)
            target = spec.scale_target_ref
            if target.kind == DEPLOYMENTS.kind:
                key = Key(each.key.namespace, target.name)
                bounds[key] = (spec.min_replicas, spec.max_replicas)
    return tuple(
        replace(each, scale=bounds.get(each.key)) if each.resource is DEPLOYMENTS else each
        for each in objects
    )


def _autoscaler_spec(rendered: RenderedObject) -> _AutoscalerSpec:
    try:
        return read_document(rendered.body.get("spec"), _AutoscalerSpec, field="spec")
    except ConfigError as error:
        source = _source(rendered.component, _AUTOSCALER_FILE)
        raise ConfigError(f"{error}", source=source) from None


def _rendered(component: RolloutComponent, body: Json, domain: Domain) -> RenderedObject:
    digest = hashlib.sha256(_sorted(body)).hexdigest()[:_DIGEST_LENGTH]
    meta = body["metadata"]
    meta["annotations"] = meta.get("annotations", {}) | {domain.rollout_digest: digest}
    key = Key(meta.get("namespace", ""), meta["name"])
    return RenderedObject(component, KINDS[body["kind"]], key, body, digest)


def _plain(files: Files, name: str) -> str:
    """Return the name in a plain file, stripped; "" if the file does not exist or is empty."""
    value = files.get(name, "").strip()
    if value:
        check_subdomain(value, field=name)  # the value is inserted into YAML
    return value


def _tls(binding: ClusterBinding, namespace: str, domain: Domain) -> dict[str, Value]:
    """Return the variables of the proxiers' certificate; empty unless the annotations enable it."""
    annotations = binding.annotations
    secret = annotations.get(domain.logs_proxy_secret_name, "")
    if annotations.get(domain.logs_proxy_enabled) != group.TRUE or not secret:
        return {"TLSEnabled": False, "TLSSecretName": "", "TLSSecretNamespace": ""}
    secret_namespace = annotations.get(domain.logs_proxy_secret_namespace) or namespace
    # Permission to annotate bindings must not allow to inject YAML into a Deployment.
    check_subdomain(secret, field=f"metadata.annotations[{domain.logs_proxy_secret_name}]")
    check_subdomain(
        secret_namespace, field=f"metadata.annotations[{domain.logs_proxy_secret_namespace}]"
    )
    return {"TLSEnabled": True, "TLSSecretName": secret, "TLSSecretNamespace": secret_namespace}


class _TemplateMetadata(msgspec.Struct, omit_defaults=True):
    """The fields of an object's metadata that a template may set."""

    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


def _object(document: object, api_version: str, kind: str, *, source: str) -> Json:
    cleaned = _cleaned(document, source)
    if not isinstance(cleaned, dict):
        raise ConfigError("must be the manifest of an object", source=source)
    for name, expected in (("apiVersion", api_version), ("kind", kind)):
        if cleaned.get(name) != expected:
            message = f"must be {expected}"
            raise ConfigError(message, field=name, value=cleaned.get(name, ""), source=source)
    try:
        meta = read_document(cleaned.get("metadata", {}), _TemplateMetadata, field="metadata")
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
    """The fields of a Deployment's spec into which labels are written."""

    template: _PodShape


def _cleaned(value: object, source: str) -> object:
    """Return a parsed YAML value without nulls.

    :raises ConfigError: a key is not text.
    """
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(
                    "a key must be a string; put it in quotes", value=key, source=source
                )
        return {key: _cleaned(each, source) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_cleaned(each, source) for each in value]
    return value


def _label(
    body: Json, component: RolloutComponent, *, binding: ClusterBinding, domain: Domain
) -> None:
    """Add Kubeocean's labels to an object; a template may override those of name and component."""
    meta = body["metadata"]
    defaults = {
        group.APP_NAME: f"{domain.product}-{component}",
        group.APP_COMPONENT: str(component),
    }
    if body["kind"] == DEPLOYMENTS.kind:
        defaults[group.LABEL_K8S_APP] = meta["name"]
    ours = {
        group.APP_INSTANCE: binding.name,
        group.APP_PART_OF: domain.product,
        group.APP_MANAGED_BY: domain.manager,
        domain.cluster_binding: binding.name,
    }
    meta["labels"] = defaults | meta.get("labels", {}) | ours
    if body["kind"] == DEPLOYMENTS.kind:
        pods = body["spec"]["template"].setdefault("metadata", {})
        pods["labels"] = defaults | ours | pods.get("labels", {})


def _shorten_labels(body: object, name: str) -> None:
    """Shorten label values that are the binding's name to the length of a label."""
    value_of_name = naming.label_value(name)
    if value_of_name != name:
        for labels in _label_maps(body):
            labels.update({key: value_of_name for key, value in labels.items() if value == name})


def _label_maps(body: object) -> Iterator[dict[str, Any]]:
    if isinstance(body, list):
        for each in body:
            yield from _label_maps(each)
    elif isinstance(body, dict):
        for key, value in body.items():
            if key in _LABEL_MAPS and isinstance(value, dict):
                yield value
            yield from _label_maps(value)


def owner_of(binding: Object) -> Json:
    """Return the owner reference of objects that belong to a binding."""
    return {
        "apiVersion": CLUSTER_BINDINGS.api_version,
        "kind": CLUSTER_BINDINGS.kind,
        "name": binding.name,
        "uid": binding.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _source(component: RolloutComponent, file: str) -> str:
    """Return the name by which errors refer to a template file."""
    return f"{component} template {file}"


_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Directory:
    """Files of one template directory; `problem` is why required files cannot be read."""

    files: Files = field(default_factory=dict)
    problem: str = ""


class TemplateFiles:
    """Reads the template directories of both components."""

    def __init__(self, directories: Mapping[RolloutComponent, Path]) -> None:
        self._directories = dict(directories)
        self._seen: FileSet | None = None
        self._read: dict[RolloutComponent, Directory] = {}
        self.revision = 0  # number of changes so far

    def __getitem__(self, component: RolloutComponent) -> Directory:
        return self._read.get(component, Directory(problem="the templates were not read yet"))

    def refresh(self) -> bool:
        """Read the template files if they changed; return whether their content changed."""
        if self._seen is not None and not self._seen.changed():
            return False
        for _ in range(_ATTEMPTS):
            self._seen = FileSet()
            read = {each: _read_files(self._seen, at) for each, at in self._directories.items()}
            if not self._seen.changed():
                break  # otherwise the link was swapped between two reads
        directories = {
            each: self._directory(each, at, *read[each]) for each, at in self._directories.items()
        }
        if directories == self._read:
            return False
        self._read = directories
        self.revision += 1
        return True

    def _directory(
        self, component: RolloutComponent, at: Path, files: Files, problem: str
    ) -> Directory:
        """Return the template directory; if a file cannot be read, with the files read before."""
        if problem:
            known = self._read.get(component)
            return Directory(known.files if known is not None else files, problem)
        return Directory(files, _problem(component, at, files))


def _read_files(seen: FileSet, directory: Path) -> tuple[Files, str]:
    """Return the files that exist, and why one of them cannot be read ("" if all can)."""
    files, problem = {}, ""
    for name in (*OBJECT_FILES, *PLAIN_FILES):
        path = directory / name
        try:
            files[name] = seen.read(path).decode()
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            problem = f"cannot read {path}: it is not UTF-8"
        except OSError as error:
            problem = f"cannot read {path}: {error.strerror or error}"
    return files, problem


def _problem(component: RolloutComponent, directory: Path, files: Files) -> str:
    absent = [name for name in required_files(component) if name not in files]
    return f"cannot read {', '.join(str(directory / name) for name in absent)}" if absent else ""


_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Rendered objects, and the inputs they were rendered from."""

    revision: int
    uid: str
    variables: dict[str, Value]
    proxier_namespace: str
    objects: tuple[RenderedObject, ...] = ()

    def has_inputs_of(self, other: _Plan) -> bool:
        return replace(self, objects=()) == replace(other, objects=())


class Renderer:
    """Renders and caches the objects of all bindings."""

    def __init__(
        self, directories: Mapping[RolloutComponent, Path], domain: Domain, *, owned: bool = True
    ) -> None:
        self._templates = TemplateFiles(directories)
        self._domain = domain
        self._owned = owned
        self._plans: dict[tuple[RolloutComponent, str], _Plan] = {}

    def refresh(self) -> bool:
        """Read the templates if they changed; return whether they did."""
        if not self._templates.refresh():
            return False
        problems = [p for each in RolloutComponent if (p := self._templates[each].problem)]
        log = _log.warning if problems else _log.info
        log("Read templates", revision=self._templates.revision, problems=problems)
        return True

    def namespaces(self) -> Iterator[tuple[RolloutComponent, str]]:
        """Yield the namespace of each component whose templates name a valid one."""
        for component in RolloutComponent:
            try:
                files = self._templates[component].files
                yield component, namespace_of(component, files, self._domain)
            except ConfigError:
                continue  # `objects` raises the error

    def objects(
        self, component: RolloutComponent, binding: ClusterBinding
    ) -> tuple[RenderedObject, ...]:
        """Return the objects of a component of the binding, in the order of creation.

        :raises ConfigError: the templates are missing or invalid.
        """
        directory, revision = self._templates[component], self._templates.revision
        if directory.problem:
            raise ConfigError(directory.problem)
        variables = names(component, directory.files, binding, self._domain)
        syncs = component is RolloutComponent.SYNCER
        proxier_namespace = self._proxier_namespace(binding) if syncs else ""
        plan = _Plan(revision, binding.uid, variables, proxier_namespace)
        known = self._plans.get((component, binding.name))
        if known is not None and known.has_inputs_of(plan):
            return known.objects
        objects = render(
            component,
            directory.files,
            variables,
            binding=binding,
            domain=self._domain,
            owned=self._owned,
            proxier_namespace=proxier_namespace,
        )
        self._plans[component, binding.name] = replace(plan, objects=objects)
        return objects

    def _proxier_namespace(self, binding: ClusterBinding) -> str:
        """Return the namespace of the binding's proxier from its last valid rendering, or ""."""
        with suppress(ConfigError):  # the rollout of the proxier reports it
            self.objects(RolloutComponent.PROXIER, binding)
        rendered = self.known(RolloutComponent.PROXIER, binding.name)
        deployments = (each for each in rendered if each.resource is DEPLOYMENTS)
        return next((each.key.namespace for each in deployments), "")

    def known(self, component: RolloutComponent, binding: str) -> tuple[RenderedObject, ...]:
        """Return the objects of a component from the last valid rendering for a binding."""
        plan = self._plans.get((component, binding))
        return plan.objects if plan is not None else ()

    def forget(self, binding: str) -> None:
        """Drop the cached objects of a binding."""
        for component in RolloutComponent:
            self._plans.pop((component, binding), None)

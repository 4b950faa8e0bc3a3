"""Bindings: a worker as somebody wants it bound, and the object that says so."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kubeocean.api.binding import (
    CLUSTER_BINDINGS,
    BindingSpec,
    ClusterBinding,
    SecretReference,
    problems,
)
from kubeocean.api.group import DEFAULT
from kubeocean.api.policy import PolicySpec
from kubeocean.errors import ConfigError
from kubeocean.installation.credentials import secret_name
from kubeocean.installation.parts import labels, named
from kubeocean.installation.policies import policy
from kubeocean.installation.values import WorkerValues
from kubeocean.runtime.labels import check_label_value, check_subdomain
from kubeocean.runtime.objects import Json

__all__ = ["Joining", "join_command"]

_OPTIONS: Final = {"spec.clusterID": "--cluster-id", "spec.mountNamespace": "--mount-namespace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """One worker, bound under a name; without a lease its owner makes policies himself."""

    name: str
    cluster_id: str = ""
    worker: WorkerValues = field(default_factory=WorkerValues)
    lease: PolicySpec | None = None
    service_namespaces: tuple[str, ...] = ()
    direct_scheduling: bool = False

    def __post_init__(self) -> None:
        # The name stands in labels of pods, which templates fill in as it is.
        check_label_value(self.name, field="NAME")
        check_subdomain(self.name, field="NAME")
        for problem in problems(self.spec):
            said, source = problem.message, _OPTIONS.get(problem.field, problem.field)
            if source == "--cluster-id" and not self.cluster_id:
                source, said = "NAME", f"{said}; or give another --cluster-id"
            elif problem.field.startswith("spec.serviceNamespaces"):
                source = "--service-namespace"
            raise ConfigError(said, source=source, value=problem.value)
        self.policy()  # what is wrong with the lease is said now, before anything is written

    @property
    def spec(self) -> BindingSpec:
        domain = self.worker.domain
        return BindingSpec(
            cluster_id=self.cluster_id or self.name,
            secret_ref=SecretReference(secret_name(self.name), domain.system_namespace),
            mount_namespace=self.worker.mount_namespace,
            service_namespaces=self.service_namespaces or None,
            direct_scheduling=self.direct_scheduling,
        )

    def binding(self) -> Json:
        """The ClusterBinding."""
        resource = CLUSTER_BINDINGS
        spec: Json = msgspec.to_builtins(self.spec)
        return named(
            resource.kind,
            resource.api_version,
            self.name,
            labels=labels(self.worker.domain),
            spec={field: value for field, value in spec.items() if value != {}},
        )

    def policy(self) -> Json | None:
        """The lease, as a policy of the worker."""
        if self.lease is None:
            return None
        return policy(self.name, self.lease, domain=self.worker.domain)


def join_command(binding: ClusterBinding, *more: str) -> str:
    """What joins the same worker again as it is; FILE is the kubeconfig of its administrator."""
    name, spec = binding.name, binding.spec
    words = ["kubeocean", "join", name, "--kubeconfig", "FILE"]
    for flag, value, usual in (
        ("--cluster-id", spec.cluster_id, name),
        ("--mount-namespace", spec.mount_namespace, DEFAULT.worker_namespace),
    ):
        if value not in ("", usual):
            words += [flag, value]
    for namespace in spec.service_namespaces or ():
        words += ["--service-namespace", namespace]
    if spec.direct_scheduling:
        words.append("--direct-scheduling")
    return shlex.join([*words, *more])

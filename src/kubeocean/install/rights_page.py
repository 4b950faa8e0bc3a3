"""Renders the page that lists the permissions of each account (`docs/reference/rights.md`).

`scripts/manifests` writes the page. Tests compare the page with `rights_page()`, and the rows of
the page with access reviews of a real API server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeocean.api.group import DEFAULT, SYSTEM_NAMESPACE
from kubeocean.install.permissions import Rights, Rule
from kubeocean.install.roles import (
    AUTHENTICATION_READER,
    DEFAULT_ADD_ONS,
    binding_syncer_rights,
    manager_rights,
    metrics_rights,
    proxier_own_rights,
    proxier_rights,
    secret_rules,
    shared_proxier_rights,
    shared_syncer_rights,
    syncer_own_rights,
    syncer_rights,
    worker_rights,
)

__all__ = ["BINDING", "GRANTED", "LEASE", "MOUNT", "SECRET", "rights_page"]

BINDING: Final = "<binding>"
SECRET: Final = "<kubeconfig Secret>"  # noqa: S105 - a placeholder
LEASE: Final = "<syncer Deployment>"
MOUNT: Final = "<mount namespace>"
GRANTED: Final = "<granted namespace>"
_HEAD: Final = (
    "| in namespace | API group | resources | only those named | verbs |\n|---|---|---|---|---|"
)
_EVERYWHERE: Final = "all"
_INTRODUCTION: Final = f"""\
<!-- Made by scripts/manifests; do not edit. -->
# Rights of each account

Every permission of Kubeocean's accounts, as RBAC grants it. Tests ask a real API server for every
verb on every resource that it has, by SubjectAccessReview, and compare the answers with these
tables. Admission policies limit some of these permissions further:
[SECURITY.md](../../SECURITY.md) has the table.

`{BINDING}`, `{SECRET}`, `{LEASE}` and `{MOUNT}` stand for the names of
one binding's own objects; the Lease of a syncer's election has the name of its Deployment.
`{GRANTED}` is each namespace in which pods on the binding's virtual nodes, or their volumes,
need Secrets: the manager creates a RoleBinding there, and lists the namespace in the binding's
`status.secretNamespaces.granted`.
Kubernetes lets every authenticated user review its own permissions, which is not repeated here. All
accounts in `{DEFAULT.system_namespace}` are bound to Kubernetes' Role
`{AUTHENTICATION_READER}`, which reads the certificates of clients in
`{SYSTEM_NAMESPACE}`. With `kubeocean install --shard-syncers` there are two Roles more, those of
[syncer-sharding.yaml](../../deploy/syncer-sharding.yaml)."""


def rights_page() -> str:
    """Return the page of permissions as Markdown."""
    namespace = DEFAULT.system_namespace
    own_syncer = syncer_own_rights(binding=BINDING, secret=SECRET, lease=LEASE, namespace=namespace)
    sections = (
        ("The manager", "`kubeocean-manager`", (manager_rights(),)),
        (
            "The syncers of a binding",
            "`kubeocean-syncer-<clusterID>`, which the manager creates",
            (binding_syncer_rights(), own_syncer, Rights(within={GRANTED: secret_rules()})),
        ),
        (
            "The proxiers of a binding",
            "`kubeocean-proxier-<clusterID>`, which the manager creates; with the Secret of the "
            "proxier's certificate, if the binding names one",
            (proxier_rights(), proxier_own_rights((SECRET,), namespace)),
        ),
        (
            "The shared account of syncers",
            "`kubeocean-syncer`, for templates that name it, for bindings with a Secret in "
            "another namespace, and for programs in a management cluster",
            (syncer_rights(), shared_syncer_rights()),
        ),
        (
            "The shared account of proxiers",
            "`kubeocean-proxier`, for the same",
            (proxier_rights(), shared_proxier_rights()),
        ),
        (
            "The account in a worker",
            f"`kubeocean-syncer` in `{MOUNT}`, with the usual add-ons "
            f"({', '.join(DEFAULT_ADD_ONS)}); its credential is what a binding holds",
            (worker_rights(MOUNT),),
        ),
        (
            "The account of metrics in a worker",
            f"`kubeocean-metrics` in `{MOUNT}`, whose tokens kubelets receive",
            (metrics_rights(),),
        ),
    )
    parts = [_INTRODUCTION]
    for title, account, rights in sections:
        rows = sorted({row for each in rights for row in _rows(each)})
        parts.append(f"## {title}\n\n{account}.\n\n{_HEAD}\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _rows(rights: Rights) -> Iterator[str]:
    places = [(_EVERYWHERE, rights.everywhere), *rights.within.items()]
    for namespace, rules in places:
        for rule in rules:
            yield _row(namespace, rule)


def _row(namespace: str, rule: Rule) -> str:
    cells = (
        f"`{namespace}`" if namespace != _EVERYWHERE else namespace,
        f"`{rule.group}`" if rule.group else "core",
        _listed(rule.resources),
        _listed(rule.names),
        ", ".join(rule.verbs),
    )
    return f"| {' | '.join(cells)} |"


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)

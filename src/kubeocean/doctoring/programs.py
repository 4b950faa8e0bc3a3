"""Checks of our own programs: the rights of their accounts, and their pods."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api import naming
from kubeocean.doctoring.facts import Computing
from kubeocean.doctoring.findings import Finding, Severity, few
from kubeocean.leasing.instants import instant_of
from kubeocean.leasing.report import counted
from kubeocean.runtime.objects import Json

__all__ = ["check_accounts", "check_pods", "says", "trouble_of"]

_LONG: Final = timedelta(seconds=60)  # what a program may take to begin
_RECENT: Final = timedelta(minutes=15)
_STARTING: Final = ("ContainerCreating", "PodInitializing", "")


def check_accounts(facts: Computing) -> Iterator[Finding]:
    """Our accounts may do in the computing cluster what is declared."""
    for name, lacks in facts.accounts.items():
        about = f"ServiceAccount {facts.domain.system_namespace}/{name}"
        if lacks is None:
            said = "it does not exist: its programs cannot start"
        elif lacks:
            said = f"it may not {few(lacks)}: its programs cannot work"
        else:
            continue
        remedy = "kubeocean install grants what is declared"
        yield Finding("accounts", Severity.ERROR, about, said, remedy)


def check_pods(facts: Computing) -> Iterator[Finding]:
    """Our pods have a node, start, stay, and are ready."""
    wanted = {naming.label_value(each.name) for each in facts.chosen}
    namespace = facts.domain.system_namespace
    for pod in facts.pods:
        meta = pod["metadata"]
        binding = (meta.get("labels") or {}).get(facts.domain.cluster_binding, "")
        if facts.only and binding and binding not in wanted:
            continue
        said, ended = trouble_of(pod, facts.now)
        if said:
            look = "logs" if ended else "describe pod"
            remedy = f"kubectl -n {namespace} {look} {meta['name']}"
            remedy += " --previous" if ended else ""
            yield Finding("pods", Severity.ERROR, f"pod {namespace}/{meta['name']}", said, remedy)


def trouble_of(pod: Json, now: datetime) -> tuple[str, bool]:
    """Why a pod does not serve, and whether it is because a program ended; empty: all is well."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return "", False
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        why = scheduled.get("message") or scheduled.get("reason") or "the scheduler does not say"
        return f"no node takes it: {why}", False
    for container in status.get("containerStatuses") or ():
        if found := _of_container(container, now):
            return found
    if status.get("phase") == "Failed":
        return f"it failed: {status.get('message') or status.get('reason') or 'no reason'}", True
    ready = conditions.get("Ready") or {}
    since = instant_of(ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))
    if ready.get("status") != "True" and since is not None and now - since >= _LONG:
        why = ready.get("message") or ready.get("reason") or "nobody says why"
        return f"it has not been ready for {(now - since).total_seconds():.0f} s: {why}", False
    return "", False


def _of_container(container: Json, now: datetime) -> tuple[str, bool] | None:
    """What keeps it from running, if anything does."""
    waits = (container.get("state") or {}).get("waiting") or {}
    reason, restarts = waits.get("reason", ""), container.get("restartCount", 0)
    last = (container.get("lastState") or {}).get("terminated") or {}
    ended = instant_of(last.get("finishedAt"))
    lately = ended is not None and now - ended < _RECENT
    if reason == "CrashLoopBackOff" or (restarts > 1 and lately and last.get("exitCode")):
        code = f"exit code {last.get('exitCode', 'unknown')}"
        why = f", {last['message'].strip()}" if last.get("message") else ""
        return f"its program keeps ending: {code}, {counted(restarts, 'restart')}{why}", True
    if reason not in _STARTING:
        return f"it cannot start: {reason} {waits.get('message', '')}".strip(), False
    return None


def says(deployment: Json | None, flag: str, value: str = "") -> bool:
    """Whether the program has that flag, with that value if one matters."""
    if deployment is None:
        return False
    containers = deployment["spec"]["template"]["spec"].get("containers") or []
    words = [word.partition("=") for each in containers for word in each.get("args") or ()]
    return any(name == flag and value in ("", said) for name, _, said in words)

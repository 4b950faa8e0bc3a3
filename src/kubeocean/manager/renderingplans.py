"""Plans: what each binding should have, kept until the templates or the binding change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeocean.api.binding import ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.errors import ConfigError
from kubeocean.manager.gotemplates import Value
from kubeocean.manager.rendering import Component, Wanted, home, names, render
from kubeocean.manager.renderingfiles import TemplateFiles
from kubeocean.runtime.logs import get_logger

__all__ = ["Plans"]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was rendered, and from what."""

    revision: int
    uid: str
    variables: dict[str, Value]
    objects: tuple[Wanted, ...]

    def still_holds(self, revision: int, uid: str, variables: dict[str, Value]) -> bool:
        return (self.revision, self.uid, self.variables) == (revision, uid, variables)


class Plans:
    """The plans of all bindings."""

    def __init__(self, directories: Mapping[Component, Path], domain: Domain) -> None:
        self._templates = TemplateFiles(directories)
        self._domain = domain
        self._plans: dict[tuple[Component, str], _Plan] = {}

    def refresh(self) -> bool:
        """Read the templates if they changed; whether they did."""
        if not self._templates.refresh():
            return False
        problems = [p for each in Component if (p := self._templates[each].problem)]
        log = _log.warning if problems else _log.info
        log("Read templates", revision=self._templates.revision, problems=problems)
        return True

    def homes(self) -> Iterator[tuple[Component, str]]:
        """Where the sides live, as far as their files say so."""
        for component in Component:
            try:
                yield component, home(component, self._templates[component].files, self._domain)
            except ConfigError:
                continue  # who wants objects of it is told

    def objects(self, component: Component, binding: ClusterBinding) -> tuple[Wanted, ...]:
        """What a side of the binding should have, in the order in which it is to be made.

        :raises ConfigError: the templates make no objects.
        """
        directory, revision = self._templates[component], self._templates.revision
        if directory.problem:
            raise ConfigError(directory.problem)
        variables = names(component, directory.files, binding, self._domain)
        known = self._plans.get((component, binding.name))
        if known is not None and known.still_holds(revision, binding.uid, variables):
            return known.objects
        objects = render(
            component, directory.files, variables, binding=binding, domain=self._domain
        )
        self._plans[component, binding.name] = _Plan(revision, binding.uid, variables, objects)
        return objects

    def known(self, component: Component, binding: str) -> tuple[Wanted, ...]:
        """What a side had when its templates last made sense."""
        plan = self._plans.get((component, binding))
        return plan.objects if plan is not None else ()

    def forget(self, binding: str) -> None:
        """The binding is going."""
        for component in Component:
            self._plans.pop((component, binding), None)

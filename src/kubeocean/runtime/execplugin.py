"""Exec plugins: programs that a kubeconfig names to get credentials from.

Parsed here and run here, never without being allowed to.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeocean.errors import ConfigError
from kubeocean.runtime.fields import Fields

__all__ = ["ExecPlugin"]


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A credential plugin as the kubeconfig describes it."""

    command: str
    field: str
    source: str

    @classmethod
    def parse(cls, user: Fields, cluster: Fields) -> ExecPlugin | None:
        if not user.has("exec"):
            return None
        section = user.section("exec")
        return cls(section.text("command"), section.path, section.source)

    def refusal(self) -> ConfigError:
        return ConfigError(
            f"wants to run the credential plugin {self.command!r}, which is not allowed; "
            "pass allow_exec=True to allow it",
            field=self.field,
            source=self.source,
        )

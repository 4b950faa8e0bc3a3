"""Exec plugins: programs that a kubeconfig names to get credentials from.

The protocol is client.authentication.k8s.io, v1 and v1beta1: the plugin gets the cluster in
KUBERNETES_EXEC_INFO and prints a token, a client certificate or both, perhaps with an expiry.

A plugin runs without a shell, without a terminal and for a bounded time; its children are stopped
with the plugin. Its output stays in memory. Plugins run only if an option allows them: a kubeconfig
of another person may name any program.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Annotated, BinaryIO, Final

import msgspec

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Access, certificates_problem, key_problem, token_problem
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.documents import Fields
from kubeocean.runtime.files import scratch_file
from kubeocean.runtime.redaction import Secret, is_secret_name, redact_text

__all__ = ["Credential", "ExecPlugin"]

_GROUP: Final = "client.authentication.k8s.io"
_VERSIONS: Final = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
_MODES: Final = ("Never", "IfAvailable", "Always")
_TIMEOUT_S: Final = (
    60.0  # enough for a plugin that requests credentials from a slow, distant service
)
_ANSWER_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 15  # of the plugin's stderr, from the end…
_SHOWN_CHARS: Final = 400  # …and how much of that is shown
_SECRET_CHARS: Final = 4  # shorter texts are not secret but parts of many words
_OPAQUE = re.compile(r"[A-Za-z0-9+=_-]{24,}")  # no word is that long; tokens are


@dataclass(frozen=True, slots=True)
class Credential:
    """Credential that a plugin returned."""

    token: Secret[str] | None
    certificate: bytes | None
    private_key: Secret[bytes] | None
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """Credential plugin as a kubeconfig describes it. Arguments and variables may be secrets."""

    command: str
    args: tuple[str, ...] = field(repr=False)
    env: tuple[tuple[str, str], ...] = field(repr=False)
    api_version: str
    info: str = field(repr=False)  # for KUBERNETES_EXEC_INFO
    install_hint: str
    path: str  # path in the kubeconfig
    source: str

    @classmethod
    def parse(cls, section: Fields, cluster: Fields, access: Access) -> ExecPlugin:
        """Return the plugin that a user's `exec` section describes. Raises ConfigError."""
        version, mode = section.text("apiVersion"), section.text("interactiveMode")
        if version not in _VERSIONS:
            raise section.error("apiVersion", f"must be {' or '.join(_VERSIONS)}")
        if mode not in _MODES and (mode or version == _VERSIONS[0]):
            raise section.error("interactiveMode", f"must be one of {', '.join(_MODES)}")
        if mode == "Always":
            raise section.error(
                "interactiveMode",
                "must not be Always: this process has no terminal for the credential plugin; use"
                " a plugin that needs no input",
            )
        # As in client-go: a bare name is searched in PATH, a relative path starts at the
        # kubeconfig.
        command = section.text("command")
        if not command:
            raise section.error("command", "must name a program")
        return cls(
            command=str(section.file_path("command")) if "/" in command else command,
            args=section.texts("args"),
            env=tuple(_variable(entry) for entry in section.sections("env")),
            api_version=version,
            info=_info(section, cluster, access),
            install_hint=_printable(section.text("installHint")),
            path=section.path,
            source=section.source,
        )

    async def run(self, *, clock: Clock, environ: Mapping[str, str] = os.environ) -> Credential:
        """Run the plugin once and return its credential. Raises ConfigError."""
        program = shutil.which(self.command, path=environ.get("PATH"))
        if program is None:
            hint = f"\n{self.install_hint}" if self.install_hint else ""
            raise self._error(f"the credential plugin {self.command!r} is not installed{hint}")
        with scratch_file() as output, scratch_file() as errors:
            env = {**environ, **dict(self.env), "KUBERNETES_EXEC_INFO": self.info}
            code = await self._run(program, env, (output, errors), clock)
            if code is None:
                raise self._failed(f"did not end within {_TIMEOUT_S:g} s", errors)
            if code != 0:
                raise self._failed(f"failed with exit code {code}", errors)
            output.seek(0)
            return self._credential(output.read(_ANSWER_BYTES))

    async def _run(
        self,
        program: str,
        env: Mapping[str, str],
        to: tuple[BinaryIO, BinaryIO],
        clock: Clock,
    ) -> int | None:
        """Run the plugin's program and return its exit code; None after a timeout."""
        try:
            # Files instead of pipes: a child that outlives the plugin cannot delay this process. A
            # session of its own: the plugin cannot open this terminal, and its children end with
            # it.
            process = await asyncio.create_subprocess_exec(
                program,
                *self.args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=to[0],
                stderr=to[1],
                env=env,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = (
                error.strerror
                if isinstance(error, OSError)
                else "a variable or an argument has a NUL or ="
            )
            raise self._error(f"cannot run {self.command!r}: {why}") from None
        late = False

        async def watchdog() -> None:
            nonlocal late
            await clock.sleep(_TIMEOUT_S)
            late = True
            _kill(process)

        async with asyncio.TaskGroup() as group:
            limit = group.create_task(watchdog())
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                _kill(process)
                await process.wait()
                raise
            finally:
                limit.cancel()
        return None if late else code

    def _credential(self, answer: bytes) -> Credential:
        try:
            answer_document = _decode(answer)
        except msgspec.DecodeError as error:
            # The library names the expected type and its place, not the value.
            raise self._wrong(f"printed no ExecCredential: {error}") from None
        except UnicodeDecodeError:
            raise self._wrong("printed no ExecCredential: the output is not UTF-8") from None
        status = answer_document.status
        if (answer_document.api_version, answer_document.kind) != (
            self.api_version,
            "ExecCredential",
        ):
            raise self._wrong(f"printed no ExecCredential of {self.api_version}")
        if not (status.token or status.client_certificate_data or status.client_key_data):
            raise self._wrong("returned neither a token nor a certificate")
        if status.token and (problem := token_problem(status.token)):
            raise self._wrong(f"returned a token that {problem}")
        certificate = (status.client_certificate_data or "").encode() or None
        private_key = Secret(status.client_key_data.encode()) if status.client_key_data else None
        if (certificate is None) != (private_key is None):
            raise self._wrong(
                "returned a certificate without its key, or a key without its certificate"
            )
        if certificate is not None and private_key is not None:
            if problem := certificates_problem(certificate):
                raise self._wrong(f"returned a certificate that {problem}")
            if problem := key_problem(certificate, private_key):
                raise self._wrong(f"returned a key that {problem}")
        token = Secret(status.token) if status.token else None
        return Credential(token, certificate, private_key, status.expiration_timestamp)

    def _wrong(self, what: str) -> ConfigError:
        return self._error(f"the credential plugin {self.command!r} {what}")

    def _failed(self, what: str, errors: BinaryIO) -> ConfigError:
        """Return the error with the end of the plugin's stderr, which may ask users to log in."""
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - _READ_BYTES))
        output = errors.read(_READ_BYTES).decode("utf-8", "replace")
        for secret in self._secrets():
            output = output.replace(secret, "…")
        output = _OPAQUE.sub("…", redact_text(_printable(output))).strip()
        # Cut last: the rest of a secret that was cut in two would not be recognised.
        return self._wrong(f"{what}: {output[-_SHOWN_CHARS:]}" if output else what)

    def _secrets(self) -> list[str]:
        """Return secrets of the kubeconfig that must not appear in the plugin's error texts."""
        values = [value for _, value in self.env]
        for option, following in pairwise((*self.args, "")):
            name, equals, value = option.partition("=")
            if is_secret_name(name):
                values.append(value if equals else following)
        return [value for value in values if len(value) >= _SECRET_CHARS]

    def _error(self, message: str) -> ConfigError:
        return ConfigError(message, field=self.path, source=self.source)


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    status: _Status


_decode = msgspec.json.Decoder(_ExecCredential).decode


def _variable(entry: Fields) -> tuple[str, str]:
    name = entry.text("name")
    if not name:
        raise entry.error("name", "must name an environment variable")
    return name, entry.text("value")


def _info(section: Fields, cluster: Fields, access: Access) -> str:
    """Return the ExecCredential that the plugin gets as input, as JSON."""
    spec: dict[str, object] = {"interactive": False}
    if section.flag("provideClusterInfo"):
        described = {
            "server": access.server,
            "tls-server-name": access.tls_server_name,
            "insecure-skip-tls-verify": access.insecure,
            "certificate-authority-data": access.ca and base64.b64encode(access.ca).decode(),
            "proxy-url": access.proxy_url,
            "config": _extension(cluster),
        }
        spec["cluster"] = {name: value for name, value in described.items() if value}
    head = {"apiVersion": section.text("apiVersion"), "kind": "ExecCredential"}
    try:
        return json.dumps(head | {"spec": spec}, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise cluster.error(
            "extensions", f"the extension {_GROUP}/exec cannot be written as JSON"
        ) from None


def _extension(cluster: Fields) -> object:
    """Return the kubeconfig's configuration for plugins of this cluster."""
    named = (entry for entry in cluster.sections("extensions"))
    extensions = (e.content.get("extension") for e in named if e.text("name") == f"{_GROUP}/exec")
    return next(extensions, None)


def _printable(text: str) -> str:
    """Return the text without terminal control sequences."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"U+{ord(c):04X}" for c in text)


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

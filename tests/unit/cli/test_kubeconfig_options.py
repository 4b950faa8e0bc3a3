"""Every command that reads a cluster finds it as kubectl does: files, context, plugin."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubeocean.cli.commands import app
from support.certificates import identity, kubeconfig, write
from support.commands import Home
from support.servers import Server, head_of, serving

V1 = "client.authentication.k8s.io/v1"
EMPTY = json.dumps({"kind": "List", "metadata": {}, "items": []}).encode()


def renamed(document: object) -> object:
    """Return the same kubeconfig with other names of context, cluster and user."""
    text = json.dumps(document)
    for name, other in (("here", "second"), ("sea", "lake"), ("admin", "robot")):
        text = text.replace(f'"{name}"', f'"{other}"')
    return json.loads(text)


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--no-workers"),
        ("top",),
        ("doctor",),
        ("explain", "binding", "berlin"),
        ("logs-level", "berlin"),
        ("repair", "--cluster-binding-name", "berlin"),
        ("shards", "list"),
    ],
    ids=lambda words: words[0],
)
async def test_a_command_takes_a_context_of_any_file_and_runs_its_credential_plugin(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    async def handle(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await head_of(server, reader)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(EMPTY) + EMPTY)

    pair = identity()
    (tmp_path / "pair").write_bytes(pair.certificate + pair.key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "pair")
    credential = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "from-plugin"}}
    plugin = {"apiVersion": V1, "interactiveMode": "Never", "command": "echo"}
    user = {"exec": plugin | {"args": [json.dumps(credential)]}}
    async with serving(handle, tls=tls) as server:
        cluster = {"server": server.url, "insecure-skip-tls-verify": True}
        first = write(tmp_path / "first", kubeconfig({"token": "wrong"}))
        second = write(tmp_path / "second", renamed(kubeconfig(user, cluster)))
        home = Home(tmp_path / "home")
        home.environ["KUBECONFIG"] = f"{first}:{second}"
        result = await home.run(*words, "--context", "second")
    assert server.heads, f"no request was sent: {result.err}"
    assert all("Bearer from-plugin\r\n" in head for head in server.heads)


MISSING = {
    "join": ("join", "berlin", "--kubeconfig"),
    "join-computing": ("join", "berlin", "--kubeconfig", "USABLE", "--computing-kubeconfig"),
    "leave": ("leave", "berlin", "--kubeconfig"),
    "leave-computing": ("leave", "berlin", "--computing-kubeconfig"),
    "install": ("install", "--kubeconfig"),
    "install-management": ("install", "--management-kubeconfig"),
    "uninstall": ("uninstall", "--kubeconfig"),
    "doctor": ("doctor", "--kubeconfig"),
    "doctor-management": ("doctor", "--kubeconfig", "USABLE", "--management-kubeconfig"),
    "drain": ("drain", "node", "--kubeconfig"),
    "explain": ("explain", "binding", "berlin", "--kubeconfig"),
    "explain-member": ("explain", "member", "berlin", "--hub-kubeconfig"),
    "logs-level": ("logs-level", "berlin", "--kubeconfig"),
    "repair": ("repair", "--cluster-binding-name", "berlin", "--kubeconfig"),
    "shards": ("shards", "list", "--kubeconfig"),
    "status": ("status", "--kubeconfig"),
}


@pytest.mark.parametrize("words", MISSING.values(), ids=MISSING)
def test_the_option_of_a_kubeconfig_that_does_not_exist_is_named(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    usable = str(write(tmp_path / "usable", kubeconfig()))
    path = str(tmp_path / "missing")
    arguments = [usable if word == "USABLE" else word for word in words]
    result = CliRunner().invoke(app, [*arguments, path])
    assert result.exit_code == 2
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"error: {words[-1]} {path}: "), result.stderr
    assert result.stderr.count(path) == 1

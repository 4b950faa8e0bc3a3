from __future__ import annotations

import asyncio
import json
import os
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import RealClock, VirtualClock
from kubeocean.runtime.exec_plugin import Credential, ExecPlugin
from kubeocean.runtime.kubeconfig import read_kubeconfig
from kubeocean.runtime.redaction import Secret
from support.certificates import encoded, identity, issue, kubeconfig, write
from support.wait import until

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
someone = identity()


def answer(version: str = V1, **status: object) -> str:
    """Return a line of shell that prints these credentials."""
    message = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return f"printf %s {shlex.quote(json.dumps(message))}\n"


def plugin(directory: Path, script: str, *, cluster: Any = None, **described: Any) -> ExecPlugin:
    """Return the plugin of a kubeconfig whose command is this script."""
    program = directory / "plugin"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    exec_ = {"apiVersion": V1, "interactiveMode": "Never", "command": "./plugin"} | described
    path = write(directory / "config", kubeconfig({"exec": exec_}, cluster))
    actual = read_kubeconfig(path, allow_exec=True).plugin
    assert actual is not None
    return actual


async def run(one: ExecPlugin, **environ: str) -> Credential:
    return await one.run(clock=RealClock(), environ={"PATH": os.environ["PATH"], **environ})


async def complaint(one: ExecPlugin) -> str:
    with pytest.raises(ConfigError) as caught:
        await run(one)
    assert "config (context here): users[admin].exec: " in str(caught.value)
    return str(caught.value).partition("users[admin].exec: ")[2]


# --- credentials of a plugin


async def test_a_token(tmp_path: Path) -> None:
    given = await run(plugin(tmp_path, answer(token="sesame")))
    assert given == Credential(Secret("sesame"), None, None, None)


async def test_a_token_in_the_beta_version(tmp_path: Path) -> None:
    one = plugin(
        tmp_path, answer(V1BETA1, token="sesame"), apiVersion=V1BETA1, interactiveMode=None
    )
    assert (await run(one)).token == Secret("sesame")


async def test_a_certificate_with_an_expiry(tmp_path: Path) -> None:
    script = answer(
        clientCertificateData=someone.certificate.decode(),
        clientKeyData=someone.key.decode(),
        expirationTimestamp="2026-01-01T01:00:00+01:00",
        token=None,
    )
    given = await run(plugin(tmp_path, script))
    assert given.token is None
    assert given.certificate == someone.certificate
    assert given.private_key == Secret(someone.key)
    assert given.expires == datetime(2026, 1, 1, tzinfo=UTC)


# --- input of the plugin


async def test_a_plugin_gets_the_cluster_where_its_config_says_so(tmp_path: Path) -> None:
    script = f'printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n' + answer(token="x")
    cluster = {
        "certificate-authority-data": encoded(someone.certificate),
        "tls-server-name": "other",
        "proxy-url": "http://proxy:3128",
        "extensions": [
            {"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}},
        ],
    }
    await run(plugin(tmp_path, script, cluster=cluster, provideClusterInfo=True))
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://api.example:6443",
                "certificate-authority-data": encoded(someone.certificate),
                "tls-server-name": "other",
                "proxy-url": "http://proxy:3128",
                "config": {"audience": "a"},
            },
        },
    }


async def test_a_plugin_gets_no_cluster_otherwise(tmp_path: Path) -> None:
    script = f'printf %s "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n' + answer(token="x")
    await run(plugin(tmp_path, script))
    assert json.loads((tmp_path / "info").read_text())["spec"] == {"interactive": False}


async def test_arguments_are_not_for_a_shell(tmp_path: Path) -> None:
    script = f'printf "%s\\n" "$@" > {tmp_path}/args\n' + answer(token="x")
    args = ["get token", "$(touch pwned)", ";ls", ""]
    await run(plugin(tmp_path, script, args=args))
    assert (tmp_path / "args").read_text() == "".join(f"{arg}\n" for arg in args)


async def test_variables_are_added_to_the_environment(tmp_path: Path) -> None:
    script = f'printf %s "$A$B$C" > {tmp_path}/env\n' + answer(token="x")
    env = [{"name": "B", "value": "b"}, {"name": "C"}]
    await run(plugin(tmp_path, script, env=env), A="a", B="x", C="y")
    assert (tmp_path / "env").read_text() == "ab"


async def test_a_plugin_has_neither_input_nor_a_terminal(tmp_path: Path) -> None:
    script = (
        f"(read x || printf eof; (: < /dev/tty) || printf none) > {tmp_path}/asked 2> /dev/null\n"
    )
    await run(plugin(tmp_path, script + answer(token="x"), interactiveMode="IfAvailable"))
    assert (tmp_path / "asked").read_text() == "eofnone"


# --- where it is


async def test_a_bare_name_is_looked_for_in_the_path(tmp_path: Path) -> None:
    one = plugin(tmp_path, answer(token="x"), command="plugin")
    given = await run(one, PATH=f"{os.environ['PATH']}:{tmp_path}")
    assert given.token == Secret("x")


async def test_a_program_that_is_not_installed_comes_with_the_hint(tmp_path: Path) -> None:
    hint = "See \x1b[31mexample.com"
    one = plugin(tmp_path, "", command="no-such-program", installHint=hint)
    message = await complaint(one)
    assert message == (
        "the credential plugin 'no-such-program' is not installed\nSee U+001B[31mexample.com"
    )
    one = plugin(tmp_path, "", command="./no-such-program")
    assert await complaint(one) == (
        f"the credential plugin '{tmp_path}/no-such-program' is not installed"
    )


async def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    one = plugin(tmp_path, "")
    (tmp_path / "plugin").write_text("#!/no/such/shell\n")
    assert await complaint(one) == f"cannot run '{tmp_path}/plugin': No such file or directory"


async def test_arguments_that_no_program_can_be_given(tmp_path: Path) -> None:
    one = plugin(tmp_path, "", args=["a\0b"])
    assert "a variable or an argument has a NUL or =" in await complaint(one)


# --- how it fails


async def test_a_failure_of_a_plugin_has_its_output(tmp_path: Path) -> None:
    one = plugin(tmp_path, "echo please log in >&2; exit 3")
    message = await complaint(one)
    assert message == (
        f"the credential plugin '{tmp_path}/plugin' failed with exit code 3: please log in"
    )
    one = plugin(tmp_path, "exit 1")
    assert (await complaint(one)).endswith("failed with exit code 1")


async def test_the_output_of_a_plugin_is_shown_without_secrets(tmp_path: Path) -> None:
    one = plugin(
        tmp_path,
        'i=0; while [ $i -lt 1000 ]; do echo "line $i" >&2; i=$((i + 1)); done\n'
        'printf "\\033[1mbad: %s %s %s %s %s" "$PASSWORD" "$2" "${3#*=}" "$4" end >&2; exit 1',
        env=[{"name": "PASSWORD", "value": "sesame-1"}, {"name": "ONE", "value": "1"}],
        args=["--client-secret", "sesame-2", "--password=sesame-3", "s3same" * 5],
    )
    message = await complaint(one)
    assert message.endswith("U+001B[1mbad: … … … … end")
    assert "sesame" not in message
    assert len(message) < 600
    assert "sesame" not in repr(one)


BAD_ANSWERS = [
    ("", "printed no ExecCredential: Input data was truncated"),
    ("echo hello", "printed no ExecCredential: JSON is malformed"),
    (r"printf '\377'", "printed no ExecCredential"),
    (r"""printf '{"kind": "\377"}'""", "printed no ExecCredential: the output is not UTF-8"),
    ("echo '{}'", "printed no ExecCredential: Object missing required field"),
    ("echo '[]'", "printed no ExecCredential: Expected `object`, got `array`"),
    (answer(token=["sesame"]), "printed no ExecCredential: Expected `str | null`, got `array`"),
    (answer(V1BETA1, token="sesame"), f"printed no ExecCredential of {V1}"),
    (answer(token="sesame").replace("ExecC", "SesameC"), "printed no ExecCredential"),
    (answer(), "returned neither a token nor a certificate"),
    (answer(token=""), "returned neither a token nor a certificate"),
    (
        answer(token="open sesame"),
        "returned a token that has characters that an HTTP header cannot",
    ),
    (answer(clientKeyData="sesame"), "returned a certificate without its key, or a key without"),
    (
        answer(clientCertificateData=someone.certificate.decode()),
        "returned a certificate without its key, or a key without its certificate",
    ),
    (
        answer(clientCertificateData="sesame", clientKeyData=someone.key.decode()),
        "returned a certificate that is not a PEM certificate",
    ),
    (
        answer(
            clientCertificateData=someone.certificate.decode(),
            clientKeyData=issue("other").key.decode(),
        ),
        "returned a key that does not match the client certificate",
    ),
    (
        answer(token="x", expirationTimestamp="2026-01-01T00:00:00"),
        "printed no ExecCredential: Expected `datetime` with a timezone component",
    ),
    (answer(token="x", expirationTimestamp="sesame"), "printed no ExecCredential: Invalid RFC3339"),
]


@pytest.mark.parametrize(("script", "message"), BAD_ANSWERS)
async def test_a_bad_answer(tmp_path: Path, script: str, message: str) -> None:
    text = await complaint(plugin(tmp_path, script))
    assert text.startswith(f"the credential plugin '{tmp_path}/plugin' {message}")
    assert "sesame" not in text.lower()


async def test_it_is_stopped_with_its_children_when_it_takes_too_long(tmp_path: Path) -> None:
    clock = VirtualClock()
    one = plugin(
        tmp_path, f"echo waiting >&2; sleep 1000 & echo $! $$ > {tmp_path}/tmp\n"
        f"mv {tmp_path}/tmp {tmp_path}/pids; wait"
    )  # fmt: skip
    asking = asyncio.ensure_future(one.run(clock=clock, environ=os.environ))
    await until(lambda: (tmp_path / "pids").exists())
    await clock.advance(59)
    assert not asking.done()
    await clock.advance(1)
    with pytest.raises(ConfigError, match="did not end within 60 s: waiting"):
        await asking
    await until(lambda: not any(alive(pid) for pid in (tmp_path / "pids").read_text().split()))


async def test_a_child_that_stays_does_not_keep_us_waiting(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/pid\n" + answer(token="x")
    assert (await run(plugin(tmp_path, script))).token == Secret("x")
    pid = (tmp_path / "pid").read_text().strip()
    assert alive(pid)
    os.kill(int(pid), 9)


async def test_it_does_not_survive_our_losing_interest(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/tmp; mv {tmp_path}/tmp {tmp_path}/pid; exec sleep 1000"
    asking = asyncio.ensure_future(run(plugin(tmp_path, script)))
    await until(lambda: (tmp_path / "pid").exists())
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not alive((tmp_path / "pid").read_text().strip())


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- how it is described


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"apiVersion": None}, "apiVersion: must be client.authentication.k8s.io/v1 or "),
        ({"apiVersion": V1 + "alpha1"}, "apiVersion: must be client.authentication.k8s.io/v1 or"),
        ({"interactiveMode": None}, "interactiveMode: must be one of Never, IfAvailable, Always"),
        ({"interactiveMode": "x"}, "interactiveMode: must be one of Never, IfAvailable, Always"),
        (
            {"interactiveMode": "x", "apiVersion": V1BETA1},
            "interactiveMode: must be one of Never, IfAvailable, Always",
        ),
        ({"interactiveMode": "Always"}, "interactiveMode: must not be Always: "),
        ({"command": ""}, "command: must name a program"),
        ({"args": "sesame"}, "args: must be a list, not a string"),
        ({"env": [{"value": "sesame"}]}, "env[0].name: must name an environment variable"),
        ({"env": [{"name": "A", "value": 3}]}, "env[0].value: must be a string, not of type int"),
    ],
)
def test_a_bad_description(tmp_path: Path, described: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plugin(tmp_path, "", **described)
    assert f"config (context here): users[admin].exec.{message}" in str(caught.value)
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("extension", ["&a [*a]", ".nan", "!!binary c2VzYW1l", "{[1]: 2}"])
def test_an_extension_that_is_not_json(tmp_path: Path, extension: str) -> None:
    exec_ = {"apiVersion": V1, "interactiveMode": "Never", "command": "x"}
    path = write(tmp_path / "config", kubeconfig({"exec": exec_ | {"provideClusterInfo": True}}))
    where = "server: https://api.example:6443\n"
    entry = f"    extensions: [{{name: client.authentication.k8s.io/exec, extension: {extension}}}]"
    path.write_text(path.read_text().replace(where, f"{where}{entry}\n"))
    with pytest.raises(ConfigError) as caught:
        read_kubeconfig(path, allow_exec=True)
    assert "/exec cannot be written as JSON" in str(caught.value) or "not a YAML" in str(
        caught.value
    )

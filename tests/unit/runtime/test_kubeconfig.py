from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.runtime.access import Impersonation
from kubeocean.runtime.kubeconfig import (
    Access,
    default_paths,
    load_kubeconfig,
    read_kubeconfig,
)
from kubeocean.runtime.redaction import Secret
from support.certificates import encoded, identity, issue, kubeconfig, write

unhurried = settings(deadline=None)  # a busy machine is no failure
someone = identity()
PAIR = {
    "client-certificate-data": encoded(someone.certificate),
    "client-key-data": encoded(someone.key),
}


def load(directory: Path, **parts: Any) -> Access:
    return load_kubeconfig(write(directory / "config", kubeconfig(**parts)))


def complaint(directory: Path, **parts: Any) -> str:
    """Return the error for a document with these parts, without the file's directory."""
    with pytest.raises(ConfigError) as caught:
        load(directory, **parts)
    return str(caught.value).replace(f"{directory}/", "")


# --- loaded values


def test_the_current_context_leads_to_server_and_namespace(tmp_path: Path) -> None:
    access = load(tmp_path, context={"namespace": "team-a"})
    assert access.server == "https://api.example:6443"
    assert access.namespace == "team-a"
    assert access.origin == f"{tmp_path}/config (context here)"
    assert access.headers() == []


def test_another_context_can_be_asked_for(tmp_path: Path) -> None:
    document: Any = kubeconfig()
    document["contexts"].append({"name": "there", "context": {"cluster": "sea", "user": "admin"}})
    access = load_kubeconfig(str(write(tmp_path / "config", document)), "there")
    assert access.origin.endswith("(context there)")
    assert access.namespace == "default"


def test_json_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        '{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "b",'
        '\t"user": "c"}}], "clusters": [{"name": "b", "cluster": {"server": "https://d"}}],'
        ' "users": [{"name": "c", "user": {"token": "e"}}]}'
    )
    assert load_kubeconfig(tmp_path / "config").token == Secret("e")


def test_a_client_certificate_comes_from_data(tmp_path: Path) -> None:
    access = load(tmp_path, user=PAIR)
    assert access.certificate == someone.certificate
    assert access.private_key == Secret(someone.key)


def test_files_are_found_beside_the_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/ca.crt").write_bytes(someone.certificate)
    (tmp_path / "pki/me.crt").write_bytes(someone.certificate)
    (tmp_path / "pki/me.key").write_bytes(someone.key)
    user = {"client-certificate": "pki/me.crt", "client-key": "pki/me.key"}
    cluster = {"certificate-authority": "pki/ca.crt"}
    write(tmp_path / "config", kubeconfig(user, cluster))
    monkeypatch.chdir(tmp_path.parent)
    for path in (tmp_path / "config", Path(tmp_path.name) / "config"):
        access = load_kubeconfig(path)
        assert access.ca == access.certificate == someone.certificate
        assert access.private_key == Secret(someone.key)


def test_base64_may_be_folded(tmp_path: Path) -> None:
    text = encoded(someone.certificate)
    folded = "\n ".join(text[at : at + 64] for at in range(0, len(text), 64)) + "\n"
    access = load(tmp_path, cluster={"certificate-authority-data": folded})
    assert access.ca == someone.certificate


def test_a_token_is_a_bearer(tmp_path: Path) -> None:
    assert load(tmp_path, user={"token": "sesame\n"}).token == Secret("sesame")


def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    write(tmp_path / "config", kubeconfig({"token": "inline", "tokenFile": "token"}))
    loaded = read_kubeconfig(tmp_path / "config")
    assert loaded.access.token == Secret("from-file")
    assert loaded.token_file == tmp_path / "token"


def test_username_and_password_are_read(tmp_path: Path) -> None:
    access = load(tmp_path, user={"username": "admin", "password": "sesame"})
    assert (access.username, access.password) == ("admin", Secret("sesame"))
    assert load(tmp_path, user={"password": "sesame"}).username == ""


def test_a_certificate_may_stand_beside_a_token(tmp_path: Path) -> None:
    access = load(tmp_path, user={**PAIR, "token": "sesame"})
    assert access.certificate is not None
    assert access.token is not None


def test_impersonation_is_read(tmp_path: Path) -> None:
    user = {
        "as": "jane",
        "as-groups": ["dev"],
        "as-uid": "42",
        "as-user-extra": {"scopes": ["a", "b"]},
    }
    assert load(tmp_path, user=user).impersonate == Impersonation(
        "jane", ("dev",), "42", (("scopes", ("a", "b")),)
    )


def test_proxy_name_and_insecure_are_read(tmp_path: Path) -> None:
    access = load(
        tmp_path,
        cluster={
            "proxy-url": "http://me:sesame@proxy:3128",
            "tls-server-name": "other",
            "insecure-skip-tls-verify": True,
        },
    )
    assert access.proxy_url == "http://me:sesame@proxy:3128"
    assert access.tls_server_name == "other"
    assert access.insecure
    assert "sesame" not in repr(access)


@pytest.mark.parametrize(
    ("server", "read"),
    [
        ("https://a/", "https://a"),
        ("https://a:6443/k8s/clusters/c-1/", "https://a:6443/k8s/clusters/c-1"),
        ("HTTPS://[::1]:6443", "https://[::1]:6443"),
        ("http://127.0.0.1:8001", "http://127.0.0.1:8001"),
    ],
)
def test_a_server_is_a_url_without_an_end(tmp_path: Path, server: str, read: str) -> None:
    assert load(tmp_path, cluster={"server": server}).server == read


def test_credentials_are_not_sent_over_plain_http(tmp_path: Path) -> None:
    user = {"token": "sesame", "as": "jane", "exec": {"command": "x"}, "client-key-data": "?"}
    access = load(tmp_path, user=user, cluster={"server": "http://a"})
    assert access.headers() == [("Impersonate-User", "jane")]


# --- several files


def test_the_first_file_to_name_something_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "first", kubeconfig({"token": "first"}) | {"current-context": ""})
    second: Any = kubeconfig({"token": "second", "username": "never"}) | {
        "current-context": "there"
    }
    second["contexts"].append({"name": "there", "context": {"cluster": "lake", "user": "admin"}})
    second["clusters"].append({"name": "lake", "cluster": {"server": "https://lake"}})
    write(tmp_path / "second", second)
    access = load_kubeconfig([first, str(tmp_path / "second")])
    assert access.server == "https://lake"
    assert access.token == Secret("first")
    assert access.username is None


def test_each_file_is_the_start_of_its_own_references(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"token-{name}")
    user = {"users": [{"name": "admin", "user": {"tokenFile": "token"}}]}
    write(tmp_path / "two/config", user)
    write(tmp_path / "one/config", kubeconfig() | {"users": []})
    paths = [tmp_path / "one/config", tmp_path / "two/config"]
    assert load_kubeconfig(paths).token == Secret("token-two")


def test_an_error_names_the_file_that_it_is_in(tmp_path: Path) -> None:
    write(tmp_path / "one", kubeconfig() | {"users": []})
    write(tmp_path / "two", {"users": [{"name": "admin", "user": {"token": 3}}]})
    with pytest.raises(ConfigError, match=r"/two \(context here\): users\[admin\]\.token: must"):
        load_kubeconfig([tmp_path / "one", tmp_path / "two"])


def test_a_missing_file_among_several_is_passed_over(tmp_path: Path) -> None:
    existing = write(tmp_path / "config", kubeconfig())
    assert load_kubeconfig([tmp_path / "none", existing]).namespace == "default"


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/none: there is no such file"):
        load_kubeconfig(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"/none, .*/nil: there is no such file"):
        load_kubeconfig([tmp_path / "none", tmp_path / "nil"])


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_kubeconfig(tmp_path)


def test_default_paths_are_those_of_kubectl() -> None:
    assert default_paths({"HOME": "/home/me"}) == (Path("/home/me/.kube/config"),)
    assert default_paths({"KUBECONFIG": "a::b:a"}) == (Path("a"), Path("b"))
    assert default_paths({"KUBECONFIG": ":", "HOME": "/"}) == (Path("/.kube/config"),)
    assert default_paths({})[0].parts[-2:] == (".kube", "config")


# --- errors name the wrong value


def test_not_yaml(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("users: [")
    with pytest.raises(ConfigError, match=r"/config: is not a YAML document"):
        load_kubeconfig(tmp_path / "config")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Pod"}, "config: kind: must be Config: this is not a kubeconfig"),
        ({"apiVersion": "v2"}, "config: apiVersion: must be v1: this is not a kubeconfig"),
        ({"users": {}}, "config: users: must be a list, not a mapping"),
        ({"users": [3]}, "config: users[0]: must be a mapping, not of type int"),
        ({"users": [{"user": 3}]}, "config: users[0].user: must be a mapping, not of type int"),
        ({"contexts": "x"}, "config: contexts: must be a list, not a string"),
        ({"current-context": 3}, "config: current-context: must be a string, not of type int"),
        (
            {"current-context": "nowhere"},
            "config: current-context: there is no context named 'nowhere'; known contexts: here",
        ),
        (
            {"current-context": None},
            "config: current-context: is not set, and no context was given; choose one of: here",
        ),
        (
            {"current-context": "", "contexts": None},
            "config: current-context: is not set, and no context was given; choose one of: none",
        ),
        (
            {"clusters": []},
            "config (context here): contexts[here].cluster: there is no cluster named 'sea'",
        ),
        (
            {"users": []},
            "config (context here): contexts[here].user: there is no user named 'admin'",
        ),
    ],
)
def test_a_document_that_leads_nowhere(tmp_path: Path, change: Any, message: str) -> None:
    write(tmp_path / "config", kubeconfig() | change)
    with pytest.raises(ConfigError) as caught:
        load_kubeconfig(tmp_path / "config")
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(message)


def test_an_unknown_context_that_was_asked_for_lists_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path / "config", kubeconfig())
    with pytest.raises(ConfigError) as caught:
        load_kubeconfig(tmp_path / "config", "there")
    assert str(caught.value).endswith(
        "/config: there is no context named 'there'; known contexts: here"
    )


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"cluster": ""}, "cluster: does not name a cluster"),
        ({"user": None}, "user: does not name a user"),
        ({"namespace": "Team A"}, "namespace: is not a DNS label (got 'Team A')"),
        ({"namespace": ["a"]}, "namespace: must be a string, not a list"),
    ],
)
def test_a_bad_context(tmp_path: Path, context: Any, message: str) -> None:
    assert (
        complaint(tmp_path, context=context) == f"config (context here): contexts[here].{message}"
    )


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"server": ""}, "server: must be an http or https URL with a host"),
        ({"server": "api:6443"}, "server: must be an http or https URL with a host (got 'api:"),
        ({"server": "https://"}, "server: must be an http or https URL with a host (got 'https"),
        ({"server": "ftp://a"}, "server: must be an http or https URL with a host (got 'ftp:"),
        ({"server": 6443}, "server: must be a string, not of type int (quote it)"),
        ({"server": "https://me:sesame@a"}, "server: must not contain a user name or password"),
        ({"server": "https://a?b"}, "server: must not have a query or a fragment"),
        ({"proxy-url": "socks5://p:1080"}, "proxy-url: SOCKS proxies are not supported"),
        ({"proxy-url": "ftp://p"}, "proxy-url: must be an http or https URL with a host"),
        ({"proxy-url": "proxy:3128"}, "proxy-url: must be an http or https URL with a host"),
        ({"certificate-authority-data": "?"}, "certificate-authority-data: is not base64"),
        ({"certificate-authority-data": "é"}, "certificate-authority-data: is not base64"),
        (
            {"certificate-authority-data": encoded(b"hello")},
            "certificate-authority-data: is not a PEM certificate",
        ),
        ({"certificate-authority": "none"}, "certificate-authority: cannot read none: No such"),
        (
            {
                "certificate-authority": "none",
                "certificate-authority-data": encoded(someone.certificate),
            },
            "certificate-authority-data: is set together with certificate-authority; remove one",
        ),
        (
            {
                "insecure-skip-tls-verify": True,
                "certificate-authority-data": encoded(someone.certificate),
            },
            "insecure-skip-tls-verify: contradicts certificate-authority-data; keep one of them",
        ),
        ({"insecure-skip-tls-verify": "yes"}, "insecure-skip-tls-verify: must be true or false"),
    ],
)
def test_a_bad_cluster(tmp_path: Path, cluster: Any, message: str) -> None:
    text = complaint(tmp_path, cluster=cluster)
    assert text.startswith(f"config (context here): clusters[sea].{message}")
    assert "sesame" not in text


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"token": 3}, ".token: must be a string, not of type int (quote it)"),
        ({"token": "open\x01sesame"}, ".token: has characters that an HTTP header cannot carry"),
        ({"tokenFile": "none"}, ".tokenFile: cannot read none: No such file or directory"),
        ({"tokenFile": "a\0b"}, ".tokenFile: cannot read a\0b: not a file name"),
        ({"tokenFile": "empty"}, ".tokenFile: is empty"),
        ({"tokenFile": "binary"}, ".tokenFile: has characters that an HTTP header cannot carry"),
        ({"username": "a:b"}, ".username: must not contain a colon"),
        ({"token": "sesame", "username": "a"}, ": has both a token and a username or password"),
        ({"auth-provider": {"name": "gcp"}}, ".auth-provider: is not supported; use a cred"),
        ({"as-groups": ["dev"]}, ".as: must be set"),
        ({"as-uid": "42"}, ".as: must be set"),
        ({"as-user-extra": {"a": ["b"]}}, ".as: must be set"),
        ({"as": "jane\r\nX-Evil: 1"}, ".as: impersonation has characters that an HTTP header"),
        ({"as": "jane", "as-user-extra": {"a": 3}}, ".as-user-extra.a: must be a list, not of"),
        (
            {"as": "jane", "as-user-extra": {3: ["b"]}},
            ".as-user-extra.(name): must be a string, not",
        ),
        (
            {"client-certificate-data": PAIR["client-certificate-data"]},
            ".client-certificate-data: needs client-key or client-key-data as well",
        ),
        (
            {"client-key-data": PAIR["client-key-data"]},
            ".client-key-data: needs client-certificate or client-certificate-data as well",
        ),
        ({**PAIR, "client-certificate-data": "?"}, ".client-certificate-data: is not base64"),
        (
            {**PAIR, "client-certificate-data": encoded(b"hello")},
            ".client-certificate-data: is not a PEM certificate",
        ),
        ({**PAIR, "client-key-data": encoded(b"hello")}, ".client-key-data: is not a PEM private"),
        (
            {**PAIR, "client-key-data": encoded(someone.locked_key())},
            ".client-key-data: is encrypted, and its password is unknown",
        ),
        (
            {**PAIR, "client-key-data": encoded(issue("other").key)},
            ".client-key-data: does not match the client certificate",
        ),
    ],
)
def test_a_bad_user(tmp_path: Path, user: Any, message: str) -> None:
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    text = complaint(tmp_path, user=user)
    assert text.startswith(f"config (context here): users[admin]{message}")
    assert "sesame" not in text


def test_a_plugin_is_refused_by_name(tmp_path: Path) -> None:
    message = complaint(tmp_path, user={"exec": {"command": "aws", "args": ["sesame"]}})
    assert message == (
        "config (context here): users[admin].exec: the credential plugin 'aws' must not be run; "
        "use a token or a client certificate or, if this process may run programs that this file "
        "names, --allow-exec-plugins (allow_exec=True in Python)"
    )


def test_a_user_with_a_token_needs_no_plugin(tmp_path: Path) -> None:
    access = load(tmp_path, user={"exec": {"command": "aws"}, "token": "sesame"})
    assert access.token == Secret("sesame")


# --- properties

SECRET_PLACES = ("token", "password", "client-key-data", "tokenFile content", "exec", "proxy")
# The prefix occurs in no other message and in no other line of a traceback.
secrets = st.text(st.characters(codec="utf-8"), min_size=8, max_size=40).map("S3same~{}".format)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=4),
    max_leaves=10,
)


@st.composite
def hiding(draw: st.DrawFn) -> tuple[str, str]:
    """Return a secret and a kubeconfig that has it somewhere, perhaps where it does not belong."""
    secret = draw(secrets)
    place = draw(st.sampled_from(SECRET_PLACES))
    wrapped: Any = draw(st.sampled_from([secret, [secret], {secret: secret}, {"a": [secret]}]))
    user: dict[str, Any] = dict(PAIR) if draw(st.booleans()) else {}
    cluster: dict[str, Any] = {}
    if place == "exec":
        user["exec"] = {"command": "x", "env": [{"name": "A", "value": wrapped}], "args": wrapped}
        user["auth-provider"] = draw(st.sampled_from([None, {"config": wrapped}]))
    elif place == "proxy":
        cluster["proxy-url"] = draw(st.sampled_from(["http", "socks5", "x"])) + f"://a:{secret}@p"
        cluster["server"] = f"https://a:{secret}@b" if draw(st.booleans()) else "https://b"
    elif place == "tokenFile content":
        user["tokenFile"] = "token"
    else:
        user[place] = wrapped
        user["username"] = draw(st.sampled_from(["a", None, ["a"]]))
    text = yaml.safe_dump(kubeconfig(user, cluster), allow_unicode=True)
    if draw(st.booleans()):  # as a user would write it, without quotes that it may need
        text += f"\n  token: {secret}\n"
    return secret, text


@unhurried
@given(hiding())
def test_no_secret_is_ever_shown(case: tuple[str, str]) -> None:
    secret, text = case
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "token").write_text(secret, encoding="utf-8", newline="")
        (Path(directory) / "config").write_text(text, encoding="utf-8", newline="")
        shown = "".join(_shown(Path(directory) / "config"))
    for form in (secret, repr(secret)[1:-1], ascii(secret)[1:-1], encoded(secret.encode())):
        assert form not in shown


def _shown(path: Path) -> Iterator[str]:
    try:
        loaded = read_kubeconfig(path, allow_exec=True)
    except ConfigError as error:
        yield from (str(error), repr(error), repr(vars(error)))
        yield from traceback.format_exception(error)
    else:
        yield from (repr(loaded), str(loaded.access), f"{loaded.access}")


@unhurried
@given(
    trees
    | st.fixed_dictionaries(
        {"current-context": st.just("here")},
        optional={
            "contexts": trees,
            "clusters": st.lists(
                st.fixed_dictionaries({"name": st.just("sea"), "cluster": trees}), max_size=1
            ),
            "users": st.lists(
                st.fixed_dictionaries({"name": st.just("admin"), "user": trees}), max_size=1
            ),
        },
    ).map(lambda some: kubeconfig() | some)
)
def test_any_document_is_an_access_or_a_config_error(document: object) -> None:
    check(yaml.dump(document))


@unhurried
@given(
    st.sampled_from(["user", "cluster", "context"]),
    st.dictionaries(
        st.sampled_from(
            [
                *("server", "proxy-url", "tls-server-name", "insecure-skip-tls-verify"),
                *("certificate-authority", "certificate-authority-data", "extensions"),
                *("client-certificate", "client-certificate-data", "client-key"),
                *("client-key-data", "token", "tokenFile", "username", "password"),
                *("as", "as-groups", "as-uid", "as-user-extra", "auth-provider", "exec"),
                *("namespace", "cluster", "user"),
            ]
        ),
        trees | st.sampled_from(["https://a", "here", "sea", "admin"]),
    ),
)
def test_any_value_of_any_field_is_an_access_or_a_config_error(part: str, some: Any) -> None:
    check(yaml.dump(kubeconfig(**{part: some})))


def check(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            access = read_kubeconfig(path, allow_exec=True).access
        except ConfigError as error:
            assert str(path) in str(error)
        else:
            assert access.server.startswith("http")
            assert isinstance(access.headers(), list)

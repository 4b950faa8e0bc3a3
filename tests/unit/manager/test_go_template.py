"""Go templates: accepted syntax, trimmed space, and errors with their position."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import ConfigError
from kubeocean.install.templates import proxier_files, syncer_files
from kubeocean.install.values import Values
from kubeocean.manager.go_template import Template, Value

VARIABLES: dict[str, Value] = {"Name": "w1", "Empty": "", "On": True, "Off": False, "Count": 3}


def rendered(text: str, **more: Value) -> str:
    return Template(text, source="deployment.yaml").render(VARIABLES | more)


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        rendered(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("plain } { text", "plain } { text"),
        ("a: {{.Name}}", "a: w1"),
        ("{{ .Name }}-{{$.Name}}", "w1-w1"),
        ("{{.On}} {{.Count}} {{-3}} {{`a\nb`}}", "true 3 -3 a\nb"),
        (r'{{"{{"}}{{ "a\"b\x41é" }}', '{{a"bAé'),
        (r'{{"a\nb\tc\rd\\e\""}}', 'a\nb\tc\rd\\e"'),
        (r'{{"\x7f\101\u00e9\ud7ff\ue000"}}', "\x7fA\xe9\ud7ff\ue000"),
        ("{{9223372036854775807}}{{-9223372036854775808}}", f"{2**63 - 1}{-(2**63)}"),
        ("{{if .On}}yes{{end}}", "yes"),
        ("{{if .Off}}yes{{end}}", ""),
        ("{{if .Empty}}a{{else if .On}}b{{else}}c{{end}}", "b"),
        ("{{if .Empty}}a{{else if .Off}}b{{else}}c{{end}}", "c"),
        ("{{if 0}}a{{else}}b{{end}}", "b"),
        ("{{if .On}}{{if .Off}}a{{else}}b{{end}}c{{end}}", "bc"),
        ("{{if not .Off}}a{{end}}", "a"),
        ('{{if eq .Name "w0" "w1"}}a{{end}}', "a"),
        ('{{if ne .Name "w1"}}a{{end}}', ""),
        ("{{if eq .On true}}a{{end}}{{if eq .On false}}b{{end}}", "a"),
        ("{{if eq .Off false}}a{{end}}{{if ne .Off true}}b{{end}}", "ab"),
        ("{{true}} {{false}} {{true | not}} {{not false}}", "true false false true"),
        ("{{if and .On .Name}}a{{end}}{{or .Empty .Name}}", "aw1"),
        ("{{if and .Off .Unknown}}a{{end}}{{or .On .Unknown}}", "true"),
        ('{{if (and .On (eq .Name "w1"))}}a{{end}}', "a"),
        ('{{.Empty | default "x"}} {{default "x" .Name}}', "x w1"),
        ('{{(default "x" .Empty) | quote}} {{(.Name)}}', '"x" w1'),
        ('{{printf "%s-%s" (default "x" .Empty) .Name}}', "x-w1"),
        ('{{or (and .On .Empty) "y"}}', "y"),
        ('{{.Name | quote}} {{"a b" | printf "%s=%q" .Name}} {{printf "%d%%" 3}}', None),
        ("a{{/* {{.Unknown}} */}}b", "ab"),
        ("a{{/**/}}b{{/*/ */}}c", "abc"),
        ("a \n{{- /* \n */ -}}\n b", "ab"),
        ("{{if .Off}}{{.Unknown}}{{end}}", ""),
        ("{{if\n.On\n}}a{{end}}", "a"),
        ("a {{- -3 -}} b", "a-3b"),
        ('{{printf "%v %v %v %t" 3 .Name .On .Off}} {{0}}', "3 w1 true false 0"),
    ],
)
def test_templates_are_rendered_as_in_go(text: str, wanted: str | None) -> None:
    assert rendered(text) == ('"w1" w1="a b" 3%' if wanted is None else wanted)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb: {{.Nmae}}", "deployment.yaml:2: there is no variable .Nmae; known are .Count"),
        ("{{", "deployment.yaml:1: an action is not closed"),
        ("\n\n{{.Name", "deployment.yaml:3: an action is not closed"),
        ("{{/* a", "deployment.yaml:1: a comment is not closed"),
        ("\n{{/*/}}", "deployment.yaml:2: a comment is not closed"),
        ("{{- /*/ -}}", "a comment is not closed"),
        ("{{/* a */ .Name}}", "a comment must be the only content of its action"),
        ("{{}}", "an action is empty"),
        ("{{- -}}", "an action is empty"),
        ("a\n{{if .On}}\nb", "deployment.yaml:2: an if has no end"),
        ("{{if .On}}a{{else}}b", "an if has no end"),
        ("{{if .On}}a{{else}}b{{else}}c{{end}}", "an else must be followed by its end"),
        ("a\n{{end}}", "deployment.yaml:2: 'end' without an if"),
        ("{{else}}", "'else' without an if"),
        ("{{if .On}}{{end .On}}", "'.On' after 'end' is not allowed"),
        ("{{if}}{{end}}", "a value is missing"),
        ("{{range .Name}}{{end}}", "'range' is not supported"),
        ("{{toYaml .Name}}", "'toYaml' is not a function"),
        ("{{$x := 1}}", "'$' is not allowed here"),
        ("{{.Name.More}}", "must be separated"),
        ("{{.}}", "'.' is not allowed here"),
        ("{{.Name .Name}}", "a value takes no arguments"),
        ("{{.Name | .Name}}", "only a function can follow '|'"),
        ("{{.Name | | not}}", "only a function can follow '|'"),
        ("{{not}}", "not cannot take 0 arguments"),
        ("{{eq .Name}}", "eq cannot take 1 arguments"),
        ('{{if eq .On "true"}}{{end}}', "eq cannot compare True with 'true'"),
        ("{{(.Name}}", "a parenthesis is not closed"),
        ("{{.Name)}}", "')' is not allowed here"),
        ("{{not quote}}", "'quote' is not a value"),
        ('{{printf "%x" 3}}', "printf cannot format '%x' here"),
        ('{{printf "%s"}}', "printf cannot format '%s' here"),
        ('{{printf "a" 3}}', "printf has no verb for 3"),
        ('{{printf "%d" .Name}}', "printf cannot format 'w1' with %d, which takes a number"),
        ('{{printf "%d" .On}}', "printf cannot format true with %d, which takes a number"),
        ('{{printf "%s" 3}}', "printf cannot format 3 with %s, which takes a text"),
        ('{{printf "%s" .On}}', "printf cannot format true with %s, which takes a text"),
        ('{{printf "%q" 3}}', "printf cannot format 3 with %q, which takes a text"),
        ('{{printf "%t" "true"}}', "printf cannot format 'true' with %t, which takes a boolean"),
        ("{{printf 3}}", "printf cannot format 3: its first argument must be a string"),
        ("{{010}}", "a number must not begin with 0"),
        ("{{-07}}", "a number must not begin with 0"),
        (r'{{"\z"}}', "deployment.yaml:1: '\\\\z' is not a valid escape sequence"),
        (r'{{"\x"}}', "deployment.yaml:1: '\\\\x' is not a valid escape sequence"),
        (r'a: {{"\x4"}}', "'\\\\x' is not a valid escape sequence"),
        (r'{{"\u"}}', "deployment.yaml:1: '\\\\u' is not a valid escape sequence"),
        (r'{{"\u00e"}}', "'\\\\u' is not a valid escape sequence"),
        (r'{{"\12"}}', "'\\\\1' is not a valid escape sequence"),
        (r'{{"\ud800"}}', "deployment.yaml:1: '\\\\ud800' is not a valid escape sequence"),
        (r'{{"\udfff"}}', "'\\\\udfff' is not a valid escape sequence"),
        (r'{{"\xff"}}', "'\\\\xff' is not a valid escape sequence"),
        (r'{{"\200"}}', "'\\\\200' is not a valid escape sequence"),
        (r'{{"\777"}}', "'\\\\777' is not a valid escape sequence"),
        ("{{9223372036854775808}}", "deployment.yaml:1: a number has more than 64 bits"),
        ("{{-9223372036854775809}}", "a number has more than 64 bits"),
        ("a\n{{" + "1" * 5_000 + "}}", "deployment.yaml:2: a number has more than 64 bits"),
        ("{{" + "(" * 200 + ".Name" + ")" * 200 + "}}", "nested too deeply"),
        ("{{if .On}}" * 200 + "{{end}}" * 200, "nested too deeply"),
    ],
)
def test_a_template_error_names_the_problem_and_the_line(text: str, message: str) -> None:
    assert message in error_of(text)


@given(st.text(alphabet="ab \t\r\n:-{}"), st.text(alphabet="ab \t\r\n:-{}"))
def test_trimming_removes_white_space_only(before: str, after: str) -> None:
    if "{{" in before + after or before.endswith("{") or after.startswith("}"):
        return
    space = " \t\r\n"
    assert rendered(f"{before}{{{{.Name}}}}{after}") == f"{before}w1{after}"
    assert rendered(f"{before}{{{{- .Name}}}}{after}") == f"{before.rstrip(space)}w1{after}"
    assert rendered(f"{before}{{{{.Name -}}}}{after}") == f"{before}w1{after.lstrip(space)}"
    both = rendered(f"{before}{{{{- .Name -}}}}{after}")
    assert both == f"{before.rstrip(space)}w1{after.lstrip(space)}"


# A tree is text, or a condition over trees; the expected result is computed beside it.
_trees = st.recursive(
    st.text(alphabet="xyz\n ", max_size=4).map(lambda text: (text, text)),
    lambda inner: st.tuples(
        st.sampled_from([("On", True), ("Off", False), ("Name", True), ("Empty", False)]),
        st.booleans(),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3),
    ).map(lambda parts: _condition(*parts)),
    max_leaves=25,
)


def _condition(
    chosen: tuple[str, bool],
    negated: bool,
    then: list[tuple[str, str]],
    otherwise: list[tuple[str, str]],
) -> tuple[str, str]:
    name, truth = chosen
    condition = f"not .{name}" if negated else f".{name}"
    texts = ["".join(each[side] for each in part) for part in (then, otherwise) for side in (0, 1)]
    taken = texts[1] if truth is not negated else texts[3]
    return f"{{{{if {condition}}}}}{texts[0]}{{{{else}}}}{texts[2]}{{{{end}}}}", taken


@given(_trees)
def test_conditions_nest(tree: tuple[str, str]) -> None:
    text, wanted = tree
    assert rendered(text) == wanted


@given(st.text(alphabet='{}-/*. \n"`|()ifelsndNameOqt0', max_size=30))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    try:
        rendered(text)
    except ConfigError as error:
        assert re.search(r"deployment\.yaml:\d+: ", str(error))


_escapes = st.one_of(
    st.integers(0xD000, 0xE800).map(lambda code: f"\\u{code:04x}"),
    st.integers(0, 0xFF).map(lambda code: f"\\x{code:02x}"),
    st.integers(0, 0o777).map(lambda code: f"\\{code:03o}"),
    st.text(alphabet='\\xu7an"', max_size=3),
)


@given(st.lists(_escapes, max_size=4))
def test_any_string_is_refused_or_can_be_encoded(escapes: list[str]) -> None:
    try:
        written = rendered(f'{{{{"{"".join(escapes)}"}}}}')
    except ConfigError as error:
        assert re.search(r"deployment\.yaml:\d+: ", str(error))
    else:
        assert written.encode().decode() == written


@pytest.mark.parametrize("tls", [True, False])
def test_the_earlier_implementation_could_render_our_templates(tls: bool) -> None:
    known = {"deployment.yaml", "service.yaml"}
    variables: dict[str, Value] = {
        "ClusterBindingName": "b",
        "DeploymentName": "d",
        "ServiceAccountName": "a",
        "SyncerNamespace": "n",
        "ProxierNamespace": "n",
        "ServiceName": "s",
        "TLSEnabled": tls,
        "TLSSecretName": "t",
        "TLSSecretNamespace": "tn",
    }
    for files in (syncer_files(Values()), proxier_files(Values())):
        for name in known & files.keys():
            written = Template(files[name], source=name).render(variables)
            assert "{{" not in written
    text = proxier_files(Values())["deployment.yaml"]
    written = Template(text, source="x").render(variables)
    assert ("- --tls-secret-name=t\n" in written) is tls

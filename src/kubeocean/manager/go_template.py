"""Renders the subset of Go templates that the templates of syncers and proxiers use.

    {{.Name}}                               the value of a variable; `$.Name` is the same
    {{if P}} {{else if P}} {{else}} {{end}} a value that is false, empty or zero is not true
    {{/* ... */}}                           a comment
    {{- ... -}}                             trims the white space around it, line ends too
    P: .Name "text" `text` 3 true f X Y (P) P | f X

The functions are `and`, `eq`, `ne`, `not`, `or` and `printf` as Go has them, and `default` and
`quote` as Helm has them. Other constructs of Go are an error that names file and line; so is an
unknown variable when it is evaluated. In `{{- ` the dash needs its space, because `{{-3}}` is a
number. Rendering has no side effects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kubeocean.errors import ConfigError

__all__ = [
    "Template",
    "TemplateAction",
    "TemplateToken",
    "Text",
    "Value",
    "template_error",
    "tokenize",
]

_SPACE: Final = " \t\r\n"
_OPEN: Final = "{{"
_CLOSE: Final = "}}"
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    | (?P<variable>\$?\.[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | `(?P<raw>[^`]*)`
    | (?P<number>[+-]?[0-9]+(?![A-Za-z0-9_.]))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>[()|])""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class TemplateToken:
    """A token of a template's action; `kind` is the name of the matched group."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a template outside its actions."""

    text: str


@dataclass(frozen=True, slots=True)
class TemplateAction:
    """An action of a template: its tokens between braces, and the line of the opening brace."""

    tokens: tuple[TemplateToken, ...]
    line: int


def template_error(message: str, *, source: str, line: int) -> ConfigError:
    """Return an error that names the file and the line."""
    return ConfigError(message, source=f"{source}:{line}")


def tokenize(text: str, *, source: str) -> Iterator[Text | TemplateAction]:
    """Yield texts and actions of a template.

    :raises ConfigError: an action is not closed, or contains an unsupported token.
    """
    at, trim = 0, False
    while True:
        start = text.find(_OPEN, at)
        between = text[at:] if start < 0 else text[at:start]
        if trim:
            between = between.lstrip(_SPACE)
        inside = start + len(_OPEN)
        if trims_left := start >= 0 and _trims(text, inside):
            between = between.rstrip(_SPACE)
            inside += 2
        if between:
            yield Text(between)
        if start < 0:
            return
        line = text.count("\n", 0, start) + 1
        if text.startswith("/*", inside):
            at, trim = _comment(text, inside, source=source, line=line)
            continue
        # The space of the trim marker may be the only content: `{{- -}}`.
        tokens, at, trim = _action(text, inside - trims_left, source=source, line=line)
        yield TemplateAction(tokens, line)


def _trims(text: str, at: int) -> bool:
    return text[at : at + 1] == "-" and text[at + 1 : at + 2] in tuple(_SPACE)


def _closes(text: str, at: int) -> tuple[int, bool] | None:
    """Return the end of the closing braces at `at` and whether they trim; None without braces."""
    if text.startswith(_CLOSE, at):
        return at + len(_CLOSE), False
    if text[at : at + 1] in tuple(_SPACE) and text.startswith(f"-{_CLOSE}", at + 1):
        return at + 2 + len(_CLOSE), True
    return None


def _comment(text: str, at: int, *, source: str, line: int) -> tuple[int, bool]:
    end = text.find("*/", at + 2)
    if end < 0:
        raise template_error("a comment is not closed", source=source, line=line)
    closed = _closes(text, end + 2)
    if closed is None:
        raise template_error(
            "a comment must be the only content of its action", source=source, line=line
        )
    return closed


def _action(
    text: str, at: int, *, source: str, line: int
) -> tuple[tuple[TemplateToken, ...], int, bool]:
    tokens: list[TemplateToken] = []
    while at < len(text):
        if (closed := _closes(text, at)) is not None:
            return tuple(tokens), *closed
        if (match := _TOKEN.match(text, at)) is None:
            raise template_error(
                f"{text[at : at + 1]!r} is not allowed here", source=source, line=line
            )
        kind = match.lastgroup or ""
        if kind == "space" and (closed := _closes(text, match.end() - 1)) is not None:
            return tuple(tokens), *closed
        if kind != "space":
            if tokens and text[at - 1] not in (*_SPACE, "(", "|") and kind not in ("mark",):
                message = f"{match[0]!r} must be separated by a space"
                raise template_error(message, source=source, line=line)
            tokens.append(TemplateToken(kind, match[kind]))
        at = match.end()
    raise template_error("an action is not closed", source=source, line=line)


Value: TypeAlias = str | bool | int
_Variables: TypeAlias = Mapping[str, Value]
_Function: TypeAlias = Callable[..., Value]

_MAX_DEPTH: Final = 100  # protects the stack
_UNSUPPORTED: Final = frozenset(
    ("block", "break", "continue", "define", "range", "template", "with", "nil")
)
_ESCAPES: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{3}|.)")
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_INTEGERS: Final = range(-(2**63), 2**63)
_LONGEST_INTEGER: Final = len(str(_INTEGERS.start))
_SURROGATES: Final = range(0xD800, 0xE000)
_VERB: Final = re.compile(r"%(.?)", re.DOTALL)


class Template:
    """A parsed template; errors name its `source`."""

    def __init__(self, text: str, *, source: str) -> None:
        """Parse the template.

        :raises ConfigError: the template is invalid or uses an unsupported construct.
        """
        self._source = source
        self._body = _Parser(text, source).read()

    def render(self, variables: _Variables) -> str:
        """Return the text of the template with these variables.

        :raises ConfigError: a variable is unknown, or a function cannot be evaluated.
        """
        return "".join(self._write(self._body, variables))

    def _write(self, body: Sequence[_Node], variables: _Variables) -> Iterator[str]:
        for node in body:
            match node:
                case Text():
                    yield node.text
                case _Output():
                    yield _shown(self._value(node.value, variables, node.line))
                case _If():
                    yield from self._write(self._branch(node, variables), variables)

    def _branch(self, node: _If, variables: _Variables) -> Sequence[_Node]:
        for condition, line, body in node.branches:
            if self._value(condition, variables, line):
                return body
        return node.otherwise

    def _value(self, expression: _Expression, variables: _Variables, line: int) -> Value:
        try:
            return expression.evaluate(variables)
        except _ExpressionError as error:
            raise template_error(str(error), source=self._source, line=line) from None


class _ExpressionError(Exception):
    """Raised for an invalid expression; the caller adds file and line."""


@dataclass(frozen=True, slots=True)
class _Constant:
    value: Value

    def evaluate(self, variables: _Variables) -> Value:
        return self.value


@dataclass(frozen=True, slots=True)
class _Variable:
    name: str

    def evaluate(self, variables: _Variables) -> Value:
        if self.name not in variables:
            known = ", ".join(f".{name}" for name in sorted(variables))
            raise _ExpressionError(f"there is no variable .{self.name}; known are {known}")
        return variables[self.name]


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    arguments: tuple[_Expression, ...]

    def evaluate(self, variables: _Variables) -> Value:
        if self.name in ("and", "or"):
            return self._decide(variables, until=self.name == "or")
        return _FUNCTIONS[self.name](*(each.evaluate(variables) for each in self.arguments))

    def _decide(self, variables: _Variables, *, until: bool) -> Value:
        """Return the first operand that is true (or false, by `until`), else the last operand.

        Later operands are not evaluated.
        """
        value: Value = False
        for argument in self.arguments:
            value = argument.evaluate(variables)
            if bool(value) is until:
                break
        return value


_Expression: TypeAlias = _Constant | _Variable | _Call


@dataclass(frozen=True, slots=True)
class _Output:
    value: _Expression
    line: int


@dataclass(frozen=True, slots=True)
class _If:
    branches: tuple[tuple[_Expression, int, Sequence[_Node]], ...]
    otherwise: Sequence[_Node]


_Node: TypeAlias = Text | _Output | _If


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _equal(first: Value, *others: Value) -> bool:
    for other in others:
        if type(first) is not type(other):
            raise _ExpressionError(f"eq cannot compare {first!r} with {other!r}")
        if first == other:
            return True
    return False


def _quote(*values: Value) -> str:
    return " ".join(json.dumps(_shown(value), ensure_ascii=False) for value in values)


# The type of a value that each verb formats as Go does, and its name; `%v` formats all.
_VERBS: Final[Mapping[str, tuple[type, str]]] = {
    "s": (str, "a text"),
    "q": (str, "a text"),
    "d": (int, "a number"),
    "t": (bool, "a boolean"),
}


def _literal(value: Value) -> str:
    return repr(value) if isinstance(value, str) else _shown(value)


def _printf(form: Value, *values: Value) -> str:
    left = list(values)
    if not isinstance(form, str):
        message = f"printf cannot format {_literal(form)}: its first argument must be a string"
        raise _ExpressionError(message)

    def verb(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[1] not in ("s", "v", "d", "q", "t") or not left:
            raise _ExpressionError(f"printf cannot format {match[0]!r} here")
        value = left.pop(0)
        required, kind = _VERBS.get(match[1], (type(value), ""))
        if type(value) is not required:
            message = f"printf cannot format {_literal(value)} with {match[0]}, which takes {kind}"
            raise _ExpressionError(message)
        return _quote(value) if match[1] == "q" else _shown(value)

    written = _VERB.sub(verb, form)
    if left:
        raise _ExpressionError(f"printf has no verb for {left[0]!r}")
    return written


_FUNCTIONS: Final[Mapping[str, _Function]] = {
    "default": lambda fallback, value: value or fallback,
    "eq": _equal,
    "ne": lambda first, other: not _equal(first, other),
    "not": lambda value: not value,
    "printf": _printf,
    "quote": _quote,
}
# Minimum and maximum number of arguments.
_ARITY: Final = {
    "and": (1, _MAX_DEPTH),
    "default": (2, 2),
    "eq": (2, _MAX_DEPTH),
    "ne": (2, 2),
    "not": (1, 1),
    "or": (1, _MAX_DEPTH),
    "printf": (1, _MAX_DEPTH),
    "quote": (1, _MAX_DEPTH),
}


class _Parser:
    """Parses the tokens of a template."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._tokens = tokenize(text, source=source)

    def read(self) -> Sequence[_Node]:
        body, ended = self._body(0)
        if ended is not None:
            raise self._error(f"{ended.tokens[0].text!r} without an if", ended.line)
        return body

    def _body(self, depth: int) -> tuple[Sequence[_Node], TemplateAction | None]:
        """Parse up to an enclosing `else` or `end`; return the nodes and that closing action."""
        nodes: list[_Node] = []
        for piece in self._tokens:
            if isinstance(piece, Text):
                nodes.append(piece)
                continue
            match piece.tokens[:1]:
                case ():
                    raise self._error("an action is empty", piece.line)
                case (TemplateToken("word", "else" | "end"),):
                    return nodes, piece
                case (TemplateToken("word", "if"),):
                    nodes.append(self._if(piece, depth + 1))
                case _:
                    nodes.append(_Output(self._expression(piece.tokens, piece.line), piece.line))
        return nodes, None

    def _if(self, opened: TemplateAction, depth: int) -> _If:
        if depth > _MAX_DEPTH:
            raise self._error("conditions are nested too deeply", opened.line)
        branches: list[tuple[_Expression, int, Sequence[_Node]]] = []
        begun, condition = opened, self._expression(opened.tokens[1:], opened.line)
        while True:
            body, ended = self._body(depth)
            branches.append((condition, begun.line, body))
            if ended is None:
                raise self._error("an if has no end", opened.line)
            match ended.tokens:
                case (TemplateToken("word", "else"), TemplateToken("word", "if"), *rest):
                    begun, condition = ended, self._expression(rest, ended.line)
                case (TemplateToken("word", "else"),):
                    return _If(tuple(branches), self._otherwise(opened, depth))
                case (TemplateToken("word", "end"),):
                    return _If(tuple(branches), ())
                case _:
                    message = f"{ended.tokens[1].text!r} after {ended.tokens[0].text!r}"
                    raise self._error(f"{message} is not allowed", ended.line)

    def _otherwise(self, opened: TemplateAction, depth: int) -> Sequence[_Node]:
        body, ended = self._body(depth)
        if ended is None:
            raise self._error("an if has no end", opened.line)
        if ended.tokens != (TemplateToken("word", "end"),):
            raise self._error("an else must be followed by its end", ended.line)
        return body

    def _expression(self, tokens: Sequence[TemplateToken], line: int) -> _Expression:
        try:
            expression, rest = _pipeline(list(tokens), 0)
            if rest:
                raise _ExpressionError(f"{rest[0].text!r} is not allowed here")
        except _ExpressionError as error:
            raise self._error(str(error), line) from None
        return expression

    def _error(self, message: str, line: int) -> ConfigError:
        return template_error(message, source=self._source, line=line)


def _pipeline(tokens: list[TemplateToken], depth: int) -> tuple[_Expression, list[TemplateToken]]:
    """Parse a pipeline; return the pipeline and the remaining tokens.

    Each step is the last argument of the next one.
    """
    if depth > _MAX_DEPTH:
        raise _ExpressionError("parentheses are nested too deeply")
    given: _Expression | None = None
    while True:
        given, tokens = _command(tokens, given, depth)
        if not tokens or tokens[0] != TemplateToken("mark", "|"):
            return given, tokens
        tokens = tokens[1:]


def _command(
    tokens: list[TemplateToken], given: _Expression | None, depth: int
) -> tuple[_Expression, list[TemplateToken]]:
    name = ""
    if tokens and tokens[0].kind == "word" and tokens[0].text not in ("true", "false"):
        name, tokens = tokens[0].text, tokens[1:]
        if name not in _ARITY:
            problem = " is not supported" if name in _UNSUPPORTED else " is not a function"
            raise _ExpressionError(f"{name!r}{problem}")
    operands: list[_Expression] = []
    while tokens and tokens[0] not in (TemplateToken("mark", ")"), TemplateToken("mark", "|")):
        operand, tokens = _operand(tokens, depth)
        operands.append(operand)
    if given is not None:
        if not name:
            raise _ExpressionError("only a function can follow '|'")
        operands.append(given)
    if name:
        least, most = _ARITY[name]
        if not least <= len(operands) <= most:
            raise _ExpressionError(f"{name} cannot take {len(operands)} arguments")
        return _Call(name, tuple(operands)), tokens
    if len(operands) != 1:
        raise _ExpressionError(
            "a value is missing" if not operands else "a value takes no arguments"
        )
    return operands[0], tokens


def _operand(tokens: list[TemplateToken], depth: int) -> tuple[_Expression, list[TemplateToken]]:
    token, rest = tokens[0], tokens[1:]
    match token:
        case TemplateToken("mark", "("):
            inner, rest = _pipeline(rest, depth + 1)
            if not rest or rest[0] != TemplateToken("mark", ")"):
                raise _ExpressionError("a parenthesis is not closed")
            return inner, rest[1:]
        case TemplateToken("variable", text):
            return _Variable(text.removeprefix("$").removeprefix(".")), rest
        case TemplateToken("string", text):
            return _Constant(_ESCAPES.sub(_unescaped, text[1:-1])), rest
        case TemplateToken("raw", text):
            return _Constant(text), rest
        case TemplateToken("number", text):
            return _Constant(_integer(text)), rest
        case TemplateToken("word", "true" | "false" as text):
            return _Constant(text == "true"), rest
        case _:
            raise _ExpressionError(f"{token.text!r} is not a value")


def _integer(text: str) -> int:
    # The length comes first: `int` raises a ValueError for more than 4,300 digits.
    if len(text) > _LONGEST_INTEGER or int(text) not in _INTEGERS:
        raise _ExpressionError("a number has more than 64 bits")
    if text.lstrip("+-").startswith("0") and int(text):
        raise _ExpressionError("a number must not begin with 0: in Go it would be octal")
    return int(text)


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code in _SIMPLE:
        return _SIMPLE[code]
    if len(code) > 1:
        number = int(code[1:], 16) if code[0] in "xu" else int(code, 8)
        # In Go `\x` and octal escapes are bytes, which are characters in ASCII only.
        is_character = number not in _SURROGATES if code[0] == "u" else number < 0x80
        if is_character:
            return chr(number)
    raise _ExpressionError(f"{escape[0]!r} is not a valid escape sequence")

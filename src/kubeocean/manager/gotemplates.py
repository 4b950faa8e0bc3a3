"""Go templates, as far as the templates of syncers and proxiers use them.

    {{.Name}}                               the value of a variable; `$.Name` is the same
    {{if P}} {{else if P}} {{else}} {{end}} what is false, empty or zero is not taken
    {{/* ... */}}                           nothing
    {{- ... -}}                             without the white space around it
    P: .Name "text" `text` 3 true f X Y (P) P | f X

The functions are `and`, `eq`, `ne`, `not`, `or` and `printf` as Go has them, and `default` and
`quote` as Helm has them. Whatever else Go knows is an error that names file and line; so is a
variable that there is not, once it is asked for. Nothing is read or run here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kubeocean.errors import ConfigError
from kubeocean.manager.gotemplatetokens import Action, Text, Token, complain, pieces

__all__ = ["Template", "Value"]

Value: TypeAlias = str | bool | int
_Variables: TypeAlias = Mapping[str, Value]
_Function: TypeAlias = Callable[..., Value]

_DEEPEST: Final = 100  # more would be a program, or an attack on the stack
_UNKNOWN_TO_US: Final = frozenset(
    ("block", "break", "continue", "define", "range", "template", "with", "nil")
)
_ESCAPES: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[0-7]{3}|.)")
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\"}
_VERB: Final = re.compile(r"%(.?)", re.DOTALL)


class Template:
    """One template, read; `source` names it in errors."""

    def __init__(self, text: str, *, source: str) -> None:
        """:raises ConfigError: it is not a template, or more of one than we know."""
        self._source = source
        self._body = _Reader(text, source).read()

    def render(self, variables: _Variables) -> str:
        """The text with these variables.

        :raises ConfigError: it asks for another one, or for what cannot be computed.
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
        except _Nonsense as error:
            raise complain(str(error), source=self._source, line=line) from None


# What a template consists of


class _Nonsense(Exception):
    """Something cannot be computed; only the template knows where it stands."""


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
            raise _Nonsense(f"there is no variable .{self.name}; there are {known}")
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
        """The first that decides, or the last; what comes after it is not looked at."""
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


# Functions


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _equal(first: Value, *others: Value) -> bool:
    for other in others:
        if type(first) is not type(other):
            raise _Nonsense(f"eq cannot compare {first!r} with {other!r}")
        if first == other:
            return True
    return False


def _quote(*values: Value) -> str:
    return " ".join(json.dumps(_shown(value), ensure_ascii=False) for value in values)


def _printf(form: Value, *values: Value) -> str:
    left = list(values)

    def verb(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        if found[1] not in ("s", "v", "d", "q", "t") or not left:
            raise _Nonsense(f"printf cannot write {found[0]!r} here")
        value = left.pop(0)
        return _quote(value) if found[1] == "q" else _shown(value)

    written = _VERB.sub(verb, _shown(form))
    if left:
        raise _Nonsense(f"printf has no place for {left[0]!r}")
    return written


_FUNCTIONS: Final[Mapping[str, _Function]] = {
    "default": lambda fallback, value: value or fallback,
    "eq": _equal,
    "ne": lambda first, other: not _equal(first, other),
    "not": lambda value: not value,
    "printf": _printf,
    "quote": _quote,
}
# How many arguments each takes, at least and at most.
_ARITY: Final = {
    "and": (1, _DEEPEST),
    "default": (2, 2),
    "eq": (2, _DEEPEST),
    "ne": (2, 2),
    "not": (1, 1),
    "or": (1, _DEEPEST),
    "printf": (1, _DEEPEST),
    "quote": (1, _DEEPEST),
}


# Reading


class _Reader:
    """Pieces, put together."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._pieces = pieces(text, source=source)

    def read(self) -> Sequence[_Node]:
        body, ended = self._body(0)
        if ended is not None:
            raise self._error(f"{ended.tokens[0].text!r} without an if", ended.line)
        return body

    def _body(self, depth: int) -> tuple[Sequence[_Node], Action | None]:
        """Up to the `else` or `end` of what encloses it, which comes with it."""
        found: list[_Node] = []
        for piece in self._pieces:
            if isinstance(piece, Text):
                found.append(piece)
                continue
            match piece.tokens[:1]:
                case ():
                    raise self._error("an action says nothing", piece.line)
                case (Token("word", "else" | "end"),):
                    return found, piece
                case (Token("word", "if"),):
                    found.append(self._if(piece, depth + 1))
                case _:
                    found.append(_Output(self._expression(piece.tokens, piece.line), piece.line))
        return found, None

    def _if(self, opened: Action, depth: int) -> _If:
        if depth > _DEEPEST:
            raise self._error("conditions are nested too deeply", opened.line)
        branches: list[tuple[_Expression, int, Sequence[_Node]]] = []
        begun, condition = opened, self._expression(opened.tokens[1:], opened.line)
        while True:
            body, ended = self._body(depth)
            branches.append((condition, begun.line, body))
            if ended is None:
                raise self._error("an if has no end", opened.line)
            match ended.tokens:
                case (Token("word", "else"), Token("word", "if"), *rest):
                    begun, condition = ended, self._expression(rest, ended.line)
                case (Token("word", "else"),):
                    return _If(tuple(branches), self._otherwise(opened, depth))
                case (Token("word", "end"),):
                    return _If(tuple(branches), ())
                case _:
                    said = f"{ended.tokens[1].text!r} after {ended.tokens[0].text!r}"
                    raise self._error(f"{said} makes no sense", ended.line)

    def _otherwise(self, opened: Action, depth: int) -> Sequence[_Node]:
        body, ended = self._body(depth)
        if ended is None:
            raise self._error("an if has no end", opened.line)
        if ended.tokens != (Token("word", "end"),):
            raise self._error("after an else comes its end", ended.line)
        return body

    def _expression(self, tokens: Sequence[Token], line: int) -> _Expression:
        try:
            expression, rest = _pipeline(list(tokens), 0)
            if rest:
                raise _Nonsense(f"{rest[0].text!r} makes no sense here")
        except _Nonsense as error:
            raise self._error(str(error), line) from None
        return expression

    def _error(self, message: str, line: int) -> ConfigError:
        return complain(message, source=self._source, line=line)


def _pipeline(tokens: list[Token], depth: int) -> tuple[_Expression, list[Token]]:
    """An expression, and what is left; each step is the last argument of the next one."""
    if depth > _DEEPEST:
        raise _Nonsense("parentheses are nested too deeply")
    given: _Expression | None = None
    while True:
        given, tokens = _command(tokens, given, depth)
        if not tokens or tokens[0] != Token("mark", "|"):
            return given, tokens
        tokens = tokens[1:]


def _command(
    tokens: list[Token], given: _Expression | None, depth: int
) -> tuple[_Expression, list[Token]]:
    name = ""
    if tokens and tokens[0].kind == "word" and tokens[0].text not in ("true", "false"):
        name, tokens = tokens[0].text, tokens[1:]
        if name not in _ARITY:
            said = " is not supported" if name in _UNKNOWN_TO_US else " is no function"
            raise _Nonsense(f"{name!r}{said}")
    operands: list[_Expression] = []
    while tokens and tokens[0] not in (Token("mark", ")"), Token("mark", "|")):
        operand, tokens = _operand(tokens, depth)
        operands.append(operand)
    if given is not None:
        if not name:
            raise _Nonsense("only a function can come after '|'")
        operands.append(given)
    if name:
        least, most = _ARITY[name]
        if not least <= len(operands) <= most:
            raise _Nonsense(f"{name} cannot take {len(operands)} arguments")
        return _Call(name, tuple(operands)), tokens
    if len(operands) != 1:
        raise _Nonsense("a value is missing" if not operands else "a value takes no arguments")
    return operands[0], tokens


def _operand(tokens: list[Token], depth: int) -> tuple[_Expression, list[Token]]:
    token, rest = tokens[0], tokens[1:]
    match token:
        case Token("mark", "("):
            inner, rest = _pipeline(rest, depth + 1)
            if not rest or rest[0] != Token("mark", ")"):
                raise _Nonsense("a parenthesis is not closed")
            return inner, rest[1:]
        case Token("variable", text):
            return _Variable(text.removeprefix("$").removeprefix(".")), rest
        case Token("string", text):
            return _Constant(_ESCAPES.sub(_unescaped, text[1:-1])), rest
        case Token("raw", text):
            return _Constant(text), rest
        case Token("number", text):
            return _Constant(int(text)), rest
        case Token("word", "true" | "false" as text):
            return _Constant(text == "true"), rest
        case _:
            raise _Nonsense(f"{token.text!r} is no value")


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if code in _SIMPLE:
        return _SIMPLE[code]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    if len(code) > 1:
        return chr(int(code, 8))
    raise _Nonsense(f"{found[0]!r} is no character")

"""Parts of OpenAPI schemas, from which CustomResourceDefinitions are built.

The results are OpenAPI as Kubernetes accepts it. A rule is a CEL expression with the message for an
object that breaks the rule. API servers bound the cost of rules in advance, so every field that a
rule reads has a maximum size, far above real values.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.objects import Json

__all__ = [
    "array",
    "conditions",
    "flag",
    "node_selector",
    "number",
    "obj",
    "quantity",
    "rule",
    "text",
    "time",
]


def text(description: str, *rules: Json, **limits: object) -> Json:
    return {"description": description, "type": "string", **limits, **_rules(rules)}


def time(description: str) -> Json:
    return {"description": description, "type": "string", "format": "date-time"}


def flag(description: str) -> Json:
    return {"description": description, "type": "boolean"}


def number(
    description: str, *, least: int = 0, most: int | None = None, wide: bool = False
) -> Json:
    """Return the schema of a whole number, of 64 bits if `wide`, else of 32."""
    limits = {"minimum": least} | ({} if most is None else {"maximum": most})
    return {
        "description": description,
        "type": "integer",
        "format": "int64" if wide else "int32",
        **limits,
    }


def array(description: str, items: Json, *, most: int | None = None) -> Json:
    """Return the schema of a list; `most` is the maximum length, needed if a rule reads it."""
    limit = {} if most is None else {"maxItems": most}
    return {"description": description, "type": "array", **limit, "items": items}


def obj(description: str, *rules: Json, required: tuple[str, ...] = (), **properties: Json) -> Json:
    return {
        "description": description,
        "type": "object",
        **({"required": list(required)} if required else {}),
        "properties": properties,
        **_rules(rules),
    }


def rule(expression: str, message: str, *, shown: str = "", **options: str) -> Json:
    """Return a CEL rule with its message; `shown` is CEL for the value that ends the message."""
    telling = {"messageExpression": f"'{message}, not \"' + {shown} + '\"'"} if shown else {}
    return {"rule": expression, "message": message, **telling, **options}


def _rules(rules: tuple[Json, ...]) -> Json:
    return {"x-kubernetes-validations": list(rules)} if rules else {}


# Types of Kubernetes


# In a CEL string a backslash is written twice.
_NUMBER: Final = r"([0-9]+(\\.[0-9]*)?|\\.[0-9]+)"
_QUANTITY: Final = rf"^[+-]?{_NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"


def quantity(description: str) -> Json:
    """Return the schema of a quantity, which is a number or a string."""
    readable = rule(
        f"type(self) == int || string(self).matches('{_QUANTITY}')",
        "must be a quantity such as 500m, 2 or 1.5Gi",
        shown="string(self)",
    )
    positive = rule(
        "type(self) == int ? int(self) >= 0 : !string(self).startsWith('-')",
        "must be zero or more",
        shown="string(self)",
    )
    return {
        "description": description,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": 64,
        **_rules((readable, positive)),
    }


_ATOMIC: Final = {"x-kubernetes-map-type": "atomic"}
_ATOMIC_LIST: Final = {"x-kubernetes-list-type": "atomic"}
_OPERATORS: Final = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_LABEL_VALUE: Final = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"
_EXPRESSION_RULES: Final = (
    rule(
        "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
        "In and NotIn need at least one value",
    ),
    rule(
        "!(self.operator in ['Exists', 'DoesNotExist'])"
        " || !has(self.values) || size(self.values) == 0",
        "Exists and DoesNotExist take no values",
    ),
    rule(
        "!(self.operator in ['Gt', 'Lt']) || (has(self.values) && size(self.values) == 1"
        " && self.values[0].matches('^[0-9]+$'))",
        "Gt and Lt take one value, a whole number",
    ),
)
_FIELD_RULE: Final = rule(
    "self.key == 'metadata.name' && self.operator in ['In', 'NotIn']"
    " && has(self.values) && size(self.values) == 1",
    "the only field that nodes are selected by is metadata.name, In or NotIn one value",
)


def node_selector(description: str) -> Json:
    """Return the schema of a NodeSelector, with the validation rules of Kubernetes."""
    term = obj(
        "Requirements that must all hold for a node; none at all hold for no node.",
        matchExpressions=_requirements(
            "label", *_EXPRESSION_RULES, maxLength=63, pattern=_LABEL_VALUE
        ),
        matchFields=_requirements("field", _FIELD_RULE, maxLength=253),
    )
    terms = array(
        "Terms of which one must hold; an empty list means all nodes.", term | _ATOMIC, most=128
    )
    selector = obj(
        description, required=("nodeSelectorTerms",), nodeSelectorTerms=terms | _ATOMIC_LIST
    )
    return selector | _ATOMIC


def _requirements(on: str, *rules: Json, **value_schema: object) -> Json:
    """Return the schema of a list of node requirements; `value_schema` is for their values."""
    value = {"type": "string", **value_schema}
    values = array("Texts; for Gt and Lt one whole number.", value, most=1024)
    requirement = obj(
        f"A requirement on a {on}.",
        *rules,
        required=("key", "operator"),
        key=text(f"The {on}.", maxLength=317),
        operator=text(f"How the {on} relates to the values.", enum=_OPERATORS),
        values=values | _ATOMIC_LIST,
    )
    return array(f"Requirements on the {on}s of a node.", requirement, most=128) | _ATOMIC_LIST


def conditions(description: str) -> Json:
    """Return the schema of a status's conditions."""
    entry = obj(
        "A condition of the object.",
        required=("type", "status", "reason", "message", "lastTransitionTime"),
        type=text(
            "The type of the condition.",
            maxLength=316,
            pattern=(
                r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
                r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
            ),
        ),
        status=text("Whether the condition is met.", enum=["True", "False", "Unknown"]),
        reason=text(
            "The reason of the status, in one CamelCase word.",
            minLength=1,
            maxLength=1024,
            pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        ),
        message=text("The reason of the status, in a sentence.", maxLength=32_768),
        lastTransitionTime=time("When the status last changed."),
        observedGeneration=number(
            "The generation of the object on which the condition is based.", wide=True
        ),
    )
    return array(description, entry) | {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }

"""The scalars that an LLMServing is written in, and the Kubernetes types it borrows. Pure."""

import ipaddress
import re
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from halffull_operator.shape import END, ListOf, Rule, Words

_UNITS: Final = {"h": 3600, "m": 60, "s": 1}
_DURATION: Final = r"(?:[0-9]{1,5}h)?(?:[0-9]{1,6}m)?(?:[0-9]{1,7}s)?"
_DNS_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
_QUALIFIED: Final = r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_QUANTITY: Final = r"[0-9]{1,18}(?:\.[0-9]{1,9})?(?:m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?"


def only(pattern: str) -> str:
    """A pattern for the whole text."""
    return f"^(?:{pattern}){END}"


def seconds(duration: str) -> int:
    """`1h30m` → 5400."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([hms])", duration))


def _is_cidr(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _within(low: str, high: str) -> Words:
    return Words(
        f"a duration from {low} to {high} in h, m and s, such as 90s, 10m or 1h30m",
        cel=f"self != '' && self.matches(r'^{_DURATION}$')"
        f" && duration(self) >= duration('{low}') && duration(self) <= duration('{high}')",
        holds=lambda text: seconds(low) <= seconds(text) <= seconds(high),
    )


class Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """An object whose every field is known, spelled in camelCase. RULES: what no type can say."""

    RULES: ClassVar[tuple[Rule, ...]] = ()


def written(value: Any) -> Any:
    """A part of the spec as plain data, without what is at its default at any depth.

    Our defaults of what is borrowed from Kubernetes are Kubernetes' own. msgspec's `omit_defaults` would compare by
    identity and leave tuples.
    """
    if isinstance(value, tuple):
        return [written(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    return {
        info.encode_name: written(given)
        for info in _fields(type(value))
        if (given := getattr(value, info.name)) != _default(info)
    }


@cache  # msgspec evaluates all annotations at each call
def _fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def _default(info: msgspec.structs.FieldInfo) -> Any:
    return info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()


DurationText = Annotated[str, Meta(pattern=only(rf"(?=.){_DURATION}"), max_length=20)]
"""A look-ahead says "not empty" to Python; CEL has its own rule."""
LongDuration = Annotated[DurationText, _within("1m", "24h")]
DrainDuration = Annotated[DurationText, _within("0s", "24h")]
DNSLabel = Annotated[
    str, Meta(pattern=only(_DNS_LABEL), max_length=63), Words("a name of a-z, 0-9 and '-' with at most 63 characters")
]
ObjectName = Annotated[
    str,
    Meta(pattern=only(_SUBDOMAIN), max_length=253),
    Words("the name of a Kubernetes object: a-z, 0-9, '-' and '.', at most 253 characters"),
]
LabelKey = Annotated[str, Meta(pattern=only(_QUALIFIED), max_length=317), Words("a key such as app or example.com/app")]
LabelValue = Annotated[
    str,
    Meta(pattern=only(_LABEL_VALUE), max_length=63),
    Words("a label's value: letters, digits, '-', '_' and '.', at most 63 characters"),
]
AnnotationValue = Annotated[str, Meta(max_length=4096)]
Quantity = Annotated[
    int | Annotated[str, Meta(pattern=only(_QUANTITY), max_length=32)],
    Words("a quantity such as 500m, 2 or 16Gi"),
]
Size = Annotated[
    str,
    Meta(pattern=only(_QUANTITY), max_length=32),
    Words(
        "a size such as 200Gi",
        cel="isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        holds=lambda text: re.search("[1-9]", text) is not None,
    ),
]
CIDR = Annotated[
    str,
    Meta(pattern=only(r"[0-9a-fA-F:.]+/[0-9]{1,3}"), max_length=43),
    Words("a range such as 10.0.0.0/8 or fd00::/8", holds=_is_cidr),
]
FreeForm = dict[str, Any]


class ObjectRef(Strict, frozen=True, kw_only=True):
    """An object of the same namespace, by name."""

    name: Annotated[ObjectName, Meta(description="Name of the object, in the namespace of the LLMServing.")]


class KeyRef(Strict, frozen=True, kw_only=True):
    """A key of a Secret or ConfigMap."""

    name: Annotated[ObjectName, Meta(description="Name of the Secret or ConfigMap.")]
    key: Annotated[
        str,
        Meta(pattern=only(r"[-._A-Za-z0-9]+"), max_length=253, description="Key in it."),
        Words("a key of letters, digits, '-', '_' and '.'"),
    ]
    optional: Annotated[bool, Meta(description="Start without it where it is missing.")] = False


class PodField(Strict, frozen=True, kw_only=True):
    """A field of the pod."""

    field_path: Annotated[
        str, Meta(min_length=1, max_length=256, description="Path of the field, such as status.podIP.")
    ]


class EnvSource(Strict, frozen=True, kw_only=True):
    """Where a variable's value comes from: exactly one of the three."""

    secret_key_ref: Annotated[KeyRef | None, Meta(description="A key of a Secret.")] = None
    config_map_key_ref: Annotated[KeyRef | None, Meta(description="A key of a ConfigMap.")] = None
    field_ref: Annotated[PodField | None, Meta(description="A field of the pod.")] = None
    RULES = (
        Rule(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(x, x).size() == 1",
            "write exactly one of secretKeyRef, configMapKeyRef, fieldRef",
            lambda self: [self.secret_key_ref, self.config_map_key_ref, self.field_ref].count(None) == 2,
        ),
    )


class EnvVar(Strict, frozen=True, kw_only=True):
    """An environment variable."""

    name: Annotated[
        str,
        Meta(pattern=only(r"[A-Za-z_][A-Za-z0-9_]*"), max_length=128, description="Name of the variable."),
        Words("a variable's name: letters, digits and '_', not beginning with a digit"),
    ]
    value: Annotated[
        Annotated[str, Meta(max_length=32768)] | None, Meta(description="Its value; $(OTHER) refers to another one.")
    ] = None
    value_from: Annotated[EnvSource | None, Meta(description="Where the value comes from, instead of `value`.")] = None
    RULES = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "write value or valueFrom, not both",
            lambda self: self.value is None or self.value_from is None,
        ),
    )


class Resources(Strict, frozen=True, kw_only=True):
    """Requests and limits of a container."""

    requests: Annotated[
        dict[LabelKey, Quantity], Meta(max_length=16, description="What the scheduler sets aside, by resource.")
    ] = msgspec.field(default_factory=dict)
    limits: Annotated[dict[LabelKey, Quantity], Meta(max_length=16, description="The most, by resource.")] = (
        msgspec.field(default_factory=dict)
    )


class Toleration(Strict, frozen=True, kw_only=True):
    """As in a pod's spec."""

    key: Annotated[LabelKey | None, Meta(description="Taint key; without one all keys.")] = None
    operator: Annotated[Literal["Exists", "Equal"], Meta(description="How the value is compared.")] = "Equal"
    value: Annotated[LabelValue | None, Meta(description="Taint value.")] = None
    effect: Annotated[
        Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None,
        Meta(description="Taint effect; without one all effects."),
    ] = None
    toleration_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None, Meta(description="How long NoExecute is tolerated.")
    ] = None
    RULES = (
        Rule(
            "self.operator == 'Equal' ? has(self.key) : !has(self.value)",
            "operator Equal needs a key; with operator Exists leave value out",
            lambda self: self.key is not None if self.operator == "Equal" else self.value is None,
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds needs effect: NoExecute",
            lambda self: self.toleration_seconds is None or self.effect == "NoExecute",
        ),
    )


class Requirement(Strict, frozen=True, kw_only=True):
    """One expression of a label selector."""

    key: Annotated[LabelKey, Meta(description="Label.")]
    operator: Annotated[Literal["In", "NotIn", "Exists", "DoesNotExist"], Meta(description="How it is compared.")]
    values: Annotated[tuple[LabelValue, ...], Meta(max_length=32, description="For In and NotIn.")] = ()
    RULES = (
        Rule(
            "self.operator in ['In', 'NotIn'] ? (has(self.values) && size(self.values) > 0)"
            " : (!has(self.values) || size(self.values) == 0)",
            "In and NotIn need values; Exists and DoesNotExist take none",
            lambda self: bool(self.values) == (self.operator in ("In", "NotIn")),
        ),
    )


class Selector(Strict, frozen=True, kw_only=True):
    """A label selector; an empty one selects all."""

    match_labels: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=32, description="Labels that must all be there.")
    ] = msgspec.field(default_factory=dict)
    match_expressions: Annotated[
        tuple[Requirement, ...], Meta(max_length=16, description="Expressions that must all hold.")
    ] = ()


class IPBlock(Strict, frozen=True, kw_only=True):
    """A range of addresses."""

    cidr: Annotated[CIDR, Meta(description="The range, IPv4 or IPv6.")]
    except_: Annotated[tuple[CIDR, ...], Meta(max_length=16, description="Ranges inside it that are left out.")] = (
        msgspec.field(default=(), name="except")
    )


class Peer(Strict, frozen=True, kw_only=True):
    """A NetworkPolicyPeer."""

    pod_selector: Annotated[
        Selector | None, Meta(description="Pods, of this namespace unless namespaceSelector says otherwise.")
    ] = None
    namespace_selector: Annotated[Selector | None, Meta(description="Namespaces.")] = None
    ip_block: Annotated[IPBlock | None, Meta(description="Addresses, instead of the selectors.")] = None
    RULES = (
        Rule(
            "has(self.ipBlock) != (has(self.podSelector) || has(self.namespaceSelector))",
            "write ipBlock, or podSelector and namespaceSelector (one of them or both)",
            lambda self: (
                (self.ip_block is not None) != (self.pod_selector is not None or self.namespace_selector is not None)
            ),
        ),
    )


EnvVars = Annotated[tuple[EnvVar, ...], Meta(max_length=128), ListOf("map", ("name",))]
Tolerations = Annotated[tuple[Toleration, ...], Meta(max_length=32)]
PullSecrets = Annotated[tuple[ObjectRef, ...], Meta(max_length=8), ListOf("map", ("name",))]
NodeSelector = Annotated[dict[LabelKey, LabelValue], Meta(max_length=32)]

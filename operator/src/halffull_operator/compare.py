"""Does an object of the cluster satisfy a manifest of ours? Pure.

There is no list of the API server's defaults here. The rules, which `tests/operator/compare` prove one by one:

- Only what the manifest sets counts. Defaults, status and other managers' additions to maps and keyed lists stay.
- managedFields say what is ours (`ownership`). A field that we own and no longer set differs: it must be applied away.
  A map or list that the server treats as one value and that another manager took over differs if it is not exactly
  ours. An empty value (false, 0, "", {}) that we own but do not find was dropped by the server, being the default; an
  empty list is as none.
- Lists merge by the keys that managedFields show, else by the table below; all others are compared item by item.
- Quantities are numbers where the API has quantities. null means "not set".
- What the server or a webhook rewrites in other ways shows in the answer to an apply: `settled` differences are left
  out.

Without managedFields (no API server would send that) values alone decide.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from halffull_operator.ownership import Fields, child, item_keys, item_of, item_step, our_fields

__all__ = ["Difference", "differences", "quantity"]

_METADATA: Final = ("labels", "annotations", "ownerReferences", "finalizers")
"""The rest of metadata is the object's identity or the server's."""

_NOT_COMPARED: Final = frozenset({"apiVersion", "kind", "metadata", "status"})

_MERGE_KEYS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "containers": (("name",),),
    "initContainers": (("name",),),
    "volumes": (("name",),),
    "env": (("name",),),
    "volumeMounts": (("mountPath",),),
    "volumeDevices": (("devicePath",),),
    "ports": (("containerPort", "protocol"), ("port", "protocol")),
    "imagePullSecrets": (("name",),),
    "hostAliases": (("ip",),),
    "topologySpreadConstraints": (("topologyKey", "whenUnsatisfiable"),),
    "ownerReferences": (("uid",),),
    "claims": (("name",),),
}
"""Merge keys of Kubernetes' own kinds, for lists that managedFields do not show as ours yet. Lists inside a list that
the server treats as one value (NetworkPolicy ports, say) are part of that value and never looked up here."""

_ATOMIC_MAPS: Final = frozenset({"matchLabels", "nodeSelector", "selector"})
"""Maps without defaults that the server treats as one value: extra keys are a change (used without managedFields)."""

_ORDERED: Final = frozenset({"env", "initContainers"})
"""Keyed lists whose order has a meaning: $(NAME) refers backwards; init containers run in order."""

_QUANTITY_MAPS: Final = frozenset({"limits", "requests"})
_QUANTITIES: Final = frozenset({"sizeLimit", "divisor"})
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?"
)
_DECIMAL: Final = {unit: Decimal(10) ** (3 * power) for power, unit in enumerate("num kMGTPE", -3) if unit != " "}
_BINARY: Final = {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)}
_SUFFIXES: Final[Mapping[str, Decimal]] = {"": Decimal(1), **_DECIMAL, **_BINARY}

_PLAIN: Final = frozenset({str, int, bool})

_AS_ONE: Final[Fields] = {}
"""The node of something owned as a whole."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not as asked. Hashable, so that a set of them can be remembered."""

    path: tuple[str, ...]
    """Field names; items of lists as in managedFields ('k:{"name":"x"}', 'v:…') or 'i:INDEX'."""
    wanted: str | None
    """JSON; None: not wanted."""
    found: str | None
    """JSON; None: not there."""

    @property
    def where(self) -> str:
        """The path for a person: spec.template.spec.containers[engine].image."""
        text = ""
        for step in self.path:
            if step.startswith("k:"):
                text += "[" + ",".join(str(value) for value in json.loads(step[2:]).values()) + "]"
            elif step.startswith(("i:", "v:")):
                text += f"[{step[2:]}]"
            elif "." in step or "/" in step:
                text += f"[{step}]"
            else:
                text += ("." if text else "") + step
        return text


def quantity(value: object) -> Decimal | None:
    """A Kubernetes quantity as a number; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix, exponent = match.groups()
    return Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])


def differences(
    wanted: Mapping[str, Any], live: Mapping[str, Any], *, settled: Collection[Difference] = ()
) -> tuple[Difference, ...]:
    """What of a manifest the object does not satisfy, and what it still has of an earlier one. Empty: nothing to do.

    Args:
        wanted: The manifest that would be applied.
        live: The object as the API server sent it, of the same kind and name.
        settled: Differences that stayed when this was applied, to be left out.
    """
    tracked = bool(live.get("metadata", {}).get("managedFields"))
    node = our_fields(live)
    if tracked and node is None:
        return (Difference((), '"applied by the operator"', '"never applied by the operator"'),)
    found = list(_Walk(tracked=tracked).top(wanted, live, node))
    if node is not None:
        found.extend(Difference(path, None, _json(_at(live, path))) for path in _stale(node, wanted))
    return tuple(difference for difference in found if difference not in settled)


class _Walk:
    def __init__(self, *, tracked: bool) -> None:
        self._tracked = tracked

    def top(self, wanted: Mapping[str, Any], live: Mapping[str, Any], node: Fields | None) -> Iterator[Difference]:
        metadata = {key: value for key, value in (wanted.get("metadata") or {}).items() if key in _METADATA}
        yield from self._map(metadata, live.get("metadata") or {}, child(node, "metadata"), ("metadata",))
        rest = {key: value for key, value in wanted.items() if key not in _NOT_COMPARED}
        yield from self._map(rest, live, node, ())

    def _map(
        self, wanted: Mapping[str, Any], live: Mapping[str, Any], node: Fields | None, path: tuple[str, ...]
    ) -> Iterator[Difference]:
        for key, want in wanted.items():
            if want is None:
                continue
            found = live.get(key)
            if want.__class__ in _PLAIN and want.__class__ is found.__class__ and want == found:
                continue  # most of a manifest: told here, it costs a tenth
            below = (*path, key)
            if found is not None:
                yield from self._value(want, found, child(node, key), below)
            elif not self._dropped(want, node, key):
                yield Difference(below, _json(want), None)

    def _dropped(self, want: Any, node: Fields | None, key: str) -> bool:
        """Whether the server keeps this value by leaving it out. An owner would have lost it to whoever removed it."""
        if want not in (False, 0, "", [], {}):
            return False
        if not self._tracked or want == []:  # nobody tells an empty list from none, and nobody owns one
            return True
        if node is None:
            return False
        # Inside one value only containers: a false or "" there may well differ from what is left out.
        return f"f:{key}" in node if node else want in ([], {})

    def _value(self, want: Any, found: Any, node: Fields | None, path: tuple[str, ...]) -> Iterator[Difference]:
        if isinstance(want, dict) and isinstance(found, dict):
            if (taken := self._taken_over(want, found, node, path)) is not None:
                yield taken
            else:
                yield from self._map(want, found, node, path)
        elif isinstance(want, list) and isinstance(found, list):
            yield from self._list(want, found, node, path)
        elif not _same(want, found, path):
            yield Difference(path, _json(want), _json(found))

    def _taken_over(
        self, want: Mapping[str, Any], found: Mapping[str, Any], node: Fields | None, path: tuple[str, ...]
    ) -> Difference | None:
        """A map of which nothing is ours although all of it should be, with keys that we did not set."""
        suspicious = node is None if self._tracked else path[-1] in _ATOMIC_MAPS
        if suspicious and not found.keys() <= want.keys():
            return Difference(path, _json(want), _json(found))
        return None

    def _list(
        self, want: list[Any], found: list[Any], node: Fields | None, path: tuple[str, ...]
    ) -> Iterator[Difference]:
        as_one = node is not None and not node  # {}: ours as a whole
        keys = None if as_one else item_keys(node) or _table_keys(path, want, found)
        if keys is not None:
            yield from self._keyed(want, found, node, path, keys)
        elif any(step.startswith("v:") for step in node or ()) or path[-1] == "finalizers":
            yield from (
                Difference((*path, "v:" + _json(item)), _json(item), None) for item in want if item not in found
            )
        elif (
            len(want) != len(found)
            or (self._tracked and node is None and want != found)
            or (want != found and not any(isinstance(item, dict | list) for item in want))
        ):
            yield Difference(path, _json(want), _json(found))
        else:
            for index, (item, there) in enumerate(zip(want, found, strict=True)):
                yield from self._value(item, there, _AS_ONE if self._tracked else None, (*path, f"i:{index}"))

    def _keyed(
        self, want: list[Any], found: list[Any], node: Fields | None, path: tuple[str, ...], keys: Sequence[str]
    ) -> Iterator[Difference]:
        # Of several items with the same key the last one is in force, here and there.
        wanted = {item_step(item, keys): item for item in want}
        there = {item_step(item, keys): item for item in found if isinstance(item, dict)}
        for step, item in wanted.items():
            below = (*path, step)
            if step in there:
                yield from self._map(item, there[step], None if node is None else node.get(step), below)
            else:
                yield Difference(below, _json(item), None)
        if path[-1] in _ORDERED:
            order, in_order = [step for step in there if step in wanted], [step for step in wanted if step in there]
            if order != in_order:
                yield Difference((*path, "i:order"), _json(in_order), _json(order))


def _table_keys(path: tuple[str, ...], want: Sequence[Any], found: Sequence[Any]) -> tuple[str, ...] | None:
    # A ServiceAccount's imagePullSecrets, at the top, are one value.
    for keys in _MERGE_KEYS.get(path[-1], ()) if len(path) > 1 else ():
        if all(isinstance(item, dict) and keys[0] in item for item in (*want, *found)):
            return keys
    return None


def _stale(node: Fields, wanted: Any) -> list[tuple[str, ...]]:
    """The paths of what we own and do not set any more."""
    found: list[tuple[str, ...]] = []
    for step, below in node.items():
        if step.startswith("f:"):
            name = step[2:]
            there = isinstance(wanted, dict) and name in wanted
            inner = wanted[name] if there else None
        elif step.startswith(("k:", "v:")):
            name = step
            there, inner = item_of(wanted, step)
        else:  # "." is the thing itself
            continue
        if not there:
            found.append((name,))
        elif below and inner is not None:
            found.extend((name, *rest) for rest in _stale(below, inner))
    return found


def _at(live: Any, path: tuple[str, ...]) -> Any:
    """What is at a path of managedFields; None: nothing."""
    for step in path:
        live = live.get(step) if isinstance(live, dict) else item_of(live, step)[1]
    return live


def _same(want: Any, found: Any, path: tuple[str, ...]) -> bool:
    if isinstance(want, bool) or isinstance(found, bool):
        return want is found
    if want == found:
        return True
    if (len(path) > 1 and path[-2] in _QUANTITY_MAPS) or path[-1] in _QUANTITIES:
        number = quantity(want)
        return number is not None and number == quantity(found)
    return False


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)

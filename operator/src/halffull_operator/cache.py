"""What the watches have told: LLMServings, their children, pods and claims. No I/O.

kopf tells every event, but not what is missing from a list that it had to make anew (after "410 Gone"). So every list
of kopf's is followed by one of ours, of which each object is seen, and which alone removes what nobody reported
(`retain`). The answers of our own writes go in as well: the next run need not wait for the watch.

Objects are kept as JSON and decoded when asked for: as dicts the twelve of one LLMServing would take 280 kB, five times
as much, and a decode of all twelve takes less than a millisecond.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from halffull_operator import kinds, labels, names
from halffull_operator.kinds import Kind, Manifest

_TOMBSTONES: Final = 20_000
"""Deleted objects that are remembered, so that an answer that comes late does not bring one back."""

ObjectKey = tuple[Kind, str, str]
"""Kind, namespace, name."""
Group = tuple[str, str]
"""Namespace and base name (names.base_name): what belongs to one LLMServing."""


@dataclass(frozen=True, slots=True)
class News:
    """What a change means for one LLMServing."""

    uid: str
    edited: bool = False
    """A person changed it, or it is new: nobody should wait."""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """What belongs to one LLMServing."""

    children: Mapping[tuple[str, str], Manifest] = field(default_factory=dict)
    """(kind, name) → object."""
    pods: tuple[Manifest, ...] = ()
    claims: tuple[Manifest, ...] = ()


@dataclass(slots=True)
class _Known:
    """One object."""

    uid: str
    version: int
    group: Group
    body: bytes
    """JSON."""
    essence: tuple[Any, ...] = ()
    """Of an LLMServing: what a person changes."""


class Cache:
    """The objects of all namespaces that are watched."""

    def __init__(self) -> None:
        """Begin empty."""
        self._objects: dict[ObjectKey, _Known] = {}
        self._groups: defaultdict[Group, set[ObjectKey]] = defaultdict(set)
        self._servings: dict[str, _Known] = {}
        self._by_group: dict[Group, str] = {}
        self._deleted: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        """Objects."""
        return len(self._objects)

    def uids(self) -> list[str]:
        """Every LLMServing."""
        return list(self._servings)

    def serving(self, uid: str) -> Manifest | None:
        """The LLMServing as last seen."""
        known = self._servings.get(uid)
        return None if known is None else _decoded(known)

    def members(self, uid: str) -> Members:
        """What is labelled as an LLMServing's; who controls it has to be looked at."""
        serving = self._servings.get(uid)
        if serving is None:
            return Members()
        children: dict[tuple[str, str], Manifest] = {}
        pods, claims = [], []
        for key in sorted(self._groups.get(serving.group, ()), key=lambda key: (key[0].kind, key[2])):
            found = _decoded(self._objects[key])
            if key[0] is kinds.POD:
                pods.append(found)
            elif key[0] is kinds.CLAIM:
                claims.append(found)
            else:
                children[key[0].kind, key[2]] = found
        return Members(children=children, pods=tuple(pods), claims=tuple(claims))

    def see(self, kind: Kind, body: Manifest) -> News | None:
        """Take in an object as it is, or was: what is older than what is known, or says the same, changes nothing."""
        key, version, uid = object_key(kind, body), _version(body), _uid(body)
        if version <= self._deleted.get(uid, -1):
            return None
        old = self._objects.get(key)
        if old is not None and old.version >= version:
            return None
        new = _Known(uid, version, _group(kind, body), _encode(_slim(kind, body)))
        left = None
        if old is not None and (old.uid != uid or old.group != new.group):
            left = self._drop(key)
        elif old is not None and old.body == new.body:
            old.version = version
            return None
        self._objects[key] = new
        if kind is kinds.SERVING:
            new.essence = _essence(body)
            self._servings[uid] = new
            self._by_group[new.group] = uid
            return News(uid, edited=old is None or old.uid != uid or old.essence != new.essence)
        self._groups[new.group].add(key)
        return left or self._news(new.group)  # what somebody relabelled concerns the one that it was of

    def lose(self, kind: Kind, body: Manifest) -> News | None:
        """Take in that an object is gone, or no longer has our labels; `body` is its last state."""
        key, uid = object_key(kind, body), _uid(body)
        self._deleted[uid] = max(_version(body), self._deleted.pop(uid, -1))
        while len(self._deleted) > _TOMBSTONES:
            self._deleted.popitem(last=False)
        old = self._objects.get(key)
        if old is None or old.uid != uid:
            return None  # another one has the name by now
        return self._drop(key)

    def retain(
        self, kind: Kind, listed: Collection[ObjectKey], *, version: str, namespace: str | None = None
    ) -> list[News]:
        """Take in the end of a list: all there is of a kind, in one namespace or in all, each of which was seen."""
        as_of = _number(version)
        missing = [
            key
            for key, known in self._objects.items()
            if key[0] is kind
            and (namespace is None or key[1] == namespace)
            and key not in listed
            and known.version <= as_of  # else it was made after the list
        ]
        return [news for key in missing if (news := self._drop(key)) is not None]

    def _drop(self, key: ObjectKey) -> News | None:
        old = self._objects.pop(key)
        if key[0] is kinds.SERVING:
            del self._servings[old.uid]
            if self._by_group.get(old.group) == old.uid:
                del self._by_group[old.group]
            return News(old.uid, gone=True)
        self._groups[old.group].discard(key)
        if not self._groups[old.group]:
            del self._groups[old.group]
        return self._news(old.group)

    def _news(self, group: Group) -> News | None:
        uid = self._by_group.get(group)
        return News(uid) if uid is not None else None


def object_key(kind: Kind, body: Mapping[str, Any]) -> ObjectKey:
    """The key of an object."""
    metadata = body["metadata"]
    return kind, metadata.get("namespace", ""), metadata["name"]


def _group(kind: Kind, body: Mapping[str, Any]) -> Group:
    metadata = body["metadata"]
    if kind is kinds.SERVING:
        return metadata.get("namespace", ""), names.base_name(metadata["name"])
    return metadata.get("namespace", ""), str((metadata.get("labels") or {}).get(labels.SERVING, ""))


def _uid(body: Mapping[str, Any]) -> str:
    return str(body["metadata"].get("uid", ""))


def _version(body: Mapping[str, Any]) -> int:
    return _number(body["metadata"].get("resourceVersion", ""))


def _number(version: str) -> int:
    """A resourceVersion, which can be compared since Kubernetes says so (KEP-5504); 0: none."""
    return int(version) if version.isascii() and version.isdigit() else 0


def _essence(body: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of an LLMServing a person changes."""
    metadata = body["metadata"]
    return (
        metadata.get("generation"),
        metadata.get("labels"),
        metadata.get("annotations"),
        metadata.get("deletionTimestamp"),
    )


def _slim(kind: Kind, body: Manifest) -> Manifest:
    """Without what nobody asks for; what then is as before is no news."""
    if kind in (kinds.POD, kinds.CLAIM):
        left_out = {"managedFields", "resourceVersion"}
    elif kind is kinds.SERVING:
        left_out = {"managedFields"}
    else:
        return body
    slim = {**body, "metadata": {name: value for name, value in body["metadata"].items() if name not in left_out}}
    if kind is kinds.POD:
        slim["spec"] = {"nodeName": (body.get("spec") or {}).get("nodeName")}
    return slim


_encode: Final = msgspec.json.Encoder().encode
_DECODER: Final = msgspec.json.Decoder()


def _decoded(known: _Known) -> Manifest:
    body: Manifest = _DECODER.decode(known.body)
    return body

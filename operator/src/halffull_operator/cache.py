"""What the watches have told: LLMServings, their children, pods and claims. No I/O.

kopf tells every event and every object of a list, but not which objects are missing from a list that it had to make
anew (after "410 Gone"). So every list of kopf's is followed by one of ours (`replace`), which alone removes what nobody
reported. The answers of our own writes go in as well: the next run need not wait for the watch.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

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


class Cache:
    """The objects of all namespaces that are watched."""

    def __init__(self) -> None:
        """Begin empty."""
        self._objects: dict[ObjectKey, Manifest] = {}
        self._groups: defaultdict[Group, set[ObjectKey]] = defaultdict(set)
        self._servings: dict[str, Manifest] = {}
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
        return self._servings.get(uid)

    def members(self, uid: str) -> Members:
        """What is labelled as an LLMServing's; who controls it has to be looked at."""
        body = self._servings.get(uid)
        if body is None:
            return Members()
        children: dict[tuple[str, str], Manifest] = {}
        pods, claims = [], []
        for key in sorted(self._groups.get(_group(kinds.SERVING, body), ()), key=lambda key: (key[0].kind, key[2])):
            found = self._objects[key]
            if key[0] is kinds.POD:
                pods.append(found)
            elif key[0] is kinds.CLAIM:
                claims.append(found)
            else:
                children[key[0].kind, key[2]] = found
        return Members(children=children, pods=tuple(pods), claims=tuple(claims))

    def see(self, kind: Kind, body: Manifest) -> News | None:
        """Take in an object as it is, or was: what is older than what is known changes nothing."""
        key, version = _key(kind, body), _version(body)
        uid = _uid(body)
        if version <= self._deleted.get(uid, -1):
            return None
        old = self._objects.get(key)
        if old is not None and _version(old) >= version:
            return None
        if old is not None and _uid(old) != uid:
            self._drop(key)
        kept = _slim(kind, body)
        self._objects[key] = kept
        if kind is kinds.SERVING:
            self._servings[uid] = kept
            self._by_group[_group(kind, kept)] = uid
            return News(uid, edited=old is None or _uid(old) != uid or _essence(old) != _essence(kept))
        group = _group(kind, kept)
        if old is not None and _group(kind, old) != group:
            self._groups[_group(kind, old)].discard(key)
        self._groups[group].add(key)
        return self._news(group)

    def lose(self, kind: Kind, body: Manifest) -> News | None:
        """Take in that an object is gone, or no longer has our labels; `body` is its last state."""
        key, uid = _key(kind, body), _uid(body)
        self._deleted[uid] = max(_version(body), self._deleted.pop(uid, -1))
        while len(self._deleted) > _TOMBSTONES:
            self._deleted.popitem(last=False)
        old = self._objects.get(key)
        if old is None or _uid(old) != uid:
            return None  # another one has the name by now
        return self._drop(key)

    def replace(
        self, kind: Kind, items: Iterable[Manifest], *, version: str, namespace: str | None = None
    ) -> list[News]:
        """Take in a list: all there is of a kind, in one namespace or in all."""
        items = list(items)
        listed = {_key(kind, item) for item in items}
        as_of = _number(version)
        missing = [
            key
            for key, known in self._objects.items()
            if key[0] is kind
            and (namespace is None or key[1] == namespace)
            and key not in listed
            and _version(known) <= as_of  # else it was made after the list
        ]
        news = [self._drop(key) for key in missing]
        news += [self.see(kind, item) for item in items]
        return [one for one in news if one is not None]

    def _drop(self, key: ObjectKey) -> News | None:
        old = self._objects.pop(key)
        if key[0] is kinds.SERVING:
            uid = _uid(old)
            del self._servings[uid]
            group = _group(kinds.SERVING, old)
            if self._by_group.get(group) == uid:
                del self._by_group[group]
            return News(uid, gone=True)
        group = _group(key[0], old)
        self._groups[group].discard(key)
        if not self._groups[group]:
            del self._groups[group]
        return self._news(group)

    def _news(self, group: Group) -> News | None:
        uid = self._by_group.get(group)
        return News(uid) if uid is not None else None


def _key(kind: Kind, body: Mapping[str, Any]) -> ObjectKey:
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
    """Without who manages which field, where nobody asks: it is a third of a pod."""
    if kind not in (kinds.POD, kinds.CLAIM, kinds.SERVING) or "managedFields" not in body["metadata"]:
        return body
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": metadata}

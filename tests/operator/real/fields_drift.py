"""Changes that somebody else may make to a child: found by walking what managedFields call ours, tried by dry run."""

import copy
import http.client
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from halffull_operator import kinds, labels
from halffull_operator.kinds import Manifest
from halffull_operator.ownership import Fields, item_of, our_fields, project
from tests.operator.kube import Api, Refused

Operation = dict[str, Any]
"""Of a JSON patch (RFC 6902)."""

_SOMEBODY: Final = "somebody"


@dataclass(frozen=True)
class Place:
    """Something in an object that is ours."""

    path: str
    """JSON pointer (RFC 6901)."""
    value: Any
    node: Fields
    """{}: ours as a whole; else a map or a list that is shared, of which some is ours."""


class DryRun:
    """JSON patches by somebody else on one connection: what the API server would make of them."""

    def __init__(self, admin: Api) -> None:
        self._connection = http.client.HTTPSConnection(admin.host, admin.port, context=admin.context, timeout=30)
        self.calls = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def patch(self, body: Manifest, operations: list[Operation]) -> Manifest | None:
        """The object as it would be, managedFields among it; None: refused."""
        headers = {"Content-Type": "application/json-patch+json"}
        data = json.dumps(operations)
        self._connection.request("PATCH", f"{_path(body)}&dryRun=All", data, headers)
        response = self._connection.getresponse()
        answer: Manifest = json.loads(response.read())
        self.calls += 1
        if response.status >= 300:
            return None
        return answer | {"apiVersion": body["apiVersion"], "kind": body["kind"]}

    def changed(self, body: Manifest) -> Iterator[tuple[list[Operation], Manifest]]:
        """Each way to change something that is ours, of those that the server takes, and what comes of it."""
        for place in places(body):
            for ways in changes(place):
                tried = ((operations, self.patch(body, operations)) for operations in ways)
                taken = ((one, after) for one, after in tried if after is not None and is_changed(place, after))
                yield from itertools.islice(taken, 1)

    def added_to(self, body: Manifest) -> Iterator[tuple[list[Operation], Manifest]]:
        """The same for additions to what is shared."""
        for place in places(body):
            for operations in additions(place):
                after = self.patch(body, operations)
                if after is not None:
                    yield operations, after


def is_changed(place: Place, after: Manifest) -> bool:
    """Whether something that is ours is not as it was; what others have in it does not count."""
    found: Any = after
    for step in place.path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found is None or project(found, place.node) != project(place.value, place.node)


def places(body: Manifest) -> list[Place]:
    """All that is ours in an object, outermost first."""
    node = our_fields(body)
    assert node is not None, f"{body['kind']} {body['metadata']['name']} was never applied"
    return list(_places(body, node, ""))


def _places(value: Any, node: Fields, path: str) -> Iterator[Place]:
    if path:
        yield Place(path, value, node)
    for step, below in node.items():
        if step.startswith("f:") and isinstance(value, Mapping) and step[2:] in value:
            key = step[2:]
            yield from _places(value[key], below, f"{path}/{key.replace('~', '~0').replace('/', '~1')}")
        elif step.startswith("k:"):
            found, item = item_of(value, step)
            if found:
                index = next(index for index, one in enumerate(value) if one is item)
                yield from _places(item, below, f"{path}/{index}")


def changes(place: Place) -> Iterator[list[list[Operation]]]:
    """Ways to change something that is ours, and to remove it; of each several ways: the server refuses some."""
    if not {step for step in place.node if step != "."}:
        yield [[{"op": "replace", "path": place.path, "value": value}] for value in _others(place.value)]
    yield [[{"op": "remove", "path": place.path}]]


def _others(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int():
            yield value + 1
        case str():
            yield value + "x"
            yield ""
        case dict():
            yield {**value, "somebody": "x"}
            yield {}
        case list():
            yield [*value, *copy.deepcopy(value[:1])]
            yield value[1:]
            yield value[::-1]


def additions(place: Place) -> Iterator[list[Operation]]:
    """Ways to add to what is shared: a key of a map of text, an item of a list that merges by keys."""
    steps = [step for step in place.node if step != "."]
    if not steps:
        return
    if isinstance(place.value, dict) and all(isinstance(value, str) for value in place.value.values()):
        yield [{"op": "add", "path": f"{place.path}/somebody", "value": "x"}]
    for step in steps[:1]:
        if step.startswith("k:"):
            item = copy.deepcopy(item_of(place.value, step)[1])
            for key, value in json.loads(step[2:]).items():
                if key != "protocol":
                    item[key] = value + 50 if isinstance(value, int) else f"{value}x"
            if "name" in item:
                item["name"] = f"x{item['name']}"[:15]
            yield [{"op": "add", "path": f"{place.path}/-", "value": item}]


_KEYS = ("/name", "/port", "/containerPort", "/mountPath", "/protocol", "/topologyKey", "/whenUnsatisfiable")


def _path(child: Manifest) -> str:
    path = kinds.kind_of(child).path(child["metadata"]["namespace"], child["metadata"]["name"])
    return f"{path}?fieldManager={_SOMEBODY}"


def _patch(admin: Api, child: Manifest, operations: list[Manifest]) -> int:
    try:
        admin.call("PATCH", _path(child), operations, content_type="application/json-patch+json")
    except Refused:
        return 0
    return 1


def _change(admin: Api, child: Manifest) -> int:
    """A few values, spread over the child."""
    found = [place for place in places(child) if not place.path.startswith("/metadata") and not place.node]
    found = [place for place in found if not place.path.endswith(_KEYS)]
    return sum(_spoil(admin, child, place, "replace") for place in found[:: max(1, len(found) // 4)])


def _renumber(admin: Api, child: Manifest) -> int:
    """Every port; of the rest a label. For server-side apply it is another's item then, which stays as an addition."""
    found = [place for place in places(child) if place.path.endswith(("/port", "/containerPort"))]
    found = [place for place in found if "/ports/" in place.path]
    if not found:
        label = f"/metadata/labels/{labels.COMPONENT.replace('/', '~1')}"
        return _patch(admin, child, [{"op": "add", "path": label, "value": "x"}])
    return sum(_spoil(admin, child, place, "replace") for place in found)


def _remove(admin: Api, child: Manifest) -> int:
    """Items of lists that merge, and keys; the last ones first, so that the others keep their place."""
    found = [place for place in places(child) if not place.path.startswith("/metadata")]
    return sum(_spoil(admin, child, place, "remove") for place in found[:: -max(1, len(found) // 4)])


def _spoil(admin: Api, child: Manifest, place: Place, how: str) -> int:
    ways = [one for ways in changes(place) for one in ways if one[0]["op"] == how]
    return int(any(_patch(admin, child, one) for one in ways))


def _unlabel(admin: Api, child: Manifest) -> int:
    paths = [f"/metadata/labels/{name.replace('/', '~1')}" for name in (labels.MANAGED_BY, labels.SERVING)]
    return _patch(admin, child, [{"op": "remove", "path": path} for path in paths])


def _orphan(admin: Api, child: Manifest) -> int:
    return _patch(admin, child, [{"op": "remove", "path": "/metadata/ownerReferences"}])


def _delete(admin: Api, child: Manifest) -> int:
    admin.delete(kinds.kind_of(child), child["metadata"]["name"], child["metadata"]["namespace"])
    return 1


def _add(admin: Api, child: Manifest) -> int:
    """Labels and annotations, and whatever of a pod template can be added to."""
    texts = {"somebody": "x"}
    patch: Manifest = {"metadata": {"labels": texts, "annotations": texts}}
    admin.call("PATCH", _path(child), patch, content_type="application/merge-patch+json")
    if "template" not in child.get("spec", {}):
        return 1
    first = child["spec"]["template"]["spec"]["containers"][0]["name"]
    containers = [{"name": first, "env": [{"name": "SOMEBODY", "value": "x"}]}, {"name": "injected", "image": "i:1"}]
    template = {
        "metadata": {"annotations": texts},
        "spec": {"containers": containers, "volumes": [{"name": "injected", "emptyDir": {}}]},
    }
    patch = {"spec": {"template": template}}
    admin.call("PATCH", _path(child), patch, content_type="application/strategic-merge-patch+json")
    return 1


SPOIL: Final[dict[str, Callable[[Api, Manifest], int]]] = {
    "changed": _change,
    "renumbered": _renumber,
    "removed": _remove,
    "unlabelled": _unlabel,
    "orphaned": _orphan,
    "deleted": _delete,
    "added": _add,
}
"""Ways to spoil a child; each gives the number of changes that the API server took."""

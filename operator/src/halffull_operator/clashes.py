"""Ports that somebody gave another number: what is in the way of ours then. Pure.

Server-side apply tells ports apart by their number. Renumbered, a port of ours is somebody's own that has the name of
ours, which is missing; and the API server refuses two ports of one name. So the other one gets a name of its own first,
and stays beside ours like everything that others add.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["Operation", "asides"]

Operation = dict[str, Any]
"""Of a JSON patch (RFC 6902)."""

_POD: Final = ("spec", "template", "spec")
_GROUPS: Final = ("initContainers", "containers")


def asides(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> tuple[Operation, ...]:
    """The JSON patch after which a manifest can be applied; empty where nothing is in its way.

    Args:
        wanted: the manifest.
        live: the object as it is.
    """
    if wanted["kind"] == "Service":
        return tuple(_renamed(_ports(wanted["spec"]), _ports(live["spec"]), "port", "/spec/ports"))
    if "template" not in (wanted.get("spec") or {}):
        return ()
    found: list[Operation] = []
    for group in _GROUPS:
        containers = {container["name"]: container for container in _pod(wanted).get(group) or ()}
        for at, container in enumerate(_pod(live).get(group) or ()):
            ours = _ports(containers.get(container["name"], {}))
            path = "/" + "/".join((*_POD, group, str(at), "ports"))
            found += _renamed(ours, _ports(container), "containerPort", path)
    return tuple(found)


def _ports(thing: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return thing.get("ports") or ()


def _pod(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    for step in _POD:
        thing = thing[step]
    return thing


def _renamed(
    ours: Sequence[Mapping[str, Any]], there: Sequence[Mapping[str, Any]], number: str, path: str
) -> Iterator[Operation]:
    known = {_key(port, number) for port in ours}
    names = {port.get("name") for port in ours}
    if number == "containerPort":
        names.discard(None)  # only in a Service with several ports each needs a name
    else:
        names.add(None)
    for at, port in enumerate(there):
        if _key(port, number) not in known and (port.get("name") or None) in names:
            yield {"op": "test", "path": f"{path}/{at}/{number}", "value": port[number]}
            yield {"op": "add", "path": f"{path}/{at}/name", "value": f"{_key(port, number)[1].lower()}-{port[number]}"}


def _key(port: Mapping[str, Any], number: str) -> tuple[Any, str]:
    return port.get(number), str(port.get("protocol") or "TCP")

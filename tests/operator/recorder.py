"""What happened, in order: a watch of the API server's, kept in memory."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api


class Recording:
    """The events of one collection, oldest first."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Manifest]] = []
        """(ADDED | MODIFIED | DELETED, object); begins with what was there."""

    def of(self, name: str) -> list[Manifest]:
        """The states of one object."""
        return [body for kind, body in list(self.events) if body["metadata"]["name"] == name and kind != "DELETED"]

    def steps(self, prefix: str) -> Iterator[dict[str, Manifest]]:
        """The objects whose name begins so, after each event."""
        now: dict[str, Manifest] = {}
        for kind, body in list(self.events):
            name = body["metadata"]["name"]
            if not name.startswith(prefix):
                continue
            if kind == "DELETED":
                now.pop(name, None)
            else:
                now[name] = body
            yield dict(now)


@contextmanager
def recorded(admin: Api, kind: Kind, namespace: str) -> Iterator[Recording]:
    """Record a collection while the context lasts. The API server sends its events in the order of the writes."""
    recording = Recording()
    connection = http.client.HTTPSConnection(admin.host, admin.port, context=admin.context, timeout=300)
    listed = admin.call("GET", kind.path(namespace))
    recording.events += [("ADDED", item) for item in listed["items"]]
    version = listed["metadata"]["resourceVersion"]
    connection.request("GET", f"{kind.path(namespace)}?watch=true&resourceVersion={version}")
    response = connection.getresponse()
    assert response.status == 200, response.read()

    def read() -> None:
        try:
            while line := response.readline():
                event = json.loads(line)
                assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                recording.events.append((event["type"], event["object"]))
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass  # the context has ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield recording
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        reader.join(timeout=10)
        connection.close()

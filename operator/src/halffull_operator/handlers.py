"""kopf's part: it watches, and tells every event. Only `on.event`, which leaves no finalizer and no annotation."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

import kopf

from halffull_operator import kinds, labels
from halffull_operator.kinds import Kind, Manifest

Tell = Callable[[Kind, Manifest, bool], None]
"""Told of each event: kind, object, whether it is gone."""
Login = Callable[[], Awaitable[Any]]

_LONGEST_WAIT: Final = 10.0  # s


class Backoffs:
    """Seconds between the attempts of a call of kopf's, without an end.

    kopf's own waits end after a minute, and so does the operator then. An API server may be away for longer, and an
    operator that starts again and again meanwhile helps nobody.
    """

    def __iter__(self) -> Iterator[float]:
        """A new row of waits."""
        wait = 0.5
        while True:
            yield wait
            wait = min(wait * 2, _LONGEST_WAIT)


class Nothing(kopf.DiffBaseStorage):
    """What kopf remembers of an object: nothing.

    kopf's own makes two deep copies of each object at each event, for handlers of a kind that we do not have.
    """

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing is compared."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Nothing is there."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def registry(*, watched: Iterable[Kind], tell: Tell, login: Login) -> kopf.OperatorRegistry:
    """The handlers: one for each kind, and one that logs in."""
    own = kopf.OperatorRegistry()

    @kopf.on.login(registry=own)
    async def log_in(**_: Any) -> Any:
        return await login()

    def on_event(event: Any, param: Kind, **_: Any) -> None:
        # The items of a list come without these two.
        body = {"apiVersion": param.api_version, "kind": param.kind, **event["object"]}
        tell(param, body, event["type"] == "DELETED")

    async def on_event_in_the_loop(**arguments: Any) -> None:  # kopf runs plain functions in threads
        on_event(**arguments)

    for kind in watched:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=own, id=kind.plural, param=kind)(
            on_event_in_the_loop
        )
    return own


def settings(*, children: Iterable[Kind], lease: str) -> kopf.OperatorSettings:
    """How kopf talks to the API server.

    Args:
        children: kinds that are watched by our label.
        lease: the name of the one Lease that is watched.
    """
    chosen = kopf.OperatorSettings()
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 10
    chosen.networking.error_backoffs = Backoffs()
    chosen.watching.inactivity_timeout = 70  # the API server sends a bookmark each minute
    chosen.watching.connect_timeout = 10
    chosen.posting.enabled = False
    chosen.scanning.disabled = True  # kinds that appear later: app.py
    chosen.process.ultimate_exiting_timeout = None
    chosen.queueing.idle_timeout = 0.5
    chosen.persistence.diffbase_storage = Nothing()
    chosen.watching.chunk_size = 1  # of a list it gets the version only (access.py)
    for kind in children:
        chosen.watching.label_selectors[kind.group, kind.version, kind.plural] = labels.CHILD_SELECTOR
    chosen.watching.field_selectors[kinds.LEASE.group, kinds.LEASE.version, kinds.LEASE.plural] = (
        f"metadata.name={lease}"
    )
    return chosen

"""What discovery says about an engine."""

import enum
from dataclasses import dataclass


class Health(enum.Enum):
    """Whether an endpoint may be picked, as discovery sees it; EDS says the same from the same instant."""

    HEALTHY = "healthy"
    DRAINING = "draining"
    """It ends its streams and takes no new request: never picked."""
    UNHEALTHY = "unhealthy"
    """Never picked."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine that requests may be sent to."""

    address: str
    """IP literal and port, `10.0.0.1:8000` or `[::1]:8000`: the wire form of a pick."""
    load_port: int = 9400
    """Where its load report is served; the first rank's port."""
    health: Health = Health.HEALTHY
    name: str = ""
    """The pod's name, for people."""

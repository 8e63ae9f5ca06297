"""What the picker says about itself to people: one snapshot, as JSON for the status page."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

import msgspec

from halffull_extproc.poll_target import PollStatus
from halffull_extproc.pool_status import PoolStatus

_STATUS_PAGE: Final = "status.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything at one instant; both the metrics and the status page are made of it."""

    version: str
    uptime: float
    """Seconds since the start."""
    policy: str
    failure_mode: str
    config_source: str
    config_error: str
    """Why the last edit of the configuration was refused; empty when it was taken."""
    config_errors: int
    """Edits refused since the start, of picker.yaml and endpoints.yaml."""
    config_at_start: tuple[str, ...]
    """Keys that were edited and wait for the next start."""
    troubles: Mapping[str, str]
    """By what they are about: one line for people."""
    envoys: int
    """Envoys connected by ADS."""
    streams: int
    ads: Mapping[tuple[str, str], int]
    """(type, sent | accepted | rejected | ignored) → number."""
    ads_rejection: str
    grpc_failures: Mapping[tuple[str, str], int]
    polls: Mapping[str, PollStatus]
    pool: PoolStatus


def status_json(snapshot: Snapshot) -> bytes:
    """The snapshot as the status page reads it; a figure that is not finite becomes null."""
    document = msgspec.to_builtins(snapshot.pool)
    for endpoint in document["endpoints"]:
        poll = snapshot.polls.get(endpoint["address"])
        endpoint["polls"] = poll.answers if poll else 0
        endpoint["poll_failures"] = sum(poll.failures.values()) if poll else 0
    troubles = [{"about": about, "text": text} for about, text in sorted(snapshot.troubles.items()) if text]
    if snapshot.config_error and not snapshot.troubles.get("configuration"):  # the newest is what counts
        troubles.insert(0, {"about": "configuration", "text": f"{snapshot.config_error} (the last good one stands)"})
    if snapshot.config_at_start:
        text = f"edited, applied at the next start: {', '.join(snapshot.config_at_start)}"
        troubles.append({"about": "configuration", "text": text})
    if snapshot.ads_rejection:
        troubles.append({"about": "Envoy refused", "text": snapshot.ads_rejection})
    return msgspec.json.encode(
        {
            "version": snapshot.version,
            "uptime": snapshot.uptime,
            "policy": snapshot.policy,
            "failure_mode": snapshot.failure_mode,
            "config_source": snapshot.config_source,
            "envoys": snapshot.envoys,
            "streams": snapshot.streams,
            "troubles": troubles,
            "pool": document,
        }
    )


def status_page() -> str:
    """The static page; it fetches the JSON by itself."""
    return resources.files("halffull_extproc").joinpath(_STATUS_PAGE).read_text(encoding="utf-8")

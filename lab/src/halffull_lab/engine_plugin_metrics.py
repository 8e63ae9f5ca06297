"""What LARRY's plugin shows at /metrics beside the load report, for an emulated engine. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from halffull_lab.engine_requests import Request
from halffull_larry.accounts import Accounts
from halffull_larry.metrics import exposition
from halffull_larry.report import Identity
from halffull_larry.snapshot import Snapshot

_VLLM: Final = "emulated"


@dataclass(slots=True)
class _Admitted:
    """A request as the plugin's accounts read it."""

    request_id: str
    num_prompt_tokens: int
    arrival_time: float
    num_output_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens


class PluginMetrics:
    """How long requests waited and which were taken before others, in the seconds of whoever reads."""

    def __init__(self, *, speed: float) -> None:
        """`speed`: seconds of the engine's clock per second of the reader's."""
        self._speed = speed
        self._accounts = Accounts()

    def first_token(self, request: Request, *, requests: Iterable[Request]) -> None:
        """A request has its first token: the wait before it is known.

        Args:
            request: was admitted.
            requests: all in the engine, in the order of their arrival.
        """
        assert request.admitted_at is not None  # noqa: S101  or it had no token
        at, accounts = request.admitted_at, self._accounts
        seen = _Admitted(request.request_id, request.prompt.tokens, request.arrival / self._speed)
        accounts.admitted(seen, at / self._speed)
        accounts.ended(seen, at / self._speed, failed=True)  # nothing but its wait is counted here
        earlier = takewhile(lambda other: other.arrival < request.arrival, requests)
        accounts.reordered += any(other.admitted_at is None or other.admitted_at > at for other in earlier)

    def text(self, identity: Identity, snapshot: Snapshot) -> bytes:
        """The page; any thread may ask."""
        return exposition(identity, snapshot, self._accounts, vllm_version=_VLLM)

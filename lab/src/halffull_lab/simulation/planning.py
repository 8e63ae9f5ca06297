"""The smallest number of engines that meets an objective. Pure."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final

MEASURES: Final = ("ttft", "normalized_ttft", "tgt", "tpot")
_OBJECTIVE: Final = re.compile(
    rf"(?P<measure>{'|'.join(MEASURES)})_p(?P<q>50|95|99)\s*=\s*(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)"
)


class ObjectiveError(ValueError):
    """An objective that cannot be read; the message says how one looks."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A percentile of a measure, and the most that it may be."""

    figure: str
    """As `summary.figure_name` has it: `ttft_p95`."""
    seconds: float

    def __str__(self) -> str:
        """As on the command line."""
        return f"{self.figure}={self.seconds:g}s"

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """From `ttft_p95=1s` or `tpot_p99=80ms`.

        Raises:
            ObjectiveError: it does not look so, or asks for nothing.
        """
        found = _OBJECTIVE.fullmatch(text.strip())
        seconds = float(found["number"]) / (1000 if found["unit"] == "ms" else 1) if found else 0.0
        if found is None or seconds == 0:
            raise ObjectiveError(
                f"{text!r} is no objective; one looks like ttft_p95=1s or tpot_p99=80ms: "
                f"{', '.join(MEASURES)}; p50, p95 or p99; a time above 0 in ms or s"
            )
        return cls(f"{found['measure']}_p{found['q']}", seconds)


def meets(figures: Mapping[str, float], objectives: tuple[Objective, ...]) -> bool:
    """Whether figures, by name in s, meet every objective."""
    return all(figures[objective.figure] <= objective.seconds for objective in objectives)


def smallest(*, start: int, most: int) -> Generator[int, bool, int | None]:
    """Search for the smallest number that does, provided that every larger one does too.

    Yields numbers to try, each once, and is sent whether it did; returns the smallest that did, None when `most` did
    not. From `start` it goes up or down in growing steps, then halves what is left: about 2·log₂ of the distance.

    Args:
        start: tried first, 1 to `most`.
        most: the largest that may be tried.
    """
    failed, did = 0, most + 1
    trial, step = start, 1
    while did - failed > 1:
        if (yield trial):
            did = trial
        else:
            failed = trial
        if failed == 0:
            trial = max(1, did - step)
        elif did > most:
            trial = min(most, failed + step)
        else:
            trial = (failed + did) // 2
        step *= 2
    return did if did <= most else None

"""Traffic that is described instead of recorded: log-normal lengths, arrivals from a Poisson process.

For shapes of traffic of which only a mean or a median is published. A file is TOML:

    requests = 6000
    swing = 0.6                    # the rate goes up and down by this share of its mean, once over the trace
    [[mixture]]
    share = 1.0                    # of the requests, beside the other parts
    at_last = 0.5                  # what the share has become, linearly, at the last request; else it stays
    prompt = {mean = 161, sigma = 1.2}         # tokens; σ of their logarithm
    output = {mean = 338, sigma = 0.9}

Equal files give equal requests. The mean rate is 1 request/s: whoever replays them sets another. Pure.
"""

import math
import tomllib
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

_SEED: Final = 17
_GRID: Final = 10_000
"""Points at which the arrivals' clock is computed; between them it is linear."""
_Share = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Lengths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A log-normal distribution, rounded to tokens, at least 1."""

    mean: Annotated[float, msgspec.Meta(ge=1, le=1e6)]
    """Tokens."""
    sigma: Annotated[float, msgspec.Meta(ge=0, le=3)]
    """Standard deviation of the logarithm."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """int64[count], tokens."""
        logarithms = math.log(self.mean) - self.sigma**2 / 2 + self.sigma * rng.standard_normal(count)
        return np.maximum(1, np.rint(np.exp(logarithms))).astype(np.int64)


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of requests."""

    share: _Share = 1.0
    """Weight among the parts, at the first request."""
    at_last: _Share | None = None
    """At the last one; none: the same."""
    prompt: Lengths
    output: Lengths

    def weights(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        """float64[n]: the weight at each place between 0 and 1."""
        return self.share + ((self.share if self.at_last is None else self.at_last) - self.share) * along


class Synthetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says."""

    requests: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)]
    swing: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """Amplitude of the rate's one sine wave, as a share of the mean rate."""
    mixture: Annotated[tuple[Part, ...], msgspec.Meta(min_length=1, max_length=16)]

    def rows(self) -> list[tuple[float, int, int]]:
        """Arrival (s), prompt and output (tokens) of every request.

        Raises:
            ValueError: there is a moment at which no part has a share.
        """
        rng = np.random.default_rng(_SEED)
        count = self.requests
        clock = np.linspace(0.0, float(count), _GRID)
        wave = count / (2 * math.pi) * (1 - np.cos(2 * math.pi * clock / count))
        due = np.cumsum(rng.exponential(size=count))
        arrival = np.where(
            due < count, np.interp(due, clock + self.swing * wave, clock), due
        )  # the wave ends where it began
        weights = np.stack([part.weights(np.linspace(0.0, 1.0, count)) for part in self.mixture])
        total = weights.sum(axis=0)
        if not (total > 0).all():
            raise ValueError("mixture: the shares must never all be 0")
        kinds = (rng.random(count) >= np.cumsum(weights / total, axis=0)[:-1]).sum(axis=0)
        prompt, output = (
            np.choose(kinds, [getattr(part, name).draw(rng, count) for part in self.mixture])
            for name in ("prompt", "output")
        )
        return list(zip(arrival.tolist(), prompt.tolist(), output.tolist(), strict=True))


def parse_synthetic(text: str) -> Synthetic:
    """What a file's text says.

    Raises:
        ValueError: it is no TOML, or a key is unknown, missing or out of its bounds; names the key.
    """
    raw: dict[str, Any] = tomllib.loads(text)
    return msgspec.convert(raw, Synthetic)

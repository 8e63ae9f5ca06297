"""How long a step of an engine takes: two profiles fitted to published timings of vLLM, and a made-up one. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """The time of one step, in ms, of n = prefill + decode tokens, B decode sequences, KV = Σ context of the decodes.

    T = lin(n) + ew(n) + a0 + b·B + k·KV + q·Σ s·(p + s/2) + host, where s is a prefill chunk at offset p

    - lin: matrix products, memory-bound below a floor; ew: element-wise work; a0: what every attention call costs;
      host: the CPU's share of a step.
    - 8B bf16, A100-40GB:  lin = max(13, 3 + .0515·n) + .87,  ew = .9 + .006·n,  a0 = .6
    - 70B FP8, 2×H100 TP2: lin = max(14, 2.5 + .052·n) + .7 + .0125·n + .4,  ew = 1.5 + .008·n,  a0 = .7

    Source: Halffull design notes, fitted to published operator timings of vLLM; on the A100 within 9% of measurement
    except at tile-quantised sizes. Trust orderings and ratios, not absolute times.
    """

    floor: float
    """ms: the matrix products of a small batch, which read every weight once."""
    base: float
    """ms."""
    matmul_per_token: float
    """ms per token, beyond the floor."""
    fixed: float
    """ms per step: the constants of lin, ew and a0 together."""
    per_token: float
    """ms per token: the slopes of ew and, with tensor parallelism, the all-reduce."""
    per_kv_token: float
    """k, ms."""
    per_prefill_pair: float
    """q, ms per pair of a prefill token and a token before it."""
    host: float = 2.0
    """ms per step."""
    per_decode: float = 0.0055
    """b, ms per decode sequence."""

    def step_seconds(
        self, *, prefill_tokens: int, decodes: int, decode_context: int, prefill_pairs: float = 0.0
    ) -> float:
        """The time of a step in s.

        Args:
            prefill_tokens: of all chunks.
            decodes: B, sequences that decode one token each.
            decode_context: KV, tokens that they attend to.
            prefill_pairs: Σ s·(p + s/2) over the chunks.
        """
        tokens = prefill_tokens + decodes
        milliseconds = (
            max(self.floor, self.base + self.matmul_per_token * tokens)
            + self.fixed
            + self.per_token * tokens
            + self.per_decode * decodes
            + self.per_kv_token * decode_context
            + self.per_prefill_pair * prefill_pairs
            + self.host
        )
        return milliseconds / 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A model on a machine, and how its engine is set up unless told otherwise."""

    latency: LatencyModel
    kv_tokens: int
    """KV cache, tokens."""
    max_tokens_per_batch: int = 1_024
    block_size: int = 16
    max_num_seqs: int = 256
    max_model_len: int = 16_384


PROFILES: Final[Mapping[str, Profile]] = MappingProxyType(
    {
        "8b-a100": Profile(
            latency=LatencyModel(
                floor=13.0,
                base=3.0,
                matmul_per_token=0.0515,
                fixed=0.87 + 0.9 + 0.6,
                per_token=0.006,
                per_kv_token=1.08e-4,
                per_prefill_pair=2.7e-6,
            ),
            kv_tokens=155_000,
        ),
        "70b-2xh100": Profile(
            latency=LatencyModel(
                floor=14.0,
                base=2.5,
                matmul_per_token=0.052,
                fixed=0.7 + 0.4 + 1.5 + 0.7,
                per_token=0.0125 + 0.008,
                per_kv_token=4.9e-5,
                per_prefill_pair=1.8e-6,
            ),
            kv_tokens=230_000,
        ),
        # No machine that we know of: twice the time of a small step and half the time per further token, to see whether
        # a rule depends on how the two compare.
        "high-floor": Profile(
            latency=LatencyModel(
                floor=28.0,
                base=16.5,
                matmul_per_token=0.026,
                fixed=0.7 + 0.4 + 1.5 + 0.7,
                per_token=(0.0125 + 0.008) / 2,
                per_kv_token=4.9e-5,
                per_prefill_pair=1.8e-6,
            ),
            kv_tokens=230_000,
        ),
    }
)
"""By the name that `halffull engine --profile` and `halffull simulate --gpu` take."""

"""What `halffull calibrate` measures: prompt lengths, and numbers of decoding sequences by their contexts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

SHORT: Final = 16
"""Tokens: the shortest prompt, and the shortest context."""
ROUNDS: Final = 3
"""Of the whole design, unless told otherwise: whoever is slow for a while shall not look slow at one setting."""
STEPS: Final = 20
"""In a measurement of decoding, at least."""
SHARE: Final = 0.001
"""Of the whole time, for a measurement at least: a fast engine's steps are many and noisy."""

_KV_SHARE: Final = 0.6
"""Of the KV cache, filled by the contexts at the start of a measurement; they grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds an engine; tokens, blocks of tokens, sequences."""

    kv_tokens: int
    block_size: int
    max_tokens_per_batch: int
    max_num_seqs: int
    max_model_len: int


class Length(NamedTuple):
    """A prompt to be prefilled."""

    tokens: int
    held_out: bool


class Load(NamedTuple):
    """Sequences that decode at the same time, each from a context of so many tokens on."""

    decodes: int
    context: int
    held_out: bool


def lengths(limits: Limits, *, budget: int) -> list[Length]:
    """Prompts from 16 tokens to a step's budget by factors of √2, then of several steps, doubling.

    Every third is held out, never the shortest or the longest: a held-out length lies between fitted ones.

    Args:
        limits: the engine's.
        budget: tokens of a step that are free for a prefill.
    """
    longest = min(limits.max_model_len - 1, int(0.8 * limits.kv_tokens))
    sizes, size = {min(budget, longest), longest}, float(SHORT)
    while size < longest:
        sizes.add(int(size))
        size *= 2**0.5 if size < budget else 2
    ordered = sorted(size for size in sizes if size <= longest)
    return [Length(size, _held_out(index, len(ordered))) for index, size in enumerate(ordered)]


def loads(limits: Limits, *, tokens: float) -> list[Load]:
    """1, 4, 16, … sequences, each number with three contexts; one place is left for a prompt that interrupts.

    Args:
        limits: the engine's.
        tokens: that there is time to prefill, for all of them together.
    """
    most = max(1, limits.max_num_seqs - 1)
    numbers, number = {most}, 1
    while number < most:
        numbers.add(number)
        number *= 4
    levels = sorted(numbers)
    contexts = {level: _contexts(limits, level) for level in levels}
    scale = min(1.0, tokens / sum(level * context for level in levels for context in contexts[level]))
    found = []
    for row, level in enumerate(levels):
        for column, context in enumerate(contexts[level]):
            corner = row in (0, len(levels) - 1) and column != 1
            held_out = (row + column) % 3 == 1 and not corner
            found.append((row % 2, Load(level, max(SHORT, int(context * scale)), held_out)))
    found.sort(key=lambda each: each[0])
    # Where there is little room, contexts coincide.
    return list({(load.decodes, load.context): load for _, load in reversed(found)}.values())[::-1]


def interruptions(limits: Limits, load: Load) -> list[Length]:
    """Prompts to be prefilled while a load decodes: a part of a step's budget, and several steps."""
    budget = limits.max_tokens_per_batch - load.decodes
    room = min(limits.max_model_len - 1, int(0.2 * limits.kv_tokens))
    sizes = sorted({min(size, room) for size in (budget // 8, budget // 2, 3 * budget) if size >= SHORT})
    return [Length(size, load.held_out) for size in sizes if size >= SHORT]


def _contexts(limits: Limits, decodes: int) -> Sequence[int]:
    long = min(limits.max_model_len // 2, int(_KV_SHARE * limits.kv_tokens / decodes))
    return SHORT, max(SHORT, long // 3), max(SHORT, long)


def _held_out(index: int, count: int) -> bool:
    return index % 3 == 1 and index < count - 1

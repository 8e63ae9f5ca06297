"""What goes into the emulated engine and what comes out of it. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from halffull_lab.latency import Profile


class PromptRefusedError(ValueError):
    """A request that could never run; its text is for the client (400)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What bounds a step and a sequence."""

    max_tokens_per_batch: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    total_blocks: int
    long_prefill_token_threshold: int = 0
    """Tokens of one prefill in one step, unless its request is alone in the engine; 0: no bound. As vLLM's option."""

    def __post_init__(self) -> None:
        if not 0 < self.max_num_seqs <= self.max_tokens_per_batch:
            raise ValueError("max_num_seqs must be positive and at most max_tokens_per_batch, as vLLM wants it")
        if self.block_size < 1 or self.total_blocks < 1 or self.max_model_len < 1:
            raise ValueError("block_size, total_blocks and max_model_len must be positive")
        if self.long_prefill_token_threshold < 0:
            raise ValueError("long_prefill_token_threshold must not be negative")

    def check(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """Refuse what could never run.

        Raises:
            PromptRefusedError: empty, longer than a sequence may be, or larger than the whole KV cache.
        """
        if prompt_tokens < 1:
            raise PromptRefusedError("The prompt is empty.")
        if output_tokens < 1:
            raise PromptRefusedError(f"max_tokens must be at least 1, got {output_tokens}.")
        longest = self.max_model_len
        if prompt_tokens + output_tokens > longest:
            raise PromptRefusedError(
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{output_tokens} output tokens and your prompt contains {prompt_tokens} input tokens, "
                f"for a total of {prompt_tokens + output_tokens} tokens."
            )
        capacity = self.total_blocks * self.block_size
        if prompt_tokens + output_tokens - 1 > capacity:
            raise PromptRefusedError(
                f"The request needs {prompt_tokens + output_tokens - 1} tokens of KV cache; this engine has {capacity}."
            )

    @classmethod
    def of(cls, profile: Profile) -> "EngineLimits":
        """Those of a profile."""
        return cls(
            max_tokens_per_batch=profile.max_tokens_per_batch,
            max_num_seqs=profile.max_num_seqs,
            max_model_len=profile.max_model_len,
            block_size=profile.block_size,
            total_blocks=profile.kv_tokens // profile.block_size,
        )


class Prompt:
    """What the children of one prompt (n > 1) share: it counts once, when the last of them finishes."""

    __slots__ = ("tokens", "unfinished")

    def __init__(self, tokens: int, children: int = 1) -> None:
        self.tokens = tokens
        self.unfinished = children


class Request:
    """One sequence in the engine."""

    __slots__ = (
        "admitted_at",
        "arrival",
        "base",
        "finished_at",
        "first_token_at",
        "generated",
        "interval",
        "last_token_at",
        "max_tokens",
        "next_event",
        "output_tokens",
        "phase",
        "prefill_done",
        "prefill_tokens",
        "priority",
        "prompt",
        "request_id",
    )

    def __init__(
        self,
        request_id: str,
        *,
        prompt: Prompt,
        output_tokens: int,
        arrival: float,
        priority: int,
        interval: int,
        max_tokens: int | None = None,
    ) -> None:
        """For the arguments see `Engine.add`.

        Raises:
            ValueError: max_tokens below output_tokens.
        """
        if max_tokens is not None and max_tokens < output_tokens:
            raise ValueError(f"max_tokens is {max_tokens}, but the request will produce {output_tokens} tokens")
        self.request_id = request_id
        self.prompt = prompt
        self.output_tokens = output_tokens
        self.max_tokens = output_tokens if max_tokens is None else max_tokens
        self.arrival = arrival
        self.priority = priority
        self.interval = interval
        self.generated = 0  # output tokens up to the last prefill's end; while decoding see Engine.generated
        self.prefill_tokens = prompt.tokens  # to compute before the next token: after a preemption, the output too
        self.prefill_done = 0
        self.base = -1  # the step whose end gave the token number `generated`, while decoding; else -1
        self.next_event = -1  # the step whose end gives the next token to tell of, while decoding
        self.phase = 0  # it needs a block in steps ≡ phase, modulo the block size
        self.admitted_at: float | None = None  # at first; not again after a preemption
        self.first_token_at: float | None = None
        self.last_token_at = 0.0  # kept for requests that were preempted
        self.finished_at: float | None = None


class StepPlan(NamedTuple):
    """A step under way."""

    duration: float
    """s, by the latency model."""
    prefill_tokens: int
    decodes: int
    admitted: int
    """Requests."""
    preempted: int
    """Requests."""


class Output(NamedTuple):
    """News of one request at the end of a step."""

    request: Request
    generated: int
    """Output tokens so far; 1: the first token."""
    finished: bool


@dataclass(slots=True)
class Totals:
    """Cumulative figures beside those of the load report: what vLLM's /metrics has and the report has not."""

    prompt_tokens: int = 0
    """Of prompts whose prefill ended, each sequence counted."""
    generation_tokens: int = 0
    itl_seconds: float = 0.0
    """Sum of the times between two tokens of a sequence."""
    itl_count: int = 0
    e2e_seconds: float = 0.0
    """Sum over finished sequences, from arrival to the last token."""
    finished: int = 0
    """Sequences."""
    finished_prompt_tokens: int = 0
    """Of finished sequences, each sequence counted."""
    preemptions: int = 0
    aborted: int = 0

"""Carries out the design of a calibration on one engine: one load after the other, and what its steps took."""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from halffull_lab.calibration import CalibrationError, Mark, Region, Sample, composition, idle_share
from halffull_lab.calibration_design import (
    SHARE,
    SHORT,
    STEPS,
    Length,
    Limits,
    Load,
    interruptions,
    lengths,
    loads,
)
from halffull_lab.measured_engine import FullError, Hold, MeasuredEngine, OverError

PREFILL_SHARE: Final = 0.3
"""Of a round's time, for prompts alone; as much again is for the prefills of what then decodes."""
Told = Callable[[float, str], None]
"""Takes s since the start and what is going on."""

_ALLOWED_LOST = 0.5
_LOSSES = "other traffic, a prefix cache, speculative decoding, several ranks, or a step budget that is not {budget}"


@dataclass(kw_only=True)
class Measured:
    """What a calibration has seen."""

    limits: Limits
    samples: list[Sample] = field(default_factory=list)
    lost: int = 0
    """Measurements in which the engine did not do, or not only, what it was asked for."""
    gaps: list[float] = field(default_factory=list)
    """s between two steps that the engine does not count as busy, a reading per measurement of decoding."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def host(self) -> float:
        """Time of a step that the samples do not hold, s."""
        return idle_share(self.gaps)


async def find_limits(
    engine: MeasuredEngine, *, max_tokens_per_batch: int | None, max_num_seqs: int
) -> tuple[Limits, list[str]]:
    """What bounds the engine, as it says, and notes on what it does not say.

    Args:
        engine: to be asked.
        max_tokens_per_batch: for an engine without a load report.
        max_num_seqs: no engine tells.

    Raises:
        CalibrationError: it does not say what must be known.
    """
    card = await engine.model_card()
    sample, block_size = await engine.metrics()
    notes = [] if block_size else ["/metrics tells no block size: 16 tokens are taken"]
    kv_tokens, longest, budget = sample.total_tokens, card.get("max_model_len"), max_tokens_per_batch
    if engine.reports:
        report, _ = await engine.report()
        kv_tokens, longest = report.total_tokens, report.max_model_len
        budget = budget or report.max_tokens_per_batch
    if not kv_tokens:
        raise CalibrationError(f"{engine.url}/metrics: no vllm:cache_config_info, so the KV cache's size is not known")
    if not longest:
        raise CalibrationError(f"{engine.url}/v1/models: no max_model_len; is this vLLM?")
    if not budget:
        raise CalibrationError(
            "without a load report the engine does not tell the budget of a step: give --max-tokens-per-batch "
            "(vLLM logs it at its start as max_num_batched_tokens)"
        )
    limits = Limits(
        kv_tokens=int(kv_tokens),
        block_size=block_size or 16,
        max_tokens_per_batch=budget,
        max_num_seqs=min(max_num_seqs, budget),
        max_model_len=int(longest),
    )
    return limits, notes


async def measure(engine: MeasuredEngine, limits: Limits, *, seconds: float, rounds: int, told: Told) -> Measured:
    """Everything, `rounds` times, in about `seconds` at most; the engine is idle at the end, however it comes.

    Raises:
        CalibrationError: the engine failed, or most measurements were lost.
    """
    work = _Measuring(engine, limits, seconds=seconds, rounds=rounds, told=told)
    try:
        await work.warm_up()
        for done in range(rounds):
            if work.elapsed * (done + 1) > seconds * max(done, 1):
                work.note(f"time for {done} of {rounds} rounds only")
                break
            await work.prefills()
            await work.loads()
    except FullError:
        raise CalibrationError(
            f"{engine.url}: a request waits and is not admitted. Either others fill the engine, or its max_num_seqs is "
            "1: without a load report (--load-url) one sequence has to decode beside each prompt"
        ) from None
    measured = work.measured
    measured.seconds = work.elapsed
    taken = len(measured.samples)
    if measured.lost > _ALLOWED_LOST * (taken + measured.lost):
        raise CalibrationError(
            f"{measured.lost} of {taken + measured.lost} measurements held other steps than asked for: "
            + _LOSSES.format(budget=limits.max_tokens_per_batch)
        )
    return measured


class _Measuring:
    def __init__(self, engine: MeasuredEngine, limits: Limits, *, seconds: float, rounds: int, told: Told) -> None:
        self.measured = Measured(limits=limits)
        self._engine = engine
        self._seconds = seconds
        self._share = PREFILL_SHARE * seconds / rounds
        self._told = told
        self._least = SHARE * seconds
        self._began = time.monotonic()
        self._base = 0 if engine.reports else 1  # without a report, a sequence must decode for its steps to be seen
        self._costs: list[float] = []  # s per token of the prefills, in their order
        self._tokens = 0.0  # that there is time to prefill for the loads of a round; every round has the same

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def _per_token(self) -> float:
        """Of a prefill, s, as the last ones took; a single one that met a stall foretells nothing."""
        return statistics.median_low(self._costs[-3:]) if self._costs else 0.0

    @property
    def _limits(self) -> Limits:
        return self.measured.limits

    async def warm_up(self) -> None:
        """What an engine compiles or allocates at its first steps is no part of them."""
        prompt = min(self._limits.max_tokens_per_batch, self._limits.max_model_len - 1)
        for _ in range(2):
            await self._engine.prefill(prompt)
        with contextlib.suppress(OverError):  # warm it is all the same
            async with self._engine.hold(decodes=1, context=SHORT, output=self._output(SHORT)) as hold:
                await hold.advance(STEPS)

    async def prefills(self) -> None:
        """Prompts of every length on an otherwise idle engine."""
        until = self.elapsed + self._share
        for length in lengths(self._limits, budget=self._limits.max_tokens_per_batch - self._base):
            if self.elapsed + self._per_token * length.tokens > until:
                self.note(f"no time for prompts of {length.tokens} tokens and more")
                return
            self._told(self.elapsed, f"a prompt of {length.tokens} tokens")
            try:
                async with self._engine.hold(decodes=self._base, context=SHORT, output=self._output(SHORT)) as hold:
                    seconds = await self._prefill(hold, length, region="prefill")
                self._costs.append(seconds / length.tokens)
            except OverError:
                self._lose(f"a prompt of {length.tokens} tokens")

    async def loads(self) -> None:
        """Sequences that decode, alone and while prompts are prefilled."""
        if not self._tokens:
            self._tokens = self._share / max(self._per_token, 1e-9)
        done: set[tuple[int, int]] = set()
        while load := self._next(done):
            if self.elapsed > self._seconds:
                self.note(f"no time for {load.decodes} sequences of {load.context} tokens and others")
                return
            done.add((load.decodes, load.context))
            self._told(self.elapsed, f"{load.decodes} sequences of {load.context} tokens")
            try:
                await self._load(load)
            except OverError:
                self._lose(f"{load.decodes} sequences of {load.context} tokens")
            except FullError as full:
                self._take_as_full(load, full.running)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.measured.notes:
            self.measured.notes.append(text)

    def _next(self, done: set[tuple[int, int]]) -> Load | None:
        """Planned anew each time: the engine may turn out to run fewer sequences at once."""
        planned = loads(self._limits, tokens=self._tokens)
        return next((load for load in planned if (load.decodes, load.context) not in done), None)

    async def _load(self, load: Load) -> None:
        output = self._output(load.context)
        async with self._engine.hold(decodes=load.decodes, context=load.context, output=output) as hold:
            before = await hold.mark()
            after = await hold.advance(STEPS, seconds=self._least)
            self._take(hold, before, after, Length(0, load.held_out), region="decode")
            if before.taken is not None and after.taken is not None:
                busy = after.seconds - before.seconds
                self.measured.gaps.append((after.taken - before.taken - busy) / (after.steps - before.steps))
            for length in interruptions(self._limits, load):
                await self._prefill(hold, length, region="mixed")

    async def _prefill(self, hold: Hold, length: Length, *, region: Region) -> float:
        """Measure one prompt, several times if it is short; how long one of them took, s."""
        began, count = time.monotonic(), 0
        while not count or time.monotonic() < began + self._least:
            before, after = await hold.prefill(length.tokens)
            self._take(hold, before, after, length, region=region)
            count += 1
        return (time.monotonic() - began) / count

    def _take(self, hold: Hold, before: Mark, after: Mark, length: Length, *, region: Region) -> None:
        steps = composition(
            before,
            after,
            decodes=hold.decodes,
            context=hold.context(before),
            prompt=length.tokens,
            budget=self._limits.max_tokens_per_batch,
        )
        seconds = after.seconds - before.seconds
        if steps is None or seconds <= 0:
            self.measured.lost += 1
            return
        what = {
            "prefill": f"a prompt of {length.tokens}",
            "decode": f"{hold.decodes} decodes from {hold.prompt}",
            "mixed": f"{hold.decodes} decodes from {hold.prompt} and a prompt of {length.tokens}",
        }[region]
        self.measured.samples.append(
            Sample(region=region, setting=what, held_out=length.held_out, steps=steps, seconds=seconds)
        )

    def _take_as_full(self, load: Load, running: int) -> None:
        if running < 1 or load.context > SHORT:  # the KV cache may be what is full
            self.note(f"{load.decodes} sequences of {load.context} tokens did not fit")
            return
        self.measured.limits = replace(self._limits, max_num_seqs=running)
        self.note(f"the engine runs {running} sequences at once: taken as max_num_seqs")

    def _lose(self, what: str) -> None:
        self.note(f"{what}: one of the sequences ended too early, at max_model_len")

    def _output(self, context: int) -> int:
        return self._limits.max_model_len - context

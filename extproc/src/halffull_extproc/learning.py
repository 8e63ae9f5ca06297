"""What polls teach about the pool: the differences between two answers of one engine, given to the estimates.

A difference is taken only within one start of the engine. A new boot_id, or any counter that went backwards, starts
from the new figures; so does the first answer that this picker sees, whatever was counted before.
"""

from halffull_extproc.estimates import Lengths, PromptSizes
from halffull_extproc.load_report import LoadReport
from halffull_extproc.members import Member
from halffull_extproc.steps import StepFit
from halffull_extproc.stock_metrics import StockSample

SPEED_WINDOW = 2.0
"""Seconds of inter-token latencies that make one sample of the step fit (source METRICS)."""
_SAMPLE_COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "itl_sum",
    "itl_count",
    "ttft_sum",
    "ttft_count",
    "request_prompt_sum",
    "request_prompt_count",
    "request_generation_sum",
    "request_generation_count",
)


class Learning:
    """The pool's estimates."""

    __slots__ = ("fit", "lengths", "sizes")

    def __init__(self) -> None:
        self.sizes = PromptSizes()
        self.lengths = Lengths()
        self.fit = StepFit()

    def report(self, member: Member, report: LoadReport) -> None:
        """A report came; the member still holds the one before."""
        previous = member.report
        if previous is None or report.boot_id != previous.boot_id:
            self._first_report(member, report)
            return
        steps = report.steps - previous.steps
        busy = report.busy_seconds - previous.busy_seconds
        computed = report.computed_tokens - previous.computed_tokens
        firsts = report.first_tokens - previous.first_tokens
        ttft = report.ttft_seconds - previous.ttft_seconds
        prompt = report.prompt_tokens - previous.prompt_tokens
        generated = report.generation_tokens - previous.generation_tokens
        requests = report.requests - previous.requests
        if min(steps, busy, computed, firsts, ttft, prompt, generated, requests) < 0:
            self._first_report(member, report)
            return
        if steps:
            seconds = busy / steps
            member.saw_step(seconds)
            running = report.running / member.ranks
            self.fit.sample(
                member.pace,
                seconds=seconds,
                steps=steps,
                prefill=max(0.0, computed / steps - running),
                running=running,
                # What the steps read. Q, which the score adds, is not in the cache yet.
                kv=(report.total_tokens - report.free_tokens) / member.ranks,
            )
        if firsts:
            self.lengths.ttft.add(ttft, firsts)
        if requests:
            self.lengths.prompt.add(prompt, requests)
            self.lengths.generated.add(generated, requests)
        self.sizes.finished(member.sizes, prompt_tokens=prompt, requests=requests)

    def sample(self, member: Member, sample: StockSample, *, sent: float, now: float) -> None:
        """A sample came; the member still holds the one before and when it was asked for."""
        previous = member.sample
        if previous is None or _went_backwards(previous, sample):
            member.speed_window = (sent, sample)
            member.progress_at = now
            member.sizes.reset()
            return
        prompt = _rise(previous.prompt_tokens, sample.prompt_tokens)
        generated = _rise(previous.generation_tokens, sample.generation_tokens)
        latencies = _rise(previous.itl_count, sample.itl_count)
        seconds = _rise(previous.itl_sum, sample.itl_sum)
        firsts = _rise(previous.ttft_count, sample.ttft_count)
        ttft = _rise(previous.ttft_sum, sample.ttft_sum)
        moves = (prompt, generated, latencies, firsts)
        if any(moves) or not (sample.running or sample.waiting) or all(move is None for move in moves):
            member.progress_at = now
        if latencies and seconds is not None:
            member.saw_step(seconds / latencies)
        if firsts and ttft is not None:
            self.lengths.ttft.add(ttft, firsts)
        if prompt is not None and previous.waiting and sample.waiting and sent > member.sent:
            member.prefill_rate.add(prompt, sent - member.sent)
        self._finishes(member, previous, sample, firsts=firsts, prompt=prompt, generated=generated)
        self._speed(member, sample, sent=sent)

    def _finishes(
        self,
        member: Member,
        previous: StockSample,
        sample: StockSample,
        *,
        firsts: float | None,
        prompt: float | None,
        generated: float | None,
    ) -> None:
        """Finished requests; where their histograms are missing, first tokens stand for them."""
        requests = _rise(previous.request_prompt_count, sample.request_prompt_count)
        tokens = _rise(previous.request_prompt_sum, sample.request_prompt_sum)
        if requests is None or tokens is None:
            requests, tokens = firsts, prompt
        if requests is not None and tokens is not None:
            if requests:
                self.lengths.prompt.add(tokens, requests)
            self.sizes.finished(member.sizes, prompt_tokens=tokens, requests=requests)
        count = _rise(previous.request_generation_count, sample.request_generation_count)
        tokens = _rise(previous.request_generation_sum, sample.request_generation_sum)
        if count is None or tokens is None:
            count, tokens = firsts, generated
        if count and tokens is not None:
            self.lengths.generated.add(tokens, count)

    def _speed(self, member: Member, sample: StockSample, *, sent: float) -> None:
        """Close a window of the step fit when it is long enough."""
        if member.speed_window is None:
            member.speed_window = (sent, sample)
            return
        start, first = member.speed_window
        if sent - start < SPEED_WINDOW:
            return
        member.speed_window = (sent, sample)
        seconds = _rise(first.itl_sum, sample.itl_sum)
        latencies = _rise(first.itl_count, sample.itl_count)
        prompt = _rise(first.prompt_tokens, sample.prompt_tokens)
        generated = _rise(first.generation_tokens, sample.generation_tokens)
        running, usage = sample.running, sample.kv_usage
        if not latencies or not generated or seconds is None or prompt is None or not running or usage is None:
            return
        if member.total is None or member.max_tokens_per_batch is None:
            return
        self.fit.window(
            member.pace,
            seconds=seconds / latencies,
            steps=latencies / running,
            prefill=min(member.max_tokens_per_batch, prompt * running / generated),
            running=running,
            kv=member.total * usage,
        )

    @staticmethod
    def _first_report(member: Member, report: LoadReport) -> None:
        member.ranks = report.boot_id.count(",") + 1
        member.sizes.reset()
        if report.steps:
            member.steps_seen = False
            member.saw_step(report.busy_seconds / report.steps)


def _rise(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _went_backwards(previous: StockSample, sample: StockSample) -> bool:
    for name in _SAMPLE_COUNTERS:
        before, after = getattr(previous, name), getattr(sample, name)
        if before is not None and after is not None and after < before:
            return True
    return False

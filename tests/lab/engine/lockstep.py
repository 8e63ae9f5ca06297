"""The emulated engine and the plain reference, told the same."""

from hypothesis import strategies as st

from halffull_lab.engine_policies import make_engine
from halffull_lab.engine_requests import EngineLimits, Prompt, PromptRefusedError
from halffull_lab.latency import PROFILES
from tests.lab.engine.reference import make_reference

CUMULATIVE = (
    "steps",
    "busy_seconds",
    "computed_tokens",
    "first_tokens",
    "ttft_seconds",
    "prompt_tokens",
    "generation_tokens",
    "requests",
)


@st.composite
def drawn_limits(draw: st.DrawFn) -> EngineLimits:
    seqs = draw(st.integers(1, 12))
    return EngineLimits(
        max_num_seqs=seqs,
        max_tokens_per_batch=draw(st.integers(seqs, 40)),
        max_model_len=80,
        block_size=draw(st.sampled_from([1, 4, 16])),
        total_blocks=draw(st.integers(6, 40)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 3, 8, 16])),
    )


Script = list[tuple[str, int, int, int]]

SCRIPT = st.lists(
    st.one_of(
        # Prompt tokens, output tokens, and how many more its client allows.
        st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 20), st.integers(0, 9)),
        st.tuples(st.just("add"), st.integers(1, 10), st.integers(1, 40), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 99), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=80,
)


class Lockstep:
    """The engine and the reference, told the same, compared after everything."""

    def __init__(self, policy: str, limits: EngineLimits) -> None:
        self.engine = make_engine(latency=PROFILES["70b-2xh100"].latency, limits=limits, policy=policy)
        self.reference = make_reference(policy, limits)
        self.now = 0.0
        self.wanted: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.before = self.engine.snapshot

    def compare(self) -> None:
        before, now = self.before, self.engine.snapshot
        self.before = now
        assert 0 <= now.free_tokens <= now.total_tokens
        assert now.free_tokens == self.reference.free * self.engine.limits.block_size
        assert now.computed_tokens == self.reference.computed
        assert now.steps == self.reference.steps
        assert now.running == len(self.reference.running)
        assert now.waiting == len(self.engine.requests) - now.running
        assert all(getattr(now, name) >= getattr(before, name) for name in CUMULATIVE)
        running = [sequence.request_id for sequence in self.reference.running]
        assert [request.request_id for request in self.engine._running] == running

    def add(self, request_id: str, prompt: int, output: int, max_tokens: int | None = None) -> None:
        limits = self.engine.limits
        try:
            self.engine.add(
                request_id,
                prompt=Prompt(prompt),
                output_tokens=output,
                arrival=self.now,
                interval=1,
                max_tokens=max_tokens,
            )
        except PromptRefusedError:
            longest = min(limits.max_model_len, limits.total_blocks * limits.block_size + 1)
            assert prompt + (max_tokens or output) > longest
            return
        self.reference.add(request_id, prompt, output, self.now, max_tokens)
        self.wanted[request_id] = output

    def abort(self, request_id: str) -> None:
        if request_id not in self.done:
            self.aborted.add(request_id)
        self.engine.abort(request_id, self.now)
        self.reference.abort(request_id)

    def step(self, abort_within: str | None = None) -> None:
        plan, expected = self.engine.step_begin(self.now), self.reference.schedule(self.now)
        if plan is None or expected is None:
            assert plan is expected
            return
        prefill, decodes, context, admitted, preempted = expected
        assert plan[1:] == (prefill, decodes, admitted, preempted)
        assert self.engine._context == context
        assert self.engine.snapshot.queued_tokens == self.reference.queued
        self.compare()
        if abort_within is not None:
            self.engine.abort(abort_within, self.now)
        self.now += plan.duration
        outputs = self.engine.step_end(self.now)
        news = self.reference.finish_step()
        assert {one.request.request_id: (one.generated, one.finished) for one in outputs} == news
        self.done |= {request_id: count for request_id, (count, last) in news.items() if last}
        if abort_within is not None:
            self.abort(abort_within)
        self.compare()

    def drain(self) -> None:
        for _ in range(5_000):
            if not self.engine.requests:
                return
            self.step()
        raise AssertionError("it does not come to an end")


def play(policy: str, limits: EngineLimits, script: Script) -> Lockstep:
    """To its end; nothing may be left of anybody then."""
    both = Lockstep(policy, limits)
    for number, (name, one, other, more) in enumerate(script):
        if name == "add":
            both.add(str(number), one, other, other + more if more else None)
        elif name == "step":
            both.step()
        elif both.wanted:
            victim = sorted(both.wanted)[one % len(both.wanted)]
            if other:
                both.step(abort_within=victim)
            else:
                both.abort(victim)
    both.drain()
    # Everyone who was not aborted got exactly what they asked for.
    assert both.done.items() <= both.wanted.items()
    assert both.wanted.keys() - both.aborted <= both.done.keys()
    # No trace is left of anybody.
    engine, snapshot = both.engine, both.engine.snapshot
    assert snapshot.free_tokens == snapshot.total_tokens
    assert snapshot.queued_tokens == snapshot.running == snapshot.waiting == len(engine.ordering) == 0
    assert not engine._calendar
    assert engine._context == engine._decodes == sum(engine._growing) == 0
    assert snapshot.requests == len(both.done)
    assert snapshot.generation_tokens == sum(both.done.values())
    return both

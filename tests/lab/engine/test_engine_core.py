"""The emulated engine's core under a virtual clock: equal to a plain reference, step for step."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_lab.engine_requests import EngineLimits, Prompt, PromptRefusedError
from halffull_lab.latency import PROFILES
from halffull_larry.ordering import POLICIES
from tests.lab.engine.lockstep import SCRIPT, Lockstep, Script, drawn_limits, play
from tests.lab.engine.virtual import Arrival, make_engine, run


@settings(max_examples=200, deadline=None)
@given(policy=st.sampled_from(POLICIES), limits=drawn_limits(), script=SCRIPT)
def test_equals_the_reference_step_for_step(policy: str, limits: EngineLimits, script: Script) -> None:
    play(policy, limits, script)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=8),
    interval=st.integers(1, 9),
)
def test_a_stream_hears_of_the_first_token_then_of_every_kth_and_of_the_last(
    requests: list[tuple[int, int]], interval: int
) -> None:
    engine = make_engine(total_blocks=10, max_model_len=80)  # small enough to preempt
    for number, (prompt, output) in enumerate(requests):
        engine.add(str(number), prompt=Prompt(prompt), output_tokens=output, arrival=0.0, interval=interval)
    heard: dict[str, list[int]] = {}
    now = 0.0
    while (plan := engine.step_begin(now)) is not None:
        now += plan.duration
        for output in engine.step_end(now):
            heard.setdefault(output.request.request_id, []).append(output.generated)
    for number, (_, output) in enumerate(requests):
        regular = {*range(1, output, interval), output}
        # The end of a repeated prefill gives a token, and is told of, too.
        assert set(heard[str(number)]) >= regular
        assert heard[str(number)] == sorted(set(heard[str(number)]))
        if not engine.totals.preemptions:
            assert heard[str(number)] == sorted(regular)


def test_a_step_takes_what_the_formula_says() -> None:
    big = PROFILES["70b-2xh100"].latency
    # 100 decodes over 50,000 tokens and a chunk of 900 at offset 1,000, in ms.
    n = 1_000
    expected = (2.5 + 0.052 * n + 0.7 + 0.0125 * n + 0.4) + (1.5 + 0.008 * n) + 0.7 + 0.55 + 4.9e-5 * 50_000
    pairs = 900 * (1_000 + 450)
    seconds = big.step_seconds(prefill_tokens=900, decodes=100, decode_context=50_000, prefill_pairs=pairs)
    assert seconds * 1e3 == pytest.approx(expected + 1.8e-6 * pairs + 2.0)
    small = PROFILES["8b-a100"].latency
    seconds = small.step_seconds(prefill_tokens=0, decodes=1, decode_context=100)
    assert seconds * 1e3 == pytest.approx(13.0 + 0.87 + 0.906 + 0.6 + 0.0055 + 0.0108 + 2.0)


def test_one_request_alone_is_chunked_and_timed() -> None:
    engine = make_engine()
    (request,) = run(engine, [Arrival(5.0, 2_500, 3)])
    latency = engine.latency

    def chunk(size: int, offset: int) -> float:
        return latency.step_seconds(
            prefill_tokens=size, decodes=0, decode_context=0, prefill_pairs=size * (offset + size / 2)
        )

    first = 5.0 + chunk(1024, 0) + chunk(1024, 1024) + chunk(452, 2048)
    assert request.first_token_at == pytest.approx(first)
    decode = [latency.step_seconds(prefill_tokens=0, decodes=1, decode_context=context) for context in (2500, 2501)]
    assert request.finished_at == pytest.approx(first + sum(decode))
    snapshot = engine.snapshot
    assert (snapshot.steps, snapshot.computed_tokens, snapshot.first_tokens) == (5, 2_502, 1)
    assert snapshot.ttft_seconds == pytest.approx(first - 5.0)
    assert engine.totals.itl_seconds == pytest.approx(sum(decode))
    assert engine.totals.itl_count == 2


def test_slowdown_stretches_every_step() -> None:
    fast, slow = make_engine(), make_engine()
    slow.slowdown = 2.0
    (one,), (other,) = run(fast, [Arrival(0.0, 100, 10)]), run(slow, [Arrival(0.0, 100, 10)])
    assert other.finished_at == pytest.approx(2 * (one.finished_at or 0))
    assert slow.snapshot.busy_seconds == pytest.approx(2 * fast.snapshot.busy_seconds)


def test_a_head_that_does_not_fit_stops_admission() -> None:
    engine = make_engine("FCFS", total_blocks=100)
    engine.add("running", prompt=Prompt(800), output_tokens=100, arrival=0.0)
    engine.step_begin(0.0)
    engine.step_end(0.1)
    engine.add("giant", prompt=Prompt(900), output_tokens=2, arrival=0.1)
    engine.add("small", prompt=Prompt(16), output_tokens=2, arrival=0.2)
    plan = engine.step_begin(0.2)
    assert plan is not None
    assert (plan.admitted, engine.snapshot.waiting) == (0, 2)


def test_a_step_that_preempted_admits_nobody() -> None:
    engine = make_engine("FCFS", total_blocks=12, block_size=4)
    for name, prompt in (("a", 3), ("b", 3), ("large", 34)):  # 1 + 1 + 9 blocks
        engine.add(name, prompt=Prompt(prompt), output_tokens=9, arrival=0.0)
    engine.step_begin(0.0)
    engine.step_end(0.1)
    engine.add("urgent", prompt=Prompt(2), output_tokens=9, arrival=0.1, priority=-1)  # the last block
    engine.step_begin(0.1)
    engine.step_end(0.2)
    plan = engine.step_begin(0.2)  # a takes the block of `urgent`, b one of `large`; then `urgent` would fit again
    assert plan is not None
    assert (plan.decodes, plan.preempted, plan.admitted) == (2, 2, 0)
    assert engine.snapshot.free_tokens == 8 * 4
    engine.step_end(0.3)
    plan = engine.step_begin(0.3)
    assert plan is not None
    assert plan.admitted == 1


def test_larry_lets_the_small_one_pass() -> None:
    engine = make_engine("LARRY", total_blocks=100)
    engine.add("running", prompt=Prompt(800), output_tokens=100, arrival=0.0)
    engine.step_begin(0.0)
    engine.step_end(0.1)
    engine.add("giant", prompt=Prompt(900), output_tokens=2, arrival=0.1)
    engine.add("small", prompt=Prompt(16), output_tokens=2, arrival=0.2)
    plan = engine.step_begin(0.2)
    assert plan is not None
    assert (plan.admitted, engine.snapshot.waiting) == (1, 1)


@pytest.mark.parametrize(
    ("prompt", "output", "says"),
    [(0, 1, "empty"), (10, 0, "max_tokens"), (16_384, 1, "maximum context length is 16384"), (1_590, 20, "KV cache")],
)
def test_what_can_never_run_is_refused(prompt: int, output: int, says: str) -> None:
    engine = make_engine(total_blocks=100)
    with pytest.raises(PromptRefusedError, match=says):
        engine.add("a", prompt=Prompt(prompt), output_tokens=output, arrival=0.0)
    assert not engine.requests
    assert len(engine.ordering) == 0


def test_a_prompt_counts_once_whatever_n() -> None:
    engine = make_engine()
    prompt = Prompt(100, children=3)
    for index, output in enumerate((5, 7, 9)):
        engine.add(f"{index}_a", prompt=prompt, output_tokens=output, arrival=0.0)
    run(engine, [])
    snapshot = engine.snapshot
    assert (snapshot.requests, snapshot.prompt_tokens, snapshot.generation_tokens) == (1, 100, 21)


def test_an_aborted_child_keeps_its_prompt_from_counting() -> None:
    engine = make_engine()
    prompt = Prompt(100, children=2)
    for index in range(2):
        engine.add(f"{index}_a", prompt=prompt, output_tokens=5, arrival=0.0)
    engine.abort("1_a", 0.0)
    run(engine, [])
    assert (engine.snapshot.requests, engine.snapshot.prompt_tokens) == (0, 0)


def test_steps_must_alternate() -> None:
    engine = make_engine()
    with pytest.raises(RuntimeError):
        engine.step_end(0.0)
    assert engine.step_begin(0.0) is None
    engine.add("a", prompt=Prompt(1), output_tokens=1, arrival=0.0)
    with pytest.raises(ValueError, match="already"):
        engine.add("a", prompt=Prompt(1), output_tokens=1, arrival=0.0)
    engine.step_begin(0.0)
    with pytest.raises(RuntimeError):
        engine.step_begin(0.0)


@pytest.mark.parametrize(
    "bad", [{"max_num_seqs": 0}, {"max_num_seqs": 2_000}, {"block_size": 0}, {"total_blocks": 0}, {"max_model_len": 0}]
)
def test_limits_are_checked(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make_engine(**bad)


def test_a_step_costs_little_however_many_run() -> None:
    engine = make_engine()
    for number in range(200):
        engine.add(str(number), prompt=Prompt(100), output_tokens=1_000, arrival=0.0)
    now = 0.0
    begun = time.process_time()
    while (plan := engine.step_begin(now)) is not None:
        now += plan.duration
        engine.step_end(now)
    steps = engine.snapshot.steps
    assert steps > 1_000
    assert (time.process_time() - begun) / steps < 200e-6  # about 10 µs; a loop over 200 requests would not make it


@pytest.mark.parametrize("seed", range(40))
def test_crowded_with_several_prefills_in_progress_it_preempts_as_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    together = Lockstep(
        "FCFS",
        EngineLimits(
            max_tokens_per_batch=40,
            max_num_seqs=12,
            max_model_len=80,
            block_size=draw.choice([1, 4]),
            total_blocks=draw.randint(8, 40),
            long_prefill_token_threshold=draw.choice([3, 5, 8]),
        ),
    )
    for count in range(60):
        if draw.random() < 0.5:
            together.add(str(count), draw.randint(1, 50), draw.randint(1, 30))
        together.step()
    together.drain()

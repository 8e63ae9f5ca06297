import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.estimates import Lengths, Mean, PromptSizes, SizeWindow, SlidingMedian


def exact_pair(sizes: PromptSizes, size: int, tokens: float) -> None:
    window = SizeWindow()
    sizes.ended(window, body_bytes=size, estimate=sizes.estimate(size, mean=0.0))
    sizes.finished(window, prompt_tokens=tokens, requests=1)


@given(values=st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_sliding_median_is_the_median_of_the_last(values: list[float]) -> None:
    median = SlidingMedian(7)
    for value in values:
        median.add(value)
    last = sorted(values[-7:])
    middle = len(last) // 2
    assert median.value == (last[middle] if len(last) % 2 else (last[middle - 1] + last[middle]) / 2)


def test_prior_is_four_bytes_per_token() -> None:
    sizes = PromptSizes()
    sizes.longest = 10_000.0
    assert sizes.estimate(4000, mean=7.0) == 1000.0
    assert sizes.error is None


def test_estimates_are_whole_tokens_from_one_to_the_longest() -> None:
    sizes = PromptSizes()
    sizes.longest = 10_000.0
    assert sizes.estimate(0, mean=7.0) == 1.0
    assert sizes.estimate(4001, mean=7.0) == 1000.0
    assert sizes.estimate(2_000_000, mean=7.0) == 10_000.0


def test_a_chunked_request_counts_as_the_mean() -> None:
    sizes = PromptSizes()
    assert sizes.estimate(None, mean=1154.7) == 1155.0


def test_bytes_per_token_is_learned_from_exact_pairs() -> None:
    sizes = PromptSizes()
    for _ in range(20):
        exact_pair(sizes, 6000, 1000)
    assert sizes.bytes_per_token == 6.0
    assert sizes.estimate(6000, mean=0.0) == 1000.0


def test_a_window_divides_mean_by_mean() -> None:
    sizes = PromptSizes()
    for _ in range(20):
        window = SizeWindow()
        sizes.ended(window, body_bytes=3000, estimate=0.0)
        sizes.ended(window, body_bytes=5000, estimate=0.0)
        sizes.finished(window, prompt_tokens=6000, requests=3)  # others' requests are among them
    assert sizes.bytes_per_token == 2.0  # 4000 bytes ÷ 2000 tokens


def test_a_window_stays_open_until_both_sides_have_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptSizes, "ERROR_FROM", 1)
    sizes, window = PromptSizes(), SizeWindow()
    sizes.finished(window, prompt_tokens=100, requests=1)
    assert sizes.error is None
    sizes.finished(window, prompt_tokens=0, requests=0)
    sizes.ended(window, body_bytes=400, estimate=150.0)
    assert sizes.error is None
    sizes.finished(window, prompt_tokens=0, requests=0)
    error: float | None = sizes.error  # a name of its own: mypy takes the property for unchanged
    assert error == 0.5  # |150 − 100|/100
    assert (window.texts, window.requests) == (0, 0)


def test_one_image_bends_nothing() -> None:
    sizes = PromptSizes()
    sizes.longest = 16_384.0
    exact_pair(sizes, 2_000_000, 900)
    assert sizes.bytes_per_token == 4.0
    sizes.longest = 1e9  # however long prompts may be
    exact_pair(sizes, 2_000_000, 900)
    assert sizes.bytes_per_token == 4.0


@pytest.mark.parametrize("finishes", [1, 5, 20])
def test_a_tenth_of_images_leaves_text_within_two(finishes: int) -> None:
    """2 MB images of 900 tokens among texts of 4 kB with 1,000 tokens, few or many per window."""
    rng = random.Random(4)
    sizes = PromptSizes()
    sizes.longest = 16_384.0
    for _ in range(2000 // finishes):
        window = SizeWindow()
        tokens = 0
        for _ in range(finishes):
            image = rng.random() < 0.1
            size = 2_000_000 if image else round(4000 * rng.uniform(0.7, 1.3))
            estimate = sizes.estimate(size, mean=0.0)
            assert estimate <= 16_384
            sizes.ended(window, body_bytes=size, estimate=estimate)
            tokens += 900 if image else round(size / 4)
        sizes.finished(window, prompt_tokens=tokens, requests=finishes)
        assert 500 <= sizes.estimate(4000, mean=0.0) <= 2000


def test_an_image_in_a_window_with_text_is_left_out_of_its_mean() -> None:
    sizes = PromptSizes()
    sizes.longest = 16_384.0
    for _ in range(20):
        window = SizeWindow()
        sizes.ended(window, body_bytes=3000, estimate=750.0)
        sizes.ended(window, body_bytes=2_000_000, estimate=16_384.0)
        sizes.finished(window, prompt_tokens=2000, requests=2)
    assert sizes.bytes_per_token == 3.0
    assert sizes.error == 0.25


def test_a_pool_of_nothing_but_images_learns_their_size() -> None:
    sizes = PromptSizes()
    sizes.longest = 8192.0
    for _ in range(20):
        exact_pair(sizes, 200_000, 1000)
    assert sizes.estimate(200_000, mean=0.0) == 1000.0


def test_windows_with_others_requests_hold() -> None:
    """Of 8 pickers' requests one is ours: own mean size against the mean of all, lognormal prompts of σ = .4."""
    rng = random.Random(8)
    sizes = PromptSizes()
    for _ in range(500):
        window = SizeWindow()
        prompts = [rng.lognormvariate(7, 0.4) for _ in range(8)]
        sizes.ended(window, body_bytes=round(prompts[0] * 5), estimate=1.0)
        sizes.finished(window, prompt_tokens=sum(prompts), requests=8)
    assert 4.0 < sizes.bytes_per_token < 6.0


def test_nonsense_windows_are_left_out() -> None:
    sizes = PromptSizes()
    exact_pair(sizes, 4000, 0)
    exact_pair(sizes, 0, 100)
    assert sizes.error is None


def test_estimate_error_is_the_median_of_windows() -> None:
    sizes = PromptSizes()
    for estimate in (50.0, 110.0, 500.0) * 7:
        window = SizeWindow()
        sizes.ended(window, body_bytes=400, estimate=estimate)
        sizes.finished(window, prompt_tokens=100, requests=1)
    assert sizes.error == 0.5


def test_the_error_of_the_prior_is_not_told() -> None:
    """The first estimates are the prior's, half of the truth here; with 20 windows most are of what was learned."""
    sizes = PromptSizes()
    for number in range(1, 40):
        window = SizeWindow()
        sizes.ended(window, body_bytes=2000, estimate=sizes.estimate(2000, mean=0.0))
        sizes.finished(window, prompt_tokens=1000, requests=1)
        assert sizes.error == (None if number < 20 else 0.0)


def test_mean_starts_at_its_prior_and_forgets() -> None:
    mean = Mean(10.0, weight=5.0, memory=100.0)
    assert mean.value == 10.0
    mean.add(20.0 * 50, 50.0)
    # the prior's 5 shrink to 5·100/150
    assert mean.value == pytest.approx((10 * 5 / 1.5 + 1000) / (5 / 1.5 + 50))
    for _ in range(200):
        mean.add(3.0 * 10, 10.0)
    assert mean.value == pytest.approx(3.0, rel=1e-3)


def test_beta_of_the_chat_trace() -> None:
    lengths = Lengths()
    assert lengths.beta == 6.0
    for _ in range(100):
        lengths.prompt.add(1154.7 * 1000, 1000)
        lengths.generated.add(211.1 * 1000, 1000)
    assert lengths.beta == pytest.approx(6.47, abs=0.01)
    assert lengths.kv_per_request == pytest.approx(1154.7 + 105.55, rel=1e-3)


def test_beta_is_finite_when_nothing_is_generated() -> None:
    lengths = Lengths()
    for _ in range(100):
        lengths.generated.add(0.0, 1000)
    assert lengths.beta == pytest.approx(1001.0)

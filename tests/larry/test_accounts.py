"""What is counted, one request's life after the other."""

from dataclasses import dataclass

import pytest

from halffull_larry.accounts import BANDS, WAITING_SECONDS, Accounts
from halffull_larry.snapshot import Snapshot


@dataclass
class Request:
    """What Accounts reads of vLLM's."""

    request_id: str = "r"
    num_prompt_tokens: int = 100
    arrival_time: float = 10.0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


def look(accounts: Accounts) -> Snapshot:
    return accounts.snapshot(taken=1.0, free_tokens=2, total_tokens=3, running=4, waiting=5)


def serve(accounts: Accounts, request: Request, outputs: int = 1) -> None:
    """A request's whole life, in a step for the prompt and one for each further token."""
    accounts.arrived(request, request.num_tokens)
    accounts.admitted(request, now=12.0)
    for step in range(outputs):
        tokens = 1 if step else request.num_prompt_tokens
        request.num_computed_tokens += tokens
        accounts.step_scheduled(tokens, at=20.0 + step)
        request.num_output_tokens += 1
        if step == outputs - 1:
            accounts.ended(request, now=13.0 + step, failed=False)
        accounts.step_done(tokens, at=20.5 + step, now=13.0 + step)


def test_a_life() -> None:
    accounts = Accounts()
    serve(accounts, Request(), outputs=3)
    assert look(accounts) == Snapshot(
        taken=1.0,
        free_tokens=2,
        total_tokens=3,
        running=4,
        waiting=5,
        queued_tokens=0,
        steps=3,
        busy_seconds=1.5,
        computed_tokens=102,
        first_tokens=1,
        ttft_seconds=3.0,
        prompt_tokens=100,
        generation_tokens=3,
        requests=1,
    )


def test_a_request_that_ends_with_its_first_token_had_one() -> None:
    accounts = Accounts()
    serve(accounts, Request(), outputs=1)
    assert (look(accounts).first_tokens, look(accounts).ttft_seconds) == (1, 3.0)


def test_queued_tokens_shrink_with_the_prefill() -> None:
    accounts, request = Accounts(), Request()
    accounts.arrived(request, 60)  # 40 are cached
    assert look(accounts).queued_tokens == 60
    accounts.admitted(request, now=11.0)
    request.num_computed_tokens = 40 + 25
    accounts.step_scheduled(25, at=1.0)
    assert look(accounts).queued_tokens == 35
    assert accounts.prefilling == [request]
    request.num_computed_tokens = 100
    accounts.step_scheduled(35, at=2.0)
    assert look(accounts).queued_tokens == 0
    assert accounts.prefilling == []


def test_a_preempted_request_is_queued_again_with_its_text_and_has_one_first_token() -> None:
    accounts, request = Accounts(), Request()
    accounts.arrived(request, 100)
    accounts.admitted(request, now=11.0)
    request.num_computed_tokens, request.num_output_tokens = 100, 1
    accounts.step_scheduled(100, at=1.0)
    accounts.step_done(100, at=2.0, now=12.0)
    request.num_computed_tokens = 0
    accounts.arrived(request, 101)
    assert look(accounts).queued_tokens == 101
    accounts.admitted(request, now=20.0)
    request.num_computed_tokens, request.num_output_tokens = 101, 2
    accounts.step_scheduled(101, at=3.0)
    accounts.step_done(101, at=4.0, now=21.0)
    assert (look(accounts).first_tokens, look(accounts).ttft_seconds) == (1, 2.0)
    assert sum(map(sum, accounts.waited)) == 1


def test_children_of_one_request_count_once_but_for_what_they_generate() -> None:
    accounts = Accounts()
    for request_id in ("0_chat", "1_chat", "12_chat"):
        serve(accounts, Request(request_id), outputs=4)
    report = look(accounts)
    assert (report.requests, report.prompt_tokens, report.generation_tokens) == (1, 100, 12)


@pytest.mark.parametrize("request_id", ["chat_1_", "01_chat", "x1_chat", "1-chat", "0_chat"])
def test_other_ids_are_no_later_children(request_id: str) -> None:
    accounts = Accounts()
    serve(accounts, Request(request_id))
    assert look(accounts).requests == 1


def test_who_failed_or_left_counts_nowhere_and_leaves_no_trace() -> None:
    accounts = Accounts()
    for admitted in (False, True):
        request = Request()
        accounts.arrived(request, 100)
        if admitted:
            accounts.admitted(request, now=11.0)
        accounts.ended(request, now=12.0, failed=True)
        assert look(accounts) == Snapshot(1.0, 0, 2, 3, 4, 5)
    assert not accounts._waiting
    assert not accounts._admitted
    assert not accounts._tokenless


def test_overlapping_steps_are_not_busy_twice() -> None:
    accounts = Accounts()
    accounts.step_scheduled(5, at=0.0)
    accounts.step_scheduled(5, at=0.1)  # async scheduling: before the first is back
    accounts.step_done(5, at=1.0, now=0.0)
    accounts.step_scheduled(5, at=1.1)
    accounts.step_done(5, at=2.0, now=0.0)
    accounts.step_done(5, at=3.0, now=0.0)
    assert accounts.busy_seconds == 3.0
    accounts.step_scheduled(5, at=10.0)  # after a pause
    accounts.step_done(5, at=10.5, now=0.0)
    assert accounts.busy_seconds == 3.5


def test_an_empty_step_is_none() -> None:
    accounts = Accounts()
    accounts.step_scheduled(0, at=0.0)
    accounts.step_done(0, at=9.0, now=0.0)
    assert (look(accounts).steps, look(accounts).busy_seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("prompt", "band"),
    [(1, 0), (BANDS[0], 0), (BANDS[0] + 1, 1), (BANDS[-1], len(BANDS) - 1), (BANDS[-1] + 1, len(BANDS))],
)
@pytest.mark.parametrize(
    ("wait", "bucket"),
    [
        (-5.0, 0),  # a wall clock that was set back
        (0.0, 0),
        (WAITING_SECONDS[0], 0),
        (WAITING_SECONDS[0] + 0.001, 1),
        (WAITING_SECONDS[-1] + 1.0, len(WAITING_SECONDS)),
    ],
)
def test_waiting_times_by_size(prompt: int, band: int, wait: float, bucket: int) -> None:
    accounts, request = Accounts(), Request(num_prompt_tokens=prompt, arrival_time=0.0)
    accounts.arrived(request, prompt)
    accounts.admitted(request, now=wait)
    expected = [[0] * (len(WAITING_SECONDS) + 1) for _ in range(len(BANDS) + 1)]
    expected[band][bucket] = 1
    assert accounts.waited == expected
    assert accounts.waited_seconds[band] == max(0.0, wait)

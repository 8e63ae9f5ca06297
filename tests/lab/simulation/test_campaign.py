"""Cases become runs: their rates, their engines, and what they show."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from halffull_lab.engine_requests import EngineLimits
from halffull_lab.latency import PROFILES
from halffull_lab.saturation import saturation
from halffull_lab.simulation.campaign import run_case, run_experiment, schedule
from halffull_lab.simulation.cluster import HOP, Run
from halffull_lab.simulation.experiment import Case, Experiment
from halffull_lab.simulation.traffic import lengths

PROFILE = PROFILES["70b-2xh100"]
PART = (0.3, 0.4)  # of the trace: saturation is measured on what a case takes
CHAT = lengths("azure-conv", PART, 1.0, EngineLimits.of(PROFILE))
SHORT = Case(rows=PART, engines=2, minutes=0.25)


def run(case: Case, seed: int = 0, *, rate: float = 10.0) -> Run:
    return run_case(case, rate, seed, real=False)


def test_load_is_a_share_of_what_the_engines_can_finish() -> None:
    one = saturation(CHAT, PROFILE)
    found = schedule(SHORT)
    assert found.saturation == pytest.approx(2 * one)
    assert (found.rate, found.load) == (pytest.approx(1.6 * one), pytest.approx(0.8))
    assert schedule(SHORT.changed({"load": 0.5})).rate == pytest.approx(one)
    assert schedule(SHORT.changed({"rate": 3.0})).rate == 3.0
    assert schedule(SHORT.changed({"factor": 2.0})).rate == 2 * CHAT.rate
    assert schedule(SHORT.changed({"engines": 1, "slow": 2.0})).saturation == pytest.approx(one / 2)
    assert schedule(SHORT.changed({"slow": 2.0, "fresh": 1.0})).saturation == pytest.approx(1.5 * one)
    smaller = saturation(CHAT, replace(PROFILE, kv_tokens=PROFILE.kv_tokens // 4))
    assert schedule(SHORT.changed({"small": 0.25})).saturation == pytest.approx(one + smaller)
    assert smaller < 0.9 * one


@pytest.mark.parametrize("small", [0.01, 1e-6])
def test_an_engine_too_small_for_some_or_all_refuses_them_and_that_counts(small: float) -> None:
    case = SHORT.changed({"small": small, "balancer": "RoundRobin", "size_error": 0.0, "rows": (0.3, 0.31)})
    assert 2 < schedule(case).saturation < 15  # that of the other engine, and perhaps something
    found = run(case)
    assert 0 < found.outcomes.errors <= len(found.outcomes) / 2 + 1
    assert (found.rows[found.outcomes.failed] == -1).all()
    assert np.isinf(found.outcomes.ttft).sum() == found.outcomes.errors
    # The picker knows from the report what an engine can hold.
    assert run(case.changed({"balancer": "SAL"})).outcomes.errors < found.outcomes.errors


def test_the_first_engine_is_the_slow_and_the_small_one_the_last_one_the_fresh() -> None:
    lonely = SHORT.changed({"balancer": "RoundRobin", "engines": 1, "minutes": 1.0})
    base, slow = run(lonely, rate=0.05), run(lonely.changed({"slow": 3.0}), rate=0.05)
    assert slow.outcomes.ttft[0] - 2 * HOP == pytest.approx(3 * (base.outcomes.ttft[0] - 2 * HOP))
    three = SHORT.changed({"balancer": "RoundRobin", "engines": 3})
    busy = np.array(run(three.changed({"slow": 3.0}), rate=1.0).busy) / run(three, rate=1.0).busy
    assert busy[0] > 1.5
    assert busy[1:].tolist() == [1.0, 1.0]
    fresh = run(three.changed({"fresh": 0.1}))
    arrival = run_times(three)
    assert (fresh.rows[arrival < 6.0] != 2).all()
    assert (fresh.rows[arrival > 6.1] == 2).any()


def run_times(case: Case) -> Any:
    from halffull_lab.simulation.traffic import arrivals  # noqa: PLC0415

    return arrivals(CHAT, case, rate=10.0, seed=0).arrival


def test_every_policy_of_a_seed_gets_the_same_requests() -> None:
    runs = [
        run(SHORT.changed({"policy": policy, "balancer": balancer}))
        for policy, balancer in (("FCFS", "SAL"), ("LARRY:500", "Llumnix"), ("TRAILPlus", "Random"))
    ]
    for other in runs[1:]:
        assert np.array_equal(other.outcomes.prompt_tokens, runs[0].outcomes.prompt_tokens)
        assert other.arriving == runs[0].arriving
        assert other.outcomes.ttft.tolist() != runs[0].outcomes.ttft.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "LARRY"},
        {"policy": "LARRYPlus"},
        {"balancer": "SALPlus"},
        {"source": "metrics"},
        {"pickers": 4},
        {"poll_interval": 5.0},
        {"size_error": 0.0},
        {"slow": 2.0},
        {"small": 0.1},
        {"fresh": 0.1},
        {"output_times": 3.0},
        {"arrivals": "bursts"},
        {"gpu": "8b-a100"},
        {"trace": "azure-code"},
    ],
    ids=str,
)
def test_every_field_changes_something(change: dict[str, Any]) -> None:
    full = SHORT.changed({"minutes": 0.5})
    assert times(full.changed(change)) != times(full)


@functools.cache
def times(case: Case) -> list[float]:
    found: list[float] = run(case, rate=20.0).outcomes.ttft.tolist()
    return found


def test_equal_cases_give_equal_runs() -> None:
    assert run(SHORT).outcomes.ttft.tolist() == run(SHORT).outcomes.ttft.tolist()


def test_sal_s_beta_matters_where_memory_is_short() -> None:
    full = SHORT.changed({"minutes": 0.5, "output_times": 4.0})
    ample, short = (
        [run(case.changed({"beta_times": times}), rate=20.0).rows.tolist() for times in (1.0, 0.001)]
        for case in (full.changed({"output_times": 1.0}), full)
    )
    assert ample[0] == ample[1]
    assert short[0] != short[1]


def test_runs_are_kept_by_cell_variant_and_seed(here: None) -> None:
    experiment = Experiment(
        title="Small",
        seeds=2,
        first_seed=5,
        case=SHORT.changed({"minutes": 0.05, "rate": 8.0}),
        axes={"balancer": ["SAL", "Random"], "engines": [1, 2]},
    )
    told: list[tuple[int, int]] = []
    found = run_experiment(
        experiment, workers=1, real_scheduler=False, done=lambda over, total: told.append((over, total))
    )
    assert told == [(over, 8) for over in range(9)]
    assert [each.cell for each in found] == list(experiment.cells())
    for each in found:
        for variant, case in each.cell.cases.items():
            for place in range(2):
                expected = run(case, 5 + place, rate=8.0).outcomes.ttft.tolist()
                assert each.runs[variant][place].outcomes.ttft.tolist() == expected


def test_sal_s_tail_is_shorter_than_p2c_s() -> None:
    case = Case(rows=(0.2, 0.5), minutes=1.0)  # 4 engines, FCFS
    rate = 23.4  # 80% of what they can finish of these rows

    def p95(balancer: str) -> float:
        runs = [run(case.changed({"balancer": balancer}), seed, rate=rate) for seed in range(3)]
        return float(np.percentile(np.concatenate([each.outcomes.ttft for each in runs]), 95))

    assert p95("LeastRequest") / p95("SAL") >= 1.2

"""The simulator on vLLM's scheduler classes and on their emulated equal: the same experiment, the same outcomes."""

import warnings
from importlib import metadata

import pytest

from halffull_lab.simulation.campaign import run_case
from halffull_lab.simulation.cluster import Run
from halffull_lab.simulation.experiment import Case

if not metadata.version("vllm").startswith("0.32."):
    # Not missing: the lab simulates the newest release, and the offline tests cover the plugin on every one.
    pytest.skip("halffull_lab.vllm_engine drives vLLM 0.32 and no other", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch warn of when they are imported is not ours to fix
    import halffull_lab.vllm_engine  # noqa: F401

CASE = Case(rows=(0.3, 0.5), engines=2, minutes=0.4)
RATE = 14.0


def both(case: Case) -> tuple[Run, Run]:
    emulated, real = (run_case(case, RATE, 1, real=real) for real in (False, True))
    return emulated, real


def agree(emulated: Run, real: Run) -> None:
    assert real.outcomes.ttft.tolist() == emulated.outcomes.ttft.tolist()
    assert real.outcomes.tgt.tolist() == emulated.outcomes.tgt.tolist()
    assert real.rows.tolist() == emulated.rows.tolist()
    assert real.preemptions == emulated.preemptions
    assert real.busy == pytest.approx(emulated.busy)
    assert real.seconds == emulated.seconds


@pytest.mark.parametrize("source", ["report", "metrics"])
@pytest.mark.parametrize("policy", ["FCFS", "LARRY"])
def test_both_give_the_same_outcomes(policy: str, source: str) -> None:
    emulated, real = both(CASE.changed({"policy": policy, "source": source}))
    agree(emulated, real)
    assert set(emulated.rows.tolist()) == {0, 1}
    assert emulated.outcomes.errors == 0


def test_so_they_do_where_memory_is_short_engines_differ_and_one_is_fresh() -> None:
    case = CASE.changed({"policy": "LARRY:500", "engines": 3, "small": 0.06, "slow": 1.5, "fresh": 0.2, "pickers": 2})
    emulated, real = both(case)
    agree(emulated, real)
    assert emulated.preemptions > 0
    assert set(emulated.rows.tolist()) >= {0, 1, 2}

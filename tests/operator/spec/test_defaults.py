"""The default policies stand in the operator's spec; what cannot import it says the same.

Which they are was decided by an experiment: docs/results.md, section `defaults`; tests/lab/test_verdict.py holds the
CRD to its verdict.
"""

import inspect
import re

import pytest

from halffull_extproc.policies import Policy
from halffull_lab import plan, simulate
from halffull_lab.engine_policies import make_engine
from halffull_lab.simulation.experiment import engine_policy
from halffull_larry.config import LarryConfig
from halffull_larry.ordering import LARRY, POLICIES, make_ordering
from halffull_operator.spec import Larry, Scheduler
from halffull_operator.spec_gateway import Routing
from tests.operator.chart.render import REPOSITORY

ENGINE, ALPHA, ROUTING = Scheduler().policy, Larry().alpha, Routing().policy


def test_the_plugin_by_itself_does_what_an_llmserving_gets() -> None:
    assert (LarryConfig().policy, LarryConfig().alpha) == (ENGINE, ALPHA)
    assert LarryConfig.of({}) == LarryConfig()


@pytest.mark.parametrize("of", [LARRY, make_ordering, make_engine])
def test_alpha_is_the_same_wherever_it_may_be_left_out(of: object) -> None:
    assert callable(of)
    assert inspect.signature(of).parameters["alpha"].default == ALPHA
    assert engine_policy("LARRY") == ("LARRY", ALPHA)


def test_both_are_policies_of_those_who_carry_them_out() -> None:
    assert ENGINE in POLICIES
    assert ROUTING in {policy.value for policy in Policy}


def test_one_s_own_traffic_is_simulated_with_them() -> None:
    assert (simulate._POLICIES[-1], simulate._BALANCERS[-1]) == (ENGINE, ROUTING)
    assert plan._SETUPS[-1] == f"{ENGINE}+{ROUTING}"


def test_the_pages_say_so() -> None:
    larry, readme, picker = (
        (REPOSITORY / page).read_text(encoding="utf-8") for page in ("docs/larry.md", "README.md", "docs/picker.md")
    )
    assert f"\n| `policy` | `{ENGINE}` |" in larry
    assert f"\n| `alpha` | {ALPHA:g} |" in larry
    assert re.search(rf"^policy: {ROUTING}\b", readme, re.MULTILINE)
    assert f"\nversion: 1\npolicy: {ROUTING}\n" in picker

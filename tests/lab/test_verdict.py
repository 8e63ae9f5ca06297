"""The rule by which defaults are chosen: what it refuses, what it weighs, and that it is applied to what ships."""

import re
from pathlib import Path
from typing import Any

import pytest

from halffull_lab.simulation.experiment import bundled, load_experiment
from tests.lab.test_results_page import PAGE, page, verdict

TODAY = "FCFS, P2C"
Change = dict[str, float | tuple[float, float]]


def _results(*scenes: dict[str, Change], errors: dict[str, int] | None = None) -> dict[str, Any]:
    """Every figure of today's is 2 s, of every candidate 1 s, but for the changes: s, or s and the interval's end."""
    cells = []
    for place, changes in enumerate(scenes):
        variants: dict[str, Any] = {}
        for name in (TODAY, *verdict.SIMPLEST_FIRST):
            changed = changes.get(name, {})
            figures, gains = {}, {}
            for figure in verdict.FIGURES:
                given = changed.get(figure, 2.0 if name == TODAY else 1.0)
                value, high = given if isinstance(given, tuple) else (given, 2.02 / given)
                figures[figure], gains[figure] = [value, value, value], [2.0 / value, 0.0, high]
            variants[name] = {
                "case": {"engines": 4, "minutes": 5.0},
                "figures": figures,
                "gains": {} if name == TODAY else gains,
                "errors": (errors or {}).get(name, 0),
                "requests": 100,
                "preemptions": 1,
            }
        cells.append(
            {"point": {"scene": f"scene {place}"}, "arrived": 1.0, "notes": [], "warning": "", "variants": variants}
        )
    experiment = {"title": "T", "compare": "setup", "x": "", "seeds": 2, "rivals": []}
    return {"version": "1", "experiment": experiment, "reference": TODAY, "cells": cells}


def _winner(*scenes: dict[str, Change], errors: dict[str, int] | None = None) -> str:
    return str(verdict.winner(verdict.standings(_results(*scenes, errors=errors))))


def test_of_equals_the_paper_s_own_rules_are_taken() -> None:
    assert _winner({}) == "LARRY, SAL"
    cheaper = dict.fromkeys(verdict.FIGURES, 0.985)
    assert _winner({"LARRYPlus, SALPlus": cheaper}) == "LARRY, SAL"


def test_who_is_cheaper_by_more_than_a_tie_is_taken() -> None:
    cheaper = dict.fromkeys(verdict.FIGURES, 0.97)
    assert _winner({"LARRYPlus, SALPlus": cheaper}) == "LARRYPlus, SALPlus"


@pytest.mark.parametrize("figure", ["ttft_p95", "ttft_p99", "tgt_p95"])
def test_one_scene_in_which_it_is_worse_than_today_is_enough(figure: str) -> None:
    scenes: tuple[dict[str, Change], ...] = ({}, {"LARRY, SAL": {figure: 2.2}}, {})
    found = verdict.standings(_results(*scenes))
    assert [(loss.scene, loss.figure) for loss in found["LARRY, SAL"].losses] == [("scene 1", figure)]
    assert found["LARRY, SAL"].loss == pytest.approx(1.1)
    assert "LARRY, SAL" not in verdict.stay(found)
    assert verdict.winner(found) == "FCFS, SAL"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"ttft_p99": 2.08}, id="less than the margin"),
        pytest.param({"ttft_p99": (2.4, 1.01)}, id="noise"),
        pytest.param({"ttft_max": 4.0}, id="the longest wait is weighed, not guarded"),
    ],
)
def test_what_is_no_loss(change: Change) -> None:
    assert verdict.standings(_results({"LARRY, SAL": change}))["LARRY, SAL"].losses == ()


def test_more_failures_are_a_loss() -> None:
    assert _winner({}, errors={"LARRY, SAL": 1}) == "FCFS, SAL"
    assert _winner({}, errors={"LARRY, SAL": 1, TODAY: 1, "FCFS, SAL": 1}) == "LARRY, SAL"


def test_when_nobody_is_safe_those_near_the_smallest_worst_loss_stay() -> None:
    scene: dict[str, Change] = {name: {"ttft_p99": 6.0} for name in verdict.SIMPLEST_FIRST}
    scene |= {"LARRYPlus, SAL": {"ttft_p99": 2.4}, "LARRY, SALPlus": {"ttft_p99": 2.5}}
    assert verdict.stay(verdict.standings(_results(scene))) == ["LARRYPlus, SAL", "LARRY, SALPlus"]


def test_cost_is_the_geometric_mean_against_the_best_of_each_scene() -> None:
    found = verdict.standings(_results({"LARRY, SAL": {"ttft_p50": 4.0}}, {}))
    assert found["LARRY, SAL"].costs["ttft_p50"] == pytest.approx((2.0, 4.0))
    assert found["LARRY, SAL"].cost() == pytest.approx(2 ** (1 / 7))
    assert found[TODAY].cost() == pytest.approx(2.0)


def test_the_section_says_the_verdict_and_every_scene() -> None:
    text = page.section(_results({"LARRY, SAL": {"ttft_p99": 2.5}}, {}), wall=60.0, workers=2)
    assert text.startswith("\n**By the rule: FCFS, SAL.** Step 1 leaves FCFS, SAL; ")
    assert "Of 200 draws of the scenes, with replacement, it takes FCFS, SAL in 7" in text
    assert "1.25× TTFT p99, scene 0" in text
    assert "\n| scene 0 | 2 / 2 / 2, 2 | " in text
    assert "2.00 / 0.80 / 2.00, 2.00" in text


def test_the_experiment_has_the_candidates_and_seeds_and_traffic_of_its_own() -> None:
    experiment, _ = load_experiment("defaults")
    assert set(experiment.points("setup")) == {experiment.reference, *verdict.SIMPLEST_FIRST}
    cases = {case for cell in experiment.cells() for case in cell.cases.values()}
    for other in (load_experiment(name)[0] for name in bundled() if name != "defaults"):
        assert not set(other.all_seeds) & set(experiment.all_seeds)
        assert not {case.trace for cell in other.cells() for case in cell.cases.values()} & {
            case.trace for case in cases
        }


def test_what_the_page_finds_is_what_ships() -> None:
    """The operator's spec is the one place where the defaults stand; the page's verdict names them."""
    found = re.search(r"\*\*By the rule: (?P<engine>[^,]+), (?P<routing>[^.]+)\.\*\*", PAGE)
    assert found is not None
    crd = (Path(__file__).parents[2] / "crds/llmservings.serving.halffull.dev.yaml").read_text(encoding="utf-8")
    assert f"default: {found['engine'].partition(':')[0]}\n" in crd
    assert f"default: {found['routing']}\n" in crd

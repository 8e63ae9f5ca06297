"""Which setup is the default, by a rule that was written down before its experiment was first run. Pure.

1. **Safe.** A setup is out if in any scene its TTFT p95, TTFT p99 or TGT p95 is worse than today's (the experiment's
   reference: FCFS behind P2C) by more than noise: the whole 95% interval of today's ÷ its below 1, and the ratio below
   1 / 1.05; or if it fails more requests. If nobody is safe, those stay whose worst such ratio is within 5% of the best
   one's.
2. **Cost.** Each figure ÷ the best setup's of the scene, geometric mean over the scenes; then the geometric mean over
   the seven figures, each with the same weight. The longest wait is one of them.
3. Of those that stay the cheapest is the default. Those within 2% of it are its equals, and of equals the simplest is
   taken: first the paper's own rules, then by the number of things that are learned or tuned.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

FIGURES: Final = {
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "ttft_p99": "TTFT p99",
    "ttft_max": "the longest wait",
    "normalized_ttft_p95": "TTFT/token p95",
    "tgt_p50": "TGT p50",
    "tgt_p95": "TGT p95",
}
"""With their names in words."""
GUARDED: Final = ("ttft_p95", "ttft_p99", "tgt_p95")
MARGIN: Final = 1.05
EQUAL: Final = 1.02
SIMPLEST_FIRST: Final = (
    "LARRY, SAL",
    "FCFS, SAL",
    "LARRY:500, SAL",
    "LARRYPlus, SAL",
    "LARRY, SALPlus",
    "LARRY:500, SALPlus",
    "LARRYPlus, SALPlus",
)
"""The candidates."""
DRAWS: Final = 200
"""Of the scenes, with replacement: how much the verdict hangs on which they are."""

_HEADINGS: Final = ("TTFT p50", "p95", "p99", "longest", "TTFT/token p95", "TGT p50", "p95")
Results = Mapping[str, Any]
"""A results.json whose variants are SIMPLEST_FIRST and the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Where a setup is worse than today's, beyond noise."""

    ratio: float
    """This ÷ today's, above MARGIN; infinite if it fails more requests."""
    scene: str
    figure: str

    def __str__(self) -> str:
        what = f"{self.ratio:.2f}× {FIGURES[self.figure]}" if math.isfinite(self.ratio) else "more failures"
        return f"{what}, {self.scene}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One setup over all scenes."""

    losses: tuple[Loss, ...]
    """The worst first."""
    costs: Mapping[str, tuple[float, float]]
    """By figure: geometric mean, and worst, of this ÷ the best of the scene."""
    preempted: float
    """Preemptions ÷ requests."""

    def cost(self, figures: Iterable[str] = FIGURES) -> float:
        """Step 2."""
        return _mean(self.costs[figure][0] for figure in figures)

    @property
    def loss(self) -> float:
        """The worst one's ratio; 1: none."""
        return self.losses[0].ratio if self.losses else 1.0


def standings(results: Results) -> dict[str, Standing]:
    """Every setup, the reference too."""
    names = list(results["cells"][0]["variants"])
    return {name: _standing(results, name) for name in names}


def stay(found: Mapping[str, Standing]) -> list[str]:
    """The candidates that step 1 leaves."""
    losses = {name: found[name].loss for name in SIMPLEST_FIRST}
    bound = min(losses.values())
    return [name for name in SIMPLEST_FIRST if losses[name] <= (bound * MARGIN if bound > 1 else 1)]


def winner(found: Mapping[str, Standing], figures: Collection[str] = FIGURES) -> str:
    """Step 3; with other figures than the rule's: what it would be by them."""
    costs = {name: found[name].cost(figures) for name in stay(found)}
    cheapest = min(costs.values())
    return next(name for name in SIMPLEST_FIRST if costs.get(name, math.inf) <= cheapest * EQUAL)


def tables(results: Results) -> list[str]:
    """The verdict, every setup's standing, and every scene, in Markdown."""
    found = standings(results)
    return [
        f"{_verdict(found)} {_drawn(results)}",
        markdown(*_standings(found, results["reference"])),
        _words_of_scenes(results),
        _scenes(results),
    ]


def _standing(results: Results, name: str) -> Standing:
    cells, reference = results["cells"], results["reference"]
    losses, costs = [], {}
    for cell in cells:
        scene, variant = _scene(cell), cell["variants"][name]
        if variant["errors"] > cell["variants"][reference]["errors"]:
            losses.append(Loss(ratio=math.inf, scene=scene, figure="errors"))
        for figure in GUARDED:
            gain, _, high = variant["gains"].get(figure, (1.0, 1.0, 1.0))
            if None not in (gain, high) and high < 1 and gain < 1 / MARGIN:
                losses.append(Loss(ratio=1 / gain, scene=scene, figure=figure))
    for figure in FIGURES:
        over = [
            _value(cell["variants"][name], figure)
            / min(_value(variant, figure) for variant in cell["variants"].values())
            for cell in cells
        ]
        costs[figure] = (_mean(over), max(over))
    requests, preemptions = (sum(cell["variants"][name][key] for cell in cells) for key in ("requests", "preemptions"))
    return Standing(
        losses=tuple(sorted(losses, key=lambda loss: -loss.ratio)), costs=costs, preempted=preemptions / requests
    )


def _verdict(found: Mapping[str, Standing]) -> str:
    left, chosen = stay(found), winner(found)
    cheapest = min(found[name].cost() for name in left)
    equal = [name for name in left if found[name].cost() <= cheapest * EQUAL]
    without = {
        words: other
        for figure, words in FIGURES.items()
        if (other := winner(found, [each for each in FIGURES if each != figure])) != chosen
    }
    robust = "; ".join(f"without {figure} {other}" for figure, other in without.items())
    return (
        f"**By the rule: {chosen}.** Step 1 leaves {'; '.join(left)}. Within 2% of the cheapest: {'; '.join(equal)}. "
        f"With any one figure left out: {robust or 'the same'}."
    )


def _drawn(results: Results) -> str:
    rng, cells = random.Random(0), results["cells"]
    times = Counter(
        winner(standings({**results, "cells": rng.choices(cells, k=len(cells))})) for _ in range(DRAWS)
    ).most_common()
    shares = ", ".join(f"{name} in {count / DRAWS:.0%}" for name, count in times)
    return f"Of {DRAWS} draws of the scenes, with replacement, it takes {shares}."


def _standings(found: Mapping[str, Standing], reference: str) -> tuple[list[str], list[list[str]]]:
    head = ["setup", "cost", *_HEADINGS, "scenes with a loss", "worst loss against today's", "preempted"]
    rows = [
        [
            name,
            f"{each.cost():.3f}",
            *("{:.2f} ({:.2f})".format(*each.costs[figure]) for figure in FIGURES),
            "" if name == reference else str(len({loss.scene for loss in each.losses})),
            str(each.losses[0]) if each.losses else "",
            f"{each.preempted:.2%}",
        ]
        for name, each in found.items()
    ]
    return head, rows


def _words_of_scenes(results: Results) -> str:
    return (
        f"Every scene: TTFT p95 / p99 / longest, TGT p95 of {results['reference']} in s, then its figures ÷ each "
        "setup's (above 1: better than today's):"
    )


def _scenes(results: Results) -> str:
    reference = results["reference"]
    shown = ("ttft_p95", "ttft_p99", "ttft_max", "tgt_p95")
    others = [name for name in results["cells"][0]["variants"] if name != reference]
    rows = []
    for cell in results["cells"]:
        base = [_value(cell["variants"][reference], figure) for figure in shown]
        ratios = [
            [old / _value(cell["variants"][name], figure) for old, figure in zip(base, shown, strict=True)]
            for name in others
        ]
        rows.append(
            [
                _scene(cell),
                _joined(f"{value:.3g}" for value in base),
                *(_joined(f"{ratio:.2f}" for ratio in each) for each in ratios),
            ]
        )
    return markdown(["scene", reference, *others], rows)


def _joined(values: Iterable[str]) -> str:
    *first, second = values
    return f"{' / '.join(first)}, {second}"


def _scene(cell: Mapping[str, Any]) -> str:
    return ", ".join(cell["point"].values())


def _value(variant: Mapping[str, Any], figure: str) -> float:
    value = variant["figures"][figure][0]
    return math.inf if value is None else float(value)


def _mean(values: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

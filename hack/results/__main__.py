"""`make results`: every experiment that comes with the lab, and the tables and plots of docs/results.md.

    .venv/bin/python hack/results [NAME …] [--reuse] [--workers 2] [--quick]

Runs `halffull simulate NAME` for each, one after the other; build/results/NAME has its report.html, results.json and
what it printed. Then the tables between the page's marks and the plots beside it are written anew, for the experiments
named. `--quick` is for CI: a few seconds of each, and the page stays.
"""

import argparse
import html
import json
import os
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from page import digest, renewed, section

from halffull_lab.simulation.experiment import bundled, load_experiment

HERE = Path(__file__).parents[2]
PAGE, PLOTS = HERE / "docs/results.md", HERE / "docs/results"
SHOWN = {  # plot → experiment and the heading in its report.html
    "balancers-fcfs-70b-chat.svg": ("balancers", "policy FCFS, workload 70B chat"),
    "capacity-70b-chat.svg": ("capacity", "workload 70B chat"),
    "capacity-70b-code.svg": ("capacity", "workload 70B code"),
}
QUICK_OPTIONS = ("--seeds", "1", "--minutes", "0.1")
CPU_SECONDS = 7.0  # per simulated engine-hour, until the first one is measured


def hours(name: str) -> float:
    """Simulated engine-hours of an experiment as it stands."""
    experiment, _ = load_experiment(name)
    cases = [case for cell in experiment.cells() for case in cell.cases.values()]
    return experiment.seeds * sum(case.engines * case.minutes for case in cases) / 60


def finished(folder: Path, name: str) -> bool:
    """Whether a run of this content and version is there."""
    try:
        found = json.loads((folder / "results.json").read_bytes())
        json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError):
        return False
    experiment = msgspec.to_builtins(load_experiment(name)[0])
    return digest(found["experiment"]) == digest(experiment) and found["version"] == version("halffull-lab")


def run(name: str, folder: Path, *, workers: int, options: tuple[str, ...], left: str) -> None:
    """One experiment; ends the program with what it printed if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("results.json", "run.json", "report.html"):
        (folder / file).unlink(missing_ok=True)
    command = [sys.executable, "-m", "halffull_lab", "simulate", name, "--workers", str(workers), "--out", str(folder)]
    began = time.monotonic()
    print(f"{name}: began {time.strftime('%H:%M')}{left}", flush=True)
    with (folder / "printed.txt").open("wb") as printed:
        code = subprocess.run([*command, *options], stdout=printed, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        sys.exit(f"{(folder / 'printed.txt').read_text(errors='replace')}\n{name}: exit code {code}")
    took = {"seconds": round(time.monotonic() - began), "workers": workers}
    (folder / "run.json").write_text(json.dumps(took) + "\n", encoding="utf-8")


def run_all(names: list[str], out: Path, *, workers: int, reuse: bool, options: tuple[str, ...]) -> None:
    """Every experiment named, with what is left to do as the engine-hours done so far tell."""
    todo = [name for name in names if not (reuse and finished(out / name, name))]
    for name in names:
        if name not in todo:
            print(f"{name}: taken from {out.relative_to(HERE) / name}, same content and version", flush=True)
    work = {name: hours(name) for name in todo}
    began, done = time.monotonic(), 0.0
    for place, name in enumerate(todo):
        pace = (time.monotonic() - began) / done if done else CPU_SECONDS / workers
        ahead = pace * sum(work[other] for other in todo[place:]) / 60
        left = (
            ""
            if options
            else f", {work[name]:.0f} engine-hours; {place + 1} of {len(todo)}, about {ahead:.0f} minutes left"
        )
        run(name, out / name, workers=workers, options=options, left=left)
        done += work[name]


def write_page(names: list[str], out: Path) -> None:
    """The tables between the marks, and the plots."""
    tables = {}
    for name in names:
        results, took = (json.loads((out / name / file).read_bytes()) for file in ("results.json", "run.json"))
        tables[name] = section(results, wall=took["seconds"], workers=took["workers"])
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
    PLOTS.mkdir(exist_ok=True)
    for file, (name, heading) in SHOWN.items():
        if name in names:
            drawn = plot((out / name / "report.html").read_text(encoding="utf-8"), heading)
            (PLOTS / file).write_text(drawn, encoding="utf-8")


def plot(report: str, heading: str) -> str:
    """The plot below a heading of a report, as a file of its own."""
    _, found, below = report.partition(f"<h2>{html.escape(heading)}</h2>")
    drawn = re.search(r"<svg.*?</svg>", below, re.DOTALL)
    if not found or drawn is None:
        sys.exit(f"report.html has no plot {heading!r}")
    # A tenth of a point is all that one sees, indentation and who drew it nothing: a quarter of the file less.
    text = re.sub(r"<metadata>.*?</metadata>", "", drawn[0], flags=re.DOTALL)
    text = re.sub(r'(?<= )(d|x|y)="[^"]+"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), text)
    return re.sub(r"\n +", "\n", text) + "\n"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(bundled())}")
    parser.add_argument("--quick", action="store_true", help="1 seed of 6 seconds of each; the page stays")
    parser.add_argument("--reuse", action="store_true", help="keep what is there with the same content and version")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    args: Any = parser.parse_args()
    names = args.names or list(bundled())
    if unknown := set(names) - set(bundled()):
        parser.error(f"no experiment {min(unknown)!r}; there are {', '.join(bundled())}")
    if args.quick:
        run_all(names, HERE / "build/results/quick", workers=args.workers, reuse=False, options=QUICK_OPTIONS)
        return
    out = HERE / "build/results"
    run_all(names, out, workers=args.workers, reuse=args.reuse, options=())
    write_page(names, out)
    print(f"{PAGE.relative_to(HERE)}: tables of {', '.join(names)}")


if __name__ == "__main__":
    main()

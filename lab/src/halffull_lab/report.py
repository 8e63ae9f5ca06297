"""The comparison as a self-contained HTML page, with plots."""

from pathlib import Path

import jinja2

from halffull_lab.plots import queued_tokens, ttft_by_prompt, ttft_cdf
from halffull_lab.results import BASELINE, Comparison
from halffull_lab.table import BAND_NAMES, fault_lines, headline, rows


def write_html(comparison: Comparison, path: Path) -> None:
    """Write the report; one file, nothing loaded from anywhere."""
    page = template("report.html.j2").render(
        comparison=comparison,
        rows=rows(comparison),
        bands=BAND_NAMES,
        baseline=BASELINE,
        fault=fault_lines(comparison),
        headline=headline(comparison),
        plots={
            "cdf": ttft_cdf(comparison),
            "queued": queued_tokens(comparison),
            "prompt": ttft_by_prompt(comparison),
        },
    )
    path.write_text(page, encoding="utf-8")


def template(name: str) -> jinja2.Template:
    """One of the lab's pages."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("halffull_lab"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)

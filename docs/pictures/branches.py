"""Draws docs/pictures/branches.png: what branches of each batch size gained of their return, from results/branches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt

from rlscale.benchmarks.branch.findings import find_page, fit
from rlscale.report.branch_page import branch_chart

RESULTS = Path(__file__).parents[2] / "results" / "branches"


def panel(path: Path) -> Any:
    """One checkpoint: the page's own chart."""
    record = json.loads(path.read_text())
    page = find_page(record, fit(record))
    title = f"{record['task']} at a return of {record['start']['return']:.3g}"
    return branch_chart(page.frontier, page.observations, page.noise).properties(width=460, height=240, title=title)


def main() -> None:
    chart = alt.vconcat(*(panel(path) for path in sorted(RESULTS.glob("*.json"))))
    chart = chart.configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=15).configure_view(stroke=None)
    chart.save(str(Path(__file__).with_name("branches.png")), scale_factor=2)


if __name__ == "__main__":
    main()

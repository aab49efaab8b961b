"""Draws docs/pictures/branches.png: what branches of each batch size gained of their return, from results/branches."""

from __future__ import annotations

import json
import math
from pathlib import Path

import altair as alt

from rlscale.benchmarks.branch.run import fit

RESULTS = Path(__file__).parents[2] / "results" / "branches"
NOISE = ("joint_policy_parameters", "adam")


def panel(path: Path) -> alt.LayerChart:
    """One checkpoint: the gain at each size, the curve, and the two batch sizes that the noise scale and the curve name."""
    record = json.loads(path.read_text())
    frontier = fit(record)
    observations = sum(b["observations"] for b in record["branches"]) / len(record["branches"])
    whole = frontier.progress * observations
    points = [
        {"batch": size, "share": gain / whole, "low": (gain - 2 * error) / whole, "high": (gain + 2 * error) / whole}
        for size, (gain, error) in zip(frontier.sizes, frontier.gains, strict=True)
        if math.isfinite(gain)
    ]
    first, last = frontier.sizes[0] / 1.5, frontier.sizes[-1] * 2
    local = frontier.b_local
    curve = []
    if local.value is not None:
        grid = [first * (last / first) ** (i / 60) for i in range(61)]
        curve = [{"batch": b, "share": 1 / (1 + b / local.value)} for b in grid]
    scale = alt.Scale(type="log", domain=[first, last], nice=False)
    x = alt.X("batch:Q", title="batch size B (observations)", scale=scale, axis=alt.Axis(format="~s", tickCount=5))
    y = alt.Y("share:Q", title="gain, of small batches'", scale=alt.Scale(domain=[0, 1.6], clamp=True), axis=alt.Axis(format="%"))
    bands = []
    noise = next(s for s in record["noise"]["scales"] if (s["head"], s["metric"]) == NOISE)
    for label, (low, high), height in (
        ("B_local", local.interval, 14),
        ("noise scale", [last if end is None else end for end in noise["interval"]], 34),
    ):
        low, high = max(low, first), min(high, last)
        bands.append({"low": low, "high": high, "label": label, "height": height})
    layers = []
    for band, colour in zip(bands, ("#0072B2", "#D55E00"), strict=True):
        data = alt.Data(values=[band])
        at = alt.value(band["height"])
        layers.append(alt.Chart(data).mark_rule(strokeWidth=6, color=colour).encode(x=alt.X("low:Q"), x2="high:Q", y=at))
        layers.append(
            alt.Chart(data)
            .mark_text(align="right", dx=-8, fontSize=13, color=colour)
            .encode(x=alt.X("low:Q"), y=at, text="label:N")
        )
    dots = alt.Chart(alt.Data(values=points))
    layers += [
        alt.Chart(alt.Data(values=curve)).mark_line(color="#0072B2").encode(x=x, y=y),
        dots.mark_rule(color="#000000").encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        dots.mark_point(filled=True, size=70, color="#000000").encode(x=x, y=y),
    ]
    title = f"{record['task']} at a return of {record['start']['return']:.3g}"
    return alt.layer(*layers).properties(width=460, height=240, title=title)


def main() -> None:
    chart = alt.vconcat(*(panel(path) for path in sorted(RESULTS.glob("*.json"))))
    chart = chart.configure_axis(labelFontSize=13, titleFontSize=14).configure_title(fontSize=15).configure_view(stroke=None)
    chart.save(str(Path(__file__).with_name("branches.png")), scale_factor=2)


if __name__ == "__main__":
    main()

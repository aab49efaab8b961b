"""Draws docs/pictures/noise-scale.png: |ĝ|² against the batch size, on simulated gradients with a known noise scale."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import numpy as np

from rlscale.noise import block_statistics, noise_scale

TRACE, DIMENSIONS, SEED = 500.0, 100, 0


def main() -> None:
    rng = np.random.default_rng(SEED)
    deviation = np.sqrt(TRACE / DIMENSIONS)

    def gradients(count: int, size: int) -> np.ndarray:
        noise = rng.normal(size=(count, DIMENSIONS)) * deviation / np.sqrt(size)
        noise[:, 0] += 1.0
        return noise

    sizes = [2**k for k in range(3, 18)]
    measured = [{"batch": b, "square": float((gradients(8, b) ** 2).sum(1).mean())} for b in sizes]
    noise = noise_scale(block_statistics(gradients(32, 128), [128] * 32))
    assert noise.b_simple is not None
    lines = [
        {"batch": b, "square": v, "part": part}
        for b in sizes
        for part, v in (("|G|² + tr Σ / B", 1 + TRACE / b), ("signal |G|²", 1.0), ("noise tr Σ / B", TRACE / b))
        if v >= 0.05
    ]
    x = alt.X(
        "batch:Q",
        title="batch size B (observations)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    y = alt.Y(
        "square:Q",
        title="squared length of the batch gradient",
        scale=alt.Scale(type="log", domain=[0.05, 100]),
        axis=alt.Axis(tickCount=4),
    )
    colours = alt.Scale(range=["#000000", "#0072B2", "#D55E00"], domain=["|G|² + tr Σ / B", "signal |G|²", "noise tr Σ / B"])
    colour = alt.Color(
        "part:N", title=None, scale=colours, legend=alt.Legend(orient="bottom", labelFontSize=14, symbolStrokeWidth=3)
    )
    curves = alt.Chart(alt.Data(values=lines)).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    dots = alt.Chart(alt.Data(values=measured)).mark_point(size=70, filled=True, color="#000000").encode(x=x, y=y)
    low, high = noise.interval
    scale = alt.Data(
        values=[
            {
                "batch": noise.b_simple,
                "low": low,
                "high": high,
                "label": f"noise scale, estimated from 32 blocks: {noise.noise_scale}",
            }
        ]
    )
    band = alt.Chart(scale).mark_rect(opacity=0.25, color="#009E73").encode(x=alt.X("low:Q"), x2="high:Q")
    rule = alt.Chart(scale).mark_rule(color="#009E73", strokeWidth=2).encode(x=x)
    text = (
        alt.Chart(scale).mark_text(align="left", dx=14, fontSize=14, color="#00684C").encode(x=x, y=alt.value(24), text="label:N")
    )
    chart = alt.layer(band, rule, curves, dots, text).properties(width=640, height=320)
    chart = chart.configure_axis(labelFontSize=13, titleFontSize=14).configure_view(stroke=None)
    chart.save(str(Path(__file__).with_name("noise-scale.png")), scale_factor=2)


if __name__ == "__main__":
    main()

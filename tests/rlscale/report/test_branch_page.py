"""The page of `rlscale branch`: what its chart shows of a known frontier."""

import math
from dataclasses import replace

import pytest

from rlscale.estimate import Estimate
from rlscale.frontier import LocalFrontier
from rlscale.report.branch_page import branch_chart, branch_figure

# Small batches gain 2 from 1,000 observations; at B_local = 400 as many gain 1.
FRONTIER = LocalFrontier(
    b_local=Estimate(400.0, (200.0, 900.0)),
    progress=0.002,
    scatter=0.2,
    sizes=(100.0, 400.0, 1600.0),
    best_rates=(0.001, 0.002, 0.004),
    gains=((1.6, 0.1), (1.0, 0.2), (math.nan, math.nan)),
)
LEARNED = (1000.0, 1000.0, 1600.0)  # observations of the branches of each size
NOISE = Estimate(None, (50.0, math.inf), "not resolved")


def data_of(chart):
    """The records of each layer, by the fields that they have."""
    return {tuple(sorted(row)): part["data"]["values"] for part in chart.to_dict()["layer"] for row in part["data"]["values"][:1]}


def test_points_are_shares_of_small_batches_gain_and_sizes_without_a_gain_are_left_out():
    points = data_of(branch_chart(FRONTIER, LEARNED, None))["batch", "gain", "high", "low", "share"]
    assert [(p["batch"], p["share"]) for p in points] == [(100.0, pytest.approx(0.8)), (400.0, pytest.approx(0.5))]
    assert [(p["low"], p["high"]) for p in points] == [pytest.approx((0.7, 0.9)), pytest.approx((0.3, 0.7))]


def test_a_share_is_of_what_small_batches_gain_from_as_many_observations():
    """Whole batches of the largest size are 1,600 observations, from which small ones gain 3.2."""
    known = replace(FRONTIER, gains=((1.6, 0.1), (1.0, 0.2), (0.64, 0.16)))
    points = data_of(branch_chart(known, LEARNED, None))["batch", "gain", "high", "low", "share"]
    assert [p["share"] for p in points] == pytest.approx([0.8, 0.5, 0.2])
    assert (points[-1]["low"], points[-1]["high"]) == pytest.approx((0.1, 0.3))


def test_batch_sizes_are_those_of_an_iteration():
    """Of several optimizer steps where a run has mini-batches."""
    first = branch_chart(FRONTIER, LEARNED, None).to_dict()["layer"][0]
    assert first["encoding"]["x"]["title"] == "batch size, observations an iteration"


def test_the_curve_is_at_one_half_at_b_local():
    curve = data_of(branch_chart(FRONTIER, LEARNED, None))["batch", "share"]
    assert all(p["share"] == pytest.approx(400 / (400 + p["batch"])) for p in curve)
    assert curve[0]["batch"] < 100 < 1600 < curve[-1]["batch"]


def test_intervals_end_where_the_chart_does():
    layers = branch_chart(FRONTIER, LEARNED, NOISE).to_dict()["layer"]
    bars = {row["name"]: row for part in layers for row in part["data"]["values"] if "name" in row}
    assert (bars["B_local"]["low"], bars["B_local"]["high"]) == (200.0, 900.0)
    assert (bars["noise scale"]["low"], bars["noise scale"]["high"]) == pytest.approx((100 / 1.5, 3200.0))


def test_a_loss_is_drawn_as_one_and_the_axis_reaches_down_to_it():
    """At 1,600 observations the branches lost 1.6, half of the 3.2 that small batches gain from as many."""
    lost = replace(FRONTIER, gains=((1.6, 0.1), (1.0, 0.2), (-1.6, 0.2)))
    for frontier, share, lowest in ((FRONTIER, 0.5, 0), (lost, -0.5, -0.6)):
        chart = branch_chart(frontier, LEARNED, None)
        assert data_of(chart)["batch", "gain", "high", "low", "share"][-1]["share"] == pytest.approx(share)
        scale = chart.to_dict()["layer"][0]["encoding"]["y"]["scale"]
        assert scale["domain"] == pytest.approx([lowest, 1.6])
        assert not scale.get("clamp")


@pytest.mark.parametrize(("interval", "shape"), [((5000.0, 9000.0), "triangle-right"), ((2.0, 8.0), "triangle-left")])
def test_a_triangle_points_to_an_interval_beyond_the_chart(interval, shape):
    noise = Estimate(math.sqrt(interval[0] * interval[1]), interval)
    shapes = [part["mark"].get("shape") for part in branch_chart(FRONTIER, LEARNED, noise).to_dict()["layer"]]
    assert shape in shapes
    assert "a triangle points to one that lies beyond it" in branch_figure(FRONTIER, LEARNED, noise).note
    assert "triangle" not in branch_figure(FRONTIER, LEARNED, NOISE).note


@pytest.mark.parametrize("progress", [math.nan, 0.0, -0.1])
def test_branches_that_gained_nothing_are_not_drawn(progress):
    lost = LocalFrontier(Estimate(None, None, "no gain"), progress, 0.1, (100.0,), (0.1,), ((math.nan, math.nan),))
    assert branch_chart(lost, (1000.0,), None) is None
    assert "gained nothing" in str(branch_figure(lost, (1000.0,), None).chart.to_dict())


def test_the_caption_describes_only_what_is_drawn():
    unresolved = replace(FRONTIER, b_local=Estimate(None, (700.0, math.inf), "not resolved"))
    assert "Curve" in branch_figure(FRONTIER, LEARNED, NOISE).note
    assert "Curve" not in branch_figure(unresolved, LEARNED, NOISE).note
    assert "noise scale" not in branch_figure(FRONTIER, LEARNED, None).note

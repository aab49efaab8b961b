"""What the charts share: how they write numbers, and the labels of their axes."""

import re

import altair as alt
import pytest
import vl_convert

from rlscale.report.chart_style import draw, log_axis, numbers


def written(tooltip, value):
    """The value as Vega writes it by that line of a tooltip."""
    line = tooltip.to_dict()
    text = alt.Text(f"{line['field']}:Q", format=line["format"])
    chart = draw([{line["field"]: value}]).mark_text().encode(text=text)
    return re.search(r">([^<>]+)</text>", vl_convert.vegalite_to_svg(chart.to_dict())).group(1)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("batch", 65_536, "65,536"),
        ("runs", 12_345, "12,345"),
        ("observations", 1_234_567.8, "1,235,000"),
        ("steps", 17.256, "17.26"),
        ("relative", 1.0, "1"),
        ("rate", 0.00003162, "0.00003162"),
    ],
)
def test_tooltips_write_counts_whole_and_no_number_with_an_exponent(field, value, text):
    (line,) = numbers(**{field: "title"})
    assert written(line, value) == text


@pytest.mark.parametrize(
    ("domain", "labels"),
    [((2.1, 4.7), [3, 4]), ((210, 470), [300, 400]), ((1.5, 8), [2, 5]), ((0.8, 300), [1, 10, 100])],
)
def test_a_logarithmic_axis_has_labels_however_little_it_spans(domain, labels):
    assert log_axis(alt.X, "steps", "steps", domain).to_dict()["axis"]["values"] == labels

"""Charts as pictures, PNG and SVG, for documents that cannot hold a page."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..records.files import writing
from .chart_style import Figure, unchecked

__all__ = ["write_figures"]

_LETTER = 5.93  # points that a letter of a caption is wide


@unchecked
def write_figures(figures: Sequence[Figure], folder: Path, width: int = 700) -> None:
    """Every chart as PNG and SVG, with its title and caption in the picture.

    Args:
        figures: the charts.
        folder: where to write, made if it is not there.
        width: in points, two pixels each; letters of a picture 500 wide can be read on a phone.

    Raises:
        UsageError: the folder cannot be written.
    """
    import vl_convert

    names = Counter(figure.name for figure in figures)
    seen: Counter[str] = Counter()
    with writing(folder, "--figures"):
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            seen[figure.name] += 1
            name = figure.name if names[figure.name] == 1 else f"{figure.name}-{seen[figure.name]}"
            specification = figure.chart.to_dict(validate=False)
            caption = {
                "subtitle": textwrap.wrap(figure.note, int(width / _LETTER)),
                "anchor": "start",
                "subtitleColor": "#595959",
                "offset": 12,
            }
            specification["title"] = {"text": figure.title, **caption}
            specification |= {"width": width, "autosize": {"type": "fit-x", "contains": "padding"}, "background": "white"}
            picture = vl_convert.vegalite_to_svg(specification)
            (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
            (folder / f"{name}.png").write_bytes(vl_convert.svg_to_png(picture, scale=2))

"""Drawing figures with matplotlib, for papers: vector or raster files, and the numbers as CSV beside them."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from math import hypot, isfinite
from pathlib import Path
from textwrap import fill
from typing import Any

from edgefl.drawing.charts.chart import Chart, ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import INK, QUIET, UNKNOWN
from edgefl.errors import RunError
from edgefl.runs.durable import replace_file, write_output

MARKS = "osD^vXP*"
WIDTH = 7.0
"""Inches: a page's text width.  A figure of one panel takes half of it."""
HEIGHT = 2.5
"""Inches of a panel's height."""
MOST_LETTERS = 22
"""Letters of a line of the legend."""
BEFORE, BELOW = 0.58, 0.6
"""Inches for ticks and titles before and below a panel, where margins are fixed."""

STYLE: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False, "pdf.fonttype": 42, "ps.fonttype": 42,
    "svg.hashsalt": "edgefl", "text.parse_math": False, "legend.frameon": False,
    "lines.linewidth": 1.2, "lines.markersize": 3.5,
}  # fmt: skip
"""Letters are embedded as TrueType, which publishers ask for; the same numbers give the same file."""


def draw(chart: Chart, path: Path, *, dpi: int = 200, title: str = "", measured: bool = True, palette: int = 0) -> None:
    """Draw a figure to ``path`` (png, pdf or svg).  Raises RunError if the file can't be written.

    Margins fit the text, which is measured first; with ``measured=False`` they are fixed, in half of the time.  A PNG
    of lines with a ``palette`` of 64 colours, enough for their smoothed edges, is a third as large.
    """
    import matplotlib as mpl
    from PIL import Image

    with mpl.rc_context(STYLE):
        figure = figure_of(chart, title=title, measured=measured)
        form = path.suffix.removeprefix(".").lower()
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(form, {"Software": None})
        content = BytesIO()
        figure.savefig(content, format=form, dpi=dpi, metadata=metadata)
        if palette and form == "png":
            with Image.open(content) as drawn:
                reduced = drawn.convert("RGB").quantize(palette)
            reduced.save(content := BytesIO(), "png", optimize=True)
        write_output(path, content.getvalue())


def figure_of(chart: Chart, *, title: str = "", measured: bool = True) -> Any:
    """The figure that ``draw`` writes, of matplotlib; no name in it stands on another."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        columns = max(min(chart.across, len(chart.panels)), 1)
        lines = max(-(-len(chart.panels) // columns), 1)
        if chart.size is not None:
            wide, tall = chart.size[0] * columns, chart.size[1] * lines
        else:
            wide = WIDTH if columns > 1 or _is_wide(chart.panels) else WIDTH / 2
            heights = [_height(panel) for panel in chart.panels]
            tall = sum(max(heights[i * columns : (i + 1) * columns]) for i in range(lines)) + 0.3
        figure = Figure(figsize=(wide, tall), layout="constrained" if measured else None)
        FigureCanvasAgg(figure)
        if not measured:
            names = [_wrap(series.name) for panel in chart.panels for series in panel.series]
            beside = 0.5 + 0.06 * max((len(line) for name in names for line in name.split("\n")), default=0)
            bottom = 0.65 if chart.spread else 0.5
            across, down = (wide - beside) / columns, (tall - bottom - 0.3 + BELOW) / lines
            gaps = BEFORE / (across - BEFORE), BELOW / (down - BELOW)
            figure.subplots_adjust(BEFORE / wide, bottom / tall, 1 - beside / wide, 1 - 0.3 / tall, *gaps)
        grid = figure.subplots(
            lines, columns, squeeze=False, sharex=chart.aligned, sharey="row" if chart.aligned else False
        )
        for index, panel in enumerate(chart.panels):
            axes = grid[index // columns][index % columns]
            _draw_panel(axes, panel)
            if chart.aligned:
                axes.label_outer()
            if panel.is_horizontal and index % columns:  # the names are those of the panel to the left
                axes.tick_params(labelleft=False)
        for index in range(len(chart.panels), lines * columns):
            grid[index // columns][index % columns].set_axis_off()
        if title:
            figure.suptitle(title, fontsize=9, y=None if measured else 1 - 0.06 / tall)
        if chart.spread:
            figure.supxlabel(chart.spread, fontsize=6, color=QUIET, **({} if measured else {"y": 0.05 / tall}))
        if not any(panel.legend for panel in chart.panels) and not all(
            panel.has_single_bars or panel.labelled for panel in chart.panels
        ):
            _legend(figure, grid, "outside right upper" if measured else "center right", 1 if chart.aligned else 2)
        crowded = [axes for axes in grid.flat if len(axes.texts) > 1]
        if crowded:
            figure.draw_without_rendering()  # places the panels
        for axes in crowded:
            _spread_names(axes)
        return figure


PLACES = sorted(((x, y) for x in range(-120, 121, 8) for y in range(-100, 101, 4)), key=lambda place: hypot(*place))
"""Points by which a name may stand beside its own place, the nearest first."""


def _spread_names(axes: Any) -> None:
    """Move names in a panel that stand on others, or over its edge, to the nearest free place, each with a line.

    Names of points, which aren't in the layout, give way to those of lines.
    """
    from matplotlib.transforms import Bbox

    taken = [axes.get_legend().get_window_extent()] if axes.get_legend() else []
    room, letter = axes.bbox.padded(2), axes.figure.dpi / 72
    marks = axes.transData.transform([name.xy for name in axes.texts if not name.get_in_layout()] or [(0, 0)])
    taken += [Bbox([mark, mark]).padded(1.8 * letter) for mark in marks]
    for name in sorted(axes.texts, key=lambda name: not name.get_in_layout()):
        box = name.get_window_extent()
        for x, y in PLACES if hasattr(name, "xyann") else ():
            there = box.translated(x * letter, y * letter)
            inside = room.x0 <= there.x0 and there.x1 <= room.x1 and room.y0 <= there.y0 and there.y1 <= room.y1
            if (inside or name.get_in_layout()) and not any(there.overlaps(other) for other in taken):
                break
        else:
            x, y, there = 0, 0, box
        taken.append(there.padded(0.5 * letter))
        if x or y:
            name.set_position((name.xyann[0] + x, name.xyann[1] + y))
        if hypot(x, y) > 8:
            axes.annotate("", name.xy, name.xyann, name.xycoords, "offset points",
                          arrowprops={"arrowstyle": "-", "linewidth": 0.3, "color": QUIET})  # fmt: skip


def _height(panel: Panel) -> float:
    """Inches: a panel of spans or of bars that lie needs room for each name."""
    if panel.is_horizontal:
        return 0.6 + 0.17 * len(panel.series)
    return max(HEIGHT, 0.6 + 0.13 * len(_names(panel))) if panel.form == "spans" else HEIGHT


def write(chart: Chart, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draw a figure in each format, and write its numbers as CSV.  Returns the files."""
    files = []
    for form in formats:
        files.append(folder / f"{chart.name}.{form}")
        draw(chart, files[-1])
    files.append(folder / f"{chart.name}.csv")
    replace_file(files[-1], chart.csv().encode())
    return files


def make_folder(folder: Path) -> None:
    """Create the folder of figures.  Raises RunError if it can't be written, or is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"can't write figures to {folder}: {error.strerror or error}") from error


def _is_wide(panels: Sequence[Panel]) -> bool:
    """Whether one panel needs the whole width: many bars, or spans."""
    (panel, *_) = panels
    return panel.form == "spans" or (panel.form in ("bars", "stacks") and len(_names(panel)) > 4)


def _names(panel: Panel) -> list[str]:
    """The names along a categorical axis, in order."""
    if panel.y.names:
        return list(panel.y.names)
    return list(dict.fromkeys(x for series in panel.series for x in series.x))


def _scale_values(values: Sequence[Any], factor: float) -> list[float]:
    return [float("nan") if value is None else value / factor for value in values]


def _draw_panel(axes: Any, panel: Panel) -> None:
    draw = {"lines": _lines, "points": _points, "bars": _bars, "stacks": _bars, "areas": _areas, "spans": _spans,
            "map": _map}[panel.form]  # fmt: skip
    (_flat_bars if panel.is_horizontal else draw)(axes, panel)
    for index, name in enumerate(panel.symbols):
        if name:
            axes.scatter([], [], s=14, marker=MARKS[index % len(MARKS)], color=QUIET, label=name)
    axes.set_title(panel.title)
    if panel.legend:
        axes.legend()
    if panel.form != "map":
        axes.set_axisbelow(True)
        axes.grid(axis="x" if panel.form == "spans" or panel.is_horizontal else "y", alpha=0.25, linewidth=0.5)


def _label(axes: Any, panel: Panel, x: float, y: float) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xlabel(panel.x.title_with_unit(x))
    if panel.form != "spans":
        axes.set_ylabel(panel.y.title_with_unit(y))
    for axis, scale, ticks in ((panel.x, axes.set_xscale, axes.xaxis), (panel.y, axes.set_yscale, axes.yaxis)):
        if axis.log:
            scale("log")
            low, high = ticks.get_view_interval()
            ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e4 * low else (1.0,)))
            ticks.set_major_formatter("{x:g}")
            ticks.set_minor_formatter(NullFormatter())
    for axis, limit, factor in ((panel.x, axes.set_xlim, x), (panel.y, axes.set_ylim, y)):
        limits = [None if end is None else end / factor for end in (axis.bottom, axis.top)]
        if limits != [None, None]:
            limit(*limits)


def _lines(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    fx, fy = panel.factors()
    place = {name: i for i, name in enumerate(panel.x.names)}
    for series in panel.series:
        x, y = _scale_values([place.get(x, x) for x in series.x], fx), _scale_values(series.y, fy)
        marks = set(series.symbols) or {0}
        sign = MARKS[min(marks) % len(MARKS)]
        if series.form == "points":
            spread = _errors(series, fy) if series.low else None
            axes.errorbar(x, y, yerr=spread, fmt=sign, color=series.colour, elinewidth=0.8, capsize=1.5,
                          label=series.name)  # fmt: skip
            side = {"xytext": (-3, 3), "ha": "right"} if series.leftward else {}
            _write(axes, series, x, y, color=series.colour, fontweight="bold", in_layout=False, **side)
            continue
        axes.plot(x, y, color=series.colour, label=series.name, linestyle="--" if series.dashed else "-",
                  linewidth=3.5 if series.heavy else None, marker=sign if len(marks) == 1 and len(x) <= 40 else None,
                  markevery=None if panel.marked else [], solid_capstyle="butt" if series.heavy else None)  # fmt: skip
        if len(marks) > 1:
            for mark in sorted(marks):
                chosen = [i for i, symbol in enumerate(series.symbols) if symbol == mark]
                axes.plot([x[i] for i in chosen], [y[i] for i in chosen], color=series.colour, linestyle="",
                          marker=MARKS[mark % len(MARKS)])  # fmt: skip
        if any(value is not None for value in series.low):
            axes.fill_between(x, _scale_values(series.low, fy), _scale_values(series.high, fy), color=series.colour,
                              alpha=0.18, linewidth=0)  # fmt: skip
    _across(axes, panel, fy)
    axes.margins(y=0.08)
    _label(axes, panel, fx, fy)
    if place:
        _name_places(axes, panel.x.names)
    elif panel.x.title in ("round", "stage"):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _points(axes: Any, panel: Panel) -> None:
    fx, fy = panel.factors()
    for series in panel.series:
        if series.form == "lines":
            axes.plot(_scale_values(series.x, fx), _scale_values(series.y, fy), color=series.colour, label=series.name,
                      linestyle=":" if series.dashed else "-", linewidth=0.9, zorder=1)  # fmt: skip
            continue
        marks = set(series.symbols) or {0}
        for mark in sorted(marks):
            chosen = [i for i in range(len(series.x)) if not series.symbols or series.symbols[i] == mark]
            sizes = [10 + 4 * len(str(series.sizes[i])) ** 2 for i in chosen] if series.sizes else 14
            axes.scatter([series.x[i] / fx for i in chosen], [series.y[i] / fy for i in chosen], s=sizes,
                         marker=MARKS[mark % len(MARKS)], linewidths=0.9, edgecolors=series.colour,
                         facecolors="none" if series.hollow else series.colour, alpha=0.85)  # fmt: skip
        mark = min(marks) if len(marks) == 1 and not panel.symbols else 0
        axes.scatter([], [], s=14, marker=MARKS[mark % len(MARKS)], edgecolors=series.colour, label=series.name,
                     facecolors="none" if series.hollow else series.colour)  # fmt: skip
        _write(axes, series, [x / fx for x in series.x], [y / fy for y in series.y], fontsize=4.5, in_layout=False)
    _across(axes, panel, fy)
    _down(axes, panel, fx)
    _label(axes, panel, fx, fy)


def _bars(axes: Any, panel: Panel) -> None:
    _, fy = panel.factors()
    names = _names(panel)
    place = {name: i for i, name in enumerate(names)}
    drawn = [series for series in panel.series if series.form is None]
    width = 0.7 if panel.form == "stacks" or panel.has_single_bars else 0.8 / max(len(drawn), 1)
    floor = [0.0] * len(names)
    for index, series in enumerate(drawn):
        y = [0.0 if value is None else value / fy for value in series.y]
        shift = 0.0 if panel.form == "stacks" or panel.has_single_bars else (index - (len(drawn) - 1) / 2) * width
        at = [place[x] for x in series.x]
        bottom = [floor[i] for i in at] if panel.form == "stacks" else [0.0] * len(at)
        axes.bar([i + shift for i in at], y, width, bottom=bottom, color=series.colour, label=series.name)
        tops = _scale_values(series.high or series.y, fy)
        ends = [max(top, value) if isfinite(top) else value for top, value in zip(tops, y, strict=True)]
        _write(axes, series, [i + shift for i in at], ends, ha="center", va="bottom", xytext=(0, 2))
        if panel.form == "stacks":
            for i, value in zip(at, y, strict=True):
                floor[i] += value
        if any(value is not None for value in series.low):
            axes.errorbar([i + shift for i in at], y, yerr=_errors(series, fy), fmt="none", ecolor=INK,
                          elinewidth=0.8, capsize=2)  # fmt: skip
    for series in panel.series:
        if series.form == "points":
            axes.errorbar([place[x] for x in series.x], _scale_values(series.y, fy), yerr=_errors(series, fy), fmt="_",
                          color=series.colour, elinewidth=0.9, capsize=3, label=series.name)  # fmt: skip
    _across(axes, panel, fy)
    _name_places(axes, names)
    if any(series.written for series in panel.series):
        axes.margins(y=0.12)
    _label(axes, panel, 1.0, fy)


def _flat_bars(axes: Any, panel: Panel) -> None:
    """A line for each bar, its name to the left and its value to the right of it and of its whisker."""
    _, fy = panel.factors()
    for place, series in enumerate(panel.series):
        (value,) = _scale_values(series.y, fy)
        axes.barh(place, value, 0.7, color=series.colour, label=series.name)
        end = value
        if any(reach is not None for reach in series.low):
            axes.errorbar([value], [place], xerr=_errors(series, fy), fmt="none", ecolor=INK, elinewidth=0.8, capsize=2)
            end = max(_scale_values(series.high, fy))
        if series.y[0] is not None:
            _write(axes, series, [end], [place], va="center", xytext=(3, 0), fontsize=7)
    for level, name in panel.across:
        axes.axvline(level / fy, color=QUIET, linestyle=":", linewidth=0.8)
        axes.annotate(name, (level / fy, 1), xycoords=("data", "axes fraction"), fontsize=6, xytext=(2, 0),
                      textcoords="offset points", color="#555555")  # fmt: skip
    axes.set_yticks(range(len(panel.series)), [series.name for series in panel.series])
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlim(left=panel.y.bottom)
    axes.set_xlabel(panel.y.title_with_unit(fy))


def _name_places(axes: Any, names: Sequence[str]) -> None:
    """Names below the places 0, 1, 2 of an axis, at a slant where they would touch."""
    width = max((len(line) for name in names for line in name.split("\n")), default=0) * len(names)
    long = width > 12 * axes.figure.get_figwidth() / axes.get_gridspec().ncols
    axes.set_xticks(range(len(names)), names, rotation=30 if long else 0, ha="right" if long else "center")


def _areas(axes: Any, panel: Panel) -> None:
    fx, fy = panel.factors()
    stacked = [series for series in panel.series if series.form is None]
    axes.stackplot(_scale_values(stacked[0].x, fx), *(_scale_values(series.y, fy) for series in stacked), step="post",
                   linewidth=0, labels=[s.name for s in stacked], colors=[s.colour for s in stacked])  # fmt: skip
    for series in panel.series:
        x, y = _scale_values(series.x, fx), _scale_values(series.y, fy)
        if series.form == "lines":
            axes.step(x, y, where="post", color=series.colour, label=series.name, linewidth=0.6)
        elif series.form == "points":
            axes.plot(x, y, linestyle="", marker=MARKS[series.symbols[0] % len(MARKS)], color=series.colour)
            left = x[0] < max(stacked[0].x) / fx / 2
            _write(axes, series, x, y, xytext=(8 if left else -8, 6), ha="left" if left else "right",
                   bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1})  # fmt: skip
    _down(axes, panel, fx)
    axes.set_xlim(0, max(*stacked[0].x, 1) / fx)
    _label(axes, panel, fx, fy)


def _map(axes: Any, panel: Panel) -> None:
    import numpy as np

    value = panel.value or ChartAxis("")
    known = [number for series in panel.series for number in series.y]
    factor, title = value.scale(known)
    cells = np.ma.masked_invalid([_scale_values(series.y, factor) for series in panel.series])
    axes.set_facecolor(UNKNOWN)
    image = axes.imshow(cells, aspect="auto", cmap="viridis")
    axes.figure.colorbar(image, ax=axes, label=title)
    for at, series in enumerate(panel.series):
        for x, (number, note) in enumerate(zip(series.y, series.notes, strict=True) if series.written else ()):
            dark = number is not None and image.norm(number / factor) < 0.6
            axes.text(x, at, note, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    axes.set_yticks(range(len(panel.series)), [series.name for series in panel.series])
    axes.set(xlabel=panel.x.title, ylabel=panel.y.title)
    _name_places(axes, panel.x.names)


def _write(axes: Any, series: Series, x: Sequence[float], y: Sequence[float], **style: Any) -> None:
    """The notes of a series beside its points, if it is one whose notes are written."""
    for note, *place in zip(series.notes, x, y, strict=True) if series.written else ():
        axes.annotate(note, place, **{"xytext": (3, 3), "textcoords": "offset points", "fontsize": 8, **style})


def _down(axes: Any, panel: Panel, factor: float) -> None:
    """Dotted lines from top to bottom with their names along them."""
    for place, name in panel.down:
        axes.axvline(place / factor, color=QUIET, linestyle=":", linewidth=0.8)
        axes.annotate(name, (place / factor, 0.995), xycoords=("data", "axes fraction"), fontsize=7, rotation=90,
                      va="top", xytext=(2, 0), textcoords="offset points", color="#555555")  # fmt: skip


def _across(axes: Any, panel: Panel, factor: float) -> None:
    """Dotted lines over the panel, their names at alternating ends, so that near ones don't overlap."""
    for index, (height, name) in enumerate(sorted(panel.across)):
        axes.axhline(height / factor, color=QUIET, linestyle=":", linewidth=0.8)
        axes.annotate(name, (1 - index % 2, height / factor), (0, 0), ("axes fraction", "data"), "offset points",
                      va="bottom", ha="left" if index % 2 else "right", fontsize=6, color="#555555")  # fmt: skip


def _errors(series: Series, factor: float) -> list[list[float]]:
    centre, low, high = (_scale_values(values, factor) for values in (series.y, series.low, series.high))
    return [[c - a for c, a in zip(centre, low, strict=True)], [b - c for c, b in zip(centre, high, strict=True)]]


def _spans(axes: Any, panel: Panel) -> None:
    fx, _ = panel.factors()
    place = {name: i for i, name in enumerate(_names(panel))}
    for series in panel.series:
        at = [place[y] for y in series.y]
        if series.form == "points":
            axes.plot(_scale_values(series.x, fx), at, linestyle="", marker=MARKS[series.symbols[0] % len(MARKS)],
                      color=series.colour, label=series.name)  # fmt: skip
        else:
            axes.barh(at, _scale_values(series.x, fx), left=_scale_values(series.base, fx), height=0.7,
                      color=series.colour, label=series.name)  # fmt: skip
    for begun, _ in panel.down:
        axes.axvline(begun / fx, color=QUIET, linestyle=":", linewidth=0.6)
    axes.set_yticks(range(len(place)), list(place))
    axes.invert_yaxis()
    axes.set_xlabel(panel.x.title_with_unit(fx))


def _wrap(name: str) -> str:
    """A name for a legend, on lines that end between words and behind commas."""
    return fill(name.replace(",", ", "), MOST_LETTERS, break_on_hyphens=False)


def _legend(figure: Any, grid: Any, place: str, least: int) -> None:
    """One legend for all panels, beside them; none if there are fewer than ``least`` names to tell."""
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if len(handles) >= least:
        figure.legend(handles.values(), [*map(_wrap, handles)], loc=place)

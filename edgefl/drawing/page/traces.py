"""Figures as data for plotly: traces and layouts without colours of the theme, which the page adds."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from edgefl.drawing.charts.chart import ChartAxis, Panel, Series
from edgefl.drawing.charts.palette import INK, QUIET

MARKS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star")
WHOLE = ("round", "stage")
"""Titles of axes whose ticks are whole numbers only."""
DIGITS = 5
"""Digits of a number in the page, more than a chart's pixels show; tables and CSV files have more."""

Place = float | str | None
"""A place along an axis: a number, a name, or a gap."""
Values = Sequence[Place]


Properties = dict[str, Any]
"""Properties of a trace, an axis or a layout, which a test holds against plotly's own schema, names and values."""


class Plot(TypedDict):
    """What ``Plotly.newPlot`` takes."""

    data: list[Properties]
    layout: Properties


def traces(panel: Panel) -> Plot:
    """A panel for ``Plotly.newPlot``.

    Colours are those for a light page; the page's script replaces them where it is dark.  Text of the run's files is
    escaped, since plotly reads a part of HTML in labels.
    """
    make = {"lines": _lines, "points": _points, "bars": _bars, "stacks": _bars, "areas": _areas, "spans": _spans,
            "map": _map}[panel.form]  # fmt: skip
    factor_x, factor_y = panel.factors()
    data = make(panel, factor_x, factor_y)
    layout = Properties(
        xaxis=_axis(panel.x, factor_x, [x for series in panel.series for x in series.x]),
        yaxis=_axis(panel.y, factor_y, [y for series in panel.series for y in series.y]),
        shapes=[],
        annotations=[],
    )
    _rule(panel, layout, factor_x, factor_y)
    if panel.form in ("bars", "stacks"):
        layout["barmode"] = "stack" if panel.form == "stacks" or panel.has_single_bars else "group"
        layout["xaxis"] |= {"type": "category", "showgrid": False}
    if panel.is_horizontal:
        layout["height"] = 70 + 22 * len(panel.series)
        layout["xaxis"], layout["yaxis"] = (
            layout["yaxis"],
            Properties(type="category", automargin=True, autorange="reversed", showgrid=False, tickfont={"size": 10}),
        )
    if panel.form == "lines" and panel.x.names:
        layout["xaxis"] |= {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(map(safe, panel.x.names)),
        }
    if panel.form == "areas":
        layout |= {"hovermode": "x unified", "height": 460}
    if panel.form == "map":
        layout["height"] = 160 + 28 * len(panel.series)
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        # the first line is at the top, as in a table; numbers are names, not positions
        layout["yaxis"] |= {"type": "category", "autorange": "reversed", "showgrid": False}
    if panel.form == "spans":
        names = panel.y.names
        layout |= {"barmode": "overlay", "height": 120 + 15 * len(names)}
        layout["yaxis"] = Properties(
            type="category", categoryorder="array", categoryarray=list(map(safe, names)), automargin=True,
            autorange="reversed", dtick=1, showgrid=False, tickfont={"size": 10},
        )  # fmt: skip
    for index, name in enumerate(panel.symbols):
        if name:  # an entry of the legend for each mark
            data.append(Properties(type="scatter", mode="markers", x=[None], y=[None], name=safe(name),
                                   marker=Properties(symbol=MARKS[index % len(MARKS)], color=QUIET)))  # fmt: skip
    layout["showlegend"] = len(data) > 1 and not panel.has_single_bars and not panel.labelled
    return {"data": data, "layout": layout}


def _rule(panel: Panel, layout: Properties, fx: float, fy: float) -> None:
    """Dotted lines across and down, and their names; those down spans begin rounds, and have none."""
    dotted = Properties(width=1, dash="dot", color=QUIET)
    upright = panel.across if panel.is_horizontal else panel.down
    for index, (height, name) in enumerate(() if panel.is_horizontal else sorted(panel.across)):
        place = _number(height / fy)
        layout["shapes"].append(Properties(type="line", xref="paper", x0=0, x1=1, y0=place, y1=place, line=dotted))
        layout["annotations"].append(
            Properties(xref="paper", x=1 - index % 2, y=_log(place) if panel.y.log else place, text=safe(name),
                       showarrow=False, xanchor="left" if index % 2 else "right", yanchor="bottom", font={"size": 10})
        )  # fmt: skip
    for begin, name in upright:
        at = _number(begin / (fy if panel.is_horizontal else fx))
        layout["shapes"].append(Properties(type="line", yref="paper", y0=0, y1=1, x0=at, x1=at, line=dotted))
        if panel.form != "spans":
            layout["annotations"].append(
                Properties(yref="paper", y=1, x=_log(at) if panel.x.log else at, text=safe(name), textangle=-90,
                           showarrow=False, xanchor="left", yanchor="top", font={"size": 10})
            )  # fmt: skip
    for series in panel.series:
        if panel.form == "areas" and series.written:
            for x, y, note in zip(series.x, series.y, series.notes, strict=True):
                layout["annotations"].append(
                    Properties(x=_number(x / fx), y=_number(y / fy), text=safe(note), ay=-30)
                )  # fmt: skip


def safe(text: object) -> str:
    """Text in which plotly finds no tags."""
    return html.escape(str(text), quote=False)


def _axis(axis: ChartAxis, factor: float, values: Values) -> Properties:
    made = Properties(title={"text": safe(axis.title_with_unit(factor))}, automargin=True)
    if axis.log:
        made |= {"type": "log"}
        made |= _ticks([value / factor for value in values if isinstance(value, int | float) and value])
    else:
        made["rangemode"] = "tozero" if axis.bottom == 0.0 else "normal"
        numbers = [value for value in values if isinstance(value, int | float)]
        if axis.title in WHOLE and numbers and max(numbers) - min(numbers) <= 10:
            made["dtick"] = 1
    if axis.top is not None:
        ends = [(axis.bottom or 0.0) / factor, axis.top / factor]
        made["range"] = [_log(end) if axis.log else _number(end) for end in ends]
    return made


def _ticks(values: Sequence[float]) -> Properties:
    """Ticks of a logarithmic axis: 1, 2 and 5 of each decade, or 1 alone where there are many."""
    if not values:
        return {}
    first, last = (math.floor(math.log10(end)) for end in (min(values), max(values)))
    digits = (1, 2, 5) if last - first < 4 else (1,)
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks]}


def _log(value: Place) -> Place:
    return _number(math.log10(value)) if value and not isinstance(value, str) else value


def _number(value: Place) -> Place:
    if value is None or isinstance(value, str):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _scale_values(values: Iterable[Place], factor: float) -> list[Place]:
    """Numbers divided by the factor of their axis; names are escaped."""
    return [
        safe(value) if isinstance(value, str) else None if value is None else _number(value / factor)
        for value in values
    ]


def _hover(series: Series) -> Properties:
    if not series.notes:
        return {}
    return {"hovertext": list(map(safe, series.notes)), "hovertemplate": "%{hovertext}<extra></extra>"}


def _lines(panel: Panel, fx: float, fy: float) -> list[Properties]:
    data: list[Properties] = []
    for series in panel.series:
        x, name = _scale_values(series.x, fx), safe(series.name)
        symbols = [MARKS[i % len(MARKS)] for i in series.symbols] or "circle"
        marker = Properties(size=6, color=series.colour, symbol=symbols)
        if series.form == "points":
            data.append({"type": "scatter", "mode": "markers", "x": x, "y": _scale_values(series.y, fy), "name": name,
                         "marker": marker, **_hover(series)})  # fmt: skip
            if series.low:
                data[-1]["error_y"] = _spread(series, fy)
            if series.written:
                data[-1] |= {"mode": "markers+text", "text": list(map(safe, series.notes)), "cliponaxis": False}
                data[-1]["textposition"] = "top left" if series.leftward else "top right"
                data[-1]["textfont"] = {"color": series.colour, "size": 13}
            continue
        if any(value is not None for value in series.low):
            edge = Properties(type="scatter", mode="lines", x=x, line={"width": 0}, hoverinfo="skip", showlegend=False,
                              legendgroup=name)  # fmt: skip
            data.append({**edge, "y": _scale_values(series.low, fy)})
            data.append(
                {**edge, "y": _scale_values(series.high, fy), "fill": "tonexty", "fillcolor": f"{series.colour}30"}
            )
        line = Properties(color=series.colour, width=5 if series.heavy else 2)
        if series.dashed:
            line["dash"] = "dash"
        data.append(
            {"type": "scatter", "mode": "lines+markers" if panel.marked and len(x) <= 60 else "lines", "x": x,
             "legendgroup": name, "y": _scale_values(series.y, fy), "name": name, "line": line, "marker": marker,
             **_hover(series)}
        )  # fmt: skip
    return data


def _areas(panel: Panel, fx: float, fy: float) -> list[Properties]:
    data: list[Properties] = []
    for series in panel.series:
        made = Properties(type="scatter", x=_scale_values(series.x, fx), y=_scale_values(series.y, fy),
                          name=safe(series.name), marker={"color": series.colour, "symbol": "square"})  # fmt: skip
        if series.form == "points":
            made |= {"mode": "markers", "hoverinfo": "skip"}
            made["marker"] |= {"size": 9, "symbol": MARKS[series.symbols[0] % len(MARKS)]}
        elif series.form == "lines":
            made |= {"mode": "lines", "line": {"width": 1, "shape": "hv", "color": series.colour}}
            made.update(_hover(series))
        else:
            made |= {"mode": "lines", "stackgroup": "all", "line": {"width": 0, "shape": "hv"}}
            made |= {"fillcolor": series.colour, "hovertemplate": "%{y:,.3f}"}
        data.append(made)
    return data


def _points(panel: Panel, fx: float, fy: float) -> list[Properties]:
    opened = ("", "-open")
    return [
        {"type": "scatter", "mode": "markers", "x": _scale_values(series.x, fx), "y": _scale_values(series.y, fy),
         "name": safe(series.name),
         "marker": {"color": series.colour, "opacity": 0.85,
                    "size": [7 + 2 * len(str(n)) for n in series.sizes] or 9,
                    "symbol": [MARKS[i % len(MARKS)] + opened[series.hollow] for i in series.symbols] or "circle"},
         **_hover(series)}
        for series in panel.series
    ]  # fmt: skip


def _bars(panel: Panel, _: float, fy: float) -> list[Properties]:
    data: list[Properties] = []
    for series in panel.series:
        made = Properties(type="bar", name=safe(series.name), marker={"color": series.colour})
        names: list[Place] = [safe(name) for name in series.x]
        values = _scale_values(series.y, fy)
        made |= {"orientation": "h", "x": values, "y": names} if panel.is_horizontal else {"x": names, "y": values}
        if series.form == "points":
            made |= {"type": "scatter", "mode": "markers"}
            made["marker"] |= {"symbol": "line-ew-open", "size": 12, "line": {"width": 2}}
        if any(value is not None for value in series.low):
            made["error_x" if panel.is_horizontal else "error_y"] = {**_spread(series, fy), "color": INK}
        if series.written:  # within the bar where a whisker begins at its end
            inside = any(value is not None for value in series.low)
            made |= {"text": list(map(safe, series.notes)), "textposition": "inside" if inside else "outside"}
            made |= {"insidetextanchor": "start", "cliponaxis": False, "textangle": 0, "constraintext": "none"}
            made["textfont"] = {"size": 10}
        made.update(_hover(series))
        data.append(made)
    return data


def _spread(series: Series, factor: float) -> Properties:
    return {
        "type": "data", "symmetric": False, "color": series.colour, "thickness": 1.3, "width": 4,
        "array": _differences(series.high, series.y, factor),
        "arrayminus": _differences(series.y, series.low, factor),
    }  # fmt: skip


def _differences(one: Sequence[float | None], other: Sequence[float | None], factor: float) -> list[Place]:
    return [None if a is None or b is None else _number((a - b) / factor) for a, b in zip(one, other, strict=True)]


def _spans(panel: Panel, fx: float, _: float) -> list[Properties]:
    data: list[Properties] = []
    for series in panel.series:
        made = Properties(y=list(map(safe, series.y)), x=_scale_values(series.x, fx), name=safe(series.name),
                          marker={"color": series.colour})  # fmt: skip
        made.update(_hover(series))
        if series.form == "points":
            made |= {"type": "scatter", "mode": "markers"}
            made["marker"] |= {"size": 8, "symbol": MARKS[series.symbols[0] % len(MARKS)]}
        else:
            made |= {"type": "bar", "orientation": "h", "base": _scale_values(series.base, fx)}
        data.append(made)
    return data


def _map(panel: Panel, *_: float) -> list[Properties]:
    value = panel.value or ChartAxis("")
    factor, title = value.scale([number for series in panel.series for number in series.y])
    words = [list(map(safe, series.notes)) for series in panel.series]
    made = Properties(
        type="heatmap", x=list(map(safe, panel.x.names)), y=[safe(series.name) for series in panel.series],
        z=[_scale_values(series.y, factor) for series in panel.series], hovertext=words, colorscale="Viridis",
        hovertemplate="%{y}<br>%{x}<br>%{hovertext}<extra></extra>", colorbar={"title": {"text": safe(title)}},
    )  # fmt: skip
    if any(series.written for series in panel.series):
        made |= {"text": words, "texttemplate": "%{text}"}
    return [made]

"""Figures as data for plotly: traces and layouts without colours of the theme, which the page adds."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from edgefl.report.charts.chart import Axis, Panel, Series

MARKS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross", "star")
DIGITS = 5
"""Digits of a number in the page; tables and CSV files have more."""

Values = Sequence[Any]


def traces(panel: Panel) -> dict[str, Any]:
    """``{"data", "layout"}`` for ``Plotly.newPlot``.

    Colours are those for a light page; the page's script replaces them where it is dark.  Text of the run's files is
    escaped, since plotly reads a part of HTML in labels.
    """
    make = {"lines": _lines, "points": _points, "bars": _bars, "stacks": _bars, "spans": _spans}[panel.form]
    factor_x, factor_y = _factors(panel)
    data = make(panel, factor_x, factor_y)
    layout: dict[str, Any] = {
        "xaxis": _axis(panel.x, factor_x, [x for series in panel.series for x in series.x]),
        "yaxis": _axis(panel.y, factor_y, [y for series in panel.series for y in series.y]),
        "shapes": [], "annotations": [],
    }  # fmt: skip
    for index, (height, name) in enumerate(sorted(panel.across)):
        place = _number(height / factor_y)
        layout["shapes"].append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": place, "y1": place,
                                 "line": {"width": 1, "dash": "dot", "color": "#777777"}})  # fmt: skip
        layout["annotations"].append(
            {"xref": "paper", "x": 1 - index % 2, "y": _log(place) if panel.y.log else place, "text": safe(name),
             "showarrow": False, "xanchor": "left" if index % 2 else "right", "yanchor": "bottom", "font": {"size": 10}}
        )  # fmt: skip
    for place, _ in panel.down:
        at = _number(place / factor_x)
        layout["shapes"].append({"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at,
                                 "line": {"width": 1, "dash": "dot", "color": "#777777"}})  # fmt: skip
    if panel.form in ("bars", "stacks"):
        layout["barmode"] = "stack" if panel.form == "stacks" or _alone(panel) else "group"
        layout["xaxis"] |= {"type": "category", "showgrid": False}
    if panel.form == "spans":
        names = panel.y.names
        layout |= {"barmode": "overlay", "height": 120 + 15 * len(names)}
        layout["yaxis"] = {
            "type": "category", "categoryorder": "array", "categoryarray": list(map(safe, names)), "automargin": True,
            "autorange": "reversed", "dtick": 1, "showgrid": False, "tickfont": {"size": 10},
        }  # fmt: skip
    if panel.form == "points" and any(panel.symbols):
        for index, name in enumerate(panel.symbols):
            if name:  # an entry of the legend for each mark
                data.append({"type": "scatter", "mode": "markers", "x": [None], "y": [None], "name": safe(name),
                             "marker": {"symbol": MARKS[index % len(MARKS)], "color": "#777777"}})  # fmt: skip
    layout["showlegend"] = len(data) > 1 and not _alone(panel)
    return {"data": data, "layout": layout}


def safe(text: Any) -> str:
    """Text in which plotly finds no tags."""
    return html.escape(str(text), quote=False)


def _factors(panel: Panel) -> tuple[float, float]:
    across = [
        b + x if series.base else x
        for series in panel.series
        for x, b in zip(series.x, series.base or [0.0] * len(series.x), strict=True)
        if isinstance(x, int | float)
    ]
    up: list[Any] = [y for series in panel.series for y in (*series.y, *series.high)]
    if panel.form == "stacks":
        sums: dict[Any, float] = {}
        for series in panel.series:
            for x, y in zip(series.x, series.y, strict=True):
                sums[x] = sums.get(x, 0.0) + ((y or 0.0) if series.form is None else 0.0)
        up += [*sums.values()]
    return panel.x.scale(across)[0], panel.y.scale(up)[0]


def _axis(axis: Axis, factor: float, values: Values) -> dict[str, Any]:
    title = axis.scale([factor * 2.5])[1] if axis.unit not in ("", "share") else axis.scale([1.0])[1]
    made: dict[str, Any] = {"title": {"text": safe(title)}, "automargin": True}
    if axis.log:
        made |= {"type": "log", **_ticks([value / factor for value in values if value])}
    else:
        made["rangemode"] = "tozero" if axis.bottom == 0.0 else "normal"
    if axis.top is not None:
        made["range"] = [0, _number(axis.top / factor)]
    return made


def _ticks(values: Sequence[float]) -> dict[str, Any]:
    """Ticks of a logarithmic axis: 1, 2 and 5 of each decade, or 1 alone where there are many."""
    if not values:
        return {}
    first, last = (math.floor(math.log10(end)) for end in (min(values), max(values)))
    digits = (1, 2, 5) if last - first < 4 else (1,)
    ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
    return {"tickvals": ticks, "ticktext": [f"{tick:,.10g}" for tick in ticks]}


def _log(value: float | None) -> float | None:
    return _number(math.log10(value)) if value else value


def _number(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _scaled(values: Values, factor: float) -> list[Any]:
    return [None if value is None else _number(value / factor) for value in values]


def _alone(panel: Panel) -> bool:
    """Whether each series is one bar of its own, named below it: such a panel needs no legend."""
    series = [each for each in panel.series if each.form is None]
    return panel.form == "bars" and len(series) == len({each.x[0] for each in series if each.x}) and all(
        len(each.x) == 1 for each in series
    )  # fmt: skip


def _hover(series: Series) -> dict[str, Any]:
    if not series.notes:
        return {}
    return {"hovertext": list(map(safe, series.notes)), "hovertemplate": "%{hovertext}<extra></extra>"}


def _lines(panel: Panel, fx: float, fy: float) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = []
    for series in panel.series:
        x, name = _scaled(series.x, fx), safe(series.name)
        if any(value is not None for value in series.low):
            edge = {"type": "scatter", "mode": "lines", "x": x, "line": {"width": 0}, "hoverinfo": "skip",
                    "showlegend": False, "legendgroup": name}  # fmt: skip
            data.append({**edge, "y": _scaled(series.low, fy)})
            data.append({**edge, "y": _scaled(series.high, fy), "fill": "tonexty", "fillcolor": f"{series.colour}30"})
        data.append(
            {"type": "scatter", "mode": "lines+markers" if len(x) <= 60 else "lines", "x": x, "legendgroup": name,
             "y": _scaled(series.y, fy), "name": name, "line": {"color": series.colour, "width": 2,
             **({"dash": "dash"} if series.dashed else {})}, "marker": {"size": 6, "color": series.colour,
             "symbol": [MARKS[i % len(MARKS)] for i in series.symbols] or "circle"}, **_hover(series)}
        )  # fmt: skip
    return data


def _points(panel: Panel, fx: float, fy: float) -> list[dict[str, Any]]:
    opened = ("", "-open")
    return [
        {"type": "scatter", "mode": "markers", "x": _scaled(series.x, fx), "y": _scaled(series.y, fy),
         "name": safe(series.name),
         "marker": {"color": series.colour, "opacity": 0.85,
                    "size": [7 + 2 * len(str(n)) for n in series.sizes] or 9,
                    "symbol": [MARKS[i % len(MARKS)] + opened[series.hollow] for i in series.symbols] or "circle"},
         **_hover(series)}
        for series in panel.series
    ]  # fmt: skip


def _bars(panel: Panel, _: float, fy: float) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = []
    for series in panel.series:
        y = _scaled(series.y, fy)
        made: dict[str, Any] = {"type": "bar", "x": list(map(safe, series.x)), "y": y, "name": safe(series.name),
                                "marker": {"color": series.colour}}  # fmt: skip
        if series.form == "points":
            made |= {"type": "scatter", "mode": "markers"}
            made["marker"] |= {"symbol": "line-ew-open", "size": 12, "line": {"width": 2}}
        if any(value is not None for value in series.low):
            made["error_y"] = {
                "type": "data", "symmetric": False, "color": "#222222", "thickness": 1.3, "width": 4,
                "array": _differences(series.high, series.y, fy), "arrayminus": _differences(series.y, series.low, fy),
            }  # fmt: skip
        data.append(made | _hover(series))
    return data


def _differences(one: Values, other: Values, factor: float) -> list[Any]:
    return [None if a is None or b is None else _number((a - b) / factor) for a, b in zip(one, other, strict=True)]


def _spans(panel: Panel, fx: float, _: float) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = []
    for series in panel.series:
        made = {"y": list(map(safe, series.y)), "x": _scaled(series.x, fx), "name": safe(series.name),
                "marker": {"color": series.colour}, **_hover(series)}  # fmt: skip
        if series.form == "points":
            made |= {"type": "scatter", "mode": "markers"}
            made["marker"] |= {"size": 8, "symbol": MARKS[series.symbols[0] % len(MARKS)]}
        else:
            made |= {"type": "bar", "orientation": "h", "base": _scaled(series.base, fx)}
        data.append(made)
    return data

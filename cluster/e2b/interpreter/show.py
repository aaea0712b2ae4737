"""What a kernel shows beside text and pictures: data frames as their columns, figures of matplotlib as what they show.

server.py runs install in each kernel. Neither pandas nor matplotlib is imported here: who shows a frame or a figure has done that.
Values are JSON's: times in ISO format, None for what is no finite number, texts of everything else.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

DATA = "e2b/data"
CHART = "e2b/chart"
MAX_CELLS = 200_000
MAX_POINTS = 100_000


def install(shell: Any) -> None:
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    class Shown(BaseFormatter):
        """Looks at an object's type by itself: matplotlib, when it is imported, takes what others registered for figures away."""

        _return_type = dict
        print_method = ObjectName("_repr_e2b_")
        kind: tuple[str, str]
        look: Any

        def __call__(self, obj: Any) -> Any:
            if any((t.__module__, t.__qualname__) == self.kind for t in type(obj).__mro__):
                try:
                    return type(self).look(obj)
                except Exception:  # it is shown all the same, as text and picture
                    return None
            return None

    class Data(Shown):
        format_type = Unicode(DATA)
        kind = ("pandas.core.frame", "DataFrame")
        look = frame

    class Chart(Shown):
        format_type = Unicode(CHART)
        kind = ("matplotlib.figure", "Figure")
        look = figure

    shown = shell.display_formatter
    for made in (Data(parent=shown), Chart(parent=shown)):
        shown.formatters[made.format_type] = made
        shown.active_types = [*shown.active_types, made.format_type]


def plain(v: Any) -> Any:
    """A value of JSON."""
    if hasattr(v, "item") and getattr(v, "ndim", 0) == 0:
        v = v.item()
    if v is None or isinstance(v, (bool, str)):
        return v
    if isinstance(v, int):
        return v if abs(v) < 1 << 53 else str(v)
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if isinstance(v, (datetime.datetime, datetime.date, datetime.time)):
        text = v.isoformat()
        return None if text == "NaT" else text
    text = str(v)
    return None if text in ("NaT", "<NA>") else text


def frame(df: Any) -> dict[str, list[Any]] | None:
    """A data frame's columns by name."""
    if df.size > MAX_CELLS:
        return None
    return {str(name): [plain(v) for v in df.iloc[:, k].tolist()] for k, name in enumerate(df.columns)}


def figure(fig: Any) -> dict[str, Any] | None:
    """What a figure shows: its one chart, or a superchart of several."""
    charts = [c for c in (axes(a) for a in fig.get_axes() if a.get_visible()) if c is not None]
    if not charts or sum(points(c) for c in charts) > MAX_POINTS:
        return None
    if len(charts) == 1:
        return charts[0]
    title = fig._suptitle.get_text() if fig._suptitle is not None else ""
    return {"type": "superchart", "title": title, "elements": charts}


def points(chart: dict[str, Any]) -> int:
    return sum(len(e.get("points", ())) + len(e.get("outliers", ())) + 1 for e in chart["elements"])


def axes(ax: Any) -> dict[str, Any] | None:
    """One chart; None where nothing is drawn."""
    chart: dict[str, Any] = {"type": "unknown", "title": ax.get_title(), "elements": []}
    kinds = [("pie", wedges), ("box_and_whisker", boxes), ("bar", bars), ("line", lines), ("scatter", dots)]
    for kind, look in kinds:
        found = look(ax)
        if found:
            chart.update(type=kind, elements=found)
            break
    else:
        if not ax.has_data():
            return None
    if chart["type"] == "pie":
        return chart
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        label = axis.get_label_text()
        chart[f"{name}_label"], chart[f"{name}_unit"] = label or None, unit(label)
        if chart["type"] in ("line", "scatter"):
            chart[f"{name}_scale"] = scale(axis)
            ticks = list(axis.get_majorticklocs())
            chart[f"{name}_ticks"] = [value(axis, t) for t in ticks]
            chart[f"{name}_tick_labels"] = list(axis.get_major_formatter().format_ticks(ticks))
    return chart


def unit(label: str) -> str | None:
    """What stands in brackets at a label's end: "Time (s)"."""
    found = re.search(r"[(\[]([^()\[\]]+)[)\]]\s*$", label)
    return found.group(1) if found else None


def converter(axis: Any) -> str:
    return type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__


def scale(axis: Any) -> str:
    kind = converter(axis)
    if "Category" in kind:
        return "categorical"
    if "Date" in kind or "Time" in kind or "Period" in kind:
        return "datetime"
    return str(axis.get_scale())


def value(axis: Any, v: Any) -> Any:
    """A position on an axis as what was drawn: a time, a category, a number."""
    kind = scale(axis)
    if kind == "datetime" and isinstance(plain(v), (int, float)):
        from matplotlib.dates import num2date

        return num2date(v).isoformat()
    if kind == "categorical" and isinstance(plain(v), (int, float)):
        names = {k: name for name, k in axis.units._mapping.items()}
        return str(names.get(round(v), plain(v)))
    return plain(v)


def named(artist: Any, otherwise: str) -> str:
    label = str(artist.get_label())
    return otherwise if not label or label.startswith("_") else label


def lines(ax: Any) -> list[dict[str, Any]]:
    out = []
    for k, line in enumerate(ax.get_lines()):
        xs, ys = line.get_xdata(orig=False), line.get_ydata(orig=False)
        found = [[value(ax.xaxis, x), value(ax.yaxis, y)] for x, y in zip(xs, ys)]
        out.append({"label": named(line, f"Line {k + 1}"), "points": found})
    return out


def dots(ax: Any) -> list[dict[str, Any]]:
    from matplotlib.collections import PathCollection

    out = []
    for k, c in enumerate(c for c in ax.collections if isinstance(c, PathCollection)):
        found = [[value(ax.xaxis, x), value(ax.yaxis, y)] for x, y in c.get_offsets()]
        out.append({"label": named(c, f"Scatter {k + 1}"), "points": found})
    return out


def bars(ax: Any) -> list[dict[str, Any]]:
    from matplotlib.container import BarContainer

    out = []
    groups = [c for c in ax.containers if isinstance(c, BarContainer)]
    for k, group in enumerate(groups):
        across = getattr(group, "orientation", "vertical") == "horizontal"
        axis = ax.yaxis if across else ax.xaxis
        names = dict(zip(axis.get_majorticklocs(), axis.get_major_formatter().format_ticks(axis.get_majorticklocs())))
        for bar in group.patches:
            at = bar.get_y() + bar.get_height() / 2 if across else bar.get_x() + bar.get_width() / 2
            near = min(names, key=lambda t: abs(t - at), default=None)
            label = names[near] if near is not None and abs(near - at) < 0.5 else str(plain(at))
            size = bar.get_width() if across else bar.get_height()
            out.append({"label": str(label), "group": named(group, f"Bar {k + 1}"), "value": plain(size)})
    return out


def wedges(ax: Any) -> list[dict[str, Any]]:
    from matplotlib.patches import Wedge

    found = [p for p in ax.patches if isinstance(p, Wedge)]
    return [
        {"label": named(w, f"Wedge {k + 1}"), "angle": plain(abs(w.theta2 - w.theta1)), "radius": plain(w.r)}
        for k, w in enumerate(found)
    ]


def boxes(ax: Any) -> list[dict[str, Any]]:
    """Boxes with whiskers are drawn of lines (or patches) that say nothing of it: a closed rectangle, with a line through it."""
    from matplotlib.patches import PathPatch

    drawn = [(list(a.get_xdata()), list(a.get_ydata())) for a in ax.get_lines()]
    closed = [d for d in drawn if len(d[0]) == 5]
    for p in ax.patches:
        if isinstance(p, PathPatch) and len(p.get_path().vertices) in (5, 6):
            xs, ys = zip(*p.get_path().vertices[:5])
            closed.append((list(xs), list(ys)))
    for across in (False, True):
        axis = ax.yaxis if across else ax.xaxis
        where = list(axis.get_majorticklocs())
        names = dict(zip(where, axis.get_major_formatter().format_ticks(where)))
        turned = [(ys, xs) if across else (xs, ys) for xs, ys in drawn]
        out = []
        for xs, ys in ((ys, xs) if across else (xs, ys) for xs, ys in closed):
            one = box(xs, ys, turned, names)
            if one is None:
                break
            out.append(one)
        if out and len(out) == len(closed):
            return out
    return []


def box(xs: list[Any], ys: list[Any], drawn: list[tuple[list[Any], list[Any]]], names: dict[Any, str]) -> dict[str, Any] | None:
    if xs[0] != xs[-1] or ys[0] != ys[-1] or len(set(xs)) != 2 or not 1 <= len(set(ys)) <= 2:
        return None
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    center = (left + right) / 2
    near = lambda a, b: abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))  # noqa: E731
    median, ends, outliers = None, [low, high], []
    for lx, ly in drawn:
        if len(lx) == 2 and near(ly[0], ly[1]) and near(min(lx), left) and near(max(lx), right) and low <= ly[0] <= high:
            median = ly[0]
        elif len(lx) == 2 and all(near(x, center) for x in lx):
            ends += list(ly)
        elif len(lx) != 5 and all(near(x, center) for x in lx):
            outliers += list(ly)
    if median is None:
        return None
    at = min(names, key=lambda t: abs(t - center), default=None)
    numbers = (min(ends), low, median, high, max(ends))
    out = dict(zip(("min", "first_quartile", "median", "third_quartile", "max"), map(plain, numbers)))
    return {"label": str(names.get(at, plain(center))), **out, "outliers": [plain(v) for v in outliers]}

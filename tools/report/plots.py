"""Draws with matplotlib and makes the SVGs fit into the page: colours become CSS variables, so that one picture serves
light and dark, and identifiers become unique within the page."""
import io
import logging
import re
import xml.etree.ElementTree as ElementTree

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # It warns when it cannot keep its font cache.

import matplotlib  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator  # noqa: E402

import names

# name of the CSS variable -> (light, dark). Distinguishable under the common kinds of colour blindness, and by marker
# and line style besides; at least 3:1 against the background, text 4.5:1.
COLOURS = {
    "bg": ("#ffffff", "#16191d"),
    "ink": ("#1c2126", "#e8eaed"),
    "muted": ("#545d68", "#a9b2bd"),
    "grid": ("#dfe3e8", "#343a42"),
    "box": ("#eceff2", "#272c33"),
    "s0": ("#c2410c", "#ff9a62"),
    "s1": ("#0b62b0", "#6db8ff"),
    "s2": ("#00795a", "#4fd1a5"),
    "s3": ("#8b3fa0", "#dba5ec"),
    "s4": ("#946200", "#f0c552"),
    "s5": ("#0e7490", "#67d8ee"),
    "s6": ("#a1144d", "#ff8fb8"),
    "s7": ("#5b6470", "#b4bcc6"),
    "data": ("#5b6470", "#b4bcc6"),
    "forward": ("#4589c7", "#3f7fc0"),
    "backward": ("#0b4f8f", "#8cc4ff"),
    "exposed": ("#c2410c", "#ff9a62"),
    "update": ("#00795a", "#4fd1a5"),
}
# matplotlib wants colours, so each variable has a colour of its own that nothing else has.
STAND_IN = {name: f"#0100{i:02x}" for i, name in enumerate(COLOURS, start=16)}
MARKERS = ["^", "o", "s", "D", "v", "<", ">", "p"]
DASHES = [(0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (3, 1.5)), (0, (8, 2)), (0, (2, 1)),
          (0, (6, 1, 1, 1, 1, 1))]
PARTS = [("data", "data", ""), ("forward", "forward", ""), ("backward", "backward", ""),
         ("exposed", "exposed communication", "////"), ("update", "update", "")]

WIDTH = 4.3  # inches of 72 units; shown at 370 to 450 pixels
FONT = 9


def style_sheet(selector=":root"):
    """The colours as CSS."""
    light, dark = ("".join(f"--{name}:{pair[i]};" for name, pair in COLOURS.items()) for i in (0, 1))
    return (f"{selector}{{color-scheme:light dark;{light}}}\n"
            f"@media screen and (prefers-color-scheme:dark){{{selector}{{{dark}}}}}\n")


def _settings(identifier, stand_in):
    return {
        "svg.fonttype": "none", "svg.hashsalt": identifier, "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"], "font.size": FONT, "text.parse_math": False, "text.color": stand_in["ink"],
        "axes.edgecolor": stand_in["muted"], "axes.labelcolor": stand_in["muted"], "axes.facecolor": "none",
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
        "axes.titlesize": FONT + 1, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 8,
        "axes.linewidth": 0.8, "axes.unicode_minus": True, "grid.color": stand_in["grid"], "grid.linewidth": 0.8,
        "xtick.color": stand_in["muted"], "ytick.color": stand_in["muted"], "xtick.labelsize": FONT,
        "ytick.labelsize": FONT, "legend.fontsize": FONT, "legend.frameon": False, "legend.handlelength": 2.6,
        "legend.columnspacing": 1.2, "legend.borderaxespad": 0, "figure.facecolor": "none", "hatch.linewidth": 0.7,
        "figure.dpi": 72, "savefig.dpi": 72, "lines.markersize": 6.5, "lines.linewidth": 1.4,
    }


class Canvas:
    """A figure under settings of our own, whatever the user's are. `light` draws with colours for a bitmap."""

    def __init__(self, identifier, height, width=WIDTH, light=False):
        self.identifier = identifier
        self.colours = {n: pair[0] for n, pair in COLOURS.items()} if light else STAND_IN
        self._context = matplotlib.rc_context()
        self._size = (width, height)

    def __enter__(self):
        self._context.__enter__()
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(self.identifier, self.colours))
        self.figure = Figure(figsize=self._size)
        return self

    def __exit__(self, *error):
        return self._context.__exit__(*error)

    def svg(self):
        out = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(self.figure).print_svg(out, metadata=nothing)
        return _fit_into_page(out.getvalue(), self.identifier)

    def png(self):
        self.figure.set_facecolor(self.colours["bg"])
        self.figure.set_dpi(160)
        out = io.BytesIO()
        FigureCanvasAgg(self.figure).print_png(out, metadata={"Software": None})
        return out.getvalue()


SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"
STAND_INS = re.compile("|".join(STAND_IN.values()))
VARIABLE = {colour: f"var(--{name})" for name, colour in STAND_IN.items()}
FONT_STYLE = re.compile(r"font: ((?:[a-z0-9]+ )*?)([0-9.]+)px [^;]*")
REFERENCE = re.compile(r"url\(#([^)]*)\)")


def _fit_into_page(data, identifier):
    """Returns an <svg> element without namespaces, to be put into HTML."""
    root = ElementTree.fromstring(data)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (SVG + "metadata",):
                parent.remove(child)
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(REFERENCE.findall(text)) | {e.get(HREF)[1:] for e in root.iter() if e.get(HREF)}
    unique = {old: f"{identifier}-{i}" for i, old in enumerate(sorted(used))}
    for element in root.iter():
        element.tag = element.tag.replace(SVG, "")
        if element.get("id") in unique:
            element.set("id", unique[element.get("id")])
        else:
            element.attrib.pop("id", None)
        if element.get(HREF):
            element.set("href", "#" + unique[element.attrib.pop(HREF)[1:]])
        for name, value in list(element.attrib.items()):
            value = STAND_INS.sub(lambda match: VARIABLE[match.group(0)], value)
            value = REFERENCE.sub(lambda match: f"url(#{unique[match.group(1)]})", value)
            value = FONT_STYLE.sub(r"font:\1\2px system-ui,sans-serif", value)
            # Attributes know no variables, styles do.
            if name in ("fill", "stroke") and "var(" in value:
                del element.attrib[name]
                element.set("style", f"{name}:{value};{element.get('style', '')}")
            else:
                element.set(name, value)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("data-id", identifier)
    return root


def text_of(root, title, description, standalone=False):
    """The picture as text, with its text alternative as the first two children."""
    identifier = root.attrib.pop("data-id")
    root.set("role", "img")
    root.set("aria-labelledby", f"{identifier}-title {identifier}-desc")
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{identifier}-{tag}"})
        element.text = text
        root.insert(place, element)
    if standalone:
        root.set("xmlns", "http://www.w3.org/2000/svg")
        style = ElementTree.Element("style")
        style.text = style_sheet("svg")
        root.insert(2, style)
        root.insert(3, ElementTree.Element("rect", {"width": "100%", "height": "100%", "style": "fill:var(--bg)"}))
    return ElementTree.tostring(root, encoding="unicode")


def styles(labels):
    """label -> (colour name, marker, dashes), the same in all plots of a page. `labels` in order."""
    return {label: (f"s{i % 8}", MARKERS[i % len(MARKERS)] if i < 8 else MARKERS[(i + 3) % len(MARKERS)],
                    DASHES[i % len(DASHES)]) for i, label in enumerate(labels)}


def _below(canvas, axes, columns, handles=None, labels=None):
    """A legend under the axes."""
    height = canvas.figure.get_figheight() * 72
    if handles is None:
        handles, labels = axes.get_legend_handles_labels()
    canvas.figure.legend(handles, labels, loc="lower left", ncol=columns, bbox_to_anchor=(0.02, 4 / height))


def _legend_height(entries, columns):
    return ((entries + columns - 1) // columns * (FONT * 1.62) + 8) / 72


def _columns(labels):
    return 2 if max(map(len, labels), default=0) <= 22 else 1


def lines_height(labels):
    """Inches of a plot with lines or columns of these labels."""
    return 2.75 + _legend_height(len(labels), _columns(labels))


def _axes(canvas, labels, title):
    """Axes with room for labels at the left and below and for a legend, and the number of the legend's columns."""
    columns = _columns(labels)
    height = canvas.figure.get_figheight()
    bottom = _legend_height(len(labels), columns) + 0.48
    axes = canvas.figure.add_axes([0.135, bottom / height, 0.84, 1 - (bottom + 0.34) / height])
    axes.set_title(title, x=-0.13, color=canvas.colours["ink"], fontsize=(FONT + 1) * min(1, 43 / max(1, len(title))))
    return axes, columns


def _worker_axis(axes, workers):
    axes.set_xscale("log", base=2)
    ticks = sorted(workers)
    while len(ticks) > 9:
        ticks = ticks[::2]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlim(min(ticks) / 1.28, max(ticks) * 1.28)
    axes.set_xlabel("workers (n)")


def split_axis(axes, sizes):
    """Of samples per micro-batch."""
    _worker_axis(axes, sizes)
    axes.set_xlabel("samples per micro-batch")


def bandwidth_axis(axes, bandwidths):
    """Of Mbit/s: the measured and predicted ones, those between them left out where there is no room."""
    axes.set_xscale("log")
    ticks = []
    for value in sorted(bandwidths):
        if not ticks or value / ticks[-1] >= 1.9:
            ticks.append(value)
    while len(ticks) > 7:
        ticks = ticks[::2]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1e3 else f"{value:,.0f}"))
    axes.set_xlim(min(bandwidths) / 1.28, max(bandwidths) * 1.28)
    axes.set_xlabel("link of each host, each way, Mbit/s")


def _plot_lines(canvas, axes, lines, style, ideal=None, x_axis=_worker_axis):
    """Draws points with their ranges and predictions; returns all y, for the axis."""
    colours = canvas.colours
    tops = [y for _, measured, predicted in lines
            for y in [point[3] for point in measured] + [point[1] for point in predicted]]
    if ideal is not None:
        axes.axhline(ideal, color=colours["muted"], linewidth=1, linestyle=(0, (1, 2)))
        tops.append(ideal)
    for i, (label, measured, predicted) in enumerate(lines):
        name, marker, dashes = style[label]
        look = {"color": colours[name], "markeredgecolor": colours["bg"], "markeredgewidth": 0.7}
        aside = 2 ** ((i - (len(lines) - 1) / 2) * min(0.05, 0.3 / max(1, len(lines))))
        if predicted:
            axes.plot([p[0] for p in predicted], [p[1] for p in predicted], color=colours[name], linestyle=dashes,
                      zorder=2)
        if measured:
            ranges = [[max(0, p[1] - p[2]) for p in measured], [max(0, p[3] - p[1]) for p in measured]]
            axes.errorbar([p[0] * aside for p in measured], [p[1] for p in measured], yerr=ranges, marker=marker,
                          linestyle="none" if predicted else "-", linewidth=1, elinewidth=1.3, capsize=2.5, zorder=3,
                          **look)
        axes.plot([], [], marker=marker if measured else "", linestyle=dashes if predicted else "-",
                  linewidth=1.4 if predicted else 1, label=label, **look)
    x_axis(axes, {point[0] for _, measured, predicted in lines for point in [*measured, *predicted]})
    axes.grid(axis="x", visible=False)
    return [y for y in tops if y > 0]


def _value_axis(axes, values, logarithmic=True):
    if logarithmic and values and max(values) / min(values) > 40:
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.3, 1.3 * max(values))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.08 * max(values, default=1))
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def draw_lines(canvas, lines, style, title, ideal=None, x_axis=_worker_axis):
    """`lines`: (label, measured [(x, y, low, high)], predicted [(x, y)]). `ideal`: a level to show; `x_axis` makes the
    axis of x, which are workers unless it says otherwise."""
    axes, columns = _axes(canvas, [line[0] for line in lines], title)
    _value_axis(axes, _plot_lines(canvas, axes, lines, style, ideal, x_axis), logarithmic=ideal is None)
    _below(canvas, axes, columns)


STRIP_WIDTH = 3.2  # inches of each panel


def strip_size(panels, labels):
    """Width and height in inches of panels side by side over one legend of so many labels."""
    return STRIP_WIDTH * max(panels, 2), 2.75 + _legend_height(labels, 2 * max(panels, 2))


def draw_strip(canvas, panels, style, labels, y_label, x_axis=_worker_axis):
    """`panels`: (title, lines), side by side on one scale; each label is in some panel."""
    width, height = strip_size(len(panels), len(labels))
    bottom = height - 2.75 + 0.48
    handles, values, all_axes = {}, [], []
    for i, (title, lines) in enumerate(panels):
        left = 0.68 + i * (width - 0.78) / len(panels)
        right = left + (width - 0.78) / len(panels) - 0.22
        axes = canvas.figure.add_axes([left / width, bottom / height, (right - left) / width,
                                       1 - (bottom + 0.34) / height])
        axes.set_title(title, color=canvas.colours["ink"])
        values.extend(_plot_lines(canvas, axes, lines, style, x_axis=x_axis))
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
        all_axes.append(axes)
    for i, axes in enumerate(all_axes):
        _value_axis(axes, values)
        if i == 0:
            axes.set_ylabel(y_label)
        else:
            axes.tick_params(axis="y", labelleft=False, length=0)
            axes.spines["left"].set_visible(False)
    _below(canvas, all_axes[0], 2 * max(len(panels), 2), [handles[label] for label in labels], labels)


BAR = 0.42  # inches for a bar and the label above it


def bars_height(rows, legend_entries):
    return 0.34 + BAR * rows + 0.5 + _legend_height(legend_entries, 2)


def _bar_axes(canvas, rows, title, x_label, legend_entries):
    height = canvas.figure.get_figheight()
    bottom = (0.46 + _legend_height(legend_entries, 2)) / height
    axes = canvas.figure.add_axes([0.03, bottom, 0.93, 1 - bottom - 0.34 / height])
    axes.set_title(title, x=0, color=canvas.colours["ink"])
    axes.set_ylim(rows - 0.42, -0.72)
    axes.yaxis.set_major_locator(NullLocator())
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x_label)
    return axes


def _bar_label(axes, canvas, row, label, value):
    axes.annotate(label, (0, row), xytext=(0, 8.2), textcoords="offset points", annotation_clip=False,
                  color=canvas.colours["ink"], va="bottom")
    axes.annotate(value, (1, row), xycoords=("axes fraction", "data"), xytext=(0, 8.2), textcoords="offset points",
                  annotation_clip=False, color=canvas.colours["muted"], va="bottom", ha="right")


def draw_breakdown(canvas, rows, title, longest):
    """`rows`: (label, {part: ms}). All panels share `longest` as the end of their axis."""
    axes = _bar_axes(canvas, len(rows), title, "ms per step", len(PARTS))
    handles = {}
    for row, (label, parts) in enumerate(rows):
        left = 0.0
        for name, part_label, hatch in PARTS:
            handles[part_label] = axes.barh(
                row, parts[name], left=left, height=0.42, color=canvas.colours[name], hatch=hatch,
                edgecolor=canvas.colours["bg"], linewidth=0.5)
            left += parts[name]
        _bar_label(axes, canvas, row, label, f"{names.number(left)} ms")
    axes.set_xlim(0, 1.02 * longest if longest > 0 else 1)
    _below(canvas, axes, 2, list(handles.values()), list(handles))


def draw_bytes(canvas, rows, title, longest):
    """`rows`: (label, MB sent per step, MB of capacity or 0)."""
    with_capacity = any(row[2] > 0 for row in rows)
    axes = _bar_axes(canvas, len(rows), title, "MB per step, busiest node", 2 if with_capacity else 1)
    handles = {}
    for row, (label, sent, capacity) in enumerate(rows):
        if capacity > 0:
            handles["capacity in a step"] = axes.barh(row, capacity, height=0.42, color=canvas.colours["box"],
                                                      edgecolor=canvas.colours["muted"], linewidth=0.8)
        handles["sent"] = axes.barh(row, sent, height=0.42 if not capacity else 0.24, color=canvas.colours["s1"])
        value = f"{names.number(sent)} MB"
        _bar_label(axes, canvas, row, label, f"{value}, {names.percent(sent / capacity)}" if capacity else value)
    axes.set_xlim(0, 1.02 * longest if longest > 0 else 1)
    _below(canvas, axes, 2, list(handles.values()), list(handles))


def _plot_curves(canvas, axes, lines, style, x_label):
    for label, points in lines:
        name, marker, dashes = style[label]
        axes.plot([p[0] for p in points], [p[1] for p in points], color=canvas.colours[name], label=label,
                  marker=marker, linestyle=dashes, markeredgecolor=canvas.colours["bg"], markeredgewidth=0.7,
                  markevery=max(1, len(points) // 8))
    axes.set_xlabel(x_label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", visible=False)


TIME = "seconds since the first step"


def draw_curves(canvas, lines, style, title):
    """`lines`: (label, [(seconds, y)])."""
    axes, columns = _axes(canvas, [line[0] for line in lines], title)
    _plot_curves(canvas, axes, lines, style, TIME)
    _below(canvas, axes, columns)


def curve_strip_size(panels, labels):
    """Width and height in inches of so many panels side by side over one legend."""
    return STRIP_WIDTH * max(panels, 2), 2.75 + _legend_height(len(labels), _columns(labels))


def draw_curve_strip(canvas, panels, style, labels, x_label=TIME):
    """`panels`: (title, lines of points as for draw_curves), side by side, each on a scale of its own."""
    width, height = curve_strip_size(len(panels), labels)
    bottom = height - 2.75 + 0.48
    handles = {}
    for i, (title, lines) in enumerate(panels):
        left = (i * width / len(panels) + 0.5) / width
        axes = canvas.figure.add_axes([left, bottom / height, (width / len(panels) - 0.62) / width,
                                       1 - (bottom + 0.34) / height])
        axes.set_title(title, color=canvas.colours["ink"])
        _plot_curves(canvas, axes, lines, style, x_label)
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    _below(canvas, axes, _columns(labels), [handles[label] for label in labels], labels)


def draw_histogram(canvas, bins, lines, style, title):
    """`bins`: their names; `lines`: (label, [share of pulls in each bin])."""
    axes, columns = _axes(canvas, [line[0] for line in lines], title)
    width = 0.8 / len(lines)
    hatches = ["", "////", "----", "\\\\\\\\", "xxxx", "||||"]
    for i, (label, shares) in enumerate(lines):
        axes.bar([s - 0.4 + width * (i + 0.5) for s in range(len(shares))], [100 * share for share in shares],
                 width=width, color=canvas.colours[style[label][0]], edgecolor=canvas.colours["bg"], linewidth=0.5,
                 hatch=hatches[i % len(hatches)], label=label)
    axes.set_xlabel("steps of the slowest worker that a pull had missed")
    axes.xaxis.set_major_locator(FixedLocator(range(len(bins))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bins[round(value)]))
    axes.tick_params(axis="x", labelsize=FONT * min(1, 44 / max(1, sum(len(name) + 1 for name in bins))))
    axes.grid(axis="x", visible=False)
    _below(canvas, axes, columns)

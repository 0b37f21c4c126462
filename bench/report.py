"""Figures to tables and a picture: medians, spread, ratios, goals."""

import math
import os
import platform
import re
import statistics
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.sax.saxutils import escape

from bench.roster import NODE, REQUIREMENTS, Peer
from bench.work import FULL, ITEMS, LARGEST, LEDGER, Figure, Figures, Scale

_UNITS = {"us": 1e6, "ms": 1e3, "ns/B": 1e9, "MB": 1e-6, "kB": 1e-3, "/s": 1.0, "": 1.0}


class Results:
    """Samples by figure and peer, as they come in."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = peers
        self._samples: dict[tuple[str, str, str], list[float]] = {}

    def add(self, key: str, peer: Peer, figures: Figures) -> None:
        for name, value in figures.items():
            self._samples.setdefault((key, name, peer.name), []).append(value)

    def samples(self, key: str, name: str, peer: str) -> list[float]:
        return self._samples.get((key, name, peer), [])

    def median(self, key: str, name: str, peer: str) -> float | None:
        samples = self.samples(key, name, peer)
        return statistics.median(samples) if samples else None

    def rows(self) -> list[tuple[str, str, Figure]]:
        """The figures that anyone has, in the order of the work items."""
        seen = {(key, name) for key, name, _ in self._samples}
        return [
            (key, name, figure)
            for key, item in ITEMS.items()
            for name, figure in item.figures.items()
            if (key, name) in seen
        ]

    def columns(self) -> list[str]:
        """The families, ours first."""
        return list(dict.fromkeys(peer.column for peer in self.peers))

    def beside(self, key: str, name: str, column: str, variant: str) -> float | None:
        """A column's figure to compare with a variant of ours: the like of it, or the usual."""
        for wanted in (variant, ""):
            for peer in self.peers:
                if peer.column == column and peer.variant == wanted:
                    found = self.median(key, name, peer.name)
                    if found is not None:
                        return found
        return None


@dataclass(frozen=True)
class Goal:
    """Ours is at most `most` times the other's figure (at least, for a rate)."""

    work: str
    figure: str
    other: str
    """A name, or several of which the best one counts."""
    most: float
    ours: str = "duet-rpc"
    other_figure: tuple[str, str] | None = None


_PYTHON = "python-lsp-jsonrpc|aiorpcX|pygls|MCP SDK"
_TYPESCRIPT = "MCP TypeScript 2|MCP TypeScript 1"
GOALS = [
    Goal("W3", "cpu", "vscode-jsonrpc", 1 / 12),
    Goal("W3", "cpu", "python-lsp-jsonrpc", 1 / 3),
    Goal("W3", "cpu", "pygls", 1 / 100),
    Goal("W3", "cpu", "MCP SDK", 1 / 200),
    Goal("W3", "cpu", "minimum", 1.5),
    Goal("W3", "cpu", "vscode-jsonrpc", 1 / 12, ours="duet-rpc concurrent"),
    Goal("W3", "cpu", "python-lsp-jsonrpc", 1 / 3, ours="duet-rpc concurrent"),
    Goal("W3", "cpu", "pygls", 1 / 100, ours="duet-rpc concurrent"),
    Goal("W3", "cpu", "MCP SDK", 1 / 200, ours="duet-rpc concurrent"),
    Goal("W3", "cpu", "minimum, joined writes", 1.5, ours="duet-rpc concurrent"),
    Goal("W3", "memory", "vscode-jsonrpc", 0.15),
    Goal("W2", "rate", "vscode-jsonrpc", 5),
    Goal("W2", "rate", "vscode-jsonrpc", 7, ours="duet-rpc on uvloop"),
    Goal("W1", "one.p50", "vscode-jsonrpc", 1 / 2),
    Goal("W1", "one.p50", "vscode-jsonrpc", 1 / 4, ours="duet-rpc on uvloop"),
    Goal("W1", "one.p50", "vscode-jsonrpc", 1 / 5, ours="duet-rpc blocking"),
    Goal("W1", "one.p99", "duet-rpc", 3, other_figure=("W1", "one.p50")),
    Goal("W6", "cpu", "vscode-jsonrpc", 1 / 4),
    Goal("W4", "cpu", "duet-rpc", 0.6, other_figure=("W3", "cpu")),
    Goal("W4", "cpu", "jayson", 1 / 6),
    Goal("W5", "records9.time", "vscode-jsonrpc", 1 / 1.7),
    Goal("W5", "records9.time", _PYTHON, 1 / 3),
    Goal("W5", "records9.memory", "vscode-jsonrpc", 0.45),
    Goal("W5", "records9.memory", "the body itself", 4, ours="duet-rpc raw"),
    Goal("W5", "text9.memory", "the body itself", 4, ours="duet-rpc raw"),
    Goal("W5", "text9.time", "vscode-jsonrpc", 1 / 2),
    Goal("W5", "text9.time", "gRPC", 1, ours="duet-rpc raw"),
    Goal("W5", "text9.time", "gRPC", 1, ours="duet-rpc raw server"),
    Goal("W7", "request", "codec alone", 1.5, ours="duet-rpc dispatcher"),
    Goal("W7", "request", "jayson", 1 / 3, ours="duet-rpc dispatcher"),
    Goal("W8", "answer", "vscode-jsonrpc", 0.6),
    Goal("W8", "asyncio", "nothing", 0),
    Goal("W11", "sqlite.many", "duet-rpc", 10, other_figure=("W11", "sqlite.one")),
    *(
        Goal("W11", f"{store}.{way}", "raw commit", 0.7)
        for store in ("sqlite", "postgres", "valkey")
        for way in LEDGER
    ),
    Goal("W11", "query.with", "duet-rpc", 1.1, other_figure=("W11", "query.without")),
    Goal("W12", f"byte{LARGEST}", "duet-rpc", 1.5, other_figure=("W12", "byte10000")),
    Goal("W12", f"byte{LARGEST}", "duet-rpc", 1.5, other_figure=("W12", "byte100000")),
    Goal("W12", "open10000", "duet-rpc", 1.5, other_figure=("W12", "open100")),
    Goal("W13", "call", "MCP SDK", 1 / 100, ours="duet-rpc tools"),
    Goal("W13", "call", _TYPESCRIPT, 1 / 10, ours="duet-rpc tools"),
    Goal("W13", "call", "duet-rpc no tools", 1.6, ours="duet-rpc tools"),
    Goal("W13", "modern", "duet-rpc tools", 1.5, "duet-rpc tools", ("W13", "call")),
    Goal("W13", "list", "MCP SDK", 1 / 8, ours="duet-rpc mcp"),
    Goal("W13", "list", _TYPESCRIPT, 1 / 2, ours="duet-rpc mcp"),
]


_RATIOS = (
    "Our own figure, then how many times better we are than each other; below 1× the other is"
    " better."
)
_GOALS = (
    "Goals are the other way round: our figure divided by the other's. Less is better, but of a"
    " rate (at least) more."
)


def summary(results: Results) -> str:
    """The tables of a run, as a terminal shows them."""
    reached = goals(results)
    parts = [
        _RATIOS,
        ratios(results),
        scaling(results),
        *([_GOALS, reached] if reached else []),
    ]
    return "\n\n".join(part for part in parts if part)


def ratios(results: Results) -> str:
    """The one table: our medians, and how many times better than each other we are."""
    ours, *others = results.columns()
    table = [["work", ours, *others]]
    for key, name, figure in results.rows():
        if key == "W12" and len(others) != 1:
            continue  # ours alone; it has a table of its own
        variants = [peer for peer in results.peers if peer.column == ours]
        shown = [peer for peer in variants if results.samples(key, name, peer.name)]
        for peer in shown or variants[:1]:
            base = results.median(key, name, peer.name)
            title = f"{key} {figure.title}"
            cells = [f"{title}, {peer.variant}" if peer.variant else title, _value(base, figure)]
            for other in others:
                value = results.beside(key, name, other, peer.variant)
                if value is None:
                    cells.append("")
                elif base is None:
                    cells.append(_value(value, figure))
                else:
                    cells.append(f"{_times(base, value, figure):.3g}×")
            table.append(cells)
    return markdown(table)


def scaling(results: Results) -> str:
    """W12 as two small tables: by size, and by how many are open."""
    figures = ITEMS["W12"].figures
    ours = results.peers[0].name

    def cell(name: str) -> str:
        found = results.median("W12", name, ours)
        return _value(found, figures[name]) if found is not None else ""

    sizes = [["bytes of text", "echo", "each byte after the first hundred"]]
    sizes += [
        [f"{size:,}", cell(f"size{size}"), cell(f"byte{size}") if f"byte{size}" in figures else ""]
        for size in FULL.sizes
        if cell(f"size{size}")
    ]
    widths = [["in flight", "each request"]]
    widths += [
        [f"{width:,}", cell(f"open{width}")] for width in FULL.widths if cell(f"open{width}")
    ]
    if len(sizes) == len(widths) == 1:
        return ""
    return f"{markdown(sizes)}\n\n{markdown(widths)}"


def _times(base: float, value: float, figure: Figure) -> float:
    """Above one where the base is the better of the two."""
    better, worse = (value, base) if figure.unit == "/s" else (base, value)
    return worse / better if better > 0 else float("nan")


def _value(value: float | None, figure: Figure) -> str:
    if value is None:
        return ""
    shown = value * _UNITS[figure.unit]
    number = f"{shown:,.0f}" if abs(shown) >= 1000 else f"{shown:.3g}"
    return f"{number} {figure.unit}".replace(" us", " µs").replace(" /s", "/s").rstrip()


def markdown(table: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in table
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([lines[0], "| " + " | ".join(rule) + " |", *lines[1:]])


def goals(results: Results) -> str:
    """What we set out to reach, and what this run shows."""
    table = [["work", "ours", "against", "goal", "this run", ""]]
    for goal in GOALS:
        figure = ITEMS[goal.work].figures[goal.figure]
        ours = results.median(goal.work, goal.figure, goal.ours)
        if ours is None:
            continue
        key, name = goal.other_figure or (goal.work, goal.figure)
        at_least = figure.unit == "/s"
        if goal.most == 0:
            against, wanted, found, reached = "", "none", f"{ours:.0f}", ours == 0
        else:
            medians = [(results.median(key, name, other), other) for other in goal.other.split("|")]
            known = [(value, other) for value, other in medians if value]
            if not known:
                continue
            value, against = (max if at_least else min)(known)
            if len(medians) > 1:
                against += " (the best in Python)" if goal.other == _PYTHON else " (the better)"
            if goal.other_figure:
                against += f", {key} {ITEMS[key].figures[name].title}"
            wanted = f"{'at least' if at_least else 'at most'} {goal.most:.3g}×"
            found = f"{ours / value:.3g}×"
            reached = ours / value >= goal.most if at_least else ours / value <= goal.most
        table.append([
            f"{goal.work} {figure.title}",
            goal.ours,
            against,
            wanted,
            found,
            "reached" if reached else "not reached",
        ])  # fmt: skip
    if len(table) == 1:
        return ""
    reached_count = sum(row[-1] == "reached" for row in table)
    return f"{reached_count} of {len(table) - 1} reached.\n\n{markdown(table)}"


def details(results: Results) -> str:
    """Every median with the least and the greatest sample."""
    table = [["work", "who", "median", "least", "greatest", "samples"]]
    for key, name, figure in results.rows():
        for peer in results.peers:
            samples = results.samples(key, name, peer.name)
            if samples:
                shown = (statistics.median(samples), min(samples), max(samples))
                values = [_value(value, figure) for value in shown]
                table.append([f"{key} {figure.title}", peer.name, *values, str(len(samples))])
    return markdown(table)


def machine() -> list[str]:
    """What it ran on, without a name or a path."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"model name\s*: (.+)", cpuinfo.read_text(encoding="utf-8"))
        model = found[1] if found else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = [
        f"{len(os.sched_getaffinity(0))} cores, {model}, {memory:.0f} GiB, {platform.system()}",
        f"Python {platform.python_version()}",
    ]
    try:
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
        lines.append(f"Node {node.stdout.strip().lstrip('v')}")
    except (OSError, subprocess.CalledProcessError):
        lines.append("no Node")
    return lines


def versions() -> list[str]:
    package = (NODE / "package.json").read_text(encoding="utf-8")
    node = re.findall(r'"(@?[a-z/-]+)": "(\d[\w.]*)"', package)
    pins = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    python = [line.split("==") for line in pins if "==" in line]
    return [f"{name} {version}" for name, version in [*node, *python]]


def write(results: Results, scale: Scale, folder: Path) -> None:
    """Write the tables and the picture of this run."""
    folder.mkdir(exist_ok=True)
    size = f"{scale.repetitions} repetitions, medians; everyone in turn inside each."
    text = f"""# Results

{datetime.now(UTC):%Y-%m-%d}. {size}

{". ".join(machine())}. Peers: {", ".join(versions())}.

![the main figures](latest.svg)

## Goals

{_GOALS}

{goals(results)}

Of the goals on W3, the first five are for the sequential server: the policy `EDITOR`, one request
after the other, a write for each answer before the next request begins, no event loop. The next
five are for the concurrent one: the policy `AGENT`, inline handlers on an event loop, answers that
are ready together share a write. Each stands beside a minimum that writes in the same way.

## Ratios

{_RATIOS}
A row without a variant is the usual way: sequential server, asyncio client, standard event loop.
"on uvloop" and "blocking" are other clients (in W2 with 64 threads), "raw" passes values through
undecoded at both ends and "raw server" at one, "bare client" puts one and the same minimal client
before our server and before vscode-jsonrpc's.

{ratios(results)}

## Scaling

Ours alone, both ends on one core: what a request costs by its size and by how many are open.

{scaling(results)}

## Medians and spread

{details(results)}
"""
    Path(folder, "latest.md").write_text(text, encoding="utf-8")
    Path(folder, "latest.svg").write_text(picture(results), encoding="utf-8")


_PICTURED = [
    ("W3", "cpu"),
    ("W1", "one.p50"),
    ("W2", "rate"),
    ("W6", "cpu"),
    ("W7", "request"),
    ("W8", "answer"),
    ("W3", "memory"),
    ("W5", "records9.time"),
]
_COLOURS = {"ours": "#2563eb", "peer": "#9ca3af", "limit": "#d1d5db"}
_PANEL, _BAR, _NAME = 500, 18, 180


def picture(results: Results) -> str:
    """Bars for the main figures, drawn on a logarithmic scale because they span three decades."""
    figures = {(key, name): figure for key, name, figure in results.rows()}
    panels = [
        panel
        for key, name in _PICTURED
        if (key, name) in figures
        for panel in [_panel(results, key, name, figures[key, name])]
    ]
    heights = [0, 0]
    drawn = []
    for panel, height in panels:
        column = 0 if heights[0] <= heights[1] else 1
        x, y = 20 + column * (_PANEL + 20), 50 + heights[column]
        drawn.append(f'<g transform="translate({x},{y})">{panel}</g>')
        heights[column] += height + 20
    width, height = 2 * _PANEL + 60, max(heights) + 80
    caption = escape(". ".join(machine()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12">'
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" '
        f'fill="#ffffff" stroke="#d1d5db"/>'
        f'<text x="20" y="28" font-size="16" font-weight="600" fill="#111827">'
        f"Side by side (logarithmic bars)</text>"
        f"{_legend(width)}{''.join(drawn)}"
        f'<text x="20" y="{height - 12}" fill="#6b7280">{caption}</text></svg>\n'
    )


def _legend(width: int) -> str:
    words = {"ours": "duet-rpc", "peer": "others", "limit": "limits, not libraries"}
    parts, x = [], width - 345
    for kind, word in words.items():
        parts.append(
            f'<rect x="{x}" y="17" width="12" height="12" rx="2" fill="{_COLOURS[kind]}"/>'
            f'<text x="{x + 17}" y="28" fill="#374151">{word}</text>'
        )
        x += 95
    return "".join(parts)


def _panel(results: Results, key: str, name: str, figure: Figure) -> tuple[str, int]:
    found = [(peer, results.median(key, name, peer.name)) for peer in results.peers]
    bars = [(peer, value) for peer, value in found if value is not None and value > 0]
    bars.sort(key=lambda bar: bar[1], reverse=figure.unit == "/s")
    least = min(value for _, value in bars) / 2
    span = max(value for _, value in bars) / least
    better = "more is better" if figure.unit == "/s" else "less is better"
    title, under = escape(f"{key} {ITEMS[key].title}"), escape(f"{figure.title}, {better}")
    parts = [
        f'<text y="12" font-weight="600" fill="#111827">{title}</text>',
        f'<text y="28" fill="#6b7280">{under}</text>',
    ]
    for number, (peer, value) in enumerate(bars):
        y = 38 + number * (_BAR + 4)
        length = (_PANEL - _NAME - 80) * math.log(value / least) / math.log(span)
        parts.append(
            f'<text x="{_NAME - 6}" y="{y + 13}" text-anchor="end" fill="#374151">'
            f"{escape(peer.name)}</text>"
            f'<rect x="{_NAME}" y="{y}" width="{length:.1f}" height="{_BAR}" rx="2" '
            f'fill="{_COLOURS[peer.kind]}"/>'
            f'<text x="{_NAME + length + 5:.1f}" y="{y + 13}" fill="#374151">'
            f"{escape(_value(value, figure))}</text>"
        )
    return "".join(parts), 38 + len(bars) * (_BAR + 4)

"""The report: one HTML page that needs nothing else, with the pictures and tables of a schedule or program."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from ..program.check import Verdict
from ..program.simulate import ProgramTiming
from .chart import Gantt
from .facts import Facts
from .figures import KIND_COLOUR
from .sweep import OURS, SizeRow, size_label

_STEPS_SHOWN = 40
_THREADBLOCKS_SHOWN = 24
_PROVED = {"proved": "proved", "failed": "failed"}


def page(facts: Facts, pictures: dict[str, bytes]) -> str:
    """The page's HTML; `pictures` are SVGs by name ("topology", "sweep"), left out where they could not be drawn."""
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    parts = {
        "title": escape(facts.title),
        "figures": "".join(
            f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in facts.figures()
        ),
        "sections": "\n".join(_sections(facts, pictures)),
        # No name may end the script element, or begin another.
        "data": json.dumps({"gantt": _chart(facts.gantt)}, separators=(",", ":")).replace("<", "\\u003c"),
    }
    return re.sub("@(\\w+)@", lambda found: parts[found[1]], template)


def _chart(gantt: Gantt) -> dict[str, Any]:
    rows = [
        {
            "name": row.name,
            "used": round(row.used, 4),
            "colour": KIND_COLOUR.get(row.kind, "#2b6cb0"),
            "bars": [
                [round(bar.start_us, 4), round(bar.end_us, 4), bar.text, *([bar.share] if bar.share < 1 else [])]
                for bar in row.bars
            ],
        }
        for row in gantt.rows
    ]
    return {"finish": gantt.finish_us, "crowded": gantt.crowded, "rows": rows}


def _sections(facts: Facts, pictures: dict[str, bytes]) -> Iterator[str]:
    if "topology" in pictures:
        yield "<h2>Topology</h2>" + _svg(pictures["topology"])
    yield "<h2>Links over time</h2>" + _gantt_notes(facts.gantt)
    yield '<div class="scroll"><canvas data-chart="gantt"></canvas></div>'
    yield "<h2>Link utilisation</h2>" + _shares((row.name, row.used) for row in facts.gantt.rows)
    if facts.timing is not None:
        yield "<h2>Threadblock utilisation</h2>" + _threadblocks(facts.timing)
        yield "<h2>Critical path</h2>" + _critical_path(facts.timing)
    if facts.sweep:
        what = "this program, simulated" if facts.timing else "the sends of this schedule, re-timed"
        yield f'<h2>Over sizes</h2><p class="note">Ours: {what} at each size. The rest: the field\'s algorithms.</p>'
        if "sweep" in pictures:
            yield _svg(pictures["sweep"])
        yield _sweep_table(facts.sweep)
    if facts.verdict is not None:
        yield "<h2>What the checker proved</h2>" + _proofs(facts.verdict)
    if facts.bounds:
        yield "<h2>Lower bounds</h2>" + _table(
            ("bound", "µs", "because"), [(term, f"{us:.4g}", why) for term, us, why in facts.bounds], numbers={1}
        )


def _svg(picture: bytes) -> str:
    """The <svg> element alone, without the XML around it and its links to other places."""
    text = picture.decode()
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def _gantt_notes(gantt: Gantt) -> str:
    notes = ["Hover over a bar for what it is."]
    if gantt.crowded:
        notes.append("A row is all links of a kind; the darker, the more of them are in use.")
    if gantt.merged:
        notes.append("Transfers that all but touch are drawn as one.")
    if gantt.left_out:
        notes.append(f"The {len(gantt.rows)} busiest links; {gantt.left_out} more are left out.")
    return f'<p class="note">{escape(" ".join(notes))}</p>'


def _shares(shares: Iterable[tuple[str, float]]) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="n">{used:.1%}</td>'
        f'<td><span class="bar" style="width:{max(1, round(320 * min(1.0, used)))}px"></span></td></tr>'
        for name, used in sorted(shares, key=lambda share: -share[1])
    )
    return f'<div class="scroll" style="max-height:320px"><table>{rows}</table></div>'


def _threadblocks(timing: ProgramTiming) -> str:
    busiest = sorted(timing.threadblocks, key=lambda use: -use.busy_us)
    note = (
        f'<p class="note">The {_THREADBLOCKS_SHOWN} busiest of {len(busiest)}.</p>'
        if len(busiest) > _THREADBLOCKS_SHOWN
        else ""
    )
    return note + _shares((f"GPU {use.gpu} tb {use.tb}", use.utilisation) for use in busiest[:_THREADBLOCKS_SHOWN])


def _critical_path(timing: ProgramTiming) -> str:
    steps = timing.critical_path[-_STEPS_SHOWN:]
    more = (
        f'<p class="note">The last {len(steps)} of its {len(timing.critical_path)} steps.</p>'
        if len(steps) < len(timing.critical_path)
        else ""
    )
    rows = [
        (str(s.gpu), str(s.tb), str(s.step), str(s.iteration), f"{s.start_us:.2f}", f"{s.end_us:.2f}", s.why)
        for s in steps
    ]
    head = ("GPU", "tb", "step", "iteration", "start µs", "end µs", "waited for")
    return more + '<div class="scroll" style="max-height:360px">' + _table(head, rows, numbers=set(range(6))) + "</div>"


def _sweep_table(rows: Sequence[SizeRow]) -> str:
    others = [name for name in rows[0].finish_us if name != OURS]
    head = ("size", "bound µs", "ours µs", "gap", "best other", "speed-up", *(f"{name} µs" for name in others))
    body = []
    for row in rows:
        best = row.best_baseline
        body.append((
            size_label(row.size_bytes), f"{row.bound_us:.2f}", f"{row.finish_us[OURS]:.2f}",
            "" if row.gap is None else f"{row.gap:.1%}", best[0] if best else "",
            "" if row.speedup is None else f"{row.speedup:.2f}×", *(f"{row.finish_us[name]:.2f}" for name in others),
        ))  # fmt: skip
    return _table(head, body, numbers=set(range(len(head))) - {4})


def _proofs(verdict: Verdict) -> str:
    rows = "".join(
        f'<tr><td>{escape(proof.name)}</td><td class="{_PROVED.get(proof.outcome, "other")}">{proof.outcome}</td></tr>'
        for proof in verdict.proofs
    )
    text = f"<table>{rows}</table>"
    if verdict.min_credits is not None:
        text += (
            f'<p class="note">Deadlock free with {verdict.min_credits} or more transfers in flight per connection.</p>'
        )
    found = [
        (f.level, f.code, str(f.gpu) if f.gpu >= 0 else "", str(f.tb) if f.tb >= 0 else "", f.text)
        for f in verdict.findings
    ]
    return text + (_table(("", "code", "GPU", "tb", "finding"), found, numbers={2, 3}) if found else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: set[int]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        opening = [f'<{tag} class="n">' if i in numbers else f"<{tag}>" for i in range(len(cells))]
        return "".join(
            ["<tr>", *(f"{o}{escape(cell)}</{tag}>" for o, cell in zip(opening, cells, strict=True)), "</tr>"]
        )

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"

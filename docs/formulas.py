"""Formulas as MathML, which browsers draw by themselves: no script, no font and no network."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """What mkdocs calls with every page: replace the formulas that arithmatex marked."""
    return _FORMULA.sub(lambda found: _mathml(unescape(found[3]), block=found[2] == "["), html)


def _mathml(latex: str, *, block: bool) -> str:
    formula = convert(latex.strip(), display="block" if block else "inline")
    return f'<div style="overflow: auto hidden; padding: .5em 0; margin: .3em 0">{formula}</div>' if block else formula

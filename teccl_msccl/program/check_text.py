"""What the runtimes' own parsers make of a file's text: they read less than XML (MSCCL XML reference §1, §2)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .finding import Finding, error, warning
from .targets import Target

_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_COMMENT_WITH_ATTRIBUTE = re.compile(rb"<!--\s*[^\s>=]*=")
_ALGO = re.compile(rb"<algo\b([^<>]*)>")
_ATTRIBUTE = re.compile(rb"(?<![\w:.-])([\w:.-]++)\s*+=\s*+\"([^\"]*)\"")
_REQUIRED = ("name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll")
_REQUIRED_BY_SELECTION = ("minBytes", "maxBytes", "inplace", "outofplace")

#: Sections that no runtime's parser knows, and within which XML allows anything: what follows them is not looked at.
_FOREIGN = (
    (b"<?", "has an <?xml?> declaration or another <?…?>; remove it"),
    (b"<![CDATA[", "has a CDATA section; remove it"),
)

#: What the parsers reject, and how to mend it. Each pattern is linear in well-formed text without foreign sections.
_REJECTED = (
    (re.compile(rb"(?:^|>)[ \r\n]*\t"), "is indented with tabs; use spaces"),
    (re.compile(rb"<[^<>\r\n]*+[\r\n][^<>]*>"), "has a newline inside a tag; put each tag on one line"),
    (re.compile(rb"<(?:[^<>\"']++|\"[^\"]*+\")*+'"), "has a value in single quotes; use double quotes"),
    (re.compile(rb">\s*[^<\s][^<]*"), "has text between tags; remove it"),
    (re.compile(rb"<(?:[^<>\"]*+\"[^\"]*+\"){17}"), "has more than 16 attributes on an element; the rest are dropped"),
)


def text_findings(data: bytes, target: Target) -> Iterator[Finding]:
    """What `target`'s parser rejects in the text `data` of a file that is well-formed XML."""
    foreign = [complaint for opening, complaint in _FOREIGN if opening in data]
    if foreign:
        yield from (error("text", complaint) for complaint in foreign)
        return
    if _COMMENT_WITH_ATTRIBUTE.search(data):
        yield error("text", "has a comment whose first word contains '='; reword it")
    text = _COMMENT.sub(b"", data)
    if not text.lstrip().startswith(b"<"):
        yield error("text", "does not begin with '<' in ASCII; save it as plain UTF-8 without a byte-order mark")
    for pattern, complaint in _REJECTED:
        found = pattern.search(text)
        if found:
            yield error("text", f"{complaint} ({_quote(found.group())})")
    yield from _header_findings(_algo_attributes(text), target)


def algo_attributes(data: bytes) -> dict[str, str]:
    """What the file's first tag says; nothing when sections hide it."""
    if any(opening in data for opening, _ in _FOREIGN):
        return {}
    return _algo_attributes(_COMMENT.sub(b"", data))


def _header_findings(written: Mapping[str, str], target: Target) -> Iterator[Finding]:
    for attribute in _REQUIRED:
        if attribute not in written:
            yield error("attribute", f"<algo> lacks {attribute}, which every loader requires")
    for attribute in _REQUIRED_BY_SELECTION:
        if attribute not in written:
            if target.both_modes:  # such runtimes select among files, and one bad file fails their start
                yield error("attribute", f"<algo> lacks {attribute}, which {target.name} requires")
            else:
                yield warning("attribute", f"<algo> lacks {attribute}; other runtimes require it")
    spelled = written.get("coll", "")
    if spelled and spelled not in target.collectives.values():
        yield error("spelling", f"{target.name} does not know coll={spelled!r}")


def _algo_attributes(text: bytes) -> dict[str, str]:
    algo = _ALGO.search(text)
    pairs = _ATTRIBUTE.findall(algo.group(1)) if algo else []
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in pairs}


def _quote(text: bytes) -> str:
    line = " ".join(text[:40].decode(errors="replace").split())
    return f"at {line!r}"

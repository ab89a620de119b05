"""The braces of a device tree text: which node begins and ends where, what stands in it.

Device trees that people post refer to files, labels and macros that are not in the text. So the nodes are found here
by their braces alone; what is not asked for need not make sense.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from memmodel.errors import InputError
from memmodel.sources.quoting import HUNK
from memmodel.sources.reading import refuse

__all__ = ["Block", "Scan", "Statement", "scan_blocks"]

_DEEPEST = 64

_TEXTUAL = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|&\{[^{}\n]*\}'
_COMMENT = re.compile(rf"{_TEXTUAL}|(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<open>/\*)", re.DOTALL)
_DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(?:(?:include|define|undef|if|ifdef|ifndef|elif|else|endif|error|warning|pragma|line)(?![\w-])|\d)"
    r"(?:[^\n\\]|\\\n|\\.)*",
    re.MULTILINE,
)
_MARK = re.compile(rf"{_TEXTUAL}|(?P<mark>[{{}};{HUNK}])")
_HEAD = re.compile(r"(?P<labels>(?:[A-Za-z_]\w*:\s*)*)(?P<name>&\{[^{}]*\}|[^\s:;{}\"]+)\s*$")
_NAME = re.compile(r"\s*(?:[A-Za-z_]\w*:\s*)*(/[\w-]+/|[^\s=;:]+)")


class Statement(NamedTuple):
    """A property or a directive, from `start` to behind its semicolon."""

    name: str
    start: int
    end: int


@dataclass(eq=False)
class Block:
    """One pair of braces and the name in front of it."""

    name: str
    """As written: a node's name, "/", or a reference such as "&foo"."""
    labels: tuple[str, ...]
    start: int
    opened: int
    """Behind the opening brace."""
    line: int
    before: str
    """What stands between the statement before and the name; blank in a device tree."""
    parent: "Block | None"
    closed: int | None = None
    """At the closing brace; None: the text ends first."""
    end: int = 0
    """Behind the closing brace and its semicolon."""
    children: list["Block"] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)

    def walk(self) -> Iterator["Block"]:
        """The block and all in it."""
        yield self
        for child in self.children:
            yield from child.walk()


class Scan(NamedTuple):
    """All blocks of a text."""

    text: str
    """Comments and lines of the C preprocessor blank."""
    outermost: list[Block]
    statements: list[Statement]
    """Those that stand in no block."""
    directives: list[tuple[int, str]]
    """Offset and text of each line of the C preprocessor."""
    notes: list[str]
    breaks: list[int]
    """Offsets of the line breaks."""

    def blocks(self) -> Iterator[Block]:
        """Every block, in the order of the text."""
        for block in self.outermost:
            yield from block.walk()

    def line(self, offset: int) -> int:
        """The number of the line there."""
        return bisect_left(self.breaks, offset) + 1


def scan_blocks(text: str, source: str, *, is_cut: bool, close_nodes: bool) -> Scan:
    """Find the blocks of a text.

    Parameters
    ----------
    is_cut
        Whether what is around a node may be missing (a diff): braces without partner are no mistake then.
    close_nodes
        Whether nodes that are open at the end are closed there; a note says so.

    Raises
    ------
    InputError
        If a comment is open at the end, or braces have no partner.
    """
    clean, directives = _blank(text, source)
    scan = Scan(clean, [], [], directives, [], [at for at, char in enumerate(clean) if char == "\n"])
    stack: list[Block] = []
    start = 0
    for match in _MARK.finditer(clean):
        mark, at = match["mark"], match.start()
        if mark == "{":
            _open(scan, stack, start, at, source)
        elif mark == ";":
            _statement(scan, stack, start, match.end())
        elif mark == "}" and stack:
            _close(scan, stack, start, at)
        elif mark == "}" and not is_cut:
            raise refuse(source, scan.line(at), "}", "no node is open here: braces come in pairs")
        elif mark == HUNK:
            stack.clear()
        if mark:
            start = match.end()
    if stack and not is_cut:
        _at_the_end(scan, stack, source, close_nodes)
    return scan


def _blank(text: str, source: str) -> tuple[str, list[tuple[int, str]]]:
    """The text with comments and preprocessor lines blank, and those lines."""
    opened = next((match for match in _COMMENT.finditer(text) if match["open"]), None)
    if opened:
        line = text.count("\n", 0, opened.start()) + 1
        raise refuse(source, line, "/*", "the comment that begins here is not closed")
    text = _COMMENT.sub(lambda match: _spaces(match[0]) if match["comment"] else match[0], text)
    directives = [(match.start(), match[0].strip()) for match in _DIRECTIVE.finditer(text)]
    return _DIRECTIVE.sub(lambda match: _spaces(match[0]), text), directives


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _open(scan: Scan, stack: list[Block], start: int, at: int, source: str) -> None:
    head = _HEAD.search(scan.text, start, at)
    if head is None:
        raise refuse(source, scan.line(at), scan.text[start:at].strip() + " {", "a node has a name in front of its {")
    if len(stack) == _DEEPEST:
        raise refuse(source, scan.line(at), head["name"], f"nodes are at most {_DEEPEST} deep here")
    labels = tuple(label.strip() for label in head["labels"].split(":") if label.strip())
    before = scan.text[start : head.start()].replace("/omit-if-no-ref/", "").strip()
    parent = stack[-1] if stack else None
    block = Block(head["name"], labels, head.start(), at + 1, scan.line(head.start("name")), before, parent)
    (parent.children if parent else scan.outermost).append(block)
    stack.append(block)


def _statement(scan: Scan, stack: list[Block], start: int, end: int) -> None:
    """What a semicolon ends: a block that has just been closed, or a statement."""
    name = _NAME.match(scan.text, start, end)
    if name:
        (stack[-1].statements if stack else scan.statements).append(Statement(name[1], start, end))
    elif not scan.text[start : end - 1].strip():
        before = (stack[-1].children if stack else scan.outermost)[-1:]
        if before and before[0].closed is not None and before[0].end == start:
            before[0].end = end


def _close(scan: Scan, stack: list[Block], start: int, at: int) -> None:
    if scan.text[start:at].strip():
        _statement(scan, stack, start, at)  # without its semicolon: for the parser to complain of
    block = stack.pop()
    block.closed, block.end = at, at + 1


def _at_the_end(scan: Scan, stack: list[Block], source: str, close_nodes: bool) -> None:
    """Nodes that are open where the text ends: refused, or closed on demand."""
    size = len(scan.text)
    names = ", ".join(f"{block.name} (line {block.line})" for block in stack)
    if not close_nodes:
        n_lines = scan.line(len(scan.text.rstrip()))
        raise InputError(
            f"{source}:{n_lines}: found the end of the text with {len(stack)} braces open: {names}; each needs its }};"
        )
    scan.notes.append(f"{source}: closed at the end of the text, as asked: {names}")
    for block in stack:
        block.closed = block.end = size

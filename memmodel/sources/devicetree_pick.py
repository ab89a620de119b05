"""What of a device tree text speaks of memory, as a text of its own that dtlib can read, line for line."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from memmodel.errors import InputError
from memmodel.sources.devicetree_blocks import Block, Scan, Statement
from memmodel.sources.devicetree_cells import LINE_PROPERTY
from memmodel.sources.reading import refuse

__all__ = ["Picked", "pick"]

_CELLS = ("#address-cells", "#size-cells", "ranges")
_NUMBERS = ("reg", "size", "alignment", "alloc-ranges")
_FLAGS = ("reusable", "no-map", "linux,cma-default", "alloc-ranges")  # which no other node has
_WANTED = frozenset((*_CELLS, *_NUMBERS, *_FLAGS, "compatible", "status", "/delete-property/", "/delete-node/"))
_ROOTS = ("/", "&{/}")
_RESERVED = ("reserved-memory", "&reserved_memory", "&{/reserved-memory}")
_MEMORY = re.compile(r"memory(@\w+)?")
_PROPERTY = re.compile(r"\s*(?:[A-Za-z_]\w*:\s*)*[\w,.+*#?@-]+\s*(?:=.*)?;?", re.DOTALL)
_WORD = re.compile(r"(?<![\w'])(&?[A-Za-z_]\w*|&\{[^}]*\})")
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)(?:ULL|UL|LL|U|L)?")
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_UNKNOWN = re.compile(r"#\s*(?:include|if|ifdef|ifndef|elif|else|endif)\b")
_FAR_SHIFT = re.compile(r"<<(?!\s*(?:\d{1,2}|0[xX][0-9a-fA-F]{1,2})\b)")


class Picked(NamedTuple):
    """The text for dtlib, and what to know of it."""

    text: str
    is_whole: bool
    """Whether nothing of the tree can be elsewhere: a text with /dts-v1/ that includes no other."""
    notes: list[str]


def pick(scan: Scan, source: str, *, is_cut: bool) -> Picked:
    """Pick the memory and reserved-memory nodes, and what changes them.

    Raises
    ------
    InputError
        If a node that is needed is not whole, or hangs on a macro, an include or a condition.
    """
    picker = _Picker(scan, source)
    for block in scan.outermost:
        picker.take(block)
    for statement in scan.statements:
        target = scan.text[statement.start : statement.end].partition("&")[2].strip(" ;\n\t")
        if statement.name == "/delete-node/" and target in picker.labels:
            picker.keep(statement.start, statement.end)
    includes = [text for _, text in scan.directives if "include" in text.split()[0] or text.startswith("# include")]
    includes += re.findall(r'/include/\s*"[^"\n]*"', scan.text)
    notes = [*picker.notes, *(f"{source}: not read: {' '.join(text.split())}" for text in includes)]
    is_whole = "/dts-v1/" in scan.text and not includes and not is_cut
    return Picked(picker.result(), is_whole, notes)


class _Picker:
    def __init__(self, scan: Scan, source: str) -> None:
        self.scan, self.source = scan, source
        self.out = [char if char == "\n" else " " for char in scan.text]
        self.inserts: dict[int, list[str]] = {}
        self.notes: list[str] = []
        reserved = [block for block in scan.blocks() if block.name in _RESERVED]
        self.labels = {label for block in reserved for inner in block.walk() for label in inner.labels}
        self.reserved_labels = {label for block in reserved for label in block.labels}

    def result(self) -> str:
        """The text for dtlib."""
        for at, texts in self.inserts.items():
            if at == len(self.out):
                self.out.append("")
            self.out[at] = "".join(texts) + self.out[at]
        return "/dts-v1/; / { }; " + "".join(self.out)

    def keep(self, start: int, end: int) -> None:
        """Take a piece of the text over."""
        self.out[start:end] = self.scan.text[start:end]

    def insert(self, at: int, text: str) -> None:
        """Put something in front of that place."""
        self.inserts.setdefault(at, []).append(text)

    def take(self, block: Block) -> None:
        """Take what an outermost block, or one that is not looked at itself, has to say."""
        target = block.name[1:] if block.name.startswith("&") else ""
        if block.name in _ROOTS:
            self.root(block)
        elif block.name in _RESERVED or target in self.reserved_labels:
            self.wrapped(block, "/ { reserved-memory {")
        elif target.startswith("{/reserved-memory/") or target in self.labels:
            self.override(block)
        elif target:
            self.reference(block)
        elif block.parent is None and (self.is_pool(block) or self.has(block, _FLAGS)):
            self.notes.append(f"{block.name}: no reserved-memory node around it; taken as a child of one")
            self.wrapped(block, f"/ {{ reserved-memory {{ {''.join(f'{x}: ' for x in block.labels)}{block.name} {{", 2)
        elif _MEMORY.fullmatch(block.name) and self.has(block, ["device_type"]):
            self.wrapped(block, f"/ {{ {block.name} {{")
        else:
            for child in block.children:
                self.take(child)

    def reference(self, block: Block) -> None:
        """A change to a node that is not in the text: no matter, unless it speaks of reserved memory."""
        if any(map(self.is_pool, block.children)):
            self.notes.append(f"{block.name}: taken as /reserved-memory, where alone a shared-dma-pool stands")
            self.wrapped(block, "/ { reserved-memory {")
        elif self.is_pool(block) or self.has(block, _FLAGS):
            raise refuse(self.source, block.line, block.name, "the reserved-memory node it changes is not in the text")

    def root(self, block: Block) -> None:
        """A root node: its cells, and what is in it."""
        for statement in block.statements:
            if statement.name in _CELLS:
                self.insert(statement.start, "/ {")
                self.keep(statement.start, statement.end)
                self.insert(statement.end, "};")
        for child in block.children:
            self.take(child)

    def wrapped(self, block: Block, head: str, depth: int = 1) -> None:
        """A node that stands alone, put where it belongs."""
        self.insert(block.start, head)
        self.node(block)
        self.insert(block.end, "};" * depth)

    def override(self, block: Block) -> None:
        """A change to a node that is in the text."""
        self.keep(block.start, block.opened)
        self.statements(block)
        self.close(block)

    def node(self, block: Block) -> None:
        """What is in a node: its properties and its children, but not theirs."""
        if block.closed is None:
            raise refuse(self.source, block.line, f"{block.name} {{", "its closing brace is not in the text")
        for at, directive in self.scan.directives:
            if block.start <= at < block.end and _UNKNOWN.match(directive):
                line = self.scan.line(at + len(directive) - len(directive.lstrip()))
                raise refuse(self.source, line, directive, "give the text after the C preprocessor")
        is_parent = block.name in _RESERVED or block.name.startswith("&")
        self.insert(block.opened, f" {LINE_PROPERTY} = <{block.line}>;")
        self.statements(block)
        if not is_parent:
            self.notes += [
                f"{self.source}:{child.line}: {child.name}: not looked at, for it stands in {block.name}"
                for child in block.children
            ]
        for child in block.children if is_parent else ():
            if child.before:
                raise refuse(self.source, child.line, child.before, f"only a name stands before the {{ of {child.name}")
            self.keep(child.start, child.opened)
            self.node(child)
        self.close(block)

    def close(self, block: Block) -> None:
        """The closing brace; where there is none, one of ours."""
        if block.closed is None:
            raise refuse(self.source, block.line, f"{block.name} {{", "its closing brace is not in the text")
        self.keep(block.closed, block.end)
        if block.closed == block.end:
            self.insert(block.end, "};")

    def statements(self, block: Block) -> None:
        """The properties that matter; of the others only the form is looked at."""
        for statement in block.statements:
            if statement.name in _WANTED:
                self.check(statement)
                self.keep(statement.start, statement.end)
            elif not statement.name.startswith("/"):
                text = self.scan.text[statement.start : statement.end]
                if not _PROPERTY.fullmatch(text) or not text.endswith(";"):
                    raise self.bad(statement, text, 'a property is "name;" or "name = value;"')

    def check(self, statement: Statement) -> None:
        """Refuse numbers that are none in this text."""
        value = _STRING.sub("", self.scan.text[statement.start : statement.end].partition("=")[2])
        word = _WORD.search(re.sub(r"/bits/|\b\d\w*", " ", value))
        if word and statement.name in (*_NUMBERS, *_CELLS):
            raise self.bad(
                statement, word[1], f"{statement.name} needs numbers; macros and references are not resolved"
            )
        odd = next((found for found in re.findall(r"\b\d\w*", value) if not _NUMBER.fullmatch(found)), None)
        if odd is not None and statement.name in (*_NUMBERS, *_CELLS) and "[" not in value:
            raise self.bad(statement, odd, f"{statement.name} needs numbers such as 4096, 0x1000 or (4 << 10)")
        if _FAR_SHIFT.search(value):
            raise self.bad(statement, value, "a shift is by a plain number of one or two digits")

    def bad(self, statement: Statement, found: str, allowed: str) -> InputError:
        """A complaint about a statement."""
        text = self.scan.text[statement.start : statement.end]
        line = self.scan.line(statement.start + len(text) - len(text.lstrip()))
        return refuse(self.source, line, " ".join(found.split()), allowed)

    def is_pool(self, block: Block) -> bool:
        """Whether a node is a shared-dma-pool."""
        pieces = (self.scan.text[s.start : s.end] for s in block.statements if s.name == "compatible")
        return any('"shared-dma-pool"' in piece for piece in pieces)

    def has(self, block: Block, names: Iterable[str]) -> bool:
        """Whether a node has one of these properties."""
        return any(statement.name in names for statement in block.statements)

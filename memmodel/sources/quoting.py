"""Texts as people post them: a mail's "> " and a diff's marks taken off, line by line, so that line numbers hold."""

import re

__all__ = ["HUNK", "QUOTE", "undiff", "unquote"]

HUNK = "\f"
"""Stands alone on a line where a hunk of a diff began: text is missing in front of it."""

QUOTE = re.compile(r"^[ \t]?(?:>[ \t]?)+")
"""The marks in front of a line that a mail quotes."""

_HEADER = re.compile(r"(?:diff |index [0-9a-f]|--- |\+\+\+ |new file mode|old mode|deleted file mode|similarity index)")


def unquote(text: str) -> str:
    """The text without a mail's quote marks, where most of its lines have some."""
    rows = text.replace("\r\n", "\n").split("\n")
    n_quoted = sum(bool(QUOTE.match(row)) for row in rows)
    if 2 * n_quoted > sum(bool(row.strip()) for row in rows):
        rows = [QUOTE.sub("", row) for row in rows]
    return "\n".join(rows)


def undiff(text: str) -> tuple[str, bool]:
    """The text that a diff leads to, and whether it was one: some line begins with "+".

    Lines taken out, headers and what is no line of a diff's body become blank, hunk heads become `HUNK`.
    """
    rows = text.split("\n")
    if not any(row.startswith("+") for row in rows):
        return text, False
    return "\n".join(map(_patched, rows)), True


def _patched(row: str) -> str:
    if row.startswith("@@"):
        return HUNK
    if row.startswith("-") or _HEADER.match(row):
        return ""
    return row[1:] if row[:1] in ("+", " ") else row

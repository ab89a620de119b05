"""The exception hierarchy and the one way to refuse an unknown name."""

from collections.abc import Iterable

__all__ = ["GeometryError", "InputError", "InvariantError", "MemmodelError", "one_of"]


class MemmodelError(Exception):
    """Base of every error that memmodel raises on purpose."""


class InputError(MemmodelError, ValueError):
    """What the user gave cannot be used: one line that says where, what was found and what is allowed."""


class GeometryError(InputError):
    """Page sizes and orders that no kernel could be built with; the message names the rule."""


class InvariantError(MemmodelError):
    """A law of physical memory does not hold; the message names the first one broken."""


def one_of(value: str, allowed: Iterable[str], what: str) -> str:
    """Return `value` if it is one of `allowed`.

    Raises
    ------
    InputError
        If it is not; the message lists the choices.
    """
    choices = tuple(allowed)
    if isinstance(value, str) and value in choices:
        return value
    raise InputError(f"unknown {what} {value!r}; one of: {', '.join(map(str, choices))}")

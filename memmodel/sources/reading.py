"""Files as they come: plain or compressed by their first bytes, refused in one line where they are broken."""

import hashlib
import lzma
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from memmodel.errors import InputError

__all__ = ["PathLike", "decode_text", "peek", "read_bytes", "read_text", "refuse", "sha256"]

PathLike = str | os.PathLike[str]

_PEEK_BYTES = 4096


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def refuse(source: str, line: int, found: str, allowed: str) -> InputError:
    """The one form of a complaint about a text: where, what was found, what is allowed."""
    found = found if len(found) <= 60 else found[:57] + "..."
    return InputError(f"{source}:{line}: found {found!r}; {allowed}")


def sha256(data: bytes) -> str:
    """The digest of a file's bytes as they are on disk, in hex."""
    return hashlib.sha256(data).hexdigest()


def read_bytes(path: PathLike) -> tuple[bytes, str]:
    """A file's contents, decompressed where it is .gz, .xz or .zst, and the SHA-256 of the file itself.

    Raises
    ------
    InputError
        If the file cannot be read, or is compressed and broken or cut short.
    """
    raw = _raw(path)
    return _expand(raw, os.fspath(path)), sha256(raw)


def read_text(path: PathLike) -> tuple[str, str]:
    """A text file's contents and the SHA-256 of the file itself.

    Raises
    ------
    InputError
        If the file cannot be read, is empty or is not text.
    """
    data, digest = read_bytes(path)
    return decode_text(data, os.fspath(path)), digest


def decode_text(data: bytes, source: str) -> str:
    """The bytes as text (UTF-8, of which everything the kernel prints is the ASCII part).

    Raises
    ------
    InputError
        If they are empty, hold a NUL byte or cannot be decoded: the message has the line and the byte offset.
    """
    if not data:
        raise InputError(f"{source}: the file is empty")
    nul = data.find(b"\0")
    if nul >= 0:
        raise _not_text(data, nul, source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_text(data, error.start, source) from None


def peek(path: PathLike) -> bytes:
    """The first 4096 bytes of the contents (about), or what there is of them; broken compression is not judged here.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    found = b""
    try:
        with Path(path).open("rb") as file:
            chunk = file.read(_PEEK_BYTES)
            opener = _opener(chunk)
            if opener is None:
                return chunk
            decompressor = opener()
            while chunk and len(found) < _PEEK_BYTES and not decompressor.eof:
                found += decompressor.decompress(chunk)
                chunk = file.read(_PEEK_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from None
    except _broken():
        pass
    return found[:_PEEK_BYTES]


def _raw(path: PathLike) -> bytes:
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"{os.fspath(path)}: this is a folder; a file is needed")
        return Path(path).read_bytes()
    except TypeError:
        raise InputError(f"{path!r} is no path of a file") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _unreadable(path, error) from None


def _unreadable(path: PathLike, error: Exception) -> InputError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return InputError(f"{os.fspath(path)}: cannot be read ({why})")


def _not_text(data: bytes, offset: int, source: str) -> InputError:
    line = data.count(b"\n", 0, offset) + 1
    return InputError(f"{source}:{line}: byte {data[offset]:#04x} at offset {offset}; text is needed here")


def _opener(head: bytes) -> Callable[[], _Decompressor] | None:
    """A maker of decompressors for what the magic number says, None for plain contents."""
    if head.startswith(b"\x1f\x8b"):
        return lambda: zlib.decompressobj(wbits=31)
    if head.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        return lambda: zstandard.ZstdDecompressor().decompressobj()
    return None


def _broken() -> tuple[type[Exception], ...]:
    """What the three decompressors raise on bytes that are not theirs."""
    import zstandard

    return (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError)


def _expand(data: bytes, source: str) -> bytes:
    opener = _opener(data)
    if opener is None:
        return data
    parts: list[bytes] = []
    rest = data
    while rest:
        decompressor = opener()
        try:
            parts.append(decompressor.decompress(rest))
        except _broken() as error:
            offset = len(data) - len(rest)
            raise InputError(f"{source}: the compressed data from byte {offset} on are broken ({error})") from None
        if not decompressor.eof:
            raise InputError(f"{source}: the compressed data end too early, after {len(data)} bytes")
        rest = decompressor.unused_data.lstrip(b"\0")
    return b"".join(parts)

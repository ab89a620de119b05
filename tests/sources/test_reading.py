import gzip
import hashlib
import lzma

import pytest
import zstandard

from memmodel.errors import InputError
from memmodel.sources.reading import peek, read_bytes, read_text

TEXT = "Node 0, zone      DMA      1 \n" * 1000
COMPRESSORS = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_read_text__compressed_is_recognised_by_its_first_bytes(tmp_path, kind):
    path = tmp_path / "no_suffix"
    path.write_bytes(COMPRESSORS[kind](TEXT.encode()))
    text, digest = read_text(path)
    assert text == TEXT
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert peek(path) == TEXT.encode()[: len(peek(path))]
    assert len(peek(path)) == 4096


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_read_bytes__several_members_follow_each_other(tmp_path, kind):
    path = tmp_path / "twice"
    path.write_bytes(COMPRESSORS[kind](b"one ") + COMPRESSORS[kind](b"two"))
    assert read_bytes(path)[0] == b"one two"


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_read_bytes__truncated_is_refused_at_every_length(tmp_path, kind):
    path = tmp_path / "cut"
    whole = COMPRESSORS[kind](TEXT.encode())
    for length in range(6, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"^\S+cut: the compressed data [^\n]*$"):
            read_bytes(path)


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_read_bytes__broken_in_the_middle(tmp_path, kind):
    data = bytearray(COMPRESSORS[kind](bytes(range(256)) * 300))
    for at in range(8, len(data) - 4):
        data[at] ^= 0xFF
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(InputError, match=r"^\S+bad: the compressed data [^\n]*$"):
        read_bytes(tmp_path / "bad")
    peek(tmp_path / "bad")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"one\ntwo\n\0three", ":3: byte 0x00 at offset 8; text is needed here"),
        (b"one\n\xff\xfe", ":2: byte 0xff at offset 4; text is needed here"),
        ("Node 0".encode("utf-16-le"), ":1: byte 0x00 at offset 1"),
    ],
)
def test_read_text__what_is_no_text(tmp_path, data, message):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(InputError) as error:
        read_text(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))


def test_read_text__missing_or_a_folder(tmp_path):
    with pytest.raises(InputError, match="nothing: cannot be read"):
        read_text(tmp_path / "nothing")
    with pytest.raises(InputError, match="this is a folder"):
        read_text(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        read_text("a\0b")

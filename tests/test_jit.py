"""The machine operations against NumPy, and the disk cache of compiled kernels, each process in a cache of its own."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel import jit

PACKAGE = Path(jit.__file__).parent
needs_jit = pytest.mark.skipif(not jit.JIT_ENABLED, reason="with the JIT off nothing is compiled or cached")


@jit.kernel
def call_copy_bytes(array, target, source, n_bytes):
    jit.copy_bytes(array, target, source, n_bytes)


@jit.kernel
def call_stream_bytes(array, target, source):
    jit.stream_bytes(array, target, source)
    jit.stream_fence()


@jit.kernel
def call_prefetch(records, index):
    jit.prefetch(records, index)
    return records[index].number


@jit.kernel
def call_count_trailing_zeros(word):
    return jit.count_trailing_zeros(word)


@jit.kernel
def call_spin(n):
    number = n
    for _ in range(n):
        number = number * np.uint64(6364136223846793005) + np.uint64(1)
    return number


@jit.inlined
def plus_one(number):
    return number + np.uint64(1)


@jit.kernel
def call_plus_one(number):
    return plus_one(number)


# -- operations --------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(
    shape=st.sampled_from([(3, 4096), (12288, 1), (1, 12288)]),
    n_bytes=st.integers(0, 6000),
    target=st.integers(0, 6000),
)
def test_copy_bytes__inside_one_array(shape, n_bytes, target):
    array = np.random.default_rng(n_bytes).integers(0, 256, shape, dtype=np.uint8)
    expected = array.reshape(-1).copy()
    source = 12288 - n_bytes if target + n_bytes <= 12288 - n_bytes else 0
    target = target if target + n_bytes <= 12288 - n_bytes else 12288 - n_bytes
    expected[target : target + n_bytes] = expected[source : source + n_bytes].copy()
    call_copy_bytes(array, np.uint64(target), np.uint64(source), np.uint64(n_bytes))
    assert np.array_equal(array.reshape(-1), expected)


@pytest.mark.parametrize(
    ("target", "source"),
    [(0, 256), (4096, 0), (512, 8192 - 256), (256, 0), (64, 4096), (320, 192)],
)
def test_stream_bytes__256_bytes(target, source):
    raw = np.zeros(8192 + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    array = raw[offset : offset + 8192].reshape(2, 4096)
    array[:] = np.random.default_rng(0).integers(0, 256, array.shape)
    expected = array.reshape(-1).copy()
    expected[target : target + 256] = array.reshape(-1)[source : source + 256].copy()
    call_stream_bytes(array, np.uint64(target), np.uint64(source))
    assert np.array_equal(array.reshape(-1), expected)


def test_prefetch__changes_nothing():
    records = np.zeros(100, [("number", "u4"), ("other", "u2")]).view(np.recarray)
    records["number"] = np.arange(100)
    before = records.tobytes()
    assert [int(call_prefetch(records, np.uint64(i))) for i in (0, 50, 99)] == [0, 50, 99]
    assert records.tobytes() == before


@settings(deadline=None, max_examples=200)
@given(word=st.integers(1, 2**64 - 1) | st.integers(0, 63).map(lambda n: 1 << n))
def test_count_trailing_zeros__lowest_bit(word):
    got = call_count_trailing_zeros(np.uint64(word))
    assert int(got) == f"{word:064b}"[::-1].index("1")


def test_kernel__the_same_with_and_without_the_jit():
    assert call_plus_one(np.uint64(41)) == 42
    assert call_plus_one(np.uint64(2**63)) == 2**63 + 1


@needs_jit
def test_kernel__lets_other_threads_run():
    call_spin(np.uint64(1))
    worker = threading.Thread(target=call_spin, args=(np.uint64(300_000_000),))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
        time.sleep(0.001)
    assert turns > 5  # with the interpreter's lock held it would be one


# -- cache -------------------------------------------------------------------------------------------------------------

PROBE = """
import numpy as np
from memmodel.jit import kernel
from memmodel.kernels.freelist import ONE

@kernel
def probe(number, array):
    return number + ONE + array[np.uint64(2)]
"""
# The third element of a view of two: bounds checks see it.
RUN = """
import numpy as np
from memmodel.kernels.probe import probe
try:
    print(int(probe(np.uint64(40), np.ones(3, np.uint64)[:2])))
except IndexError:
    print("IndexError")
"""
ONE_IS = "\nONE = np.uint64({})\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package with one small kernel more, which uses a constant of kernels/freelist.py."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(PACKAGE, root / "memmodel", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "memmodel" / "kernels" / "probe.py").write_text(PROBE)
    return root


class Runner:
    """Processes that share a cache folder."""

    def __init__(self, root, cache):
        self.root, self.cache = root, cache

    def start(self, **environment):
        env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        env |= {"XDG_CACHE_HOME": str(self.cache), "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.Popen(
            [sys.executable, "-c", RUN],
            env=env | environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, process):
        """What it printed, and whether it compiled."""
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert err.count("compiling kernels") <= 1
        return out.strip(), "compiling kernels" in err

    def run(self, **environment):
        return self.end(self.start(**environment))

    def files(self):
        """Every file of the cache."""
        return sorted(path for path in (self.cache / "memmodel" / "kernels").glob("*/*"))


@pytest.fixture(scope="module")
def first(package, tmp_path_factory):
    """Two processes that found an empty cache at the same time."""
    runner = Runner(package, tmp_path_factory.mktemp("cache"))
    processes = [runner.start(), runner.start()]
    return runner, [runner.end(process) for process in processes]


@pytest.fixture
def warm(first, tmp_path):
    """A cache of one's own that holds the kernel."""
    shutil.copytree(first[0].cache, tmp_path / "cache")
    return Runner(first[0].root, tmp_path / "cache")


@needs_jit
def test_cache__a_kernel_is_one_file_however_many_compile_it(first):
    runner, results = first
    assert [value for value, _ in results] == ["42", "42"]
    assert any(compiled for _, compiled in results)
    assert len(runner.files()) == 1
    assert runner.files()[0].name.startswith("probe.probe-")


@needs_jit
def test_cache__the_second_process_hits(warm):
    before = [path.read_bytes() for path in warm.files()]
    assert warm.run() == ("42", False)
    assert [path.read_bytes() for path in warm.files()] == before


@needs_jit
def test_cache__an_edited_helper_compiles_again(warm):
    helper = warm.root / "memmodel" / "kernels" / "freelist.py"
    text = helper.read_text()
    assert text.count(ONE_IS.format(1)) == 1
    try:
        helper.write_text(text.replace(ONE_IS.format(1), ONE_IS.format(5)))
        assert warm.run() == ("46", True)
    finally:
        helper.write_text(text)
    assert len({path.parent for path in warm.files()}) == 2
    assert warm.run() == ("42", False)


@needs_jit
def test_cache__bounds_checks_have_a_folder_of_their_own(warm):
    assert warm.run(NUMBA_BOUNDSCHECK="1") == ("IndexError", True)
    assert len({path.parent for path in warm.files()}) == 2
    assert warm.run(NUMBA_BOUNDSCHECK="1") == ("IndexError", False)


@needs_jit
def test_cache__half_a_file_is_compiled_again(warm):
    (path,) = warm.files()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert warm.run() == ("42", True)
    assert warm.run() == ("42", False)


@needs_jit
def test_cache__other_bytes_are_compiled_again(warm):
    (path,) = warm.files()
    path.write_bytes(b"garbage\n")
    assert warm.run() == ("42", True)


@needs_jit
def test_cache__a_folder_that_cannot_be_made(package):
    assert Runner(package, Path("/proc/nowhere")).run() == ("42", True)


@needs_jit
def test_cache__a_file_where_the_folder_should_be(package, tmp_path):
    (tmp_path / "cache").write_text("")
    assert Runner(package, tmp_path / "cache").run() == ("42", True)


def test_jit_off__plain_python_without_a_cache(package, tmp_path):
    runner = Runner(package, tmp_path / "cache")
    assert runner.run(NUMBA_DISABLE_JIT="1") == ("IndexError", False)
    assert not runner.cache.exists()

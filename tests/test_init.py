"""The public names, and that nothing heavy is imported before it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

import memmodel

ROOT = Path(__file__).parents[1]


def python(code, *flags):
    done = subprocess.run([sys.executable, *flags, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("name", memmodel.__all__)
def test_all__every_name_is_there(name):
    assert getattr(memmodel, name) is not None
    assert name in dir(memmodel)


def test_all__is_what_the_lazy_table_has():
    assert set(memmodel.__all__) == {*memmodel._MODULE, "__version__"}
    for name, module in memmodel._MODULE.items():
        assert getattr(memmodel, name).__module__ == module


def test_getattr__an_unknown_name():
    with pytest.raises(AttributeError, match="module 'memmodel' has no attribute 'alloc_page'"):
        _ = memmodel.alloc_page
    assert not hasattr(memmodel, "nothing_of_the_kind")


def test_import__loads_nothing_heavy():
    loaded = python("import memmodel, sys; print(*sys.modules)")
    assert "memmodel" in loaded
    heavy = {"numba", "numpy", "xarray", "scipy", "pandas", "matplotlib", "h5py", "llvmlite"}
    assert not heavy & set(loaded)
    assert [name for name in loaded if name.startswith("memmodel")] == ["memmodel"]


def test_import__errors_and_geometry_need_no_compiler():
    loaded = python("import memmodel, sys; memmodel.InputError, memmodel.Geometry; print(*sys.modules)")
    assert not {"numba", "xarray", "llvmlite"} & set(loaded)


def test_import__the_model_needs_no_datasets():
    loaded = python("import memmodel, sys; memmodel.PhysicalMemory, memmodel.folio_mc_copy; print(*sys.modules)")
    assert not {"xarray", "pandas", "matplotlib"} & set(loaded)


def test_version__is_the_package_s():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{memmodel.__version__}"' in text

"""Scripts as modules, to test what is in them."""

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["load_script"]


def load_script(name: str) -> ModuleType:
    """The script of that name, imported."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

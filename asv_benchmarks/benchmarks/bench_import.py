"""What a user waits for before anything happens."""

import subprocess
import sys
from functools import partial

from . import best_of

NAMES = "PhysicalMemory, alloc_pages, folio_mc_copy, read_snapshot, run_study"


def python(*arguments):
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def timeraw_import_memmodel():
    return "import memmodel"


def timeraw_import_names():
    """The names that need NumPy, Numba and the kernels."""
    return f"from memmodel import {NAMES}"


class Import:
    """A Python that imports memmodel, without what the interpreter itself takes."""

    # Bar: 0.5 s.
    at_most = 0.5
    unit = "s"
    params = (["memmodel", "its names"],)
    param_names = ("imported",)
    turns = 5

    def setup(self, imported):
        self.code = "import memmodel" if imported == "memmodel" else f"from memmodel import {NAMES}"
        python("-c", self.code)  # byte code is written once

    def track_import(self, imported):
        with_it, without = best_of(self.turns, partial(python, "-c", self.code), partial(python, "-c", "pass"))
        return with_it - without


class Help:
    """`memmodel --help` as a command, the interpreter included."""

    # Bar: 0.4 s.
    at_most = 0.4
    unit = "s"
    turns = 5

    def setup(self):
        python("-m", "memmodel.cli", "--help")

    def track_help(self):
        return best_of(self.turns, partial(python, "-m", "memmodel.cli", "--help"))[0]

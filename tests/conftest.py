"""Shared budgets and small memories."""

import os

import pytest
from hypothesis import Phase, settings

from memmodel.geometry import Geometry
from memmodel.jit import JIT_ENABLED
from tests.reference.views import plain_memory

LONG = "MEMMODEL_LONG" in os.environ

# What a run finds, the next one finds again; the long run looks elsewhere each time.
settings.register_profile("default", deadline=None, derandomize=not LONG)
settings.load_profile("default")


@pytest.fixture
def walk_settings():
    """Budget of a random walk that checks everything after each step; MEMMODEL_LONG buys a longer one.

    To shorten a failing walk takes minutes: that too is left to the long run, which finds the failure again at once.
    """
    return settings(
        deadline=None,
        max_examples=1000 if LONG else 60 if JIT_ENABLED else 20,
        stateful_step_count=100 if LONG else 40,
        phases=[phase for phase in Phase if LONG or phase != Phase.shrink],
    )


@pytest.fixture
def small_geometry():
    """Blocks of at most 16 pages, pageblocks of 4: everything that depends on orders happens within few pages."""
    return Geometry(arch="generic", max_page_order=4, page_block_max_order=2, transparent_hugepage=False)


@pytest.fixture
def small(small_geometry):
    """128 pages on two nodes with bytes, 8 of each in ZONE_MOVABLE, two CPUs."""
    return plain_memory(small_geometry, 128 * 4096, nodes=2, cpus=2, contents=True, movablecore=16 * 4096, seed=1)

"""A small machine, and single pages of it that errors hit."""

import memmodel as mm
from memmodel.geometry import Geometry
from tests.reference import views

__all__ = ["a_page", "machine", "state_of"]


def machine(kernel="6.12.117", size="16MiB", **options):
    """One node whose pages are all free."""
    return views.plain_memory(Geometry(kernel=kernel), size, seed=0, **options)


def a_page(mem, order=0, **options):
    """A folio and its first pfn."""
    folio = int(mm.alloc_pages(mem, order)[0])
    if options:
        mm.set_folio(mem, folio, **options)
    return folio, int(mem.pfn(folio)[0])


def state_of(mem, pfn):
    """The page's `Kind`."""
    return mem.state.pages["state"][mem.index([pfn])[0]] >> 4

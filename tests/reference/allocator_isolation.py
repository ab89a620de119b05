"""The slow obvious twin of isolating ranges for cma_alloc (mm/page_isolation.c, move_freepages_block_isolate).

Until 6.16 isolation overwrites the type of the pageblock: the undo is told what it was. With the feature isolate_bit
the type survives below the bit.
"""

from tests.reference.allocator_zone import ISOLATE


def isolation_order(zone, start, end):
    """The pageblocks of [start, end) in the order in which they are isolated: first, last, then the middle."""
    size = zone.pageblock_nr_pages
    blocks = list(range(zone.block_of(start), end, size))
    return [blocks[0], *blocks[:0:-1][:1], *blocks[1:-1]]


def isolate_range(zone, start, end):
    for block in isolation_order(zone, start, end):
        set_block_type(zone, block, ISOLATE)


def undo_isolation(zone, start, end, migratetype):
    """undo_isolate_page_range: ascending."""
    for block in sorted(isolation_order(zone, start, end)):
        if zone.type_of(block) == ISOLATE:
            unset_isolate(zone, block, zone.block_types[block] if "isolate_bit" in zone.features else migratetype)


def set_block_type(zone, block, migratetype):
    """Its free blocks go along; a larger one is split at the pageblocks (move_freepages_block_isolate)."""
    large = large_buddy(zone, block)
    if large is None:
        zone.move_free_blocks(block, migratetype)
        return
    order, old = zone.remove(large)
    zone.account(-(1 << order), old)
    zone.set_type(block, migratetype)
    zone.free_direct(large, order)


def large_buddy(zone, block):
    """The first page of the free block of more than a pageblock that holds this one, or None."""
    for order in range(zone.pageblock_order + 1, zone.max_order + 1):
        if zone.is_free(block & -(1 << order), order):
            return block & -(1 << order)
    return None


def unset_isolate(zone, block, migratetype):
    """A whole free pageblock merges with its neighbour again (unset_migratetype_isolate)."""
    order = zone.free_orders.get(block, 0)
    if zone.pageblock_order <= order < zone.max_order:
        buddy = block ^ (1 << order)
        if zone.spans(buddy) and zone.is_free(buddy, order) and zone.type_of(buddy) != ISOLATE:
            zone.remove(block)
            zone.set_type(block, migratetype)
            zone.free_one(block, order, migratetype, to_tail=True)
            return
    set_block_type(zone, block, migratetype)

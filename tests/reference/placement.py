"""What holds for every placement of free blocks, tested block by block."""

import numpy as np

from memmodel.state.layout import Kind

CLASSES = ({0, 1, 2}, {3}, {4}, {5})


def check_placement(placement):
    """Blocks aligned, inside their zone and of their pageblock's type; no two that would have merged; arrays agree."""
    state = placement.free_lists
    for zone in state.zones:
        types = dict(zip(zone.block_pfns.tolist(), zone.block_migratetypes.tolist(), strict=True))
        blocks = {}
        pageblock = 1 << state.pageblock_order
        for (order, migratetype), pfns in zone.lists.items():
            for pfn in pfns.tolist():
                assert pfn % (1 << order) == 0
                assert zone.start_pfn <= pfn <= zone.end_pfn - (1 << order)
                assert {types[p] for p in range(pfn // pageblock * pageblock, pfn + (1 << order), pageblock)} == {
                    migratetype
                }
                blocks[pfn] = order, migratetype
        for pfn, (order, migratetype) in blocks.items():
            buddy_order, buddy_type = blocks.get(pfn ^ (1 << order), (None, None))
            if order < state.max_order and buddy_order == order:
                assert not any({migratetype, buddy_type} <= members for members in CLASSES), f"{pfn} would have merged"
        here = slice(zone.start_pfn - placement.first_pfn, zone.end_pfn - placement.first_pfn)
        kind, order = placement.page_kind[here], placement.page_order[here].astype(np.int64)
        free = {
            int(pfn): int(o) for pfn, o in zip(np.flatnonzero(kind == Kind.FREE), order[kind == Kind.FREE], strict=True)
        }
        assert free == {pfn - zone.start_pfn: order for pfn, (order, _) in blocks.items()}
        assert int((1 << order[kind != Kind.TAIL]).sum()) == zone.spanned_pages

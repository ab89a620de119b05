"""The slow obvious twin of memmodel.geometry: every rule spelt out as a table or a plain if, nothing shared with it."""

KIB, MIB = 1024, 1024 * 1024

# arch, page size -> (default MAX_PAGE_ORDER, highest MAX_PAGE_ORDER, bytes that one PMD entry maps)
MACHINES = {
    ("x86_64", 4 * KIB): (10, 15, 2 * MIB),
    ("arm64", 4 * KIB): (10, 15, 2 * MIB),
    ("arm64", 16 * KIB): (11, 13, 32 * MIB),
    ("arm64", 64 * KIB): (13, 13, 512 * MIB),
    ("powerpc64", 4 * KIB): (12, 12, 2 * MIB),
    ("powerpc64", 64 * KIB): (8, 8, 2 * MIB),
    ("generic", 4 * KIB): (10, 15, 2 * MIB),
    ("generic", 8 * KIB): (10, 14, 8 * MIB),
    ("generic", 16 * KIB): (11, 13, 32 * MIB),
    ("generic", 32 * KIB): (12, 12, 128 * MIB),
    ("generic", 64 * KIB): (13, 13, 512 * MIB),
    ("generic", 128 * KIB): (14, 14, 2048 * MIB),
    ("generic", 256 * KIB): (15, 15, 8192 * MIB),
    ("generic", 512 * KIB): (16, 16, 32768 * MIB),
    ("generic", 1024 * KIB): (17, 17, 131072 * MIB),
}

THP_BRANCH = {"5.15": False, "6.1": False, "6.9": False, "6.10": True, "6.12.117": True, "6.16": True, "7.3": True}
CMA_BY_PAGEBLOCK = {"5.15": False, "6.1": True, "6.9": True, "6.10": True, "6.12.117": True, "6.16": True, "7.3": True}


def log2(value):
    order = 0
    while 1 << order < value:
        order += 1
    assert 1 << order == value
    return order


def pageblock_order(hugetlb_page, size_variable, thp, pbmo, pmd_order, thp_branch):
    if hugetlb_page and size_variable:
        if pmd_order < pbmo:
            return pmd_order
        return pbmo
    if hugetlb_page:
        return min(pmd_order, pbmo)
    if thp and thp_branch:
        return min(pmd_order, pbmo)
    return pbmo


def geometry(
    arch, page_size, kernel, thp, hugetlb, size_variable, max_page_order, page_block_max_order, cma, memory_isolation
):
    """The five numbers and MIGRATE_TYPES, or the word that the refusal must contain."""
    if (arch, page_size) not in MACHINES:
        return "page size"
    default, highest, pmd_bytes = MACHINES[arch, page_size]
    top = default if max_page_order is None else max_page_order
    if top < 1 or top > highest:
        return "SECTION_SIZE_BITS"
    if page_block_max_order is not None and (page_block_max_order < 1 or page_block_max_order > top):
        return "PAGE_BLOCK_MAX_ORDER"
    pmd_order = log2(pmd_bytes // page_size)
    if thp and pmd_order > top:
        return "HPAGE_PMD_ORDER"
    if cma and not memory_isolation:
        return "CONFIG_MEMORY_ISOLATION"
    if size_variable and (not hugetlb or arch in ("x86_64", "arm64")):
        return "CONFIG_HUGETLB_PAGE_SIZE_VARIABLE"
    pbmo = top if page_block_max_order is None else page_block_max_order
    order = pageblock_order(hugetlb, size_variable, thp, pbmo, pmd_order, THP_BRANCH[kernel])
    alignment_pages = 2**order if CMA_BY_PAGEBLOCK[kernel] else max(2**top, 2**order)
    migratetypes = ["UNMOVABLE", "MOVABLE", "RECLAIMABLE", "HIGHATOMIC"]
    if cma:
        migratetypes.append("CMA")
    if memory_isolation:
        migratetypes.append("ISOLATE")
    return top, pmd_order, order, 2**order, page_size * alignment_pages, len(migratetypes)

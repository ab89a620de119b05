"""The slow obvious twin of memory_failure()'s decisions: what a page is, and what becomes of it, as tables and ifs.

Written from the rules, kernel by kernel (mm/memory-failure.c of 6.1.192, 6.12.117 and 7.3.4), without a page in sight.
"""

from dataclasses import dataclass, field

OLD, MIDDLE, NEW = "6.1", "6.12.117", "7.3"
EBUSY, EHWPOISON = -16, -133
# What an error does to a page of a file, by the error_remove operation of its mapping.
NO_OPERATION, GENERIC, NOTHING_TO_DO = ("ramfs", "block_device"), ("file", "block_device_iomap"), ("shmem",)
WRITTEN_BACK = ("block_device", "block_device_iomap", "file")
FILES = (*NO_OPERATION, *GENERIC, *NOTHING_TO_DO)


@dataclass
class Page:
    """What a page is before the error. `where`: free, pcp, reserved, kernel, slab, page_table, user, hugetlb."""

    where: str = "user"
    mapping: str = "anon"  # of user memory
    on_lru: str = "lru"  # lru, batch, isolated
    dirty: bool = False
    pte_dirty: bool = False
    mlocked: bool = False
    swapcache: bool = False
    writeback: bool = False
    order: int = 0
    min_order: int = 0
    pins: int = 0
    n_mms: int = 1
    unmap_fails: bool = False


@dataclass
class Decision:
    """What becomes of it."""

    page_type: str = ""
    result: str = ""
    rc: int = 0
    lines: list = field(default_factory=list)  # before the last one, signals apart
    kills: bool = False  # those who are told early get a signal
    sigkill: bool = False
    later: str = "data"  # a load by a former user: data, signal or reread
    split: bool = False
    lost: bool = False  # out of everybody's reach
    io_error: bool = False  # fsync() would report it if its file system looked


def decide(kernel, page, count_increased=False, must_kill=False):
    """One memory_failure()."""
    out = _decide(kernel, page, count_increased, must_kill)
    if out.later == "data" and not page.n_mms:
        out.later = "signal"  # nobody maps it: a fault finds it in the page cache
    return out


def _decide(kernel, page, count_increased, must_kill):
    out = Decision()
    if page.where == "hugetlb":
        return decide_hugetlb(kernel, page, must_kill, out)
    if page.where in ("free", "pcp"):  # the zone's per-CPU lists have been drained
        return ends(out, "free buddy page", "Recovered", lost=True)
    looked_at = not count_increased or kernel == NEW
    handled = page.where == "user" and page.on_lru in ("lru", "batch")
    if looked_at and not handled:
        out.lines.append("unhandlable page.")
        kernels_own = page.where in ("reserved", "slab", "page_table")
        new_name = "reserved kernel page" if kernels_own else "get hwpoison page"
        names = {OLD: "unknown page", MIDDLE: "get hwpoison page", NEW: new_name}
        return ends(out, names[kernel], "Ignored")
    if page.where == "reserved":
        return ends(out, "reserved kernel page", "Ignored")
    if page.order:
        return decide_large(kernel, page, must_kill, out)
    return decide_single(kernel, page, must_kill, out)


def ends(out, page_type, result, **more):
    out.page_type, out.result = page_type, result
    out.rc = 0 if result in ("Recovered", "Delayed") else EBUSY
    for name, value in more.items():
        setattr(out, name, value)
    return out


def decide_large(kernel, page, must_kill, out):
    can_split = page.where == "user" and not page.pins and not page.writeback
    if page.min_order and kernel != NEW:
        can_split = False
    if can_split and not page.min_order:
        out.split = True
        return decide_single(kernel, page, must_kill, out)
    out.split = can_split and page.min_order < page.order  # not all the way, since 7.x
    if kernel == OLD:
        return ends(out, "unsplit thp", "Ignored")
    # Of a file everybody is told who has it in a VMA, mapped or not.
    ends(out, "unsplit thp", "Failed", kills=page.n_mms > 0 or page.mapping in FILES)
    out.rc = EHWPOISON
    return out


def decide_single(kernel, page, must_kill, out):
    lru = page.where == "user" and page.on_lru in ("lru", "batch")
    dirty, mlocked = page.dirty, page.mlocked
    unevictable = page.mapping == "ramfs" or page.mlocked
    mapped, poison_entries = page.n_mms > 0 and page.where == "user", False
    if lru and mapped:
        keeps_swap_entry = page.swapcache
        clean = not dirty and not page.pte_dirty and page.mapping in WRITTEN_BACK and not must_kill
        if keeps_swap_entry:
            out.lines.append("keeping poisoned page in swap cache")
        if clean:
            out.lines.append("corrupted page was clean: dropped without side effects")
        dirty = dirty or page.pte_dirty
        out.kills = dirty or must_kill or page.unmap_fails
        if page.unmap_fails:
            count = f"{'' if kernel == OLD else 'folio '}mapcount={page.n_mms}"
            out.lines.append(f"failed to unmap page ({count})")
            out.sigkill = kernel == OLD
            return ends(out, "unmapping failed page", "Ignored" if kernel == OLD else "Failed")
        mapped, mlocked = False, False
        unevictable = page.mapping == "ramfs"
        poison_entries = not keeps_swap_entry and not clean
    if lru and not page.swapcache and page.mapping == "nothing":
        return ends(out, "already truncated LRU page", "Ignored", later="signal" if poison_entries else "data")
    adjective = "dirty" if dirty else "clean"
    if page.where == "user" and page.swapcache:
        decide_swapcache(page, lru, dirty, mapped, out)
    elif page.where == "user" and (mlocked or unevictable or lru):
        decide_lru(page, dirty, mapped, out)
        kind = "mlocked LRU page" if mlocked else "unevictable LRU page" if unevictable else "LRU page"
        ends(out, f"{adjective} {kind}", out.result)
    else:
        out.lines.append("Unknown page state")
        return ends(out, "unknown page", "Failed" if kernel == OLD else "Ignored")
    if mapped:
        out.later, out.lost = "data", False
    elif poison_entries:
        out.later = "signal"
    out.lines = [line.replace("TYPE", out.page_type) for line in out.lines]
    return out


def others(page, mapped):
    """References beside those of the page's cache: pins, mappings that are left, whoever took it off its list."""
    return page.pins + (page.n_mms if mapped else 0) + (page.on_lru == "isolated")


def decide_swapcache(page, lru, dirty, mapped, out):
    if dirty:
        users = others(page, mapped) + (0 if lru else 1)
        result = "Delayed" if lru else "Failed"
        out.later = "signal"
    else:
        users = others(page, mapped)
        result = "Recovered" if lru else "Failed"
        out.later, out.lost = "reread", lru
    if users:
        out.lines.append(f"TYPE still referenced by {users} users")
        result = "Failed"
    ends(out, f"{'dirty' if dirty else 'clean'} swapcache page", result)


def decide_lru(page, dirty, mapped, out):
    """Anonymous memory is done with once nobody maps it; of the page cache the operation decides."""
    if page.mapping == "anon":
        ends(out, "", "Recovered", lost=page.on_lru != "isolated", later="reread")
        return
    if page.mapping not in FILES:  # of no file any more
        ends(out, "", "Failed", later="signal")
        return
    out.io_error = dirty
    stays = True
    if page.mapping in NOTHING_TO_DO:
        result, users = "Recovered", others(page, mapped)
    elif page.mapping == "file":
        result, users, stays = "Recovered", others(page, mapped), False
    elif page.mapping == "block_device_iomap":
        out.lines.append("Failed to punch page: -5")
        result, users = "Failed", others(page, mapped) + 1
    elif not dirty and not others(page, mapped):
        result, users, stays = "Recovered", 0, False
    else:
        out.lines.append("Failed to invalidate")
        result, users = "Failed", others(page, mapped) + 1
    if users:
        out.lines.append(f"TYPE still referenced by {users} users")
        result = "Failed"
    ends(out, "", result, lost=not stays and page.on_lru != "isolated", later="signal" if stays else "reread")


def decide_hugetlb(kernel, page, must_kill, out):
    if not page.n_mms and page.mapping != "hugetlbfs" and not page.pins:
        return ends(out, "free huge page", "Recovered", lost=True)
    if page.n_mms:
        out.kills = page.dirty or page.pte_dirty or must_kill or page.unmap_fails
        if page.unmap_fails:
            out.lines.append(f"failed to unmap page ({'' if kernel == OLD else 'folio '}mapcount={page.n_mms})")
            out.sigkill = kernel == OLD
            return ends(out, "unmapping failed page", "Ignored" if kernel == OLD else "Failed")
    if page.mapping == "hugetlbfs":  # stays in the page cache
        users, result = page.pins, "Failed" if page.pins else "Recovered"
    else:  # its last reference is dropped, then it is dissolved
        users, result = max(page.pins - 1, 0), "Failed" if page.pins else "Recovered"
    if users:
        out.lines.append(f"huge page still referenced by {users} users")
    return ends(out, "huge page", result, later="signal", lost=result == "Recovered" and page.mapping != "hugetlbfs")

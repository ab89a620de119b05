"""The slow obvious twin of memmodel.sources.ftrace: a regex for each event, tried line by line."""

import re
from collections import Counter
from dataclasses import dataclass, field

FIXED = re.compile(
    rb"-(\d{1,9}) +\[(\d{1,5})\] ([.A-Za-z]{3})([.0-9a-f])[.0-9a-f]? +(\d{1,9})\.(\d{6}): ([^ :]+):(?: (.*))?", re.S
)
LOST = re.compile(rb"CPU:(\d+) \[LOST (?:(\d+) )?EVENTS\]")
ENTRIES = re.compile(rb"# *entries-in-buffer/entries-written: *(\d+)/(\d+)")
CONTEXTS = {"s": 1, "h": 2, "H": 2, "z": 3, "Z": 3}

PAGE = "page=POINTER pfn=HEX(pfn) "
KCOMPACTD = "nid=DEC(nid) order=DEC(order) classzone_idx=WORD(classzone_idx)"
RANGE = r"range=\(HEX(start) ~ HEX(end)\) nr_scanned=DEC(nr_scanned) nr_taken=DEC(nr_taken)"
ZONE = "node=DEC(node) zone=WORD(zone) order=DEC(order) "
DEFER = ZONE + "order_failed=DEC(order_failed) consider=DEC(consider) limit=DEC(limit)"
BEGIN = (
    "zone_start=HEX(zone_start) migrate_pfn=HEX(migrate_pfn) free_pfn=HEX(free_pfn) zone_end=HEX(zone_end), "
    "mode=WORD(mode)"
)
CMA = "name=WORD(name) pfn=HEX(pfn) page=POINTER count=DEC(count)"
TASK = "(?: pid=DEC(pid) memcg_id=DEC(memcg_id))?"
EVENTS = {
    "mm_page_alloc": PAGE + "order=DEC(order) migratetype=DEC(migratetype) gfp_flags=WORD(gfp_flags)",
    "mm_page_free": PAGE + "order=DEC(order)",
    "mm_page_free_batched": PAGE + "order=DEC(order)",
    "mm_page_alloc_zone_locked": PAGE
    + "order=DEC(order) migratetype=DEC(migratetype) percpu_refill=DEC(percpu_refill)",
    "mm_page_pcpu_drain": PAGE + "order=DEC(order) migratetype=DEC(migratetype)",
    "mm_page_alloc_extfrag": PAGE
    + "alloc_order=DEC(alloc_order) fallback_order=DEC(fallback_order) pageblock_order=DEC(pageblock_order) "
    "alloc_migratetype=DEC(alloc_migratetype) fallback_migratetype=DEC(fallback_migratetype) "
    "fragmenting=DEC(fragmenting) change_ownership=DEC(change_ownership)",
    "mm_compaction_begin": BEGIN,
    "mm_compaction_end": BEGIN + " status=WORD(status)",
    "mm_compaction_isolate_migratepages": RANGE,
    "mm_compaction_isolate_freepages": RANGE,
    "mm_compaction_fast_isolate_freepages": RANGE,
    "mm_compaction_migratepages": "nr_migrated=DEC(nr_migrated) nr_failed=DEC(nr_failed)",
    "mm_compaction_try_to_compact_pages": "order=DEC(order) gfp_mask=WORD(gfp_mask) priority=DEC(priority)",
    "mm_compaction_suitable": ZONE + "ret=WORD(ret)",
    "mm_compaction_finished": ZONE + "ret=WORD(ret)",
    "mm_compaction_deferred": DEFER,
    "mm_compaction_defer_compaction": DEFER,
    "mm_compaction_defer_reset": DEFER,
    "mm_compaction_kcompactd_sleep": "nid=DEC(nid)",
    "mm_compaction_wakeup_kcompactd": KCOMPACTD,
    "mm_compaction_kcompactd_wake": KCOMPACTD,
    "mm_migrate_pages_start": "mode=WORD(mode) reason=WORD(reason)",
    "mm_migrate_pages": "nr_succeeded=DEC(nr_succeeded) nr_failed=DEC(nr_failed) nr_thp_succeeded=DEC(nr_thp_succeeded)"
    " nr_thp_failed=DEC(nr_thp_failed) nr_thp_split=DEC(nr_thp_split)(?: nr_split=DEC(nr_split))? mode=WORD(mode)"
    " reason=WORD(reason)",
    "cma_alloc_start": "name=WORD(name) (?:count=DEC(count)|request_count=DEC(request_count) "
    "available_count=DEC(available_count) total_count=DEC(total_count)) align=DEC(align)",
    "cma_alloc_finish": CMA + " align=DEC(align)(?: errorno=DEC(errorno))?",
    "cma_alloc_busy_retry": CMA + " align=DEC(align)",
    "cma_release": CMA,
    "test_pages_isolated": "start_pfn=HEX(start_pfn) end_pfn=HEX(end_pfn) fin_pfn=HEX(fin_pfn) ret=WORD(ret)",
    "tlb_flush": r"pages:DEC(pages) reason:(?P<t_reason>[^(]*)\(DEC(reason_number)\)",
    "memory_failure_event": "pfn HEX(pfn): recovery action for (?P<t_page_type>[^:]*): TEXT(result)",
    "mm_vmscan_kswapd_wake": "nid=DEC(nid) order=DEC(order)",
    "mm_vmscan_kswapd_sleep": "nid=DEC(nid)",
    "mm_vmscan_wakeup_kswapd": "nid=DEC(nid) order=DEC(order) gfp_flags=WORD(gfp_flags)",
    "mm_vmscan_direct_reclaim_begin": "order=DEC(order) gfp_flags=WORD(gfp_flags)" + TASK,
    "mm_vmscan_direct_reclaim_end": "nr_reclaimed=DEC(nr_reclaimed)" + TASK,
    "tracing_mark_write": "TEXT(text)",
    "mm_alloc_contig_migrate_range_info": "start=HEX(start) end=HEX(end) migratetype=DEC(migratetype) "
    "nr_migrated=DEC(nr_migrated) nr_reclaimed=DEC(nr_reclaimed) nr_mapped=DEC(nr_mapped)",
}
OPERATIONS = {
    "gt+": "DEC(pfn) DEC(order) DEC(migratetype) DEC(tail)",
    "gt-": "DEC(pfn) DEC(order) DEC(migratetype)",
    "gtm": "DEC(pfn) DEC(order) DEC(migratetype) DEC(new_migratetype)",
    "gtH": "DEC(pfn) DEC(order) DEC(migratetype)",
    "gtT": "DEC(pfn) DEC(order) DEC(migratetype)",
    "gtB": "DEC(pfn) DEC(migratetype)",
    "gtI": "DEC(pfn) DEC(isolate)",
    "gtp+": "DEC(pfn) DEC(pindex)",
    "gtp>": "DEC(pfn) DEC(pindex)",
    "gtp-": "DEC(pfn) DEC(pindex)",
    "gtpd": "DEC(pfn) DEC(pindex)",
    "gtd": "DEC(pfn) DEC(order)",
    "gt S": "WORD(label)",
    "gt E": "WORD(label)",
}
KINDS = {
    "DEC": r"(?P<d_\1>-?\\d{1,18})",
    "HEX": r"0x(?P<x_\1>[0-9a-f]{1,16})",
    "WORD": r"(?P<t_\1>[^ ]+)",
    "TEXT": r"(?P<t_\1>[^\\0]*)",
}


def compiled(text):
    text = text.replace(" ", " +").replace("POINTER", "(?:(?P<null>0+)|[^ ]+)")
    for kind, group in KINDS.items():
        text = re.sub(kind + r"\((\w+)\)", group, text)
    return re.compile(text.encode(), re.S)


@dataclass
class Reading:
    rows: list = field(default_factory=list)
    unknown: Counter = field(default_factory=Counter)
    lost: list = field(default_factory=list)
    overwritten: int = 0
    bad: int | None = None  # the first line that says nothing


def text_of(data):
    return data.decode("utf-8", "backslashreplace")


def fields(pattern, payload):
    match = pattern.fullmatch(payload)
    if match is None:
        return None
    found = {}
    for key, value in match.groupdict().items():
        if value is None or key == "null":
            continue
        kind, _, name = key.partition("_")
        if kind == "t":
            found[name] = text_of(value.rstrip(b" \t\r"))
        else:
            number = int(value, 16 if kind == "x" else 10)
            found[name] = number - 2**64 if number >= 2**63 else number
    if "request_count" in found:  # 7.2 and later
        found["count"] = found.pop("request_count")
    if match.groupdict().get("null"):
        found["pfn"] = -1
    return found


PATTERNS = {name.encode(): compiled(text) for name, text in EVENTS.items()}
OPERATION = re.compile(rb"(gt [SE]|gt[^ ]*) *(.*)", re.S)
OPERATION_PATTERNS = {name.encode(): compiled(text) for name, text in OPERATIONS.items()}


def read_event(reading, number, line, dash, match):
    """Take one line that has the fixed part; whether its fields are what they should be."""
    pid, cpu, flags, depth, seconds, micros, name, payload = match.groups()
    payload = payload or b""
    operation = OPERATION.fullmatch(payload)
    if name in PATTERNS:
        event, found = text_of(name), fields(PATTERNS[name], payload)
    elif operation and (operation[1] in OPERATION_PATTERNS or operation[1] == b"gt"):
        event = text_of(operation[1])
        pattern = OPERATION_PATTERNS.get(operation[1])
        found = fields(pattern, operation[2]) if pattern else None
    else:
        reading.unknown[text_of(name)] += 1
        return True
    if found is None:
        return False
    if operation and name not in PATTERNS:
        found["function"] = text_of(name)
    flags = flags.decode()
    reading.rows.append(
        {
            "line": number,
            "cpu": int(cpu),
            "pid": int(pid),
            "time_ns": int(seconds) * 10**9 + int(micros) * 1000,
            "irqs_off": flags[0] in "dD",
            "context": CONTEXTS.get(flags[2], 0),
            "preempt_depth": 0 if depth == b"." else int(depth, 16),
            "event": event,
            "comm": text_of(line[:dash].lstrip(b" ")),
            "fields": found,
        }
    )
    return True


def read_line(reading, number, line):
    """Take one line; whether it is one of a trace."""
    if not line.strip(b" "):
        return True
    if line.startswith(b"#"):
        if match := ENTRIES.match(line):
            reading.overwritten += max(0, int(match[2]) - int(match[1]))
        return True
    if match := LOST.fullmatch(line):
        reading.lost.append((number, int(match[1]), int(match[2]) if match[2] else None))
        return True
    for dash in range(17):
        if line[dash : dash + 1] == b"-":
            match = FIXED.fullmatch(line, dash)
            if match and int(match[2]) <= 65535:
                return read_event(reading, number, line, dash, match)
    return False


def read(data):
    """All the lines with an end, up to the first that says nothing."""
    reading = Reading()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        if not read_line(reading, number, line.rstrip(b" \t\r")):
            reading.bad = number
            break
    return reading

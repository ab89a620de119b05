import gzip
import lzma
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.sources.ftrace import ABSENT, FIELDS, TEXT_FIELDS, Context, Event, Lost, parse_trace, read_trace
from memmodel.sources.ftrace_events import event_name
from tests.reference import ftrace as twin

DATA = Path(__file__).parents[1] / "data"
RECORDS = os.environ.get("MEMMODEL_RECORDS")
EXCERPTS = sorted(path.name for path in DATA.glob("trace_*.txt.xz"))
FIXED = "            init-1       [000] d..2.     1.500007: "
FREE = FIXED + "mm_page_free: page=00000000d854a273 pfn=0x4ab204 order=3\n"


def excerpt(name):
    return lzma.decompress((DATA / name).read_bytes())


def lines_of(*names):
    return [line + b"\n" for name in names for line in excerpt(name).split(b"\n")[:-1]]


def name_of(event):
    """As the twin names events."""
    return {Event.DUMP_BEGIN: "gt S", Event.DUMP_END: "gt E"}.get(event, event_name(event))


def row(trace, i):
    """A row as the twin has it."""
    return {
        "line": trace.line[i],
        "cpu": trace.cpu[i],
        "pid": trace.pid[i],
        "time_ns": trace.time_ns[i],
        "irqs_off": trace.irqs_off[i],
        "context": trace.context[i],
        "preempt_depth": trace.preempt_depth[i],
        "event": name_of(Event(trace.event[i])),
        "comm": trace.strings[trace.comm[i]],
        "fields": trace.values(i),
    }


def assert_as_twin(data):
    """All of a trace, or its refusal, as the twin has it."""
    lines = data.split(b"\n")
    expected = twin.read(data)
    truncated = expected.bad or (len(lines) if lines[-1].strip() else None)
    last = max(i for i, line in enumerate(lines, 1) if line.strip() or i == 1)
    headed = any(line.startswith(b"# tracer:") or twin.ENTRIES.match(line) for line in lines[:-1])
    if (truncated and truncated < last) or not (expected.rows or expected.unknown or expected.lost or headed):
        with pytest.raises(InputError, match=rf"^x:{truncated or 1}: found " if data else "^x: the file is empty"):
            parse_trace(data, "x")
        return
    trace = parse_trace(data, "x")
    assert [row(trace, i) for i in range(len(trace))] == expected.rows
    assert (trace.unknown, trace.overwritten, trace.truncated) == (expected.unknown, expected.overwritten, truncated)
    assert [(lost.line, lost.cpu, lost.n_events) for lost in trace.lost] == expected.lost


FORMATS = [
    (
        "mm_page_alloc: page=00000000084552be pfn=0x46e414 order=0 migratetype=1 gfp_flags=GFP_KERNEL|__GFP_COMP",
        Event.MM_PAGE_ALLOC,
        {"pfn": 0x46E414, "order": 0, "migratetype": 1, "gfp_flags": "GFP_KERNEL|__GFP_COMP"},
    ),
    (
        "mm_page_alloc: page=0000000000000000 pfn=0x0 order=9 migratetype=1 gfp_flags=GFP_TRANSHUGE",
        Event.MM_PAGE_ALLOC,  # failed
        {"pfn": -1, "order": 9, "migratetype": 1, "gfp_flags": "GFP_TRANSHUGE"},
    ),
    (
        "mm_page_free: page=00000000d854a273 pfn=0x0 order=1",
        Event.MM_PAGE_FREE,
        {"pfn": 0, "order": 1},
    ),
    (
        "mm_page_alloc_extfrag: page=0000000064711511 pfn=0x4d2c00 alloc_order=0 fallback_order=10 pageblock_order=9 "
        "alloc_migratetype=2 fallback_migratetype=1 fragmenting=0 change_ownership=1",
        Event.MM_PAGE_ALLOC_EXTFRAG,
        {
            "pfn": 0x4D2C00,
            "alloc_order": 0,
            "fallback_order": 10,
            "pageblock_order": 9,
            "alloc_migratetype": 2,
            "fallback_migratetype": 1,
            "fragmenting": 0,
            "change_ownership": 1,
        },
    ),
    (
        "mm_compaction_end: zone_start=0x1 migrate_pfn=0x2 free_pfn=0x3 zone_end=0x4, mode=sync status=complete",
        Event.MM_COMPACTION_END,
        {"zone_start": 1, "migrate_pfn": 2, "free_pfn": 3, "zone_end": 4, "mode": "sync", "status": "complete"},
    ),
    (
        "mm_compaction_isolate_freepages: range=(0xfe ~ 0x100) nr_scanned=2 nr_taken=1",
        Event.MM_COMPACTION_ISOLATE_FREEPAGES,
        {"start": 0xFE, "end": 0x100, "nr_scanned": 2, "nr_taken": 1},
    ),
    (
        "mm_compaction_finished: node=0 zone=DMA      order=-1 ret=continue",
        Event.MM_COMPACTION_FINISHED,
        {"node": 0, "zone": "DMA", "order": -1, "ret": "continue"},
    ),
    (
        "mm_compaction_kcompactd_wake: nid=0 order=9 classzone_idx=Normal  ",
        Event.MM_COMPACTION_KCOMPACTD_WAKE,
        {"nid": 0, "order": 9, "classzone_idx": "Normal"},
    ),
    (
        "cma_alloc_start: name=linux,cma count=2048 align=8",
        Event.CMA_ALLOC_START,
        {"name": "linux,cma", "count": 2048, "align": 8},
    ),
    (
        "cma_alloc_start: name=linux,cma request_count=1 available_count=2 total_count=3 align=0",
        Event.CMA_ALLOC_START,
        {"name": "linux,cma", "count": 1, "align": 0, "available_count": 2, "total_count": 3},
    ),
    (
        "cma_alloc_finish: name=linux,cma pfn=0xffffffffffffffff page=00000000c0ffee00 count=3 align=8",
        Event.CMA_ALLOC_FINISH,  # 6.1; the word is all ones
        {"pfn": -1, "name": "linux,cma", "count": 3, "align": 8},
    ),
    (
        "cma_alloc_finish: name=linux,cma pfn=0xf8100 page=0000000000000000 count=3 align=8 errorno=-16",
        Event.CMA_ALLOC_FINISH,
        {"pfn": -1, "name": "linux,cma", "count": 3, "align": 8, "errorno": -16},
    ),
    (
        "cma_alloc_busy_retry: name=linux,cma pfn=0xf8000 page=00000000d3b1c2aa count=2048 align=8",
        Event.CMA_ALLOC_BUSY_RETRY,
        {"pfn": 0xF8000, "name": "linux,cma", "count": 2048, "align": 8},
    ),
    (
        "test_pages_isolated: start_pfn=0xf8000 end_pfn=0xf8800 fin_pfn=0xf8123 ret=fail",
        Event.TEST_PAGES_ISOLATED,
        {"start_pfn": 0xF8000, "end_pfn": 0xF8800, "fin_pfn": 0xF8123, "ret": "fail"},
    ),
    (
        "tlb_flush: pages:-1 reason:local MM shootdown (3)",
        Event.TLB_FLUSH,
        {"pages": -1, "reason": "local MM shootdown", "reason_number": 3},
    ),
    (
        "memory_failure_event: pfn 0x3a1f2c: recovery action for dirty LRU page: Recovered",
        Event.MEMORY_FAILURE_EVENT,
        {"pfn": 0x3A1F2C, "page_type": "dirty LRU page", "result": "Recovered"},
    ),
    (
        "mm_migrate_pages: nr_succeeded=1 nr_failed=2 nr_thp_succeeded=3 nr_thp_failed=4 nr_thp_split=5 "
        "mode=MIGRATE_SYNC reason=memory_failure",
        Event.MM_MIGRATE_PAGES,  # 6.1
        {
            "nr_succeeded": 1,
            "nr_failed": 2,
            "nr_thp_succeeded": 3,
            "nr_thp_failed": 4,
            "nr_thp_split": 5,
            "mode": "MIGRATE_SYNC",
            "reason": "memory_failure",
        },
    ),
    (
        "mm_vmscan_direct_reclaim_begin: order=9 gfp_flags=GFP_TRANSHUGE",
        Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN,
        {"order": 9, "gfp_flags": "GFP_TRANSHUGE"},
    ),
    (
        "mm_vmscan_direct_reclaim_begin: order=9 gfp_flags=GFP_TRANSHUGE pid=1 memcg_id=0 ",
        Event.MM_VMSCAN_DIRECT_RECLAIM_BEGIN,  # 7.3
        {"order": 9, "gfp_flags": "GFP_TRANSHUGE", "pid": 1, "memcg_id": 0},
    ),
    (
        "tracing_mark_write: x-1 [000] ..... 1.000000: mm_page_free: order=0 gt+ 1  ",
        Event.TRACING_MARK_WRITE,
        {"text": "x-1 [000] ..... 1.000000: mm_page_free: order=0 gt+ 1"},
    ),
    ("tracing_mark_write: gtB is no operation here", Event.TRACING_MARK_WRITE, {"text": "gtB is no operation here"}),
    ("tracing_mark_write:", Event.TRACING_MARK_WRITE, {"text": ""}),
    (
        "__free_one_page: gt+ 61438 1 2 0",
        Event.LIST_ADD,
        {"pfn": 61438, "order": 1, "migratetype": 2, "tail": 0, "function": "__free_one_page"},
    ),
    (
        "__move_freepages_block: gtm 9352 3 2 0",
        Event.LIST_MOVE,
        {"pfn": 9352, "order": 3, "migratetype": 2, "new_migratetype": 0, "function": "__move_freepages_block"},
    ),
    ("f: gtT 48968 3 1", Event.LIST_ROTATE_LAST, {"pfn": 48968, "order": 3, "migratetype": 1, "function": "f"}),
    ("f: gtI 56832 1", Event.BLOCK_ISOLATE, {"pfn": 56832, "isolate": 1, "function": "f"}),
    ("f.isra.0: gtp> 7 13", Event.PCP_ADD_TAIL, {"pfn": 7, "pindex": 13, "function": "f.isra.0"}),
    ("free_one_page: gtd 7 2", Event.DIRECT_FREE, {"pfn": 7, "order": 2, "function": "free_one_page"}),
    ("snap_write: gt S t00", Event.DUMP_BEGIN, {"label": "t00", "function": "snap_write"}),
    ("snap_write: gt E c02.4", Event.DUMP_END, {"label": "c02.4", "function": "snap_write"}),
]


@pytest.mark.parametrize(("text", "event", "values"), FORMATS)
def test_parse_trace__formats(text, event, values):
    trace = parse_trace(f"{FIXED}{text}\n".encode(), "x")
    assert len(trace) == 1
    assert (Event(trace.event[0]), trace.values(0)) == (event, values)
    assert_as_twin(f"{FIXED}{text}\n".encode())


def test_fields__pfn_order_and_migratetype_have_the_same_columns_everywhere():
    for columns in FIELDS.values():
        assert len(set(columns.values())) == len(columns)
        assert max(columns.values()) < 8
        assert all(columns.get(name, at) == at for at, name in enumerate(("pfn", "order", "migratetype")))
    assert {"gfp_flags", "mode", "reason", "label", "function", "text"} <= TEXT_FIELDS


@pytest.mark.parametrize("name", EXCERPTS)
def test_parse_trace__excerpts_as_the_twin(name):
    assert_as_twin(excerpt(name))


def test_parse_trace__excerpts_have_every_event_but_three():
    traces = [parse_trace(excerpt(name), name) for name in EXCERPTS]
    missing = set(Event) - {Event(number) for trace in traces for number in set(trace.event.tolist())}
    assert missing == {Event.CMA_ALLOC_BUSY_RETRY, Event.TEST_PAGES_ISOLATED, Event.DIRECT_FREE}


def test_parse_trace__columns():
    trace = parse_trace(
        b"# tracer: nop\n"
        b"     kworker/0:1-55      [003] dNs3.   412.334001: mm_page_free: page=00000000d854a273 pfn=0x10 order=1\n"
        b"\n"
        b"          <idle>-0       [012] ..z.  99412.000010: tlb_flush: pages:1 reason:flush on task switch (0)\n"
        b"          <idle>-0       [012] D.Hf3     0.000000: mm_page_free: page=00000000d854a273 pfn=0x20 order=2\n",
        "x",
    )
    assert len(trace) == 3
    assert trace.line.tolist() == [2, 4, 5]
    assert trace.cpu.tolist() == [3, 12, 12]
    assert trace.pid.tolist() == [55, 0, 0]
    assert trace.time_ns.tolist() == [412_334_001_000, 99_412_000_010_000, 0]
    assert trace.irqs_off.tolist() == [True, False, True]
    assert trace.context.tolist() == [Context.SOFTIRQ, Context.NMI, Context.HARDIRQ]
    assert trace.preempt_depth.tolist() == [3, 0, 15]
    assert [trace.strings[i] for i in trace.comm] == ["kworker/0:1", "<idle>", "<idle>"]
    assert trace.rows(Event.MM_PAGE_FREE).tolist() == [0, 2]
    assert trace.rows(Event.MM_PAGE_FREE, Event.TLB_FLUSH).tolist() == [0, 1, 2]
    assert trace.column(Event.MM_PAGE_FREE, "pfn").tolist() == [16, 32]
    assert trace.column(Event.MM_PAGE_FREE, "order").tolist() == [1, 2]
    assert trace.fields[0].tolist() == [16, 1, *[ABSENT] * 6]
    assert (trace.unknown, trace.lost, trace.overwritten, trace.truncated) == ({}, (), 0, None)


@pytest.mark.parametrize(
    "comm",
    ["a-b c", "x-1 [000] .....", "-5", "[001]", "a:b", "", "\u00e4 1.000000: ", "# no comment", "CPU:0", "<...>"],
)
def test_parse_trace__comm_of_any_kind(comm):
    data = comm.encode().rjust(16) + b"-17      [000] .....     1.000000: mm_page_free: page=01 pfn=0x1 order=0\n"
    trace = parse_trace(data, "x")
    assert (trace.strings[trace.comm[0]], trace.pid[0]) == (comm, 17)


def test_parse_trace__comm_that_is_no_text():
    trace = parse_trace(FREE.encode().replace(b"init", b"i\xffit"), "x")
    assert trace.strings[trace.comm[0]] == "i\\xffit"


def test_parse_trace__blanks_and_line_ends_do_not_matter():
    data = FREE.replace("   init-1       [000]", "init-1 [000]").lstrip().replace("\n", " \t\r\n")
    assert parse_trace(data.encode(), "x").values(0) == {"pfn": 0x4AB204, "order": 3}


def test_parse_trace__unknown_events_are_counted():
    data = FIXED + "sched_switch: prev=a\n" + FIXED + "my_probe: gtk-init\n" + FIXED + "sched_switch: prev=b\n" + FREE
    trace = parse_trace(data.encode(), "x")
    assert trace.unknown == {"sched_switch": 2, "my_probe": 1}
    assert trace.line.tolist() == [4]


def test_parse_trace__lost_events():
    data = f"CPU:1 [LOST 1532 EVENTS]\n{FREE}##### CPU 1 buffer started ####\nCPU:0 [LOST EVENTS]\n{FREE}"
    trace = parse_trace(data.encode(), "x")
    assert trace.lost == (Lost(1, 1, 1532), Lost(4, 0, None))
    assert trace.line.tolist() == [2, 5]


@pytest.mark.parametrize(("entries", "overwritten"), [("5/5", 0), ("5/1537", 1532)])
def test_parse_trace__overwritten(entries, overwritten):
    data = f"# tracer: nop\n#\n# entries-in-buffer/entries-written: {entries}   #P:2\n{FREE}"
    assert parse_trace(data.encode(), "x").overwritten == overwritten


def test_parse_trace__no_events():
    trace = parse_trace(b"# tracer: nop\n#\n", "x")
    assert len(trace) == 0
    assert trace.rows(Event.MM_PAGE_FREE).size == 0


@pytest.mark.parametrize("cut", range(1, len(FREE)))
def test_parse_trace__last_line_cut_anywhere(cut):
    trace = parse_trace((FREE + FREE)[:-cut].encode(), "x")
    assert trace.line.tolist() == [1]
    left = FREE[:-cut]
    assert trace.truncated == (2 if left.strip() else None)


def test_parse_trace__last_line_that_cannot_be_read():
    assert parse_trace(f"{FREE}{FREE[:-9]}\n\n".encode(), "x").truncated == 2
    assert parse_trace(f"{FREE}CPU:1 [LOST 15\n".encode(), "x").truncated == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mm_page_free: page=01 pfn=0x1 order=", "the fields of mm_page_free are page=<> pfn=0x<pfn> order=<order>"),
        ("mm_page_free: page=01 pfn=0x1 order=1 more=2", "the fields of mm_page_free are"),
        ("mm_page_free: page=01 pfn=1 order=1", "the fields of mm_page_free are"),
        ("mm_page_free: page=01 pfn=0x10000000000000000 order=1", "the fields of mm_page_free are"),
        ("mm_page_free: page=01 pfn=0x1 order=1234567890123456789", "the fields of mm_page_free are"),
        ("mm_page_free:", "the fields of mm_page_free are"),
        ("cma_alloc_start: name=a align=0", r"are name=<name> count=<count> align=<align> or name=<name> request"),
        ("__free_one_page: gt+ 12 0 1", r"the fields of gt\+ are gt\+ <pfn> <order> <migratetype> <tail>"),
        ("snap_write: gt X t00", "the fields of gt are gt S <label> or gt E <label>"),
        ("mm_page_free", "a line of a trace is 'comm-pid"),
        ("mm_page_fr" + FREE.rstrip(), "a line of a trace is 'comm-pid"),
    ],
)
def test_parse_trace__malformed_event(line, message):
    with pytest.raises(InputError, match=rf"^file:2: found .*{message}") as error:
        parse_trace(f"{FREE}{FIXED}{line}\n{FREE}".encode(), "file")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "order=0",
        "init-1 [000] ..... 1.500007 mm_page_free: page=01 pfn=0x1 order=0",
        "init-1 [000] ...... 1.500007: mm_page_free: page=01 pfn=0x1 order=0",
        "init-1 [000] ... 1.500007: mm_page_free: page=01 pfn=0x1 order=0",
        "init-1 [000] ...g. 1.500007: mm_page_free: page=01 pfn=0x1 order=0",
        "init-1 [000] ..... 1500007: mm_page_free: page=01 pfn=0x1 order=0",
        "init-1 [0x0] ..... 1.500007: mm_page_free: page=01 pfn=0x1 order=0",
        "init-1 [70000] ..... 1.500007: mm_page_free: page=01 pfn=0x1 order=0",
        "init-1000000000 [000] ..... 1.500007: mm_page_free: page=01 pfn=0x1 order=0",
        "CPU:1 [LOST all EVENTS]",
        "            init-1       [000] d..2.     1.5" + FREE.rstrip(),  # cut, and the next one at its end
        "\0\0\0",
    ],
)
def test_parse_trace__line_that_is_none(line):
    data = f"{FREE}{line}\n{FREE}".encode()
    assert twin.read(data).bad == 2
    with pytest.raises(InputError, match=r"^file:2: found .*a line of a trace is 'comm-pid \[cpu\] flags"):
        parse_trace(data, "file")


@pytest.mark.parametrize("data", [b"hello\n", b"hello", b"\n \n", b"\x7fELF\x00\x01", b"\x00" * 99, b"#!/bin/sh\n"])
def test_parse_trace__no_trace(data):
    with pytest.raises(InputError, match=r"^file:1: found .*a line of a trace is .* there is none in it"):
        parse_trace(data, "file")


def test_parse_trace__empty():
    with pytest.raises(InputError, match=r"^file: the file is empty$"):
        parse_trace(b"", "file")


def test_read_trace__compressed(tmp_path):
    data = FREE.encode() * 3
    forms = {"t": data, "t.gz": gzip.compress(data), "t.xz": lzma.compress(data)}
    forms["t.zst"] = zstandard.ZstdCompressor().compress(data)
    for name, form in forms.items():
        (tmp_path / name).write_bytes(form)
        trace = read_trace(tmp_path / name)
        assert (len(trace), trace.source) == (3, str(tmp_path / name))
    assert len({read_trace(tmp_path / name).sha256 for name in forms}) == 4
    assert read_trace(tmp_path / "t").sha256 == parse_trace(data, "x").sha256


def test_read_trace__broken_file(tmp_path):
    (tmp_path / "t.xz").write_bytes(lzma.compress(FREE.encode() * 99)[:-9])
    with pytest.raises(InputError, match=r"t\.xz: the compressed data end too early"):
        read_trace(tmp_path / "t.xz")
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path / "none")


LINES = lines_of(*EXCERPTS)
JUNK = st.binary(max_size=4) | st.sampled_from(
    [b"\n", b"-", b" ", b": ", b"gt", b"0", b"#", b"CPU:0 [LOST 1 EVENTS]\n"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=3).map(b"".join), st.data())
def test_parse_trace__damaged_lines_as_the_twin(data, draw):
    begin = draw.draw(st.integers(0, len(data)))
    end = min(len(data), begin + draw.draw(st.sampled_from([0, 0, 1, 2, 30, 90])))
    assert_as_twin(data[:begin] + draw.draw(JUNK) + data[end:])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_parse_trace__any_bytes(data):
    assert_as_twin(data)


@settings(max_examples=200, deadline=None)
@given(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=15).filter(lambda comm: comm[:1] != " "),
    st.integers(0, 999_999_999),
    st.integers(0, 65535),
    st.tuples(st.integers(0, 10**9 - 1), st.integers(0, 999_999)),
    st.integers(0, 2**64 - 1),
    st.integers(-(10**18) + 1, 10**18 - 1),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=90),
)
def test_parse_trace__made_lines(comm, pid, cpu, time, pfn, number, gfp):
    fixed = f"{comm:>16}-{pid:<7} [{cpu:03}] d..2. {time[0]:5}.{time[1]:06}: "
    fields = f"page=00000000084552be pfn=0x{pfn:x} order={number} migratetype=1 gfp_flags={gfp}"
    trace = parse_trace(f"{fixed}mm_page_alloc: {fields}\n".encode(), "x")
    assert (trace.strings[trace.comm[0]], trace.pid[0], trace.cpu[0]) == (comm, pid, cpu)
    assert trace.time_ns[0] == time[0] * 10**9 + time[1] * 1000
    signed = pfn - 2**64 if pfn >= 2**63 else pfn
    assert trace.values(0) == {"pfn": signed, "order": number, "migratetype": 1, "gfp_flags": gfp}


@pytest.mark.skipif(not RECORDS, reason="MEMMODEL_RECORDS names no folder of recordings")
@pytest.mark.parametrize("name", ["R1-612gt", "R1cma-612gt", "R3-73-2cpu", "R4-612gt", "R6-73"])
def test_read_trace__whole_recordings(name):
    path = Path(RECORDS or "") / name / "trace.txt.xz"
    trace = read_trace(path)
    data = lzma.decompress(path.read_bytes())
    counts = Counter()
    for event, word in re.findall(rb"\.\d{6}: ([^ :]+):(?: (gt [SE]|gt\S+))?", data):
        counts[(word or event).decode()] += 1
    found = Counter({name_of(event): trace.rows(event).size for event in Event})
    assert +found + Counter(trace.unknown) == counts
    assert len(trace) + sum(trace.unknown.values()) + 12 == data.count(b"\n")
    assert (trace.lost, trace.overwritten, trace.truncated) == ((), 0, None)
    lines = data.split(b"\n")
    rows = {int(line): i for i, line in enumerate(trace.line)}
    for number in range(13, len(lines), 211):
        (expected,) = twin.read(lines[number - 1] + b"\n").rows or (None,)
        if expected:
            assert row(trace, rows[number]) == expected | {"line": number}

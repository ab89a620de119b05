"""What the kernel makes of reserved-memory nodes."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memmodel.errors import InputError
from memmodel.geometry import Geometry
from memmodel.mechanisms.memblock import MemoryMap
from memmodel.mechanisms.reserved_memory import reserved_memory
from memmodel.sources.devicetree import parse_device_tree, read_device_tree
from memmodel.sources.spans import Span
from tests.reference import memblock as twin

CASES = Path(__file__).parents[1] / "data" / "cases"
MIB, GIB = 1 << 20, 1 << 30
ARM = {size: Geometry(page_size=f"{size}KiB", arch="arm64", kernel="7.3") for size in (4, 16, 64)}
CELLS = "#address-cells = <2>; #size-cells = <2>; ranges;"
POOL = 'compatible = "shared-dma-pool"; reusable;'


def case(name, close_nodes=False):
    return read_device_tree(CASES / name, close_nodes=close_nodes)


def tree(*nodes):
    return parse_device_tree(f"reserved-memory {{ {CELLS} {' '.join(nodes)} }};", "f")


def areas(found):
    return {outcome.node.name: outcome.reservation for outcome in found.outcomes}


def test_case__a20_at_each_page_size():
    found = reserved_memory(case("dts-arm32-a20-cma-noreg-01.dts.txt"), ARM.values())
    small, middle, large = (outcome.reservation for outcome in found.outcomes)
    for area in (small, middle):  # the range leaves one place, 32 MiB aligned
        assert (area.accepted, area.base, area.size_bytes, area.reach) == (True, 0x4A000000, 96 * MIB, "below 4 GiB")
    assert (large.accepted, large.errno, large.alignment_bytes) == (False, -12, 512 * MIB)
    assert large.log == ("OF: reserved mem: failed to allocate memory for node 'cma@4a000000'",)


def test_case__imx91_does_not_survive_64k():
    found = reserved_memory(case("dts-arm64-imx91-256m-01.dts.txt"), ARM.values())
    small, middle, large = found.outcomes
    for outcome in (small, middle):
        area = outcome.reservation
        assert (area.accepted, area.base, area.reach, area.wasted_bytes) == (True, None, "below 4 GiB", 0)
        assert outcome.activation.cma_total_bytes == 256 * MIB
    assert large.reservation.log == (
        "Reserved memory: incorrect alignment of CMA region",
        "OF: reserved mem: node linux,cma compatible matching fail",
    )
    assert (large.reservation.errno, large.given_back, large.activation) == (-22, True, None)
    limited = ARM[64].replace(page_block_max_order=5)
    assert reserved_memory(case("dts-arm64-imx91-256m-01.dts.txt"), limited).outcomes[0].reservation.accepted


def test_case__zynqmp():
    (outcome,) = reserved_memory(case("dts-arm64-zynqmp-cma-default-01.dts.txt"), ARM[4]).outcomes
    assert outcome.reservation.reach == "beyond 4 GiB"
    (outcome,) = reserved_memory(case("dts-arm64-zynqmp-wholepool-01.dts.txt"), ARM[64]).outcomes
    area = outcome.reservation
    assert (area.accepted, area.base, area.alignment_bytes) == (True, 32 * GIB, 512 * MIB)
    assert outcome.bank_left_bytes == 0
    assert area.notes == ("alignment 4 KiB is not looked at: reg says where it lies",)
    assert outcome.activation.zone == "Normal"


def test_case__loongson_is_no_cma():
    board = case("dts-mips-loongson-notreusable-64m-01.dts.txt")
    for kernel, errno, given_back in (("6.1", -22, None), ("6.12.117", -22, None), ("7.3", -19, False)):
        geo = Geometry(page_size="16KiB", arch="generic", kernel=kernel)
        (outcome,) = reserved_memory(board, geo).outcomes
        assert (outcome.kind, outcome.reservation.accepted, outcome.reservation.errno) == ("pool", False, errno)
        assert outcome.reservation.error == "no CMA area: not reusable"
        assert outcome.given_back is given_back
        assert outcome.reservation.base % (32 * MIB) == 0


def test_case__unbalanced_with_its_nodes_closed():
    (outcome,) = reserved_memory(case("dts-arm64-cma-unbalanced-01.dts.txt", close_nodes=True), ARM[4]).outcomes
    area = outcome.reservation
    assert (area.base, area.requested_bytes, area.reach) == (None, 16 * MIB, "cannot be told")
    assert area.notes == (
        "alignment 8 KiB is less than a CMA area would have, 2 MiB",
        "no reg: placed at boot, wherever RAM has room",
    )
    node = f"cma {{ {POOL} size = <0 0x1000000>; alignment = <0 0x2000>; }};"
    (outcome,) = reserved_memory(tree(node), ARM[4]).outcomes
    assert (outcome.reservation.alignment_bytes, outcome.reservation.notes) == (
        2 * MIB,
        ("alignment raised from 8 KiB to 2 MiB", "no reg: placed at boot, wherever RAM has room"),
    )


def test_case__rpi_node_at_4k_and_64k():
    """cma-arm64-64k-reserve-fails: the same node, and the log of both kernels."""
    text = (CASES / "cma-arm64-64k-reserve-fails-01.txt").read_text()
    board = tree(f"linux,cma {{ {POOL} reg = <0 0x2ae00000 0 0x4000000>; }};")
    for size in (4, 64):
        (outcome,) = reserved_memory(board, Geometry(page_size=f"{size}KiB", arch="arm64", kernel="6.1.73")).outcomes
        assert outcome.reservation.accepted == (size == 4)
        assert all(line in text for line in outcome.reservation.log)
    assert outcome.reservation.granularity_bytes == 512 * MIB
    # taken with 2 MiB, so not with the 4 MiB of a build without THP and hugetlb
    other = Geometry(arch="arm64", transparent_hugepage=False, hugetlb=False, kernel="6.1.73")
    assert not reserved_memory(board, other).outcomes[0].reservation.accepted


def test_default_area__boot_line_against_node():
    board = tree(f"linux,cma {{ {POOL} size = <0 0x4000000>; linux,cma-default; }};")
    memory = MemoryMap([(GIB, GIB)])
    found = reserved_memory(board, ARM[4], config_bytes=16 * MIB, memory=memory)
    assert found.default_areas[0] is found.outcomes[0].reservation
    assert found.memory[0].reserved == (Span(2 * GIB - 64 * MIB, 64 * MIB),)
    for kernel in ("6.1", "6.12.117", "7.3"):
        found = reserved_memory(board, Geometry(kernel=kernel), cma="32M", memory=memory)
        (outcome,) = found.outcomes
        assert (outcome.reservation.errno, outcome.given_back) == (-16, True)
        assert outcome.reservation.error == "Reserved memory: bypass linux,cma node, using cmdline CMA params instead"
        assert found.memory[0].reserved == (Span(2 * GIB - 32 * MIB, 32 * MIB),)
    found = reserved_memory(board, ARM[4], cma="0", memory=memory)
    assert (found.default_areas, found.memory[0]) == ((None,), memory)
    assert (
        reserved_memory(tree("a { size = <0 4096>; };"), ARM[4], config_bytes=MIB).default_areas[0].size_bytes
        == 2 * MIB
    )


def test_placement__in_the_order_of_the_kernel():
    board = tree(
        f"first {{ {POOL} size = <0 0x4000000>; }};",
        "image@7c000000 { reg = <0 0x7c000000 0 0x4000000>; no-map; };",
        f"second {{ {POOL} size = <0 0x200000>; alloc-ranges = <0 0 0 0x40000000>, <0 0x50000000 0 0x8000000>; }};",
        "tiny { size = <0 4096>; };",
        "off { size = <0 4096>; status = 'disabled'; };".replace("'", '"'),
    )
    found = reserved_memory(board, ARM[4], memory=MemoryMap([(GIB, GIB)]))
    assert {name: area.base for name, area in areas(found).items()} == {
        "first": 0x78000000,  # fixed nodes come before it
        "image@7c000000": 0x7C000000,
        "second": 0x57E00000,  # no RAM in its first range
        "tiny": 0x77FFF000,
        "off": None,
    }
    assert [outcome.kind for outcome in found.outcomes] == ["cma", "reserved", "cma", "reserved", "reserved"]
    assert areas(found)["off"].error == "status is not okay: passed over"
    assert sum(span.size_bytes for span in found.memory[0].reserved) == (64 + 64 + 2) * MIB + 4096


def test_placement__next_to_another_node_is_not_guessed():
    board = tree(
        "image@60000000 { reg = <0 0x60000000 0 0x1000000>; };",
        f"cma {{ {POOL} size = <0 0x1000000>; alloc-ranges = <0 0x61000000 0 0x8000000>; }};",
    )
    area = areas(reserved_memory(board, ARM[4], memory=MemoryMap([(GIB, GIB)])))["cma"]
    assert (area.accepted, area.base, area.reach) == (True, None, "below 4 GiB")
    assert "not modelled" in area.notes[0]


def test_unsupported__no_node_is_taken():
    board = parse_device_tree(f"/dts-v1/; / {{ reserved-memory {{ a {{ {POOL} size = <4096>; }}; }}; }};", "f")
    (outcome,) = reserved_memory(board, ARM[4], memory=MemoryMap([(GIB, GIB)])).outcomes
    assert outcome.reservation.error == (
        "Reserved memory: unsupported node format, ignoring (reserved-memory has no #address-cells)"
    )


def test_rows__plain_values():
    found = reserved_memory(case("dts-arm64-imx91-256m-01.dts.txt"), ARM.values())
    row = found.rows()[2]
    assert (row["node"], row["page_size_bytes"], row["accepted"], row["given_back"]) == (
        "linux,cma",
        65536,
        False,
        True,
    )
    header, *rows = found.table()
    assert len(rows) == 3
    assert all(len(row) == len(header) for row in rows)
    assert rows[0][4] == "cannot be told"
    found = reserved_memory(case("dts-arm64-imx91-256m-01.dts.txt"), ARM.values(), cma="48M")
    *nodes, small, middle, large = found.table()
    assert len(nodes) == 4
    assert [row[2] for row in (small, middle, large)] == ["(default area)"] * 3
    assert [row[5] for row in (small, middle, large)] == ["48 MiB", "64 MiB", "512 MiB"]


def test_bank_left__without_any_region_of_a_node():
    memory = "/ { memory@0 { device_type = 'memory'; reg = <0 0 0 0x40000000>; }; };".replace("'", '"')
    nodes = "a { reg = <0 0 0 0x1000000>, <0 0x8000000 0 0x1000000>; }; b { reg = <0 0x10000000 0 0x1000000>; };"
    board = parse_device_tree(f"{memory} / {{ reserved-memory {{ {CELLS} {nodes} }}; }};", "f")
    first, second = reserved_memory(board, ARM[4]).outcomes
    assert first.bank_left_bytes == second.bank_left_bytes == (1024 - 3 * 16) * MIB


def test_reserved_memory__refused():
    board = tree("a { size = <0 4096>; };")
    with pytest.raises(InputError, match="no geometry given"):
        reserved_memory(board, [])
    with pytest.raises(InputError, match="no geometry given"):
        reserved_memory(board, ["4KiB"])
    with pytest.raises(InputError, match="cma='x' is no size"):
        reserved_memory(board, ARM[4], cma="x")
    with pytest.raises(InputError, match="is no MemoryMap"):
        reserved_memory(board, ARM[4], memory=[(0, GIB)])
    with pytest.raises(InputError, match="are whole, not negative"):
        reserved_memory(board, ARM[4], config_bytes="64M")


NODES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20), st.booleans(), st.booleans(), st.integers(0, 40)), max_size=4
)


@settings(deadline=None, max_examples=60)
@given(nodes=NODES, ram=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=3))
def test_reserved_memory__holds_for_all(nodes, ram):
    """Placed nodes are aligned, in RAM and over nothing taken; what is refused leaves memory as it was."""
    texts = []
    for at, (base, n_units, fixed, reusable, window) in enumerate(nodes):
        kind = POOL if reusable else 'compatible = "shared-dma-pool";'
        place = f"reg = <0 {base * MIB} 0 {n_units * MIB}>;" if fixed else f"size = <0 {n_units * MIB}>;"
        if window and not fixed:
            place += f" alloc-ranges = <0 {base * MIB} 0 {window * MIB}>;"
        texts.append(f"n{at} {{ {kind} {place} }};")
    if not texts:
        return
    memory = MemoryMap([(base * MIB, size * MIB) for base, size in ram])
    found = reserved_memory(tree(*texts), ARM[4], memory=memory)
    taken = []
    for outcome in sorted(found.outcomes, key=lambda outcome: outcome.node.reg is None):
        area = outcome.reservation
        if outcome.given_back or area.span is None:
            continue
        if outcome.node.reg is None:
            assert area.base % area.alignment_bytes == 0
            assert any(bank.holds(area.span) for bank in memory.memory)
            assert not any(area.span.overlaps(other) for other in taken)
            assert not outcome.node.alloc_ranges or outcome.node.alloc_ranges[0].holds(area.span)
        taken.append(area.span)
    units = [(span.base // MIB, span.size_bytes // MIB) for span in taken]
    left = [(span.base // MIB, span.size_bytes // MIB) for span in found.memory[0].reserved]
    assert twin.free_addresses(ram, left) >= twin.free_addresses(ram, units)

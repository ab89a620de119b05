import json
import pickle
from pathlib import Path

import pytest

from memmodel.cost.machines import DIRECTIONS, PAIR_OF_DIRECTION, PAIRS, load_machine, machine_names
from memmodel.errors import InputError

NUMBER = '{ value = 100.0, unit = "ns per 4 KiB", source = "bench", how = "fitted" }'
GOOD = f"""
[host]
about = "a host"
folio_overhead = {{ value = 0, unit = "ns per folio", source = "bench", how = "assumed" }}
overlap_exponent = {{ value = 2.0, unit = "1", source = "bench", how = "fitted" }}
largest_extent = {{ value = 1048576, unit = "bytes", source = "bench", how = "published" }}
memory.DRAM-DRAM = {NUMBER}
core."4KiB" = {NUMBER}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_machine(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_machine_names__all() -> None:
    assert machine_names() == (
        *("zen6-cxl", "zen5-cxl", "zen3", "westmere"),
        *("zen3-32c", "haswell-2s", "arm64-128c", "milan"),
    )


def test_load_machine__zen6_numbers() -> None:
    machine = load_machine("zen6-cxl")
    memory = {pair: number.value for pair, number in machine.memory}
    assert memory == {"DRAM-DRAM": 70.8, "DRAM-CXL": 86.3, "CXL-DRAM": 186.2}
    assert [(extent, number.value) for extent, number in machine.core] == [
        (4 << 10, 180.1),
        (2 << 20, 115.0),
        (32 << 20, 0.0),
    ]
    assert machine.core[-1][1].how == "assumed"
    assert machine.forms == ("L", "F")


def test_load_machine__zen6_form_l_has_seven_fitted_numbers() -> None:
    machine = load_machine("zen6-cxl")
    numbers = [number for _, number in (*machine.memory, *machine.core)]
    numbers += [machine.folio_overhead, machine.overlap_exponent]
    assert sum(number.how == "fitted" for number in numbers) == 7


@pytest.mark.parametrize("name", machine_names())
def test_load_machine__hashable_picklable_and_fit_for_json(name: str) -> None:
    machine = load_machine(name)
    assert machine == load_machine(name)
    assert hash(machine) == hash(load_machine(name))
    assert pickle.loads(pickle.dumps(machine)) == machine
    assert json.loads(json.dumps(machine.as_dict())) == machine.as_dict()
    assert len(machine.digest) == 64


def test_digest__tells_machines_apart() -> None:
    assert len({load_machine(name).digest for name in machine_names()}) == len(machine_names())


@pytest.mark.parametrize("name", machine_names())
def test_to_toml__reads_back(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    again = load_machine(write(tmp_path, machine.to_toml()))
    assert again == machine
    assert again.digest == machine.digest


def test_load_machine__own_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    machine = load_machine(path)
    assert machine.name == "host"
    assert load_machine(str(path)) == machine
    assert dict(machine.memory)["DRAM-DRAM"].value == 100.0
    assert machine.forms == ("L",)


def test_load_machine__westmere_cycles_become_ns() -> None:
    machine = load_machine("westmere")
    ((_, number),) = machine.core
    assert number.value == 280
    assert machine.ns(number) == pytest.approx(280 / 2.66)


def test_load_machine__unknown_name_lists_the_choices() -> None:
    with pytest.raises(InputError, match="unknown machine 'zen7'; one of: zen6-cxl, zen5-cxl, zen3, westmere"):
        load_machine("zen7")
    with pytest.raises(InputError, match="machine 6 is neither a name nor a path; names: zen6-cxl"):
        load_machine(6)  # type: ignore[arg-type]


def test_directions__every_one_has_a_pair() -> None:
    assert [PAIRS[pair] for pair in PAIR_OF_DIRECTION] == ["DRAM-DRAM", "DRAM-DRAM", "DRAM-CXL", "CXL-DRAM"]
    assert len(DIRECTIONS) == len(PAIR_OF_DIRECTION)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("value = 100.0", "value = -1.0", "host.memory.DRAM-DRAM.value: -1.0 is not within 0 and 1e+09 ns per 4 KiB"),
        ("value = 100.0", "value = nan", "host.memory.DRAM-DRAM.value: nan is not within"),
        ("value = 100.0", "value = inf", "host.memory.DRAM-DRAM.value: inf is not within"),
        ("value = 100.0", 'value = "100"', "host.memory.DRAM-DRAM.value: '100' is not a number"),
        ("value = 100.0", "value = true", "host.memory.DRAM-DRAM.value: True is not a number"),
        ("value = 100.0", "value = 0x" + "f" * 5000, "a value of type int is not within"),
        ("value = 100.0", "value = [1]", "a value of type list is not a number"),
        ("value = 100.0, ", "", "host.memory.DRAM-DRAM: value is missing"),
        ('unit = "ns per 4 KiB"', 'unit = "GB/s"', "unknown unit 'GB/s'; one of: ns per 4 KiB"),
        ('unit = "ns per 4 KiB"', 'unit = "cycles per 4 KiB"', "unknown unit 'cycles per 4 KiB'"),
        ('how = "fitted"', 'how = "guessed"', "unknown how 'guessed'; one of: fitted, published, derived, assumed"),
        ('source = "bench"', 'source = ""', "source: '' is not text"),
        ('source = "bench"', "source = 3", "source: 3 is not text"),
        ("value = 2.0", "value = 0.5", "host.overlap_exponent.value: 0.5 is not within 1 and 100"),
        ("value = 1048576", "value = 1024", "host.largest_extent.value: 1024 is not within 4096"),
        ('about = "a host"', "about = 1", "host.about: 1 is not text"),
        ('about = "a host"', "", "host: about is missing"),
        ('about = "a host"', 'about = "x"\ncolour = 1', "host: unknown key 'colour'; allowed: about, memory"),
        ("DRAM-DRAM", "DRAM-HBM", "host.memory: unknown key 'DRAM-HBM'; allowed: DRAM-DRAM, DRAM-CXL, CXL-DRAM"),
        ('core."4KiB"', 'core."8KiB"', "host.core: starts at 8 KiB; the first extent must be 4 KiB"),
        ('core."4KiB"', 'core."4 pages"', "host.core: extent '4 pages' is not a number of bytes"),
        ('core."4KiB"', 'core."2KiB"', "host.core: extent '2KiB' is not within 4 KiB"),
        ('core."4KiB"', f'core."4096" = {NUMBER}\ncore."4KiB"', "host.core: extent 4 KiB is given twice"),
        (f"memory.DRAM-DRAM = {NUMBER}", "memory = {}", "host.memory: empty; give one of: DRAM-DRAM"),
        (f"memory.DRAM-DRAM = {NUMBER}", "memory = 3", "host.memory: 3 is not a table"),
        (f'core."4KiB" = {NUMBER}', "core = []", "host.core: a value of type list is not a table of extents"),
        ("[host]", "[other]\n[host]", "holds one table, named as the machine; found: other, host"),
        ("[host]", "", "holds one table"),
    ],
)
def test_load_machine__bad_file(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    assert message in refusal(write(tmp_path, GOOD.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "found: none"),
        (b"a = 1\n[x\n", ":2: not TOML"),
        (b"\n\n\xff\xfe", ":3: byte 0xff is not UTF-8"),
        (b"\x00\x01\x02", ":1: not TOML"),
        (b"a = " + b"9" * 6000, "not TOML"),
        (b"a = " + b"[" * 20000, "not TOML"),
        (b"x = 1", "x: 1 is not a table"),
        (b"a = 2026-99-99", ":1: not TOML"),
    ],
)
def test_load_machine__not_a_machine_file(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(raw)
    assert message in refusal(path)


def test_load_machine__no_such_file(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "none.toml")
    assert "cannot be read" in refusal(tmp_path)


def test_load_machine__limit_form_is_checked(tmp_path: Path) -> None:
    text = load_machine("zen6-cxl").to_toml()
    broken = text.replace('"per_call"', '"per_page"')
    assert "limit: unknown key 'per_page'" in refusal(write(tmp_path, broken))


PART_KEYS = {
    "call": "ns per call",
    "unmap_folio": "ns per folio",
    "unmap_pte": "ns per PTE",
    "remap_pte": "ns per PTE",
    "flush_full": "ns per flush",
    "flush_page": "ns per flush",
    "flush_request": "ns per request",
    "flush_receiver": "ns per IPI",
}


def number(unit: str, value: float = 1.0) -> str:
    return f'{{ value = {value}, unit = "{unit}", source = "bench", how = "fitted" }}'


PART = "\n[host.migration]\n" + "\n".join(f"{key} = {number(unit)}" for key, unit in PART_KEYS.items())
DMA = f"""
[host.migration.dma]
batch = {number("ns per batch")}
below_pmd = {number("ns per 4 KiB")}
channels = {{ 4 = {number("ns per 4 KiB")}, 1 = {number("ns per 4 KiB")} }}
"""


def test_load_machine__migration_part(tmp_path: Path) -> None:
    assert load_machine(write(tmp_path, GOOD)).migration is None
    machine = load_machine(write(tmp_path, GOOD + PART + DMA))
    part = machine.migration
    assert part is not None
    assert part.flush_receiver.unit == "ns per IPI"
    assert part.flush_broadcast is part.threads is None
    assert part.dma is not None
    assert [count for count, _ in part.dma.channels] == [1, 4]
    assert load_machine(write(tmp_path, machine.to_toml())) == machine
    assert machine.digest != load_machine(write(tmp_path, GOOD)).digest


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (f"call = {number('ns per call')}", "", "host.migration: call is missing"),
        ("unmap_pte", "unmap_ptes", "host.migration: unknown key 'unmap_ptes'; allowed: call, unmap_folio"),
        (
            '"ns per request"',
            '"ns per flush"',
            "host.migration.flush_request: unknown unit 'ns per flush'; one of: ns per r",
        ),
        (
            "[host.migration.dma]",
            "[host.migration.threads]",
            "host.migration.threads: unknown key 'batch'; allowed: ccd_th",
        ),
        ("{ 4 = ", "{ four = ", "host.migration.dma.channels: 'four' is not a number of channels from 1 to 1024"),
        ("{ 4 = ", "{ 0 = ", "'0' is not a number of channels"),
        ("{ 4 = ", "{ 01 = ", "host.migration.dma.channels: 1 channels are given twice"),
        ("channels = {", "channels = 4 #", "host.migration.dma.channels: 4 is not a table of channels"),
        ("below_pmd", "below_thp", "host.migration.dma: unknown key 'below_thp'; allowed: batch, below_pmd, channels"),
    ],
)
def test_load_machine__bad_migration_part(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in PART + DMA
    assert message in refusal(write(tmp_path, GOOD + (PART + DMA).replace(old, new, 1)))


def test_load_machine__clear_numbers(tmp_path: Path) -> None:
    text = GOOD.replace('about = "a host"', f'about = "a host"\nclear_fault = {number("ns per folio", 7.0)}')
    machine = load_machine(write(tmp_path, text))
    assert machine.clear_fault is not None
    assert machine.clear_fault.value == 7
    assert machine.clear_scattered is None
    assert load_machine(write(tmp_path, machine.to_toml())) == machine
    assert "clear_fault: unknown unit" in refusal(
        write(
            tmp_path,
            text.replace(
                'ns per folio", source = "bench", how = "fitted', 'ns per call", source = "bench", how = "fitted', 1
            ),
        )
    )

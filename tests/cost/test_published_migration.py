from collections import Counter

import pytest

from memmodel.cost.published_migration import (
    demotion_table,
    published_clear_rates,
    published_migration_rates,
    published_thp_copies,
    tlb_table,
)


def test_published_migration_rates__tables() -> None:
    rates = published_migration_rates()
    assert Counter((rate.table, rate.impl) for rate in rates) == {
        ("folio_size", "page_by_page"): 20,
        ("folio_size", "threads"): 48 + 5,
        ("folio_size", "dma"): 72 + 5,
        ("placement", "threads"): 10,
        ("folios_a_call", "page_by_page"): 9,
        ("folios_a_call", "threads"): 17,
        ("folios_a_call", "dma"): 17,
    }
    keys = [(r.table, r.series, r.impl, r.n, r.placement, r.folio_kib, r.folios_per_call) for r in rates]
    # V2 and V3 give their one-thread series of folios a call by one name each: none is there twice
    assert len(set(keys)) == len(keys)
    assert all(rate.gb_per_s > 0 and rate.source for rate in rates)


@pytest.mark.parametrize(
    ("place", "mean", "sd"),
    [
        (("folio_size", "V3", "page_by_page", 1, 4), 3.73, 0.33),
        (("folio_size", "V4", "page_by_page", 1, 256), 7.12, 0.83),
        (("folio_size", "V5", "page_by_page", 1, 2048), 11.02, 0.17),
        (("folio_size", "V3", "threads", 16, 2048), 35.89, 2.07),
        (("folio_size", "V3", "dma", 1, 16), 2.86, 0.13),
        (("folio_size", "V2", "dma", 16, 2048), 55.45, 1.20),
    ],
)
def test_published_migration_rates__values(place: tuple[object, ...], mean: float, sd: float) -> None:
    (cell,) = [r for r in published_migration_rates() if (r.table, r.series, r.impl, r.n, r.folio_kib) == place]
    assert (cell.gb_per_s, cell.sd) == (mean, sd)


def test_published_thp_copies__time_besides_the_copy() -> None:
    rows = published_thp_copies()
    thps = [row for row in rows if row.folio_kib == 2048]
    assert len(rows) == 16
    assert len(thps) == 14
    alone = {row.n: row.rest_ns / 1e3 for row in thps if row.n_folios == 1 and row.impl == "threads"}
    assert alone == {
        n: pytest.approx(us, abs=0.06) for n, us in ((1, 33.3), (2, 36.8), (4, 36.7), (8, 35.0), (16, 34.7))
    }
    batched = [row.rest_ns / 1e3 for row in thps if row.batched]
    assert batched == [pytest.approx(us, abs=0.06) for us in (24.0, 24.3, 23.9, 24.0)]


def test_published_clear_rates__values() -> None:
    rates = published_clear_rates()
    assert Counter(rate.benchmark for rate in rates) == {"memset": 3, "demand_fault": 30}
    whole = [r.gib_per_s for r in rates if r.folio_kib == 1 << 20 and r.batch == "extent" and r.preempt == "full"]
    assert whole == [42.17, 43.23, 40.03, 42.80, 37.24, 12.18, 49.60]


def test_demotion_table__eight_numbers() -> None:
    table = demotion_table()
    assert len(table) == 8
    assert [table["base", name] for name in ("kswapd_cpu", "kswapd_cpu_per_gb", "demoted_direct", "allocstall")] == [
        4.25, 63.6, 14.1, 7427
    ]  # fmt: skip
    assert table["patched", "allocstall"] == 370


def test_tlb_table__exact_counts() -> None:
    table = tlb_table()
    assert table["XSBench -p 5e7, 16 CPUs", "6.6-rc5", "nr_tlb_remote_flush_received"] == 29028093
    assert table["memhog 1G and migratepages, arm64, 128 CPUs", "before", "ptep_clear_flush"] == 27.78
    assert table["riscv in qemu", "batched", "time"] == 60.543

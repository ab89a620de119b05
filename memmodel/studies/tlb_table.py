"""Published numbers of TLB flush batching beside the model: the mail, its followers, and the fan-out of IPIs."""

from collections.abc import Iterator

from memmodel.cost.machines import load_machine
from memmodel.cost.migration import price_migration
from memmodel.cost.published_migration import tlb_table
from memmodel.cost.tlb_batch import (
    READINGS,
    TlbMail,
    published_tlb_mail,
    time_without_flushes,
    tlb_batch_gain,
)
from memmodel.studies.comparison import Row
from memmodel.studies.folio_size import move_counts

__all__ = ["reading_lines", "tlb_batch_rows"]

MAIL = "20220921060616.73086-1-ying.huang@intel.com"
ARM64 = "memhog 1G and migratepages, arm64, 128 CPUs"
BATCH_PAGES = 512  # NR_MAX_BATCHED_MIGRATION
_SHARES = ("Snapdragon 888 swap", "Kunpeng 920 swap, real", "riscv in qemu")
_MAIL_TABLE = "TLB flush batching, 2-socket Intel"
_TIME_TABLE = "Time with batched flushes, if nothing but the flush changed"


def tlb_batch_rows(pages_per_flush: float = BATCH_PAGES) -> tuple[Row, ...]:
    """Published numbers of TLB flush batching beside the model's.

    Parameters
    ----------
    pages_per_flush
        Pages that a flush serves where migrate_pages() batches, as counted; the kernel's limit is 512.

    Notes
    -----
    Calibrated: the growth of the rest of a page, from the rate itself, so that the rate says nothing about the model.
    Predicted: the IPIs saved, from `pages_per_flush` alone; the runs of others from the share of the flush in their
    time before; how many IPIs a flush sends, one to each other CPU.
    """
    return (*_mail_rows(pages_per_flush), *_time_rows(pages_per_flush), *_fan_out_rows())


def reading_lines() -> Iterator[str]:
    """The mail's two numbers under both readings of "during the test", and where the rate comes from, by phase."""
    mail = published_tlb_mail()
    yield f"IPIs -{100 * mail.ipis:.1f} %, pages/s +{100 * mail.pages_per_s:.1f} % ({1 + mail.pages_per_s:.3f} times)"
    yield f"  perf: the flush was {mail.flush_share:.3f} of the time; without any {mail.bound:.2f} times the pages/s"
    yield f"  the flush alone changed: then it was {mail.flush_share_alone:.3f} of the time"
    for reading in READINGS:
        n, k = mail.pages_per_flush(reading), mail.rest_growth(reading)
        gain = tlb_batch_gain(n, mail.flush_share, k)
        yield (
            f"  {reading.replace('_', ' ')}: {n:.0f} pages a flush, the rest of a page {k:.2f} times as dear:"
            f" flush {float(gain.flush):.4f} + rest {float(gain.rest):.4f} of the old time of a page"
        )
    yield from _phase_lines(mail)


def _phase_lines(mail: TlbMail) -> Iterator[str]:
    new = mail.new_flush + mail.new_copy + mail.new_other
    yield f"  before: flush {mail.flush_share:.3f}, all else {1 - mail.flush_share:.3f}"
    yield (
        f"  after:  unmap and flush {mail.new_flush:.3f}, copy {mail.new_copy:.3f}, all else {mail.new_other:.3f},"
        f" together {new:.3f}: {1 / new:.2f} times the pages/s"
    )


def _mail_rows(pages_per_flush: float) -> Iterator[Row]:
    mail = published_tlb_mail()
    gain = tlb_batch_gain(pages_per_flush, mail.flush_share, mail.rest_growth("equal_time"))
    n = f"{pages_per_flush:g} pages a flush"
    saved = ((f"IPIs saved over equal {what}, {n}", float(x)) for what, x in
             (("time", gain.ipis_equal_time), ("pages", gain.ipis_equal_pages)))  # fmt: skip
    for label, share in saved:
        yield Row(_MAIL_TABLE, label, 100 * mail.ipis, 100 * share, "%", MAIL, False)
    rate = 100 * float(gain.pages_per_s)
    yield Row(_MAIL_TABLE, f"pages/s, {n}", 100 * mail.pages_per_s, rate, "%", MAIL, True)


def _time_rows(pages_per_flush: float) -> Iterator[Row]:
    table = tlb_table()
    machine = load_machine("arm64-128c")
    counts = move_counts(1 << 18, 1, by_folio=False)
    for kernel, full in (("before", 0.0), ("batched", (1 << 18) / pages_per_flush)):
        pages = 0.0 if full else 1 << 18
        time = price_migration(counts._replace(n_flushes_full=full, n_flushes_page=pages), machine)
        published, modelled = table[ARM64, kernel, "time"], float(time.total_ns) / 1e9
        source = f"Xin Hao, follow-up to {MAIL}"
        yield Row(_TIME_TABLE, f"{ARM64}, {kernel}", published, modelled, "s", source, kernel == "before")
    for case in _SHARES:
        share = table[case, "before", "ptep_clear_flush"] / 100
        modelled = float(time_without_flushes(table[case, "before", "time"], share))
        yield Row(_TIME_TABLE, case, table[case, "batched", "time"], modelled, "s", "commit 43b3dfdd0455", False)


def _fan_out_rows() -> Iterator[Row]:
    """A flush interrupts every other CPU that runs the process: 15 of 16."""
    for (case, kernel, quantity), sent in tlb_table().items():
        if quantity == "nr_tlb_remote_flush":
            cpus = int(case.split(", ")[1].removesuffix(" CPUs"))
            published = tlb_table()[case, kernel, "nr_tlb_remote_flush_received"]
            source = "migrc RFC v3, spinics linux-mm msg360359"
            label = f"{case}, {kernel}"
            yield Row("Flushes received for those sent", label, published, sent * (cpus - 1), "1", source, False)

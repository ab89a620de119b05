"""Published rates of clearing beside the study `clear_pages`."""

from collections.abc import Iterator

from memmodel.cost.machines import load_machine
from memmodel.cost.model import clear_ns, throughput_gib_per_s
from memmodel.cost.published_migration import ClearRate, published_clear_rates
from memmodel.studies.comparison import Row
from memmodel.studies.sweep import run_study
from memmodel.units import format_bytes

__all__ = ["FITTED_CPU", "clear_rows", "gain_rows"]

FITTED_CPU = "EPYC 7J13"
BATCH_BYTES = 8 << 20
_WORDS = {"page": "by page", "extent": "by extent"}


def clear_rows() -> tuple[Row, ...]:
    """Demand faults on Milan with the machine ``milan``, memset by chunk with ``zen3``.

    Fitted were the rates of the EPYC 7J13 and those of memset; other Milans are predicted. Icelake has no machine.
    """
    rates = [rate for rate in published_clear_rates() if "Icelake" not in rate.cpu]
    faults = [rate for rate in rates if rate.benchmark == "demand_fault"]
    chunks = [rate for rate in rates if rate.benchmark == "memset"]
    return (*_fault_rows(faults), *_memset_rows(chunks))


def gain_rows() -> tuple[Row, ...]:
    """What an extent gains over clearing page by page: both rates of a pair from the same mail, on one machine.

    The step: a 1 GiB folio gains little by batches of 8 MiB, and 2.3 to 2.6 times by one call.
    """
    fault = {
        (rate.cpu, rate.version, rate.folio_kib, rate.preempt, rate.batch): rate
        for rate in published_clear_rates()
        if rate.benchmark == "demand_fault" and "Icelake" not in rate.cpu
    }
    modelled = {rate: row.modelled for rate, row in zip(fault.values(), _fault_rows(list(fault.values())), strict=True)}
    rows = []
    for key, after in fault.items():
        if key[-1] == "extent":
            before = fault[(*key[:-1], "page")]
            gain = modelled[after] / modelled[before]
            label = f"{after.cpu} {after.version}, {_what(after)}"
            published = after.gib_per_s / before.gib_per_s
            rows.append(
                Row("Gain of clear_pages()", label, published, gain, "1", after.source, after.cpu == FITTED_CPU)
            )
    return tuple(rows)


def _fault_rows(rates: list[ClearRate]) -> Iterator[Row]:
    cases = [
        {
            "folio_order": (rate.folio_kib // 4).bit_length() - 1,
            "batch": rate.batch,
            "preempt": "full" if rate.preempt == "any" else rate.preempt,
        }
        for rate in rates
    ]
    ds = run_study("clear_pages", {"batch_bytes": BATCH_BYTES}, cases=cases, machine="milan", seed=0)
    for rate, modelled in zip(rates, ds["throughput_gib_per_s"].values.tolist(), strict=True):
        fitted = rate.cpu == FITTED_CPU
        table = f"Demand faults, {FITTED_CPU}" if fitted else "Demand faults, other Milans"
        label = f"{rate.version if fitted else rate.cpu}, {_what(rate)}, {_WORDS[rate.batch]}"
        yield Row(table, label, rate.gib_per_s, modelled, "GiB/s", rate.source, fitted, rate.sd)


def _memset_rows(rates: list[ClearRate]) -> Iterator[Row]:
    machine = load_machine("zen3")
    for rate in rates:
        chunk = rate.folio_kib << 10
        modelled = float(throughput_gib_per_s(chunk, clear_ns(chunk, chunk, machine)))
        yield Row("memset by chunk, Milan", format_bytes(chunk), rate.gib_per_s, modelled, "GiB/s", rate.source, True)


def _what(rate: ClearRate) -> str:
    cut = {"any": "", "none": ", batches of 8 MiB", "full": ", whole"}[rate.preempt] if rate.batch == "extent" else ""
    return f"{format_bytes(rate.folio_kib << 10)}{cut}"

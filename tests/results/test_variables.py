from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from memmodel.errors import InputError
from memmodel.results.variables import VARIABLES, PointStatus, catalogue, variable

FOLIO_COPY = """throughput_gib_per_s time_total_ns time_copy_ns time_core_ns time_memory_ns time_folio_overhead_ns
n_calls n_resched worst_nonpreemptible_ns longest_stretch_bytes folios_moved folios_failed folios_failed_share
bytes_moved panicked queue_dropped n_errors alloc_failed calibrated status""".split()


@pytest.mark.parametrize("name", FOLIO_COPY)
def test_variables__folio_copy_has_all_its_outputs(name):
    assert variable(name).name == name


@pytest.mark.parametrize("entry", VARIABLES.values(), ids=lambda entry: entry.name)
def test_variables__every_entry_is_complete_and_frozen(entry):
    assert entry.units
    assert entry.long_name
    assert entry.doc.endswith(".")
    assert "int8" == entry.dtype if entry.flags else np.dtype(entry.dtype).kind in "fiU"
    with pytest.raises(FrozenInstanceError):
        entry.units = "m"


@pytest.mark.parametrize("entry", VARIABLES.values(), ids=lambda entry: entry.name)
def test_variables__units_follow_the_ending_of_the_name(entry):
    for ending, units in (("_gib_per_s", "GiB s-1"), ("pages_per_s", "s-1"), ("_bytes", "byte"), ("_ns", "ns")):
        if entry.name.endswith(ending):
            assert entry.units == units
    if entry.name.startswith("n_"):
        assert (entry.units, entry.dtype) == ("1", "float64")


def test_variable__unregistered_name():
    with pytest.raises(InputError, match="'n_nothing' is not registered"):
        variable("n_nothing")


def test_catalogue__duplicate_name():
    with pytest.raises(InputError, match="'status' is registered twice"):
        catalogue([variable("status")], [replace(variable("status"), units="m")])


def test_catalogue__is_read_only():
    with pytest.raises(TypeError):
        VARIABLES["status"] = variable("case")


def test_status__codes():
    assert [int(code) for code in PointStatus] == [0, 1, 2, 3]
    assert variable("status").flags == ("ok", "refused_input", "invariant_broken", "error")

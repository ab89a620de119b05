import numpy as np
import pytest

from memmodel.errors import InputError
from memmodel.studies import registry
from memmodel.studies.registry import Parameter, find_study

from .tiny_study import STUDY

ORDER = Parameter("order", 9, "Order of the folios. More.", kind="int", range=(0, 18))
RATE = Parameter("rate", 0.5, "Rate", "GiB-1", range=(0, None))
MODE = Parameter("mode", "async", "Mode", kind="choice", choices=("async", "sync"))
SIZE = Parameter("size", 4096, "Size", "byte", kind="int", choices=(4096, 16384))


@pytest.mark.parametrize(
    ("parameter", "given", "expected"),
    [
        (ORDER, 3, 3),
        (ORDER, np.uint8(3), 3),
        (ORDER, 3.0, 3),
        (ORDER, " 3 ", 3),
        (RATE, 2, 2.0),
        (RATE, np.float32(0.5), 0.5),
        (RATE, "1e-3", 0.001),
        (MODE, np.str_("sync"), "sync"),
        (SIZE, "16384", 16384),
    ],
)
def test_cast__allowed(parameter, given, expected):
    found = parameter.cast(given)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("parameter", "given", "message"),
    [
        (ORDER, 19, "parameter order: 19 is not allowed; whole numbers from 0 to 18"),
        (ORDER, 2.5, "2.5 is not allowed"),
        (ORDER, True, "True is not allowed"),
        (ORDER, np.True_, "True is not allowed"),
        (ORDER, None, "None is not allowed"),
        (ORDER, "2.0", "'2.0' is not allowed"),
        (ORDER, 2**70, "is not allowed"),
        (ORDER, float("inf"), "inf is not allowed"),
        (RATE, -1, "parameter rate: -1 is not allowed; numbers from 0 up"),
        (RATE, float("nan"), "nan is not allowed"),
        (RATE, "nan", "'nan' is not allowed"),
        (RATE, "", "'' is not allowed"),
        (RATE, 10**400, "is not allowed"),
        (MODE, "light", "parameter mode: 'light' is not allowed; one of: async, sync"),
        (MODE, 1, "1 is not allowed"),
        (SIZE, 8192, "8192 is not allowed; one of: 4096, 16384"),
    ],
)
def test_cast__refused(parameter, given, message):
    with pytest.raises(InputError) as caught:
        parameter.cast(given)
    assert message in str(caught.value)


def test_cast__bounds_that_are_no_whole_numbers():
    parameter = Parameter("share", 0.5, "Share", range=(None, 0.75))
    with pytest.raises(InputError, match=r"numbers up to 0\.75"):
        parameter.cast(1)
    assert Parameter("any", 1, "Any").allowed == "numbers"
    assert Parameter("text", "", "Text", kind="str").allowed == "any text"


def test_parameter__default_is_checked():
    with pytest.raises(InputError, match="parameter order: 5 is not allowed"):
        Parameter("order", 5, "Order", kind="int", range=(0, 4))


def test_parameter__column_and_variable():
    assert ORDER.column([1, 2.0]).dtype == np.int64
    assert RATE.column([1]).dtype == np.float64
    assert MODE.column(["sync"]).dtype.kind == "U"
    entry = ORDER.variable()
    assert (entry.name, entry.dtype, entry.long_name) == ("order", "int64", "Order of the folios")
    assert MODE.variable().dtype == "str"


def test_study__unknown_parameter():
    with pytest.raises(InputError, match="unknown parameter of study tiny 'size'; one of: folio_order, poison_per_gib"):
        STUDY.parameter("size")
    assert STUDY.title == "How fast is nothing copied?"


def test_bind__refuses_what_the_study_does_not_use():
    assert STUDY.bind({}) is STUDY.block
    with pytest.raises(InputError, match="study tiny uses no memory"):
        STUDY.bind({"memory": object()})


def test_find_study__lazily_by_name(monkeypatch):
    monkeypatch.setitem(registry.STUDIES, "tiny", STUDY.block.__module__)
    assert find_study("tiny").name == "tiny"
    with pytest.raises(InputError, match="unknown study 'large'; one of: "):
        find_study("large")

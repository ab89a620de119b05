import pytest

from memmodel.errors import InputError
from memmodel.sources.cma_options import CmaOption, config_cma_bytes, parse_cma
from memmodel.sources.kconfig import read_kconfig

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "option", "is_fixed"),
    [
        ("64M", CmaOption(64 * MIB), False),
        ("0", CmaOption(0), False),
        ("0x1000k", CmaOption(4 * MIB), False),
        ("16M@0x10000000", CmaOption(16 * MIB, 0x10000000, 0x11000000), True),
        ("16M@256M-512M", CmaOption(16 * MIB, 256 * MIB, 512 * MIB), False),
        ("16M@0-1G", CmaOption(16 * MIB, 0, 1 << 30), False),
        ("console=ttyS0 cma=5M quiet cma=40M gt_cma=1M", CmaOption(40 * MIB), False),
    ],
)
def test_parse_cma(text, option, is_fixed):
    assert parse_cma(text) == option
    assert parse_cma(text).is_fixed == is_fixed


@pytest.mark.parametrize("text", ["", "cma=", "64MiB", "-1", "64M@", "64M-1G", "console=ttyS0", "64M@1G-"])
def test_parse_cma__refused(text):
    with pytest.raises(InputError, match="is no size; allowed: SIZE"):
        parse_cma(text)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("MBYTES", 16 * MIB), ("PERCENTAGE", 25 * 4096), ("MIN", 25 * 4096), ("MAX", 16 * MIB)],
)
def test_config_cma_bytes(mode, expected):
    text = f"CONFIG_DMA_CMA=y\nCONFIG_CMA_SIZE_SEL_{mode}=y\nCONFIG_CMA_SIZE_MBYTES=16\nCONFIG_CMA_SIZE_PERCENTAGE=10\n"
    assert config_cma_bytes(read_kconfig(text), 255 * 4096) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CONFIG_DMA_CMA=y\n", "shows no CONFIG_CMA_SIZE_SEL_"),
        ("CONFIG_CMA_SIZE_SEL_MBYTES=y\n", "CONFIG_CMA_SIZE_MBYTES is not shown"),
        ("CONFIG_CMA_SIZE_SEL_PERCENTAGE=y\nCONFIG_CMA_SIZE_PERCENTAGE=10\n", "the size of RAM is needed"),
    ],
)
def test_config_cma_bytes__not_told(text, message):
    with pytest.raises(InputError, match=message):
        config_cma_bytes(read_kconfig(text))
    assert config_cma_bytes(read_kconfig("# CONFIG_DMA_CMA is not set\n" + text.replace("CONFIG_DMA_CMA=y\n", ""))) == 0

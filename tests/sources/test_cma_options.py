import pytest

from memmodel.errors import InputError
from memmodel.sources.cma_options import CmaOption, config_cma_bytes, option_of, parse_cma
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


@pytest.mark.parametrize(
    "text", ["", "cma=", "64MiB", "-1", "64M@", "64M-1G", "console=ttyS0", "64M@1G-", "16E", "9" * 5000]
)
def test_parse_cma__refused(text):
    with pytest.raises(InputError, match="is no size; allowed: SIZE") as caught:
        parse_cma(text)
    assert len(str(caught.value)) < 200


def test_option_of__text_or_option():
    assert option_of(None) is None
    assert option_of(CmaOption(MIB)) == option_of("1M") == CmaOption(MIB)
    with pytest.raises(InputError, match="cma=67108864 is no size"):
        option_of(64 * MIB)


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
        (
            "CONFIG_CMA_SIZE_SEL_MBYTES=y\nCONFIG_CMA_SIZE_MBYTES=-5\n",
            "<text>:2: found 'CONFIG_CMA_SIZE_MBYTES=-5'; 0 to",
        ),
    ],
)
def test_config_cma_bytes__not_told(text, message):
    with pytest.raises(InputError, match=message):
        config_cma_bytes(read_kconfig(text))
    for off in ("DMA_CMA", "CMA"):
        without = f"# CONFIG_{off} is not set\n" + text.replace("CONFIG_DMA_CMA=y\n", "")
        assert config_cma_bytes(read_kconfig(without)) == 0


def test_config_cma_bytes__a_share_of_more_than_all():
    text = "CONFIG_CMA_SIZE_SEL_PERCENTAGE=y\nCONFIG_CMA_SIZE_PERCENTAGE=101\n"
    with pytest.raises(InputError, match="<text>:2: found 'CONFIG_CMA_SIZE_PERCENTAGE=101'; 0 to 100 are possible"):
        config_cma_bytes(read_kconfig(text), 255 * 4096)

"""Quantities: exact values worked out by hand or taken from Kubernetes' own tests of `resource.Quantity`, or a refusal that helps."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import Refused
from schemas.units import (
    INT64_MAX,
    KUBERNETES,
    gibibytes,
    parse_bytes,
    parse_cards_milli,
    parse_cpu_milli,
    parse_duration_ms,
    parse_gbps,
    parse_kubernetes_bytes,
    parse_slurm_memory,
)
from tests.schemas.values import many

PARSERS: list[Callable[[str], object]] = [
    parse_bytes, parse_cards_milli, parse_cpu_milli, parse_duration_ms, parse_gbps, parse_kubernetes_bytes, parse_slurm_memory,
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("8", 8000), ("0.5", 500), ("500m", 500), (".5", 500), ("1.", 1000), ("0", 0), ("-0", 0), ("+2", 2000), ("1000m", 1000),
        ("0.001", 1), ("1m", 1), ("2k", 2_000_000), ("1e1", 10_000), ("9223372036854775", 9_223_372_036_854_775_000),
    ],
)  # fmt: skip
def test_cards(text: str, milli: int) -> None:
    assert parse_cards_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1.5", "neither whole cards nor a share of one card"),
        ("1500m", "neither whole cards"),
        ("0.3333", "finer than a thousandth"),
        ("0.5m", "finer than a thousandth"),
        ("-1", "is negative"),
        ("8Gi", "ends in 'Gi', which is no unit here"),
        ("500M", "millions of cards; '500m' is half a card"),
        ("9223372036854776", "out of range"),
        ("1e31", "out of range"),
        ("eight", "is not a quantity"),
        ("8 cards", "no unit here"),
        ("", "is not a quantity"),
        (".", "is not a quantity"),
    ],
)
def test_cards_refused(text: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_cards_milli(text)
    assert says in str(caught.value)
    assert repr(text) in str(caught.value)


# Kubernetes' `MilliValue` rounds up.
@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("2", 2000),
        ("500m", 500),
        ("0.1", 100),
        ("1e3", 1_000_000),
        ("1k", 1_000_000),
        ("100u", 1),
        ("1n", 1),
        ("1.0001", 1001),
        ("9.01", 9010),
    ],
)
def test_cpu(text: str, milli: int) -> None:
    assert parse_cpu_milli(text) == milli


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80Gi", 85_899_345_920),
        ("80GB", 80_000_000_000),
        ("80 GB", 80_000_000_000),
        ("80GiB", 85_899_345_920),
        ("80G", 80_000_000_000),
        ("4.1Gi", 4_402_341_479),  # 4,402,341,478.4 rounded up
        ("1E", 10**18),
        ("1e18", 10**18),
        ("1E3", 1000),
        ("1Ei", 1 << 60),
        ("7.9E", 7_900_000_000_000_000_000),
        ("512", 512),
        ("512B", 512),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("0.5Ki", 512),
        ("0", 0),
        ("9223372036854775807", INT64_MAX),
        ("2000MB", 2_000_000_000),
        ("2000Mi", 2_097_152_000),
    ],
)
def test_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2000mb", "milli-bytes, megabits or megabytes; MB (powers of 1000) or MiB (powers of 1024) would be right"),
        ("500m", "milli in Kubernetes and mega in Slurm"),
        ("80gb", "case is unclear"),
        ("80g", "case is unclear"),
        ("80Gb", "means bits"),
        ("80gi", "Gi would be right"),
        ("4K", "1000 to some and 1024 to others"),
        ("8Ei", "out of range"),
        ("10E", "out of range"),
        ("9223372036854775808", "out of range"),
        ("9223372036854775807.5", "out of range"),
        ("1e999999999999999999", "out of range"),
        ("1e3Gi", "exponent and a suffix"),
        ("1e3 G", "exponent and a suffix"),
        ("1,000", "has a comma"),
        ("1_000", "is not a quantity"),
        ("٣", "is not a quantity"),
        ("NaN", "is not a quantity"),
        ("inf", "is not a quantity"),
        ("0x10", "is not a quantity"),
        (" 1", "is not a quantity"),
        ("1 ", "is not a quantity"),
        ("-5Gi", "negative"),
        ("9" * 65, "too long"),
    ],
)
def test_bytes_refused(text: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_bytes(text)
    assert says in str(caught.value)


# TestQuantityParse of kubernetes/apimachinery (pkg/api/resource/quantity_test.go), values as digits and a power of ten.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0n", (0, 0)), ("0Ki", (0, 0)), ("8Ki", (8 * 1024, 0)), ("3Ei", (3 << 60, 0)), ("5n", (5, -9)), ("4u", (4, -6)), ("3m", (3, -3)),
        ("50k", (5, 4)), ("300T", (3, 14)), ("2P", (2, 15)), ("1E", (1, 18)), ("1E-3", (1, -3)), ("1e3", (1, 3)), ("1E18", (1, 18)),
        ("100.035k", (100035, 0)), ("0.0005k", (5, -1)), ("0.00500", (5, -3)), ("0.5e-2", (5, -3)), ("10.035M", (10035, 3)),
        ("1.3E+6", (13, 5)), ("1.7E18", (17, 17)), ("6.987654321G", (6987654321, 0)), ("1.01E", (101, 16)), ("100.035Ki", (10243584, -2)),
        ("0.05Gi", (536870912, -1)), ("0.025Ti", (274877906944, -1)), (".001", (1, -3)), (".0001k", (100, -3)), ("1.", (1, 0)), ("1.G", (1, 9)),
    ],
)  # fmt: skip
def test_kubernetes_own_cases(text: str, value: tuple[int, int]) -> None:
    exact = value[0] * Fraction(10) ** value[1]
    assert parse_kubernetes_bytes(text) == -(-exact.numerator // exact.denominator)
    assert parse_kubernetes_bytes("+" + text) == parse_kubernetes_bytes(text)


@pytest.mark.parametrize(
    "text", ["1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "3.01i", "3.01e-", " 1", "1 ", ""]
)
def test_what_kubernetes_calls_invalid(text: str) -> None:
    with pytest.raises(Refused):
        parse_kubernetes_bytes(text)


def test_kubernetes_caps_silently_what_we_refuse() -> None:
    for text in ("9Ei", "9223372036854775807Ki", "12E"):
        with pytest.raises(Refused, match="out of range"):
            parse_kubernetes_bytes(text)


def test_milli_bytes_of_kubernetes() -> None:
    assert parse_kubernetes_bytes("128974848000m") == 128_974_848  # from its documentation of memory units
    assert parse_kubernetes_bytes("500m") == 1
    with pytest.raises(Refused):
        parse_bytes("128974848000m")


@pytest.mark.parametrize(
    ("text", "size", "per"),
    [
        ("4G", 4 << 30, ""), ("128000M", 128_000 << 20, ""), ("64000", 64_000 << 20, ""), ("62.50G", 125 << 29, ""), ("16Gn", 16 << 30, "node"),
        ("4Gc", 4 << 30, "cpu"), ("512K", 512 << 10, ""), ("1T", 1 << 40, ""), ("0", 0, ""),
    ],
)  # fmt: skip
def test_slurm_memory(text: str, size: int, per: str) -> None:
    assert parse_slurm_memory(text) == (size, per)


@pytest.mark.parametrize("text", ["", "G", "4GB", "4Gi", "-4G", "4Gx", "4 G", "1e3", "9999999P"])
def test_slurm_memory_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_slurm_memory(text)


@pytest.mark.parametrize(
    ("text", "gbps"),
    [
        ("400", 400.0), ("400Gbps", 400.0), ("400gbps", 400.0), ("100G", 100.0), ("1.6Tbps", 1600.0), ("2.5 Gbit/s", 2.5), ("800 Mb/s", 0.8),
        ("50GB/s", 400.0), ("125MB/s", 1.0), ("1000bps", 1e-6), ("0", 0.0),
    ],
)  # fmt: skip
def test_rates(text: str, gbps: float) -> None:
    assert parse_gbps(text) == gbps


@pytest.mark.parametrize("text", ["", "fast", "100GB", "100Gb", "10M", "100mbps", "-1", "1e30", "400 gigabit"])
def test_rates_refused(text: str) -> None:
    with pytest.raises(Refused):
        parse_gbps(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500), ("90s", 90_000), ("5m", 300_000), ("5min", 300_000), ("1h30m", 5_400_000), ("1h 30m", 5_400_000), ("2d", 172_800_000),
        ("1.5h", 5_400_000), ("0s", 0), ("1:30:00", 5_400_000), ("2-01:00:00", 176_400_000), ("0.001s", 1),
    ],
)  # fmt: skip
def test_spans(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("90", "has no unit"), ("5:00", "may be hours and minutes or minutes and seconds"), ("30m1h", "out of order"), ("1h1h", "or twice"),
        ("0.5ms", "finer than a millisecond"), ("5M", "not a span"), ("", "not a span"), ("1:60:00", "not a span"), ("-5s", "not a span"),
        ("9999999999999999d", "out of range"), ("1" * 70 + "s", "too long"),
    ],
)  # fmt: skip
def test_spans_refused(text: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        parse_duration_ms(text)
    assert says in str(caught.value)


@many
@given(
    st.text(max_size=80)
    | st.from_regex(r"[-+]?[0-9]{0,30}\.?[0-9]{0,30}([eE][-+]?[0-9]{1,12})?[ kKMGTPEinumbBs/pc]{0,5}", fullmatch=True)
)
def test_anything_is_a_number_in_range_or_one_refusal(text: str) -> None:
    for parse in PARSERS:
        try:
            value = parse(text)
        except Refused:
            continue
        number = value[0] if isinstance(value, tuple) else value
        assert isinstance(number, int | float)
        assert 0 <= number <= INT64_MAX


@many
@given(
    st.integers(0, 10**12),
    st.integers(0, 12),
    st.sampled_from(sorted(s for s in KUBERNETES if s not in {"n", "u", "m"})),
)
def test_no_digit_is_lost(digits: int, places: int, suffix: str) -> None:
    """The same value by whole-number arithmetic alone."""
    text = f"{digits:0{places + 1}d}"
    text = f"{text[: len(text) - places]}.{text[len(text) - places :]}{suffix}"
    power = "kMGTPE".find(suffix[:1]) + 1 if suffix and suffix[0] != "K" else (1 if suffix else 0)
    factor = 1024**power if suffix.endswith("i") else 1000**power
    wanted = -(-digits * factor // 10**places)
    if wanted > INT64_MAX:
        with pytest.raises(Refused, match="out of range"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == parse_kubernetes_bytes(text) == wanted


@pytest.mark.parametrize(
    ("size", "text"), [(1 << 26, "0.0625"), (64 << 30, "64"), (838_200 << 30, "838200"), (1000 << 30, "1000"), (0, "0")]
)
def test_memory_for_people_is_read_back(size: int, text: str) -> None:
    assert gibibytes(size) == text
    assert parse_bytes(f"{text}Gi") == size

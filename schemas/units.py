"""Quantities as people, Kubernetes and Slurm write them, as the whole numbers that records carry.

Called by importers, the CLI and settings. Each parser gives the exact value or raises `Refused` with one sentence that says what
was wrong and what would be right; it never guesses, never loses digits unnoticed and never passes a 64-bit integer's range.
Parts of a unit are rounded up where Kubernetes rounds up (bytes, milli-cores): a request is never made smaller.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from schemas.errors import Refused

INT64_MAX: Final = (1 << 63) - 1
MAX_TEXT: Final = 64
_DECIMAL: Final = {"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# Kubernetes' `resource.Quantity`; K is not among them, k is.
KUBERNETES: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{s: Fraction(10**e) for s, e in _DECIMAL.items()},
    **{s: Fraction(1 << e) for s, e in _BINARY.items()},
}
# What people write, besides: `80GB`, `80GiB`, `512 B`. No `m`: half the world means mega by it.
_PEOPLE_BYTES: Final[Mapping[str, Fraction]] = {
    **{s: v for s, v in KUBERNETES.items() if s not in {"n", "u", "m"}},
    "B": Fraction(1),
    "kB": Fraction(1000),
    "KB": Fraction(1000),
    **{f"{s}B": Fraction(10**e) for s, e in _DECIMAL.items() if s != "k"},
    **{f"{s}B": Fraction(1 << e) for s, e in _BINARY.items()},
}
_SLURM: Final = {"K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_BITS: Final = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}
_GBPS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    **{f"{s}{u}": Fraction(10**e, 10**9) for s, e in _BITS.items() for u in ("bps", "b/s", "bit/s")},
    **{f"{s}{u}": Fraction(8 * 10**e, 10**9) for s, e in _BITS.items() for u in ("Bps", "B/s")},
    "G": Fraction(1),
    "T": Fraction(1000),
    "gbps": Fraction(1),
}
_DURATION_MS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}

_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?( ?)([A-Za-zµ/]*)", re.ASCII)
_SLURM_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)([nc]?)", re.ASCII)
_CLOCK: Final = re.compile(r"(?:([0-9]+)-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])", re.ASCII)
_SPANS: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|min|[smhd]) ?)+", re.ASCII)
_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|min|[smhd])", re.ASCII)


class SlurmMemory(NamedTuple):
    """Memory as Slurm writes it; `per` says of what: the whole ('' ), a node or a CPU."""

    bytes: int
    per: Literal["", "node", "cpu"]


def _refuse(text: str, why: str) -> Refused:
    shown = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
    return Refused(f"{shown!r} {why}")


def _number(text: str, suffixes: Mapping[str, Fraction], example: str, hints: Mapping[str, str]) -> Fraction:
    """The exact value. Raises `Refused`."""
    if len(text) > MAX_TEXT:
        raise _refuse(text, f"is too long for a quantity; {example} would be right")
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]) or text.endswith(" "):
        why = "has a comma, write the number without" if "," in text else "is not a quantity"
        raise _refuse(text, f"{why}; {example} would be right")
    sign, whole, part, exponent, space, suffix = match.groups(default="")
    if exponent and (suffix or space):
        raise _refuse(text, f"has an exponent and a suffix, only one is possible; {example} would be right")
    if suffix not in suffixes:
        raise _refuse(
            text, f"ends in {suffix!r}, {hints.get(suffix) or f'which is no unit here; {example} would be right'}"
        )
    if exponent and abs(int(exponent)) > 30:
        raise _refuse(text, "is out of range: the exponent is larger than any quantity's")
    value = Fraction(int(whole + part or "0"), 10 ** len(part)) * Fraction(10) ** int(exponent or 0) * suffixes[suffix]
    if sign == "-" and value:
        raise _refuse(text, f"is negative; {example} would be right")
    return value


def _whole(text: str, value: Fraction, unit: str) -> int:
    """Rounded up to a whole number that fits a record."""
    rounded = -(-value.numerator // value.denominator)
    if rounded > INT64_MAX:
        raise _refuse(text, f"is out of range: at most {INT64_MAX} {unit} can be counted")
    return rounded


def parse_cards_milli(text: str) -> int:
    """Cards as thousandths: '8' is 8000, '0.5' and '500m' are 500.

    A share must be below one card; from one card on only whole cards exist. Raises `Refused`.
    """
    units = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(1000)}
    hints = {"M": "which would be millions of cards; '500m' is half a card"}
    milli = _number(text, units, "8, 0.5 or 500m", hints) * 1000
    if milli.denominator != 1:
        raise _refuse(text, "is finer than a thousandth of a card; 0.333 or 333m would be right")
    if milli > 1000 and milli % 1000:
        raise _refuse(text, "is neither whole cards nor a share of one card; 0.5, 1 or 2 would be right")
    return _whole(text, milli, "milli-cards")


def parse_cpu_milli(text: str) -> int:
    """Cores as thousandths, by Kubernetes' rules: '2' is 2000, '500m' is 500, '0.1' is 100, '1' nano-core is 1. Raises `Refused`."""
    units = {s: v for s, v in KUBERNETES.items() if s not in _BINARY}
    return _whole(text, _number(text, units, "2, 0.5 or 500m", {}) * 1000, "milli-cores")


def _bytes_hints() -> dict[str, str]:
    """What to say about units that come close to one."""
    hints: dict[str, str] = {}
    for letter in "KMGTPE":
        low, decimal = letter.lower(), "k" if letter == "K" else letter
        both = f"{decimal}B (powers of 1000) or {letter}iB (powers of 1024) would be right"
        hints[low + "b"] = f"of which the case is unclear (bits? bytes?); {both}"
        hints[letter + "b"] = f"which means bits; {both}"
        for wrong in (low + "i", low + "ib", low + "iB", letter + "ib"):
            hints[wrong] = f"of which the case is wrong; {letter}i would be right"
        if letter != "K":
            hints[low] = f"of which the case is unclear; {both}"
    hints["m"] = (
        "which is milli in Kubernetes and mega in Slurm; MB (powers of 1000) or MiB (powers of 1024) would be right"
    )
    hints["mb"] = (
        "which may be milli-bytes, megabits or megabytes; MB (powers of 1000) or MiB (powers of 1024) would be right"
    )
    hints["K"] = "which is 1000 to some and 1024 to others; k (1000) or Ki (1024) would be right"
    return hints


_HINTS: Final = _bytes_hints()


def parse_bytes(text: str) -> int:
    """Bytes as people write them, rounded up: '80Gi', '80GB', '80 GiB', '4.1Gi', '1E', '1e9'.

    G is 10^9 and Gi is 2^30, as in Kubernetes. Its milli-bytes ('128974848000m') are refused here because the same text
    means megabytes elsewhere: `parse_kubernetes_bytes` reads them. Raises `Refused`.
    """
    return _whole(text, _number(text, _PEOPLE_BYTES, "80Gi or 80GB", _HINTS), "bytes")


def parse_kubernetes_bytes(text: str) -> int:
    """Bytes in a Kubernetes object, where 'm' is milli and no space is allowed; rounded up as the scheduler does. Raises `Refused`."""
    if " " in text:
        raise _refuse(text, "has a space, which Kubernetes does not allow; 80Gi would be right")
    hints = {s: h for s, h in _HINTS.items() if s != "m"}
    return _whole(text, _number(text, KUBERNETES, "80Gi", hints), "bytes")


def parse_slurm_memory(text: str) -> SlurmMemory:
    """Memory as Slurm writes it: '4G', '62.50G', '128000M', '64000' (mebibytes), '16Gn' (each node), '4Gc' (each CPU).

    K to P are powers of 1024 there. Raises `Refused`.
    """
    match = _SLURM_MEMORY.fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise _refuse(text, "is not memory as Slurm writes it; 4G or 128000M would be right")
    value = Fraction(match[1]) * (1 << _SLURM[match[2] or "M"])
    return SlurmMemory(_whole(text, value, "bytes"), {"": "", "n": "node", "c": "cpu"}[match[3]])  # type: ignore[arg-type]


def gibibytes(amount_bytes: int) -> str:
    """Bytes as a number of GiB that people can read and `parse_bytes` too: `0.0625`, `64`, `838200`."""
    value = amount_bytes / (1 << 30)
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def parse_gbps(text: str) -> float:
    """A rate in Gbit/s (10^9 bits): '400', '400Gbps', '100G', '2.5 Gbit/s', '800 Mb/s', '50GB/s' (bytes: 400). Raises `Refused`."""
    hints = {
        "mbps": "of which the case is unclear; Mbps would be right",
        "M": "of which bits or bytes is unclear; Mbps would be right",
        "GB": "which is an amount, not a rate; GB/s or Gbps would be right",
        "Gb": "which is an amount, not a rate; Gbps would be right",
    }
    value = _number(text, _GBPS, "400 or 400Gbps", hints)
    if value > INT64_MAX:
        raise _refuse(text, "is out of range for a rate in Gbit/s")
    return float(value)


def parse_duration_ms(text: str) -> int:
    """A span of time in milliseconds: '500ms', '90s', '5m', '1h30m', '2d', '1.5h', '1:30:00', '2-00:00:00'.

    A bare number is refused (seconds? minutes?), and so are 'M' and parts of a millisecond. Raises `Refused`.
    """
    example = "90s, 5m or 1h30m would be right"
    if len(text) > MAX_TEXT:
        raise _refuse(text[:MAX_TEXT], f"is too long for a span of time; {example}")
    clock = _CLOCK.fullmatch(text)
    if clock is not None:
        days, hours, minutes, seconds = (int(g or 0) for g in clock.groups())
        return _whole(text, Fraction((((days * 24) + hours) * 60 + minutes) * 60 + seconds) * 1000, "milliseconds")
    if re.fullmatch(r"[0-9.]+", text, re.ASCII):
        raise _refuse(text, f"has no unit; {example}")
    if re.fullmatch(r"[0-9]+:[0-9]+", text, re.ASCII):
        raise _refuse(text, "may be hours and minutes or minutes and seconds; 1:30:00 or 90m would be right")
    if _SPANS.fullmatch(text) is None:
        raise _refuse(text, f"is not a span of time; {example}")
    parts = _SPAN.findall(text)
    steps = [_DURATION_MS[unit] for _, unit in parts]
    if any(a <= b for a, b in pairwise(steps)):
        raise _refuse(text, "has its units out of order or twice; 1h30m would be right")
    total = sum((Fraction(number) * _DURATION_MS[unit] for number, unit in parts), Fraction(0))
    if total.denominator != 1:
        raise _refuse(text, "is finer than a millisecond; 1ms is the smallest step")
    return _whole(text, total, "milliseconds")

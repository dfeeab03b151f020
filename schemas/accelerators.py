"""The accelerator table: what is known of each card model, and which row a name written elsewhere means.

`accelerators.csv` has a row for each card and memory size with its source and certainty; a new make is a new row, not new code.
The rows are single facts collected from public documents, each naming where (`source`) and how sure it is (`certainty`: vendor,
secondary, memory, or unknown where a publisher withheld the model); single facts carry no licence.
Called by importers, the CLI and the engine's callers. A figure nobody published is None, never 0, and a name that fits several
rows is never narrowed to one by guessing.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

GIBIBYTE: Final = 1 << 30

# Words that say who made or sells a card; a name means the same without them.
_MAKERS: Final = frozenset(
    {"nvidia", "tesla", "geforce", "quadro", "amd", "radeon", "instinct", "intel", "habana", "huawei", "cambricon", "hygon",
     "kunlunxin", "iluvatar", "metax", "enflame", "google", "aws", "moore", "threads", "undisclosed"}
)  # fmt: skip
# Words that begin a model's name and are often left out or run together with the next: RTX 4090, rtx4090, 4090.
_SERIES: Final = ("ascend", "rtx", "dcu", "mtt")
# Time-sliced cards are whole cards to us; the device plugin marks their product so.
_MARKS: Final = frozenset({"shared"})
_WORD: Final = re.compile(r"[a-z0-9.]+")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One row. TFLOPS and TOPS are dense peaks (no sparsity); None: not supported or not published."""

    vendor: str
    model: str
    form_factor: str
    year: int | None
    memory_gib: float | None
    memory_type: str
    memory_bandwidth_gb_s: float | None
    fp16_dense_tflops: float | None
    bf16_dense_tflops: float | None
    fp8_dense_tflops: float | None
    int8_dense_tops: float | None
    interconnect: str
    interconnect_gb_s: float | None
    host_bus: str
    tdp_w: float | None
    note: str
    confidence: str
    checked_against: str
    source: str
    certainty: str

    @property
    def memory_bytes(self) -> int:
        """Device memory as records carry it, bytes; 0 when unknown."""
        return int(self.memory_gib * GIBIBYTE) if self.memory_gib is not None else 0

    @property
    def speed_tflops(self) -> float | None:
        """The one measure for all makes: dense bf16 TFLOPS, else dense fp16 (cards older than bf16), else None.

        These are the 16-bit matrix rates that training runs at and that every maker publishes; it compares cards, it does not
        promise what a program reaches.
        """
        return self.bf16_dense_tflops if self.bf16_dense_tflops is not None else self.fp16_dense_tflops


def _rows(name: str) -> list[dict[str, str]]:
    with files("schemas").joinpath(name).open("r", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def _figure(row: Mapping[str, str], column: str) -> float | None:
    return float(row[column]) if row[column] else None


def _accelerator(row: Mapping[str, str]) -> Accelerator:
    return Accelerator(
        vendor=row["vendor"],
        model=row["model"],
        form_factor=row["form_factor"],
        year=int(row["year"]) if row["year"] else None,
        memory_gib=_figure(row, "memory_gib"),
        memory_type=row["memory_type"],
        memory_bandwidth_gb_s=_figure(row, "memory_bandwidth_gb_s"),
        fp16_dense_tflops=_figure(row, "fp16_dense_tflops"),
        bf16_dense_tflops=_figure(row, "bf16_dense_tflops"),
        fp8_dense_tflops=_figure(row, "fp8_dense_tflops"),
        int8_dense_tops=_figure(row, "int8_dense_tops"),
        interconnect="" if row["interconnect"] == "none" else row["interconnect"],
        interconnect_gb_s=_figure(row, "interconnect_gb_s"),
        host_bus=row["host_bus"],
        tdp_w=_figure(row, "tdp_w"),
        note=row["note"],
        confidence=row["confidence"],
        checked_against=row["checked_against"],
        source=row["source"],
        certainty=row["certainty"],
    )


ACCELERATORS: Final[Mapping[str, Accelerator]] = MappingProxyType(
    {row["model"]: _accelerator(row) for row in _rows("accelerators.csv")}
)


def _words(name: str) -> tuple[str, ...]:
    """A name as comparable words: lower case, makers left out, series words apart from what follows."""
    words: list[str] = []
    for word in _WORD.findall(name.lower()):
        if word in _MAKERS or word in _MARKS:
            continue
        series = next((s for s in _SERIES if word.startswith(s) and word != s), None)
        words.extend((series, word.removeprefix(series)) if series else (word,))
    return tuple(words)


@dataclass(frozen=True, slots=True)
class _Names:
    """How a row may be written: `own` are its model's words, `also` what may be added to them, `family` what must be there."""

    own: frozenset[str]
    also: frozenset[str]
    family: str


def _memory_words(card: Accelerator) -> Iterable[str]:
    if card.memory_gib is None:
        return ()
    size = f"{card.memory_gib:g}"
    return (size, f"{size}g", f"{size}gb", f"{size}gib")


@cache
def _names() -> Mapping[str, _Names]:
    found = {}
    for model, card in ACCELERATORS.items():
        own = _words(model)
        # A form like SXM5 is written SXM as well.
        forms = {f for form in _words(card.form_factor) for f in (form, form.rstrip("0123456789"))}
        also = {*own, *forms, *_memory_words(card), *_words(card.memory_type)}
        family = next(w for w in own if w not in _SERIES)
        found[model] = _Names(frozenset(own), frozenset(also), family)
    return found


@cache
def _aliases() -> Mapping[frozenset[str], tuple[str, ...]]:
    return {
        frozenset(_words(row["alias"])): tuple(row["models"].split("|")) for row in _rows("accelerator_aliases.csv")
    }


@lru_cache(maxsize=4096)
def candidates(name: str) -> tuple[Accelerator, ...]:
    """Every row that `name` may mean, in the table's order; () when none.

    Understood: a model of the table, an alias (`accelerator_aliases.csv`), and names of drivers, labels and schedulers whose
    words all fit a row and name its family: 'A100' is four rows, 'a100_80' two, 'NVIDIA H100 80GB HBM3' one. A slice of a card
    (MIG) is no card and fits none.
    """
    if name in ACCELERATORS:
        return (ACCELERATORS[name],)
    asked = frozenset(_words(name))
    if asked in _aliases():
        return tuple(ACCELERATORS[m] for m in _aliases()[asked])
    fitting = [model for model, names in _names().items() if names.family in asked and asked <= names.also]
    exact = [m for m in fitting if _names()[m].own == asked]
    return tuple(ACCELERATORS[m] for m in exact or fitting)


def lookup(name: str) -> Accelerator | None:
    """The one row that `name` means; None when it fits none, or several (`candidates` has them)."""
    found = candidates(name)
    return found[0] if len(found) == 1 else None

"""A small map for trying things: twelve sites joined as Google's B4, two racks of two nodes at each. Used by `SimWorker`.

The links are those of `data/b4_links.csv`; sites, racks and cards are made up. `data/README.md` has source and licence.
"""

import csv
import io
from importlib import resources
from typing import Final

from schemas.accelerators import lookup
from schemas.records import LinkRegistered, NodeRegistered

GIB: Final = 1 << 30
# One model to a site, in turn: three makes, so that a job for "any card" has a choice.
MODELS: Final = ("H100-SXM5-80GB", "A100-SXM4-80GB", "Ascend-910B3-64GB")
# The table's capacity is in tens of Mbit/s of the measurements it came with; one of today's wavelengths stands in for it.
CAPACITY_GBPS: Final = 400.0
# Fibre: 5 µs to the kilometre; sites of the table have no places, so every link is 2,000 km long.
LATENCY_MS: Final = 10.0


def nodes(domain: str, at: int) -> list[NodeRegistered]:
    """48 nodes of 8 cards."""
    return [_node(domain, at, site, rack, place) for site in range(12) for rack in range(2) for place in range(2)]


def _node(domain: str, at: int, site: int, rack: int, place: int) -> NodeRegistered:
    model = MODELS[site % len(MODELS)]
    known = lookup(model)
    return NodeRegistered(
        node=f"site{site:02}-r{rack}-n{place}", at=at, domain=domain, site=f"site{site:02}", region="", city="",
        data_centre=f"site{site:02}-a", row="1", rack=f"r{rack}", cards=8, card_model=model,
        card_memory_bytes=known.memory_bytes if known else 0, cpu_milli=128_000, memory_bytes=1024 * GIB, disk_bytes=0,
        interconnect=known.interconnect if known else "", labels=("simulated=yes",), owner="simulation",
        admin_state="active",
    )  # fmt: skip


def links(domain: str, at: int) -> list[LinkRegistered]:
    """38 directed links between the twelve sites."""
    text = (resources.files("infra.sim") / "data" / "b4_links.csv").read_text()
    found = []
    for row in csv.DictReader(io.StringIO(text)):
        src, dst = f"site{int(row['src_id']):02}", f"site{int(row['dst_id']):02}"
        found.append(LinkRegistered(f"{src}-{dst}", at, domain, src, dst, CAPACITY_GBPS, LATENCY_MS, 0.0, "active"))
    return found

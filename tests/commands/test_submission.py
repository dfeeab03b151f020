"""From what a person says to a whole submission: units, models, shares of a node; what is refused, and how."""

from pathlib import Path

import pytest

from infra.submission import JobSpec, complete, read_spec, spec_of
from schemas.errors import Refused
from schemas.records import JobSubmitted, NodeRecorded

GIB = 1 << 30


def node(name: str, model: str, cards: int, cores: int, gib: int, card_gib: int = 80) -> NodeRecorded:
    return NodeRecorded(
        "default", 1, 0, "", name, "s", "", "", "", "", "", cards, model, card_gib * GIB, cores * 1000, gib * GIB, 0, "", (), "", "up",
        cards, "",
    )  # fmt: skip


MAP = [node(f"a{i}", "A100-SXM4-80GB", 8, 128, 1024) for i in range(4)] + [
    node(f"t{i}", "T4", 2, 16, 64, 16) for i in range(4)
]


def made(nodes: list[NodeRecorded] | None = None, **fields: object) -> tuple[JobSubmitted, dict[str, str]]:
    row, inferred = complete(spec_of(fields), "default", 5, MAP if nodes is None else nodes)
    return row, {i.field: i.value for i in inferred}


def test_everything_is_inferred_and_named() -> None:
    row, inferred = made()
    assert (row.cards_milli, row.members, row.queue, row.priority, row.at, row.domain) == (
        1000,
        1,
        "default",
        0,
        5,
        "default",
    )
    assert set(inferred) == {
        "user",
        "job",
        "queue",
        "priority",
        "members",
        "cards",
        "model",
        "cpu",
        "memory",
        "estimate",
    }
    assert row.inferred == tuple(inferred)
    assert row.job.startswith(row.user)


def test_nothing_that_was_given_is_touched() -> None:
    row, inferred = made(
        job="j1", user="ada", queue="q", priority=7, members=3, cards="500m", model="T4", card_memory="8GB", cpu="1.5", memory="4Gi",
        adjacency="rack", time_limit="1h30m", estimate="20m", command=["python", "x.py"], labels={"b": "2", "a": 1},
    )  # fmt: skip
    assert row == JobSubmitted(
        "j1", 5, "default", "ada", "q", 7, 3, 500, ("T4",), 8_000_000_000, 1_500, 4 * GIB, "rack", 5_400_000, 1_200_000,
        ("python", "x.py"), ("a=1", "b=2"), (),
    )  # fmt: skip
    assert inferred == {}


def test_cpu_and_memory_are_the_cards_share_of_a_node() -> None:
    row, inferred = made(cards="2", model="A100-SXM4-80GB")
    assert (row.cpu_milli, row.memory_bytes) == (2 * 128_000 // 8, 2 * 1024 * GIB // 8)
    assert (inferred["cpu"], inferred["memory"]) == ("32", "256Gi")
    half, _ = made(cards="0.5", model="T4")
    assert (half.cpu_milli, half.memory_bytes) == (16_000 // 4, 16 * GIB)
    # Of nodes that differ three in four have at least the share: the smaller kind is as common as the larger.
    any_model, _ = made(cards="1")
    assert (any_model.cpu_milli, any_model.memory_bytes) == (8_000, 32 * GIB)
    # Where no node could hold it: 8 cores and 64 GiB a card. Without a card: one core, 2 GiB.
    far, _ = made(cards="4", model="H200")
    assert (far.cpu_milli, far.memory_bytes) == (32_000, 256 * GIB)
    none, _ = made(cards="0")
    assert (none.cards_milli, none.cpu_milli, none.memory_bytes) == (0, 1_000, 2 * GIB)


def test_a_family_means_each_of_its_models() -> None:
    row, _ = made(model="a100")
    assert set(row.card_models) == {"A100-PCIe-40GB", "A100-SXM4-40GB", "A100-PCIe-80GB", "A100-SXM4-80GB"}
    several, _ = made(model=["T4", "NVIDIA A100-SXM4-80GB"])
    assert several.card_models == ("T4", "A100-SXM4-80GB")
    # A model that only the map knows is taken by its name.
    own, _ = made(nodes=[node("x", "LabCard-1", 4, 32, 128)], model="LabCard-1")
    assert own.card_models == ("LabCard-1",)


def test_an_estimate_is_the_limit_where_there_is_one() -> None:
    row, inferred = made(time_limit="2h")
    assert (row.run_limit_ms, row.run_estimate_ms, inferred["estimate"]) == (7_200_000, 7_200_000, "2h")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"card": 8}, "no field 'card'; did you mean cards?"),
        ({"colour": "red"}, "no field 'colour'; the fields are job, user"),
        ({"cards": "1.5"}, "cards: '1.5' is neither whole cards nor a share of one card"),
        ({"memory": "80gb"}, "memory: '80gb' ends in 'gb', of which the case is unclear"),
        ({"time_limit": "90"}, "time_limit: '90' has no unit"),
        ({"model": "A1000"}, "no card is known as 'A1000'; did you mean"),
        ({"members": 0}, "members: Input should be greater than or equal to 1, not 0"),
        ({"adjacency": "rak"}, "'rak' is no level; did you mean rack?"),
        ({"cards": 0, "model": "T4"}, "a job without cards cannot ask for a model"),
        ({"job": "../etc"}, "'../etc' is no id"),
        ({"priority": "high"}, "priority: Input should be a valid integer"),
    ],
)
def test_what_is_wrong_is_said_with_what_would_be_right(fields: dict[str, object], told: str) -> None:
    with pytest.raises(Refused) as caught:
        made(**fields)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_file(tmp_path: Path) -> None:
    text = "cards: 8\nmodel: [A100-SXM4-80GB]\nmembers: 4\ncommand: python train.py --lr 0.1\nlabels: {run: 7}\n"
    spec = read_spec(tmp_path / "job.yaml", text)
    assert spec == JobSpec(
        cards="8", model=["A100-SXM4-80GB"], members=4, command="python train.py --lr 0.1", labels={"run": "7"}
    )
    row, _ = complete(spec, "default", 5, MAP)
    assert row.command == ("sh", "-c", "python train.py --lr 0.1")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cards: [", "job.yaml is not YAML"),
        ("- cards", "job.yaml must hold fields of one job"),
        ("", "it holds NoneType"),
        ("crads: 8", "job.yaml: a job has no field 'crads'; did you mean cards?"),
        ("labels: 3", "job.yaml: labels: "),
    ],
)
def test_a_wrong_job_file(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Refused) as caught:
        read_spec(Path("job.yaml"), text)
    assert told in str(caught.value)

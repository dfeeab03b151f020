"""Damaged, foreign and unknown files on the embedded log: refused by name and place, never guessed at."""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from connectors.log.embedded import FILE_NAME, EmbeddedLog
from schemas.errors import Corrupted, Fatal, LockstepError
from schemas.messages import Record, TopicPartition
from schemas.records import JobSubmitted
from schemas.topics import TopicSpec
from tests.log.home import values, write

SPEC = TopicSpec("t", (JobSubmitted,), "job", 2, "delete", -1, (), (), "A test")
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
MARK = b"here is the body that will be damaged"


def _open(folder: Path) -> EmbeddedLog:
    return EmbeddedLog(folder, upkeep_every_ms=0)


def _all(log: EmbeddedLog, tp: TopicPartition) -> list[bytes | None]:
    reader = log.reader({tp: 0})
    found = []
    while blocks := reader.poll(1_000, 0):
        found += values(blocks)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = _open(tmp_path)
    log.provision([SPEC], dry_run=False)
    write(log, [Record("t", b"k%d" % i, b"%d" % i, 0) for i in range(100)])
    write(log, [Record("t", b"k", b"%d" % i + bytes(3_000), 0) for i in range(3)])
    write(log, [Record("t", b"k", MARK, 0)])
    write(log, [Record("t", b"k", b"neighbour", 1)])
    log.close()
    return tmp_path


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_flipped_byte_in_a_message_is_found_and_placed(folder: Path) -> None:
    path = folder / FILE_NAME
    _flip(path, path.read_bytes().index(MARK))
    log = _open(folder)
    with pytest.raises(Corrupted, match=r"t/0@103: the stored batch fails its checksum; restore"):
        _all(log, ZERO)
    assert _all(log, ONE) == [b"neighbour"]
    # What was appended before the damage can still be read up to it.
    assert values(log.reader({ZERO: 0}).poll(103, 0))[:100] == [b"%d" % i for i in range(100)]
    log.close()


def test_a_batch_in_the_wrong_place_is_found(folder: Path) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    connection.execute("UPDATE batches SET partition = 1, first = 1, next = 2 WHERE partition = 0 AND first = 103")
    connection.execute("UPDATE ends SET end_offset = 2 WHERE partition = 1")
    connection.commit()
    connection.close()
    log = _open(folder)
    with pytest.raises(Corrupted, match="t/1@1"):
        _all(log, ONE)
    with pytest.raises(Corrupted, match="t/0@103: a stored batch is missing"):
        _all(log, ZERO)
    log.close()


@pytest.mark.parametrize("first", [0, 100, 103])
def test_a_missing_batch_is_not_taken_for_a_quiet_partition(folder: Path, first: int) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    assert connection.execute("DELETE FROM batches WHERE partition = 0 AND first = ?", (first,)).rowcount == 1
    connection.commit()
    connection.close()
    log = _open(folder)
    with pytest.raises(Corrupted, match=f"t/0@{first}: a stored batch is missing"):
        _all(log, ZERO)
    log.close()


def test_garbage_for_a_header(folder: Path) -> None:
    path = folder / FILE_NAME
    path.write_bytes(b"\xde\xad\xbe\xef" * 25 + path.read_bytes()[100:])
    with pytest.raises(Corrupted, match=f"{path} is damaged .* restore it from a backup, or move it away"):
        _open(folder)


def test_half_a_file(folder: Path) -> None:
    path = folder / FILE_NAME
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])

    def use() -> None:
        log = _open(folder)
        try:
            _all(log, ZERO)
        finally:
            log.close()

    with pytest.raises(Corrupted, match=str(path)):
        use()


def test_a_text_file(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("this is not a database, and long enough to have a header of its own. " * 20)
    with pytest.raises(Corrupted, match=FILE_NAME):
        _open(tmp_path)


def test_another_programs_database(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(Corrupted, match="not a log of Lockstep; choose another data folder"):
        _open(tmp_path)
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]
    connection.close()


def test_a_format_of_another_version(folder: Path) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(Fatal, match="has format 999, this version of Lockstep reads format 1"):
        _open(folder)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Fatal, match="cannot be opened"):
        _open(tmp_path / "file")


def test_any_flipped_byte_gives_the_truth_or_an_error(folder: Path, tmp_path: Path) -> None:
    log = _open(folder)
    truth = {tp: _all(log, tp) for tp in (ZERO, ONE)}
    log.close()
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    size = (folder / FILE_NAME).stat().st_size
    refused = 0
    for i in range(150):
        at = rng.randrange(size)
        place = tmp_path / f"flipped-{i}"
        place.mkdir()
        shutil.copy(folder / FILE_NAME, place)
        _flip(place / FILE_NAME, at)
        try:
            damaged = _open(place)
        except LockstepError:
            refused += 1
            continue
        for tp in (ZERO, ONE):
            try:
                assert _all(damaged, tp) == truth[tp], f"byte {at} flipped; seed {seed}"
            except LockstepError:
                refused += 1
        damaged.close()
    assert refused > 0


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE batches SET next = 'text' WHERE first = 103",
        "UPDATE batches SET data = 'text' WHERE first = 103",
        "UPDATE batches SET crc = 'text' WHERE first = 103",
        "UPDATE ends SET end_offset = 'text' WHERE partition = 0",
        "UPDATE ends SET begin_offset = 'text' WHERE partition = 0; DELETE FROM batches WHERE first = 103",
    ],
)
def test_a_value_of_another_type(folder: Path, damage: str) -> None:
    """As a flipped byte in a row's header makes it."""
    connection = sqlite3.connect(folder / FILE_NAME)
    connection.executescript(damage)
    connection.close()
    log = _open(folder)
    with pytest.raises(Corrupted, match="damaged: a value has another type than was stored; restore"):
        _all(log, ZERO)


def test_a_row_that_only_its_index_has(folder: Path) -> None:
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    where = "type = 'index' AND tbl_name = 'batches' AND sql IS NOT NULL"
    indices = connection.execute(f"SELECT * FROM sqlite_master WHERE {where}").fetchall()
    assert indices
    connection.execute(f"DELETE FROM sqlite_master WHERE {where}")
    connection.close()
    connection = sqlite3.connect(folder / FILE_NAME, isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("DELETE FROM batches WHERE first = 103")
    connection.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", indices)
    connection.close()
    log = _open(folder)
    with pytest.raises(Corrupted, match="damaged: a row is missing; restore"):
        _all(log, ZERO)

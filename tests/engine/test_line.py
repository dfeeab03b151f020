"""The line against a plain sorted list, with lists so short that they split and vanish all the time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.engine import _line
from streams.engine._line import Key, Line

keys = st.tuples(st.integers(-2, 2), st.integers(0, 3), st.integers(0, 9), st.just("j"))


@given(st.lists(keys, max_size=12, unique=True), st.lists(st.tuples(st.booleans(), keys), max_size=120))
def test_a_line_is_a_sorted_list(first: list[Key], steps: list[tuple[bool, Key]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_line, "CHUNK", 2)
        line, plain = Line(first), sorted(first)
        for add, key in steps:
            if add and key not in plain:
                line.add(key)
                plain = sorted([*plain, key])
            elif not add and key in plain:
                line.remove(key)
                plain.remove(key)
            elif not add:
                with pytest.raises(KeyError):
                    line.remove(key)
            assert list(line) == plain
            assert len(line) == len(plain)
            assert line.head(3) == plain[:3]
            assert line.position(key) == sum(k < key for k in plain)
            if plain:
                assert line.first() == plain[0]

"""Goal: the offset map says after a crash exactly what was said before it, or refuses."""

import base64
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import BadSetup
from streams.offsets import Range, decode_map, encode_map

TOPIC = uuid4()
WHERE = "group mail.classify on mail.classify[0]"


@st.composite
def heads_and_ranges(draw: st.DrawFn) -> tuple[int, list[Range]]:
    head = draw(st.integers(0, 2**48))
    at, ranges = head, []
    for gap, length in draw(
        st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 2**20)), max_size=50)
    ):
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    return head, ranges


@given(heads_and_ranges())
def test_a_map_is_read_back_as_it_was_written(written: tuple[int, list[Range]]) -> None:
    head, ranges = written
    text = encode_map(TOPIC, head, ranges)
    assert text.isascii()
    assert decode_map(text, topic_id=TOPIC, committed=head, where=WHERE) == ranges


@given(heads_and_ranges(), st.data())
def test_a_damaged_map_is_refused(written: tuple[int, list[Range]], data: st.DataObject) -> None:
    head, ranges = written
    raw = bytearray(base64.b64decode(encode_map(TOPIC, head, ranges)))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadSetup):
        decode_map(base64.b64encode(raw).decode(), topic_id=TOPIC, committed=head, where=WHERE)


@given(st.text(max_size=80))
def test_foreign_metadata_is_refused_with_the_place_it_was_found_at(text: str) -> None:
    with pytest.raises(BadSetup, match=r"mail\.classify"):
        decode_map(text, topic_id=TOPIC, committed=0, where=WHERE)


def test_a_map_of_a_topic_that_was_made_again_is_refused() -> None:
    text = encode_map(TOPIC, 7, [])
    with pytest.raises(BadSetup, match="deleted and made again"):
        decode_map(text, topic_id=UUID(int=1), committed=7, where=WHERE)


def test_a_map_that_was_written_for_another_offset_is_refused() -> None:
    text = encode_map(TOPIC, 7, [])
    with pytest.raises(BadSetup, match="written for 7"):
        decode_map(text, topic_id=TOPIC, committed=8, where=WHERE)

"""Test that valid frames are read, that damaged ones are refused, and that a torn tail is distinguished from damage."""

import pytest
from hookmq_toolkit.segment_log.frame import HEADER, MAGIC, Frame, decode, encode, lost, scan
from hypothesis import given
from hypothesis import strategies as st

SALT = 0x1234
PAYLOADS = st.lists(
    st.binary(max_size=40) | st.just(MAGIC) | st.just(b"x" * 300), min_size=1, max_size=6
)


def frames_of(payloads: list[bytes], synced: int = 0) -> list[Frame]:
    return [Frame(n, 1, n + 1, synced, payload) for n, payload in enumerate(payloads)]


def bytes_of(frames: list[Frame], salt: int = SALT) -> bytes:
    return b"".join(encode(frame, salt) for frame in frames)


@given(PAYLOADS, st.booleans())
def test_frames_are_read_as_written(payloads: list[bytes], view: bool) -> None:
    frames = frames_of(payloads)
    data = bytes_of(frames)
    found = list(scan(memoryview(data) if view else data, 0, SALT))
    assert [frame for _, frame in found] == frames
    assert found[-1][0] == len(data)


@given(PAYLOADS, st.data())
def test_a_cut_leaves_whole_frames(payloads: list[bytes], data: st.DataObject) -> None:
    frames = frames_of(payloads)
    written = bytes_of(frames)
    cut = data.draw(st.integers(0, len(written)))
    ends = [after for after, _ in scan(written, 0, SALT)]
    whole = [frame for frame, end in zip(frames, ends, strict=True) if end <= cut]
    assert [frame for _, frame in scan(written[:cut], 0, SALT)] == whole


@given(PAYLOADS, st.data())
def test_any_changed_bit_is_noticed(payloads: list[bytes], data: st.DataObject) -> None:
    frames = frames_of(payloads)
    written = bytearray(bytes_of(frames))
    bit = data.draw(st.integers(0, len(written) * 8 - 1))
    written[bit // 8] ^= 1 << bit % 8
    ends = [after for after, _ in scan(bytes_of(frames), 0, SALT)]
    before = [frame for frame, end in zip(frames, ends, strict=True) if end <= bit // 8]
    assert [frame for _, frame in scan(bytes(written), 0, SALT)] == before


def test_another_logs_frames_are_not_read() -> None:
    assert decode(bytes_of(frames_of([b"x"])), 0, SALT + 1) is None


def test_without_the_payloads_check_only_its_length_is_looked_at() -> None:
    data = bytearray(bytes_of(frames_of([b"abc", b"d"])))
    data[HEADER.size] ^= 1
    assert [f.offset for _, f in scan(bytes(data), 0, SALT, check_payloads=False)] == [0, 1]
    assert decode(bytes(data[:-1]), HEADER.size + 3, SALT, check_payload=False) is None


@pytest.mark.parametrize(("synced", "answer"), [(0, False), (1, False), (2, True), (3, True)])
@pytest.mark.parametrize("view", [False, True])
def test_lost_is_what_a_later_frame_says_had_been_synced(
    synced: int, answer: bool, view: bool
) -> None:
    first = encode(Frame(0, 1, 1, 0, b"good"), SALT)
    broken = b"\0" * 60  # record 1 was here
    later = encode(Frame(2, 1, 3, synced, MAGIC * 3), SALT)
    data = first + broken + later
    assert lost(memoryview(data) if view else data, len(first), 1, SALT) is answer


def test_a_payload_cannot_pose_as_a_frame() -> None:
    forged = encode(Frame(7, 1, 9, 1000, b""), SALT + 1)  # its publisher does not know the salt
    data = b"\0" * 10 + encode(Frame(2, 1, 3, 0, forged), SALT)[:-1]
    assert lost(data, 0, 1, SALT) is False


@pytest.mark.parametrize("records", [0, -1])
def test_a_frame_has_records(records: int) -> None:
    with pytest.raises(ValueError, match="frame of"):
        encode(Frame(0, records, 1, 0, b""), SALT)

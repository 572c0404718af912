"""A segmented log on disk, the basis for journals. See `hookmq_toolkit.segment_log.log`."""

from hookmq_toolkit.segment_log.fill import Fill
from hookmq_toolkit.segment_log.frame import FRAME_HEADER, Frame
from hookmq_toolkit.segment_log.log import SegmentLog, Trimmed
from hookmq_toolkit.segment_log.reader import LogReader, SegmentReader, frames
from hookmq_toolkit.segment_log.segment import Segment
from hookmq_toolkit.segment_log.tail import LogTail

__all__ = [
    "FRAME_HEADER",
    "Fill",
    "Frame",
    "LogReader",
    "LogTail",
    "Segment",
    "SegmentLog",
    "SegmentReader",
    "Trimmed",
    "frames",
]

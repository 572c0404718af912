"""A segmented log on disk: what journals are built on. See `hookmq.segments.log`."""

from hookmq.segments.fill import Fill
from hookmq.segments.frame import Frame
from hookmq.segments.log import SegmentLog, Trimmed
from hookmq.segments.segment import Segment

__all__ = ["Fill", "Frame", "Segment", "SegmentLog", "Trimmed"]

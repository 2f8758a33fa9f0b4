"""Recordings (floor 2): what one holds, how it lies in a file, and how it is written and opened. No torch."""

from wherefrom.recording.call import ARRAYS, Array, Call, Check, Kept, Stored, in_order, is_part, listed, part_named
from wherefrom.recording.contents import ModelFacts, Prediction, Recording, check_recording, forecast_bytes
from wherefrom.recording.forecast import forecast_file_bytes
from wherefrom.recording.gaps import Gap, gaps_as_json, gaps_in_words
from wherefrom.recording.layout import SUFFIX, is_recording
from wherefrom.recording.lazy import is_numbered, numbered
from wherefrom.recording.reader import Summary, Verified, check_sizes, open_recording, summary_of, verify_recording
from wherefrom.recording.writer import Writer, save_recording

__all__ = [
    "ARRAYS",
    "SUFFIX",
    "Array",
    "Call",
    "Check",
    "Gap",
    "Kept",
    "ModelFacts",
    "Prediction",
    "Recording",
    "Stored",
    "Summary",
    "Verified",
    "Writer",
    "check_recording",
    "check_sizes",
    "forecast_bytes",
    "forecast_file_bytes",
    "gaps_as_json",
    "gaps_in_words",
    "in_order",
    "is_numbered",
    "is_part",
    "is_recording",
    "listed",
    "numbered",
    "open_recording",
    "part_named",
    "save_recording",
    "summary_of",
    "verify_recording",
]

"""Questions (floor 4): a recording and a question in, an answer out, exactly, without the model and without torch."""

from wherefrom.questions.answer import Answer, Column, Window
from wherefrom.questions.asked import readers, sources, weights
from wherefrom.questions.compared import diff
from wherefrom.questions.exact import column_of_weights, row_of_weights, window_of_weights
from wherefrom.questions.figures import heads
from wherefrom.questions.incoming import received
from wherefrom.questions.scanned import scan
from wherefrom.questions.scope import Scope

__all__ = [
    "Answer",
    "Column",
    "Scope",
    "Window",
    "column_of_weights",
    "diff",
    "heads",
    "readers",
    "received",
    "row_of_weights",
    "scan",
    "sources",
    "weights",
    "window_of_weights",
]

"""wherefrom: record a transformer's attention at full speed; ask afterwards where a token came from, exactly.

>>> import wherefrom
>>> model = wherefrom.load()
>>> print(wherefrom.trace(model, "The capital of France is Paris. The capital of Italy is"))

The verbs: `load` a model; `trace` a prediction, what a whole answer drew on (`trace_answer`), or on which routes a
passage reached it (`trace_routes`); `generate` text; `forecast` the size of a recording, `record` a pass in memory or
into a file, open that (`open_recording`) and ask it for `weights`, `sources`, `readers`, `heads`, what was `received`,
how two `diff`er, or `scan` a layer for arrays; draw it (`figure_of_map`, `figure_of_heads`, `figure_of_text`,
`figure_of_evidence`); `knock_out` sources and `rerun` a text with a cut; `find_carriers`, the heads that fetch answers;
`train` a decoder and `Watch` its attention form; count what a pass `cost`s. Nothing heavy is imported before it is
needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherefrom.attention import Mask, attend, multi_head
    from wherefrom.capture.huggingface.model import TransformersModel
    from wherefrom.capture.loading import load
    from wherefrom.capture.native import forecast
    from wherefrom.capture.verbs import record, record_batch, record_generation
    from wherefrom.errors import InputError, ModelError, RecordingError, TrainingError, WherefromError
    from wherefrom.evidence.answered import AnswerTrace
    from wherefrom.evidence.answering import trace_answer
    from wherefrom.evidence.carried import Carriers
    from wherefrom.evidence.carriers import find_carriers
    from wherefrom.evidence.cases import Case, retrieval_cases
    from wherefrom.evidence.cost import cost
    from wherefrom.evidence.knockout import knock_out, knock_out_heads
    from wherefrom.evidence.rerun import Cut, rerun
    from wherefrom.evidence.routed import RouteTrace
    from wherefrom.evidence.routing import trace_routes
    from wherefrom.evidence.target import Target
    from wherefrom.evidence.trace import trace
    from wherefrom.evidence.versions import Destination
    from wherefrom.model.checkpoint import write_folder
    from wherefrom.model.config import Config
    from wherefrom.model.generate import Sampling, generate
    from wherefrom.model.initial import draw
    from wherefrom.model.language import LanguageModel
    from wherefrom.questions import Answer, Scope, Window, diff, heads, readers, received, scan, sources, weights
    from wherefrom.recording import (
        Recording,
        forecast_bytes,
        forecast_file_bytes,
        open_recording,
        save_recording,
        verify_recording,
    )
    from wherefrom.scans import Scan
    from wherefrom.training.baselines import baselines
    from wherefrom.training.loop import resume, train
    from wherefrom.training.settings import Settings
    from wherefrom.training.text import Corpus
    from wherefrom.training.watch import Watch
    from wherefrom.views.figures import figure_of_heads, figure_of_map
    from wherefrom.views.glowing import figure_of_evidence, figure_of_text
    from wherefrom.views.picture import Picture

__version__ = "0.1.0"

_HOMES = {
    "wherefrom.attention": ("Mask", "attend", "multi_head"),
    "wherefrom.capture.huggingface.model": ("TransformersModel",),
    "wherefrom.capture.loading": ("load",),
    "wherefrom.capture.native": ("forecast",),
    "wherefrom.capture.verbs": ("record", "record_batch", "record_generation"),
    "wherefrom.errors": ("InputError", "ModelError", "RecordingError", "TrainingError", "WherefromError"),
    "wherefrom.evidence.answered": ("AnswerTrace",),
    "wherefrom.evidence.answering": ("trace_answer",),
    "wherefrom.evidence.carried": ("Carriers",),
    "wherefrom.evidence.carriers": ("find_carriers",),
    "wherefrom.evidence.cases": ("Case", "retrieval_cases"),
    "wherefrom.evidence.cost": ("cost",),
    "wherefrom.evidence.knockout": ("knock_out", "knock_out_heads"),
    "wherefrom.evidence.rerun": ("Cut", "rerun"),
    "wherefrom.evidence.routed": ("RouteTrace",),
    "wherefrom.evidence.routing": ("trace_routes",),
    "wherefrom.evidence.target": ("Target",),
    "wherefrom.evidence.trace": ("trace",),
    "wherefrom.evidence.versions": ("Destination",),
    "wherefrom.model.checkpoint": ("write_folder",),
    "wherefrom.model.config": ("Config",),
    "wherefrom.model.generate": ("Sampling", "generate"),
    "wherefrom.model.initial": ("draw",),
    "wherefrom.model.language": ("LanguageModel",),
    "wherefrom.questions": (
        "Answer",
        "Scope",
        "Window",
        "diff",
        "heads",
        "readers",
        "received",
        "scan",
        "sources",
        "weights",
    ),
    "wherefrom.recording": (
        "Recording",
        "forecast_bytes",
        "forecast_file_bytes",
        "open_recording",
        "save_recording",
        "verify_recording",
    ),
    "wherefrom.scans": ("Scan",),
    "wherefrom.training.baselines": ("baselines",),
    "wherefrom.training.loop": ("resume", "train"),
    "wherefrom.training.settings": ("Settings",),
    "wherefrom.training.text": ("Corpus",),
    "wherefrom.training.watch": ("Watch",),
    "wherefrom.views.figures": ("figure_of_heads", "figure_of_map"),
    "wherefrom.views.glowing": ("figure_of_evidence", "figure_of_text"),
    "wherefrom.views.picture": ("Picture",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "AnswerTrace",
    "Carriers",
    "Case",
    "Config",
    "Corpus",
    "Cut",
    "Destination",
    "InputError",
    "LanguageModel",
    "Mask",
    "ModelError",
    "Picture",
    "Recording",
    "RecordingError",
    "RouteTrace",
    "Sampling",
    "Scan",
    "Scope",
    "Settings",
    "Target",
    "TrainingError",
    "TransformersModel",
    "Watch",
    "WherefromError",
    "Window",
    "attend",
    "baselines",
    "cost",
    "diff",
    "draw",
    "figure_of_evidence",
    "figure_of_heads",
    "figure_of_map",
    "figure_of_text",
    "find_carriers",
    "forecast",
    "forecast_bytes",
    "forecast_file_bytes",
    "generate",
    "heads",
    "knock_out",
    "knock_out_heads",
    "load",
    "multi_head",
    "open_recording",
    "readers",
    "received",
    "record",
    "record_batch",
    "record_generation",
    "rerun",
    "resume",
    "retrieval_cases",
    "save_recording",
    "scan",
    "sources",
    "trace",
    "trace_answer",
    "trace_routes",
    "train",
    "verify_recording",
    "weights",
    "write_folder",
]


def __getattr__(name: str) -> Any:
    """Import a verb's room when the verb is first used."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'wherefrom' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

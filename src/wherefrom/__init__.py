"""wherefrom: record a transformer's attention at full speed; ask afterwards where a token came from, exactly.

>>> import wherefrom
>>> model = wherefrom.load()
>>> print(wherefrom.trace(model, "The capital of France is Paris. The capital of Italy is"))

The verbs: `load` a model; `trace` a prediction; `generate` text; `forecast` the size of a recording, `record` a pass
and ask it for `weights`, `sources` and `readers`; `knock_out` sources and `rerun` a text with a cut. Nothing heavy is
imported before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherefrom.attention import Mask, attend, multi_head
    from wherefrom.capture.native import forecast, record, record_generation
    from wherefrom.errors import InputError, ModelError, RecordingError, WherefromError
    from wherefrom.evidence.knockout import LastPosition, knock_out, knock_out_heads
    from wherefrom.evidence.rerun import Cut, rerun
    from wherefrom.evidence.target import Target
    from wherefrom.evidence.trace import trace
    from wherefrom.model.generate import Sampling, generate
    from wherefrom.model.language import LanguageModel, load
    from wherefrom.questions import Answer, Scope, Window, readers, sources, weights
    from wherefrom.recording import Recording, forecast_bytes

__version__ = "0.1.0"

_HOMES = {
    "wherefrom.attention": ("Mask", "attend", "multi_head"),
    "wherefrom.capture.native": ("forecast", "record", "record_generation"),
    "wherefrom.errors": ("InputError", "ModelError", "RecordingError", "WherefromError"),
    "wherefrom.evidence.knockout": ("LastPosition", "knock_out", "knock_out_heads"),
    "wherefrom.evidence.rerun": ("Cut", "rerun"),
    "wherefrom.evidence.target": ("Target",),
    "wherefrom.evidence.trace": ("trace",),
    "wherefrom.model.generate": ("Sampling", "generate"),
    "wherefrom.model.language": ("LanguageModel", "load"),
    "wherefrom.questions": ("Answer", "Scope", "Window", "readers", "sources", "weights"),
    "wherefrom.recording": ("Recording", "forecast_bytes"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "Cut",
    "InputError",
    "LanguageModel",
    "LastPosition",
    "Mask",
    "ModelError",
    "Recording",
    "RecordingError",
    "Sampling",
    "Scope",
    "Target",
    "WherefromError",
    "Window",
    "attend",
    "forecast",
    "forecast_bytes",
    "generate",
    "knock_out",
    "knock_out_heads",
    "load",
    "multi_head",
    "readers",
    "record",
    "record_generation",
    "rerun",
    "sources",
    "trace",
    "weights",
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

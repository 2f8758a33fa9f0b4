"""What every test stands on: offline, fresh memory full of NaN, one small random model and the real one."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # many small kernels: do not spin on a shared machine

import pytest
import torch
from hypothesis import HealthCheck, settings

import wherefrom
from small import write_small_model

LONG = ("docs", "examples", "smollm", "routes", "cli_train", "cli", "hf_census", "answered", "gguf", "hf_recorded")
"""Files that take the longest. They begin first, so that at the end no core waits for the last of them."""

# How long something takes says nothing on a shared machine.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
torch.use_deterministic_algorithms(True)  # also fills fresh tensors with NaN, so that nothing unwritten passes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; all else stays in its order."""
    place = {f"test_{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONG)))


@pytest.fixture(scope="session")
def smollm() -> wherefrom.LanguageModel:
    """SmolLM2-135M-Instruct, from the user's cache (converted at first use)."""
    return wherefrom.load()


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder of the Llama family: random weights, odd sizes, a tokenizer of single bytes."""
    return write_small_model(tmp_path_factory.mktemp("small0", numbered=False))


@pytest.fixture(scope="session")
def small(small_folder: Path) -> wherefrom.LanguageModel:
    """The model in that folder: 3 layers, 6 query heads on 2, head size 10."""
    return wherefrom.load(small_folder)

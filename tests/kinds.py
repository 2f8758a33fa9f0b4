"""A small random model of every kind, written as a checkpoint folder and loaded like any other."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import wherefrom
from wherefrom import Config
from wherefrom.model.checkpoint import write_folder
from wherefrom.model.initial import draw
from wherefrom.tokens import Tokenizer as OurTokenizer

VOCABULARY = 259
END, MASK, START = 256, 257, 258
SIZES = {"layers": 3, "width": 48, "heads": 6, "vocabulary": VOCABULARY, "context": 64}
CONFIGS = {
    "llama": Config.decoder(**SIZES, kv_heads=2, eos_ids=(END,)),
    "gpt2": Config.decoder(**SIZES, style="gpt2", eos_ids=(END,)),
    "mistral": Config.decoder(**SIZES, architecture="mistral", kv_heads=3, window=4, eos_ids=(END,)),
    "qwen3": Config.decoder(
        **SIZES, architecture="qwen3", kv_heads=2, head_size=10, query_key_norm=True, eos_ids=(END,)
    ),
    "bert": Config.encoder(**SIZES),
    "encoder": Config.encoder(**SIZES, architecture="bert", head="none", head_bias=False, tied=False),
    "windowed encoder": Config.encoder(**SIZES, architecture="wherefrom", window=3, positions="rotary", head_size=8),
    "marian": Config.encoder_decoder(
        **SIZES, architecture="marian", encoder_layers=2, head_bias=True, start_id=START, eos_ids=(END,)
    ),
    "pre-norm pair": Config.encoder_decoder(
        **SIZES, encoder_layers=2, norm_first=True, final_norm=True, tied=False, shared_embedding=False,
        kv_heads=2, start_id=START, eos_ids=(END,),
    ),
}  # fmt: skip
DECODERS = ("llama", "gpt2", "mistral", "qwen3")
PAIRS = ("marian", "pre-norm pair")


def tokenizer(*, ends: bool) -> OurTokenizer:
    """Each byte is a token; three marks more, of which one ends every text that is read if `ends`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<end>", "[MASK]", "<start>"])
    if ends:
        inner.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", END)])
    return OurTokenizer(inner)


@cache
def small_model(kind: str, seed: int = 7) -> wherefrom.LanguageModel:
    """Return a loaded model of a kind; its weights are large enough that attention is far from even."""
    config, folder = CONFIGS[kind], Path(mkdtemp()) / kind.replace(" ", "-")
    folder.mkdir()
    model = draw(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 1.7 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1
            parameter += spread * torch.randn(parameter.shape, generator=generator)
    write_folder(folder, model, tokenizer(ends=config.kind == "encoder-decoder"))
    return wherefrom.load(folder)

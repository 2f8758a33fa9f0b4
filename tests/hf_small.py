"""Small random models of the transformers library, by a short name, each with an input for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()
IDS = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
STATES = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(2))
IMAGE = 99
"""The token that stands for a piece of an image."""

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = dict(TEXT, num_key_value_heads=2)
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR: dict[str, Any] = dict(
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
    vocab_size=101,
    decoder_start_token_id=2,
    **SPECIAL,
)
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 101,
    "decoder_start_token_id": 0,
}
VIT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}

BOTH = {"input_ids": IDS, "decoder_input_ids": IDS[:, :6]}
Made = tuple[nn.Module, dict[str, Tensor]]


def _text(model: str, config: str, **fields: Any) -> Callable[[], Made]:
    return lambda: (getattr(hf, model)(getattr(hf, config)(**fields)), {"input_ids": IDS})


def _pair(model: str, config: str, **fields: Any) -> Callable[[], Made]:
    return lambda: (getattr(hf, model)(getattr(hf, config)(**fields)), dict(BOTH))


def _whisper() -> Made:
    config = hf.WhisperConfig(num_mel_bins=8, max_source_positions=20, max_target_positions=30, **PAIR)
    return hf.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(3)),
        "decoder_input_ids": IDS[:, :6],
    }


def _jamba() -> Made:
    config = hf.JambaConfig(
        **{**GROUPED, "num_hidden_layers": 6},
        attn_layer_period=3,
        attn_layer_offset=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=2,
        mamba_d_state=4,
        mamba_d_conv=2,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    )
    return hf.JambaForCausalLM(config), {"input_ids": IDS}


def _bamba() -> Made:
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
    config = hf.BambaConfig(**{**GROUPED, "num_hidden_layers": 4}, attn_layer_indices=[1, 3], **sizes)
    return hf.BambaForCausalLM(config), {"input_ids": IDS}


def _zamba2() -> Made:
    kinds = ["mamba", "hybrid", "mamba", "mamba", "hybrid", "mamba"]
    sizes = {
        "mamba_ngroups": 1,
        "n_mamba_heads": 4,
        "mamba_d_state": 8,
        "num_mem_blocks": 1,
        "use_mamba_kernels": False,
    }
    config = hf.Zamba2Config(**{**TEXT, "num_hidden_layers": 6}, layers_block_type=kinds, **sizes)
    return hf.Zamba2ForCausalLM(config), {"input_ids": IDS}


def _qwen3_next() -> Made:
    config = hf.Qwen3NextConfig(
        **{**GROUPED, "num_hidden_layers": 4},
        head_dim=8,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return hf.Qwen3NextForCausalLM(config), {"input_ids": IDS}


def _falcon_h1() -> Made:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
    return hf.FalconH1ForCausalLM(hf.FalconH1Config(**GROUPED, **sizes)), {"input_ids": IDS}


def _clip() -> Made:
    config = hf.CLIPConfig(text_config=TEXT, vision_config=VIT, projection_dim=16)
    return hf.CLIPModel(config), {"input_ids": IDS, "pixel_values": PIXELS}


def _siglip() -> Made:
    return hf.SiglipModel(hf.SiglipConfig(text_config=TEXT, vision_config=VIT)), {
        "input_ids": IDS,
        "pixel_values": PIXELS,
    }


def _swin() -> Made:
    config = hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4)
    return hf.SwinModel(config), {"pixel_values": PIXELS}


def _blip() -> Made:
    text = {**TEXT, "encoder_hidden_size": 32}
    config = hf.BlipConfig(text_config=text, vision_config=VIT, image_text_hidden_size=16, projection_dim=16)
    return hf.BlipForConditionalGeneration(config), {"input_ids": IDS, "pixel_values": PIXELS}


def _blip2() -> Made:
    queries = {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "encoder_hidden_size": 32,
        "cross_attention_frequency": 2,
    }
    config = hf.Blip2Config(
        vision_config=VIT,
        qformer_config=queries,
        text_config=hf.LlamaConfig(**GROUPED),
        num_query_tokens=4,
        image_token_index=IMAGE,
    )
    ids = torch.cat([torch.full((2, 4), IMAGE), IDS], 1)
    return hf.Blip2ForConditionalGeneration(config), {"input_ids": ids, "pixel_values": PIXELS}


def _llava() -> Made:
    config = hf.LlavaConfig(
        text_config=hf.LlamaConfig(**GROUPED),
        vision_config=hf.CLIPVisionConfig(**VIT, projection_dim=16),
        image_token_id=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )
    ids = torch.cat([torch.full((2, 16), IMAGE), IDS], 1)
    return hf.LlavaForConditionalGeneration(config), {"input_ids": ids, "pixel_values": PIXELS}


def _qwen2_vl() -> Made:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2}
    config = hf.Qwen2VLConfig(
        text_config={**GROUPED, "rope_parameters": rope},
        vision_config={**vision, "temporal_patch_size": 2, "spatial_merge_size": 2},
        image_token_id=IMAGE,
        video_token_id=98,
        vision_start_token_id=97,
        vision_end_token_id=96,
    )
    image = torch.full((1, 4), IMAGE)
    ids = torch.cat([image, IDS[:1, :2], image, IDS[:1]], 1)
    return hf.Qwen2VLForConditionalGeneration(config), {
        "input_ids": ids,
        "mm_token_type_ids": (ids == IMAGE).long(),
        "pixel_values": torch.randn(32, 3 * 2 * 16, generator=torch.Generator().manual_seed(4)),
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]]),
    }


def _mllama() -> Made:
    config = hf.models.mllama.configuration_mllama.MllamaTextConfig(
        **{**GROUPED, "num_hidden_layers": 4}, cross_attention_layers=[1, 3]
    )
    return hf.MllamaForCausalLM(config), {"input_ids": IDS, "cross_attention_states": STATES}


def _bert_cross() -> Made:
    model = hf.BertLMHeadModel(hf.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True))
    return model, {"input_ids": IDS, "encoder_hidden_states": STATES}


def _deepseek_v3() -> Made:
    config = hf.DeepseekV3Config(
        **TEXT,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=6,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        first_k_dense_replace=1,
    )
    return hf.DeepseekV3ForCausalLM(config), {"input_ids": IDS}


def _deepseek_v4() -> Made:
    config = hf.DeepseekV4Config(
        **{**TEXT, "num_key_value_heads": 1},
        head_dim=16,
        q_lora_rank=16,
        o_lora_rank=8,
        o_groups=2,
        index_n_heads=2,
        index_head_dim=8,
        index_topk=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        qk_rope_head_dim=4,
        sliding_window=4,
    )
    return hf.DeepseekV4ForCausalLM(config), {"input_ids": IDS}


MODELS: dict[str, Callable[[], Made]] = {
    "albert": _text("AlbertForMaskedLM", "AlbertConfig", **{**TEXT, "num_hidden_layers": 3}, embedding_size=16),
    "aimv2": lambda: (hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**VIT)), {"pixel_values": PIXELS}),
    "bamba": _bamba,
    "bart": _pair("BartForConditionalGeneration", "BartConfig", max_position_embeddings=64, **PAIR),
    "bert": _text("BertForMaskedLM", "BertConfig", **TEXT),
    "bert cross": _bert_cross,
    "blip": _blip,
    "blip2": _blip2,
    "bloom": _text("BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4, vocab_size=101),
    "clip": _clip,
    "deberta_v2": _text(
        "DebertaV2Model", "DebertaV2Config", **TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "deepseek_v3": _deepseek_v3,
    "deepseek_v4": _deepseek_v4,
    "diffllama": _text("DiffLlamaForCausalLM", "DiffLlamaConfig", **GROUPED),
    "falcon": _text(
        "FalconForCausalLM",
        "FalconConfig",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=101,
    ),
    "falcon_h1": _falcon_h1,
    "gemma2": _text("Gemma2ForCausalLM", "Gemma2Config", **GROUPED, head_dim=8, sliding_window=4),
    "gpt2": _text("GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=101, n_positions=64),
    "gpt_neo": _text(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        vocab_size=101,
        max_position_embeddings=64,
    ),
    "gpt_oss": _text(
        "GptOssForCausalLM",
        "GptOssConfig",
        **GROUPED,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=4,
    ),
    "jamba": _jamba,
    "lfm2": _text(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        **{**GROUPED, "num_hidden_layers": 4},
        layer_types=["conv", "full_attention", "conv", "full_attention"],
    ),
    "llama": _text("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "llava": _llava,
    "longt5": _pair("LongT5ForConditionalGeneration", "LongT5Config", local_radius=3, **T5),
    "mistral": _text("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=4),
    "mixtral": _text("MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=4),
    "mllama": _mllama,
    "qwen2_vl": _qwen2_vl,
    "qwen3_next": _qwen3_next,
    "siglip": _siglip,
    "swin": _swin,
    "t5": _pair("T5ForConditionalGeneration", "T5Config", **T5),
    "t5 encoder": _text("T5EncoderModel", "T5Config", **T5),
    "whisper": _whisper,
    "zamba2": _zamba2,
}


def made(name: str, implementation: str | None = None) -> Made:
    """Return a model in evaluation mode, with weights large enough that attention is far from even, and an input."""
    torch.manual_seed(5)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    if implementation is not None:
        model.set_attn_implementation(implementation)
    return model.eval(), inputs


def tensors_of(output: Any) -> list[Tensor]:
    """Return all floating-point tensors of a model's output, but those of its cache."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, dict):
        return [
            x for name, value in output.items() if name not in ("cache", "past_key_values") for x in tensors_of(value)
        ]
    return [x for value in output for x in tensors_of(value)] if isinstance(output, (list, tuple)) else []

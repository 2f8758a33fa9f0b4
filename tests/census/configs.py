"""Small random models of every config type: a config is shrunk by the names of its fields, and a table says the rest.

A config is made afresh with smaller numbers, so that what it derives from them (head sizes, patterns of layers) is
derived again. All widths of a tree of configs become the same number, so that parts which hand something to one another
go on fitting; so do all special tokens of one name.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from .shapes import SHAPES

WIDTH, HEADS, KEY_HEADS, HEAD, WIDE, VOCABULARY, WINDOW, LAYERS = 32, 4, 2, 8, 48, 128, 4, 2
SOFTCAP = 2.0
POSITIONS, IMAGE, PATCH, MEL = 64, 32, 8, 16
FIRST_SPECIAL = 100
"""Special tokens have ids from here on, but for those of a text's ends."""
ENDS = {"pad": 1, "bos": 2, "eos": 3, "sep": 3, "cls": 2, "mask": 4, "decoder_start": 2, "unk": 5}
MOST = 30_000_000
"""Numbers of the largest model that counts as small."""
DEEP = 8
"""The most layers that are kept so that a pattern shows all kinds of them."""


class CannotBuildError(Exception):
    """A type of which no small model can be made, or run; the text says why."""


def _special(name: str) -> str | None:
    """Return the name of a special token that a field holds the id of, None if it holds none."""
    found = re.fullmatch(r"_?(\w+?)_(token_)?(id|index|idx)", name)
    if found is None or (found[2] is None and found[1] not in ENDS and not found[1].endswith("token")):
        return None
    return found[1].removesuffix("_token")


def _keys(value: int, default: PreTrainedConfig) -> int:
    """Return a number of key heads: as many as heads, or one, where the config has it so, else two."""
    heads = {_read(default, name) for name in ("num_attention_heads", "n_heads", "swa_num_attention_heads")}
    return HEADS if value in heads else min(value, KEY_HEADS)


def _at_most(most: int) -> Callable[[int], int]:
    return lambda value: min(value, most)


def _to(new: int) -> Callable[[int], int]:
    return lambda value: new if value > 0 else value


RULES: tuple[tuple[str, Callable[[int], int]], ...] = (
    (r"(?!(max|decoder_start)\w*)\w*vocab_size\w*", _at_most(VOCABULARY)),
    (
        r"\w*(n_mels|num_mel\w*|mel_bins|mel_dim|n_mel_channels|feat_in|input_feat_size|input_feat_per_channel)",
        _to(MEL),
    ),
    (
        r"\w*(max_)?(2d_)?(position_embeddings|source_positions|target_positions|n_positions|max_seq_len|n_ctx)",
        _to(POSITIONS),
    ),
    (r"max_length|model_max_length|context_length|seq_length|max_seq_length|max_pos_emb", _to(POSITIONS)),
    (r"index_n_heads|\w*_linear_num_\w*heads|linear_num_\w*heads|linear_num_heads", _at_most(2)),
    (
        r"\w*(attention_heads|n_head|n_heads|num_heads|num_attention_heads|encoder_heads|attn_heads|resampler_heads)",
        _to(HEADS),
    ),
    (r"mamba_n_heads|mamba_num_heads|n_mamba_heads|nheads", _to(HEADS)),
    (r"kv_lora_rank", _to(16)),
    (r"\w*lora_rank", _at_most(16)),
    (r"qk_head_dim", _to(16)),
    (r"v_head_dim", _to(12)),
    (r"\w*(head_dim|d_kv|dim_head|d_head|head_size|rope_head_dim|mamba_d_head|kv_channels)", _to(HEAD)),
    (r"rotary_dim", _to(4)),
    (r"query_pre_attn_scalar", _to(2)),  # scores then reach a softcap
    (
        r"\w*(intermediate\w*|ffn_dim|ffn_hidden_size|mlp_dim|d_ff|dff|d_inner|dim_ff|linear_units|feedforward_dim|n_inner|dim_feedforward|hidden_dim_ff|share_expert_dim)",
        _to(WIDE),
    ),
    (r"mlp_hidden_size|\w*_mlp_hidden\w*|projector_hidden_size|projection_hidden_dim", _to(WIDTH)),
    (r"(n_routed_experts|num_experts|num_local_experts|moe_num_experts|n_experts|num_moe_experts)", _at_most(4)),
    (
        r"(num_experts_per_tok\w*|moe_topk|moe_top_k|moe_k|top_k|num_experts_per_token|num_selected_experts)",
        _at_most(2),
    ),
    (r"n_group|topk_group|num_expert_group", _at_most(1)),
    (r"(n_shared_experts|num_shared_experts|moe_num_shared_experts)", _at_most(1)),
    (r"first_k_dense_replace|num_dense_layers|max_window_layers|moe_layer_start_index", _at_most(1)),
    (r"num_nextn_predict_layers|num_mtp\w*", lambda value: 0),
    (
        r"\w*(sliding_window\w*(?<!pattern)|window_len|local_attention|attention_window|attention_chunk_size|keep_window_size)",
        _to(WINDOW),
    ),
    (r"index_topk", _at_most(4)),
    (r"mamba_expand|expand|mamba_d_conv|conv_L_cache|conv_kernel|d_conv", _at_most(4)),
    (r"mamba_d_state|ssm_state_size|state_size", _to(8)),
    (r"\w*chunk_size", _at_most(8)),
    (r"time_step_rank", _to(2)),
    (r"\w*(num_frames|n_frames)", _at_most(2)),
    (r"\w*(image_size|img_size|crop_size|pretrain_image_size|resolution|input_size)", _to(IMAGE)),
    (r"\w*patch_size", lambda value: PATCH if value > 8 else value),
    (r"\w*(num_queries|num_query_tokens|n_latents|num_latents|query_length|num_object_queries)", _at_most(5)),
    (r"num_image_tokens|mm_tokens_per_image|image_seq_length", _at_most(4)),
    (r"num_conv_pos_embeddings", _to(4)),
    (r"num_conv_pos_embedding_groups", _to(2)),
    (r"(mask_time_length|mask_feature_length)", _at_most(2)),
    (
        r"codebook_size|num_codevectors_per_group|n_codes|num_embeddings|codebook_dim|codevector_dim|proj_codevector_dim",
        _at_most(32),
    ),
    (
        r"\w*(conv_channels|upsample_initial_channel|base_channels|num_filters|latent_channels|neck_out_channels|output_channels|subsampling_conv_channels|conv_hidden_size|classifier_proj_size|xvector_output_dim)",
        _at_most(WIDTH),
    ),
    (r"\w*num_pos_feats", _to(WIDTH // 2)),
    (
        r"(?!num_)\w*(hidden_size\w*|hidden_dim|d_model|n_embd|n_embed|embed_dim|emb_dim|embedding_size|embedding_dim|projection_dim|projection_size|output_dim|query_dim|dim|embed_proj_dim|feature_size|hidden_channels|hidden_features|model_dim|projector_dim|project_dim|out_dim|d_inner_dim|fpn_channels|reduce_dim|latent_dim|width|in_dim|input_dim|pooler_output_size|adapter_input_size)",
        _to(WIDTH),
    ),
)
LAYER_COUNTS = re.compile(
    r"(?!max_|first_|n_layers_per|num_dense|num_nextn|attn_layer|no_rope|interleave|num_kv_shared|adapter)(\w*_)?(layers|n_layer|depth|num_blocks|num_res_blocks|layer_num)"
)
KEY_COUNTS = re.compile(r"\w*(kv_heads|kv_n_heads|key_value_heads)")
INDICES = re.compile(r"\w*(indexes|indices|idxs|_layers|layer_ids|return_idx|attention_blocks)")
IMAGES = re.compile(r"\w*(image_size|img_size|crop_size|window_size|input_size)")


def small(type_name: str, *, grouped: bool = True) -> PreTrainedConfig:
    """Return a small config of a type.

    Args:
        type_name: the type.
        grouped: whether heads share keys where the type leaves that open.

    Raises:
        CannotBuildError: it has no defaults to begin with, or its small form is not valid.
    """
    return shrunk(CONFIG_MAPPING[type_name], {}, grouped=grouped)


def shrunk(
    cls: type[PreTrainedConfig], specials: dict[str, int], given: Mapping[str, Any] | None = None, *, grouped: bool
) -> PreTrainedConfig:
    """Return a small config of a class.

    Args:
        cls: the class.
        specials: ids of special tokens that are in use in the tree, by name; gets more.
        given: what a table says of it, by the name of the field; a mapping for a nested config.
        grouped: whether heads share keys where the class leaves that open.
    """
    own = {**SHAPES.get(cls.model_type, {}), **(given or {})}
    flat = {name: value for name, value in own.items() if name not in cls.sub_configs_defaults}
    default = _default(cls, flat)
    values: dict[str, Any] = {}
    deep = _deep(default)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name, field in fields.items():
        now = _read(default, name)
        if name in cls.sub_configs_defaults or isinstance(now, PreTrainedConfig):
            nested = own.get(name, {})
            inner = type(now) if isinstance(now, PreTrainedConfig) else None
            if inner is None and name in own and hasattr(cls.sub_configs_defaults[name].config_class, "model_type"):
                inner = cls.sub_configs_defaults[name].config_class
            if inner is not None:
                values[name] = shrunk(inner, specials, nested, grouped=grouped)
        elif name in flat:
            values[name] = flat[name]
        elif name in PreTrainedConfig.__dataclass_fields__:
            continue
        else:
            declared = field.default if field.default is not dataclasses.MISSING else None
            if grouped and KEY_COUNTS.fullmatch(name) and declared is None and "kv_lora_rank" not in fields:
                values[name] = KEY_HEADS
                continue
            new = _shrunk_value(name, declared if declared is not None else _always(name, now), default, deep, specials)
            if new is not None and new != declared:
                values[name] = new
    try:
        return cls(**{**flat, **values})
    except Exception as error:
        raise CannotBuildError(f"no small config: {short(error)}") from error


def _default(cls: type[PreTrainedConfig], given: Mapping[str, Any]) -> PreTrainedConfig:
    """Return a config of full size, with what is given if that fits it."""
    try:
        return cls(**given)
    except Exception:
        try:
            return cls()
        except Exception as error:
            raise CannotBuildError(f"no config: {short(error)}") from error


def _read(config: PreTrainedConfig, name: str) -> Any:
    """Return a field; None where layers differ in it and none is asked for."""
    try:
        return getattr(config, name, None)
    except Exception:  # transformers has its own for it
        return None


def _always(name: str, now: Any) -> Any:
    """Return what a field holds though its declaration leaves it open, where that must be made small as well."""
    return now if isinstance(now, dict) and name == "rope_parameters" else None


def _shrunk_value(name: str, value: Any, default: PreTrainedConfig, deep: int, specials: dict[str, int]) -> Any:
    """Return the small value of a field; None where it stays as it is."""
    if name == "rope_parameters" and isinstance(value, dict):
        sections = "mrope_section" in getattr(default, "ignore_keys_at_rope_validation", ())
        return _rope({**value, "mrope_section": ()} if sections else value)
    if isinstance(value, bool) or value is None:
        return None
    special = _special(name)
    if special is not None:
        if isinstance(value, list | tuple):
            return [_token(special, specials)]
        return _token(special, specials) if isinstance(value, int) and value >= 0 else None
    if isinstance(value, int):
        return _shrunk_count(name, value, default, deep)
    if isinstance(value, float) and re.fullmatch(r"attn?\w*soft_?cap\w*", name):
        return SOFTCAP  # that scores of such a model reach
    if isinstance(value, list | tuple) and value:
        return _shrunk_list(name, value, default, deep)
    return None


def _shrunk_count(name: str, value: int, default: PreTrainedConfig, deep: int) -> int | None:
    """Return a smaller number of what a field counts; None where it stays as it is."""
    if LAYER_COUNTS.fullmatch(name):
        return min(value, deep)
    if KEY_COUNTS.fullmatch(name):
        return _keys(value, default)
    return next((rule(value) for pattern, rule in RULES if re.fullmatch(pattern, name)), None)


def _shrunk_list(name: str, value: list[Any] | tuple[Any, ...], default: PreTrainedConfig, deep: int) -> Any:
    kind = type(value)
    layers = _read(default, "num_hidden_layers")
    if name == "depths" or (name.endswith("_per_stage") and "block" in name):
        return kind(min(one, 2) for one in value)
    if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        if INDICES.fullmatch(name) and not name.startswith("num"):
            return kind(sorted({min(one, deep - 1) if one >= 0 else one for one in value}))
        if IMAGES.fullmatch(name):
            return kind(IMAGE if one > IMAGE else one for one in value)
        if re.fullmatch(r"\w*patch_size", name):
            return kind(PATCH if one > 8 else one for one in value)
        if re.fullmatch(
            r"hidden_sizes|embed_dims?|embed_dim_per_stage|\w*channels?(_list)?|conv_dim|neck_hidden_sizes|\w*_dims",
            name,
        ):
            return _scaled(kind, value)
    if layers is not None and len(value) == layers and layers > deep and _read(default, "depths") is None:
        return kind(value[:deep])
    return None


def _scaled(kind: Any, value: Any) -> Any:
    """Return widths of stages, in the same relations, the smallest of them 16 or less."""
    least = min(value)
    return kind(max(1, one * 16 // least) for one in value) if least > 16 else None


def _rope(value: dict[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of a rotation, with sections that fit the small head."""
    new = dict(value)
    for key, inner in value.items():
        if isinstance(inner, dict):
            new[key] = _rope(inner) or inner
        elif key == "mrope_section":
            new[key] = [HEAD // 2 - 2, 1, 1]
    return new if new != value else None


def _token(name: str, specials: dict[str, int]) -> int:
    if name in ENDS:
        return ENDS[name]
    return specials.setdefault(name, FIRST_SPECIAL + len(specials))


def _deep(config: PreTrainedConfig) -> int:
    """Return how many layers show every kind that a config's patterns have."""
    most = LAYERS
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types", "attention_layers"):
        kinds = _read(config, name)
        if isinstance(kinds, list | tuple):
            first = [kinds.index(kind) + 1 for kind in dict.fromkeys(kinds)]
            most = max([most, *(number for number in first if number <= DEEP)])
    return most


def model_classes(type_name: str) -> tuple[type[PreTrainedModel], ...]:
    """Return the classes of a type's base model, mostly one.

    Raises:
        CannotBuildError: there is none, or it cannot be imported here.
    """
    config = CONFIG_MAPPING[type_name]
    try:
        if config in MODEL_MAPPING:
            found = MODEL_MAPPING[config]
            return tuple(found) if isinstance(found, list | tuple) else (found,)
        module = importlib.import_module(config.__module__.replace(".configuration_", ".modeling_"))
    except Exception as error:
        raise CannotBuildError(f"no model class: {short(error)}") from error
    own = [
        one
        for one in vars(module).values()
        if isinstance(one, type)
        and issubclass(one, PreTrainedModel)
        and one.config_class is config
        and any("forward" in vars(base) for base in one.__mro__ if base not in PreTrainedModel.__mro__)
    ]
    if not own:
        raise CannotBuildError("no model class of its own: a part of others")
    return tuple([one for one in own if one.__name__.endswith("Model")] or own)[:1]


def build(type_name: str, cls: type[PreTrainedModel], *, grouped: bool = True, seed: int = 0) -> PreTrainedModel:
    """Return a small model of a type: eager attention, float32, in evaluation mode, weights that make scores differ.

    Args:
        type_name: the config's type.
        cls: the model's class, of `model_classes`.
        grouped: whether heads share keys where the type leaves that open.
        seed: of the weights.

    Raises:
        CannotBuildError: no such model can be made.
    """
    config = small(type_name, grouped=grouped)
    torch.manual_seed(seed)
    try:
        model = cls._from_config(config, attn_implementation="eager", dtype=torch.float32)
    except Exception as error:
        raise CannotBuildError(f"no model: {short(error)}") from error
    size = sum(one.numel() for one in model.parameters())
    if size > MOST:
        raise CannotBuildError(f"not small: {size:,} numbers")
    spread(model, seed=seed)
    return model.float().eval()


def spread(model: nn.Module, *, seed: int) -> None:
    """Give a model weights of a size at which scores differ by about 1, and biases and sinks that are not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if not weight.is_floating_point() or weight.numel() == 0:
            continue
        drawn = torch.randn(weight.shape, generator=generator)
        with torch.no_grad():
            if weight.ndim >= 2:
                weight.copy_(drawn * (weight.numel() / weight.shape[0]) ** -0.5)
            elif not re.search("A_log|dt_bias|decay|time_", name):
                weight.copy_(weight.nan_to_num() + 0.1 * drawn)


def short(error: BaseException, most: int = 160) -> str:
    """Return an exception in one line, without the folders of this machine."""
    text = re.sub(r"/\S*/site-packages/", "", " ".join(str(error).split()))
    text = f"{type(error).__name__}: {text}"
    return text if len(text) <= most else f"{text[:most].rstrip()} ..."

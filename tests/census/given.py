"""Inputs of config types whose forward takes what nobody else's does, by type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .inputs import Facts

Inputs = dict[str, Any]
STATES, WIDTH = 7, 32


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.long)


def _series(facts: Facts) -> list[Inputs]:
    past, future = 12 + 2, 4
    features = facts.get("num_time_features", default=2)
    return [
        {
            "past_values": facts.drawn(1, past),
            "past_time_features": facts.drawn(1, past, features),
            "past_observed_mask": torch.ones(1, past),
            "future_values": facts.drawn(1, future),
            "future_time_features": facts.drawn(1, future, features),
        }
    ]


def _patches_of_series(facts: Facts) -> list[Inputs]:
    length = facts.get("context_length", default=64)
    return [{"past_values": facts.drawn(1, length, facts.get("num_input_channels", default=1))}]


def _forecast(facts: Facts) -> list[Inputs]:
    values = facts.drawn(1, 64)
    found: Inputs = {"past_values": values, "past_values_padding": _ones(1, 64) * 0}
    return [{**found, "freq": _ones(1, 1) * 0}, found, {"past_values": [values[0]]}]


def _tiles(facts: Facts) -> Inputs:
    tiles = facts.get("max_num_tiles", default=4)
    return {
        "pixel_values": facts.drawn(1, 1, tiles, 3, 32, 32),
        "aspect_ratio_ids": _ones(1, 1),
        "aspect_ratio_mask": _ones(1, 1, tiles),
    }


def _text_and_tiles(facts: Facts) -> list[Inputs]:
    words = {"input_ids": facts.words(), "attention_mask": _ones(1, 11)}
    masked = {"cross_attention_mask": _ones(1, 11, 1, facts.get("max_num_tiles", default=4))}
    return [{**words, **_tiles(facts), **masked}, {**words, **_tiles(facts)}, words]


def _long_sound(facts: Facts) -> list[Inputs]:
    bins, frames = facts.get("num_mel_bins", default=16), 64
    lengths = torch.tensor([frames])
    return [
        {"input_features": facts.drawn(bins, frames), "feature_lens": lengths, "aftercnn_lens": lengths // 2},
        {"input_features": facts.drawn(bins, frames), "feature_lens": lengths},
    ]


def _latents(facts: Facts) -> list[Inputs]:
    width = facts.get("encoder_hidden_size", default=WIDTH)
    return [{"query_embeds": facts.drawn(1, 5, WIDTH), "encoder_hidden_states": facts.drawn(1, STATES, width)}]


def _reads_states(facts: Facts) -> list[Inputs]:
    return [
        {
            "input_ids": facts.words(),
            "attention_mask": _ones(1, 11),
            "encoder_hidden_states": facts.drawn(1, STATES, WIDTH),
            "encoder_attention_mask": _ones(1, STATES),
        },
        {"input_ids": facts.words(), "encoder_hidden_states": facts.drawn(1, STATES, WIDTH)},
    ]


def _codes(facts: Facts) -> list[Inputs]:
    channels = facts.get("num_channels", default=3)
    codes = torch.randint(0, 90, (1, STATES, channels), generator=facts.generator)
    return [
        {"input_ids": facts.words(), "attention_mask": _ones(1, 11), "decoder_input_ids": codes},
        {"input_ids": codes, "encoder_hidden_states": facts.drawn(1, STATES, WIDTH)},
        {"input_ids": codes},
    ]


def _words_and_codes(facts: Facts) -> list[Inputs]:
    books = facts.get("num_codebooks", default=4)
    return [{"input_ids": torch.randint(0, 90, (1, 11, books + 1), generator=facts.generator)}]


def _heard(facts: Facts) -> list[Inputs]:
    bins = facts.get("input_size", "num_mel_bins", default=80)
    return [{"hidden_states": facts.drawn(1, 64, bins), "mask": torch.ones(1, 64, dtype=torch.bool)}]


def _moves(facts: Facts) -> list[Inputs]:
    return [
        {
            "states": facts.drawn(1, STATES, facts.get("state_dim")),
            "actions": facts.drawn(1, STATES, facts.get("act_dim")),
            "rewards": facts.drawn(1, STATES, 1),
            "returns_to_go": facts.drawn(1, STATES, 1),
            "timesteps": torch.arange(STATES)[None],
            "attention_mask": _ones(1, STATES),
        }
    ]


def _marked_image(facts: Facts) -> list[Inputs]:
    queries = facts.get("latent_query_num", default=4)
    ids = torch.cat([facts.words(length=queries), facts.words()], dim=1)
    places = torch.zeros_like(ids).masked_fill(torch.arange(ids.shape[1]) < queries, 1)
    image = {"pixel_values": facts.drawn(1, 3, 32, 32), "image_embeds_position_mask": places}
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids), **image}]


GIVEN: dict[str, Callable[[Facts], list[Inputs]]] = {
    "autoformer": _series,
    "blip_2_qformer": _latents,
    "decision_transformer": _moves,
    "dia": _codes,
    "dia_decoder": _codes,
    "informer": _series,
    "instructblip_qformer": _latents,
    "instructblipvideo_qformer": _latents,
    "kosmos-2": _marked_image,
    "kyutai_speech_to_text": _words_and_codes,
    "mllama": _text_and_tiles,
    "mllama_vision_model": lambda facts: [_tiles(facts)],
    "patchtsmixer": _patches_of_series,
    "patchtst": _patches_of_series,
    "phi4_multimodal_audio": _heard,
    "qwen2_5_omni_audio_encoder": _long_sound,
    "qwen3_asr_encoder": _long_sound,
    "qwen3_omni_moe_audio_encoder": _long_sound,
    "t5gemma2_decoder": _reads_states,
    "time_series_transformer": _series,
    "timesfm": _forecast,
    "timesfm2_5": _forecast,
}

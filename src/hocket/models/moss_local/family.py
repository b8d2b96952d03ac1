"""MOSS-TTS-Local as a family: from its config.json to the plan that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from hocket.checkpoint.weights import load_weights
from hocket.kernels.types import DrawParams
from hocket.models.family import LoadedTalker, TalkerPlan
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.prompt import MossLocalPrompt
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.moss_local.weights import talker_weight_table, tied_copies
from hocket.models.moss_local.workload import ContinuationPrompt
from hocket.models.sampling import ResolvedSampling
from hocket.text.tokenizer import TextTokenizer

#: Recommended by the model's authors for audio codes (sources: MOSS 1.6).
_SAMPLING = ResolvedSampling(DrawParams(temperature=1.7, top_p=0.8, top_k=25))

#: Names in a report, by the first part of a parameter's path.
_PARTS = {
    "text_embedding": "text_embedding",
    "audio_embedding": "audio_embeddings",
    "backbone": "backbone",
    "depth": "depth_transformer",
    "stop_head": "stop_head",
}


def talker_plan(raw: Mapping[str, object], dtype: torch.dtype) -> TalkerPlan:
    """Plan the talker of a config.json at `dtype`. Raises ConfigError."""
    config = MossLocalConfig.from_dict(raw)
    table = talker_weight_table(config, dtype)

    def load(folder: Path, device: torch.device) -> LoadedTalker:
        tokenizer = TextTokenizer.load(folder, vocab_size=config.vocab_size)
        with torch.device("meta"):
            talker = MossLocalTalker(config)
        load_weights(talker, folder, table, tied=tied_copies(config), device=device)
        return LoadedTalker(talker.eval(), MossLocalPrompt(config, tokenizer), _SAMPLING)

    depth = config.depth
    return TalkerPlan(
        config=config,
        weight_table=table,
        build=partial(MossLocalTalker, config),
        load=load,
        sampling=_SAMPLING,
        workload_prompt=partial(ContinuationPrompt, config),
        parts=_PARTS,
        facts={
            "text_vocabulary": config.vocab_size,
            "backbone_shape": config.backbone.description,
            "depth_shape": f"{depth.layers} layers, width {depth.hidden_size}, "
            f"FFN {depth.intermediate_size}, "
            f"{depth.heads} heads x {depth.head_dim}, RoPE base {depth.rope_base:g}",
        },
    )

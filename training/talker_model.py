"""The product's talker with fresh weights, and its losses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.talker import MossLocalTalker

#: Layers that end a residual branch.
_BRANCH_ENDS = ("o_proj", "down_proj")
_EMBEDDING_STD = 0.02


@torch.no_grad()
def new_talker(config: MossLocalConfig) -> MossLocalTalker:
    """Random weights: every linear keeps its input's size, residual branches together too."""
    talker = MossLocalTalker(config)
    for name, module in talker.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=_EMBEDDING_STD)
        elif isinstance(module, nn.Linear):
            depth = config.depth.layers if name.startswith("depth.") else config.layers
            ends = 1 / math.sqrt(2 * depth) if name.endswith(_BRANCH_ENDS) else 1.0
            nn.init.normal_(module.weight, std=ends / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.zeros_(talker.stop_head.weight)
    return talker


def add_dropout(talker: MossLocalTalker, share: float) -> None:
    """Drop `share` of what every residual branch adds, in training mode; the product's modules know
    no dropout.
    """

    def drop(module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return F.dropout(output, share, module.training)

    for name, module in talker.named_modules():
        if name.endswith(_BRANCH_ENDS):
            module.register_forward_hook(drop)


@dataclass(frozen=True, slots=True)
class TalkerLosses:
    #: [N] nats of each codebook, mean over the frames.
    codes: Tensor
    #: Nats of the stop decision.
    stop: Tensor
    #: Share of frames whose first code is the likeliest one.
    first_right: Tensor


def with_noise(rows_BTR: Tensor, config: MossLocalConfig, share: float) -> Tensor:
    """Replace the codes of a random `share` of rows, since the model's own codes are imperfect,
    too.
    """
    codes_BTN = rows_BTR[..., 1:]
    random_BTN = torch.randint_like(codes_BTN, min(config.audio_codebook_sizes))
    hit_BTN = (torch.rand(codes_BTN.shape, device=codes_BTN.device) < share) & (
        codes_BTN != config.audio_pad_code
    )
    return torch.cat([rows_BTR[..., :1], torch.where(hit_BTN, random_BTN, codes_BTN)], -1)


def talker_losses(
    talker: MossLocalTalker, rows_BTR: Tensor, places_M: Tensor, targets_MN: Tensor, stops_M: Tensor
) -> TalkerLosses:
    """Teacher-forced losses of a `talker_data.Batch`; the frame's own codes reach the depth
    transformer unspoilt.
    """
    pad = talker.config.audio_pad_code
    targets_MN = targets_MN.long()
    hidden_BTD = talker.backbone(talker.embed(rows_BTR))
    hidden_MD = hidden_BTD.flatten(0, 1).index_select(0, places_M)
    known_MN = targets_MN.masked_fill(targets_MN == pad, 0)
    inputs = [
        F.embedding(known_MN[:, k], talker.codebook(k)) for k in range(targets_MN.shape[1] - 1)
    ]
    y_MND = talker.depth(torch.stack([hidden_MD, *(x.to(hidden_MD.dtype) for x in inputs)], 1))
    codes, right = [], torch.zeros((), device=rows_BTR.device)
    for k in range(targets_MN.shape[1]):
        logits_MV = talker.code_logits(y_MND[:, k], k).float()
        codes.append(F.cross_entropy(logits_MV, targets_MN[:, k], ignore_index=pad))
        if k == 0:
            real_M = targets_MN[:, 0] != pad
            right = ((logits_MV.argmax(-1) == targets_MN[:, 0]) & real_M).sum() / real_M.sum()
    stop = F.cross_entropy(talker.stop_logits(y_MND[:, 0]).float(), stops_M.long(), ignore_index=-1)
    return TalkerLosses(torch.stack(codes), stop, right.detach())

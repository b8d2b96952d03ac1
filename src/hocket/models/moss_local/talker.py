"""The MOSS-TTS-Local talker: rows in, frames of codes out (sources: MOSS 1.2 - 1.5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.depth import DepthTransformer
from hocket.models.sampling import SamplingBatch
from hocket.models.talker import FrameLayers, Talker

#: Rows of the stop head: 0 goes on, 1 ends the speech.
STOP = 1


class MossLocalTalker(Talker):
    """Embeddings, backbone, depth transformer and heads. A row is `[text, c_0 .. c_(N-1)]`, R = 1 +
    N integers.
    """

    config: MossLocalConfig
    backbone: Qwen3Backbone

    def __init__(self, config: MossLocalConfig) -> None:
        super().__init__()
        self.config = config
        self.text_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        #: The tables of all codebooks, concatenated; also the code heads (sources: MOSS 1.4).
        self.audio_embedding = nn.Embedding(sum(config.audio_codebook_sizes), config.hidden_size)
        self.backbone = Qwen3Backbone(config.backbone)
        self.depth = DepthTransformer(config.depth)
        self.stop_head = nn.Linear(config.hidden_size, 2, bias=False)
        self._offsets_on: dict[torch.device, Tensor] = {}
        self._offsets = tuple(sum(config.audio_codebook_sizes[:k]) for k in range(config.n_vq))

    def codebook(self, k: int) -> Tensor:
        """Table [V_k, D] of codebook k, a view; it embeds codes and scores them."""
        return self.audio_embedding.weight.narrow(
            0, self._offsets[k], self.config.audio_codebook_sizes[k]
        )

    def embed(self, rows_BTR: Tensor, voice_BD: Tensor | None = None) -> Tensor:
        """Backbone inputs [B, T, D] of int64 rows [B, T, R]; a pad code contributes nothing.

        `voice_BD` is not used. Terms are summed left to right in the model's dtype, text first, so
        that bfloat16 rounds as officially (sources: MOSS 1.2).
        """
        codes_BTN = rows_BTR[..., 1:]
        is_pad_BTN = codes_BTN == self.config.audio_pad_code
        ids_BTN = (codes_BTN + self._code_offsets(rows_BTR.device)).masked_fill(is_pad_BTN, -1)
        return self._embed(rows_BTR[..., 0], ids_BTN)

    def embed_frame(self, codes_BN: Tensor, text_B: Tensor) -> Tensor:
        """Backbone inputs [B, D] of generated frames: `embed` of rows whose codes hold no pad."""
        return self._embed(text_B, codes_BN + self._code_offsets(codes_BN.device))

    def _embed(self, text: Tensor, ids: Tensor) -> Tensor:
        tables = (self.text_embedding.weight, self.audio_embedding.weight)
        return ops.embed_sum(*tables, text.flatten(), ids.flatten(0, -2)).view(*text.shape, -1)

    def _code_offsets(self, device: torch.device) -> Tensor:
        """int64 [N]: where each codebook's table begins in the common one.

        Kept per device, because making it copies from the host.
        """
        if device not in self._offsets_on:
            self._offsets_on[device] = torch.tensor(self._offsets, device=device)
        return self._offsets_on[device]

    def stop_logits(self, y0_BD: Tensor) -> Tensor:
        """Logits [B, 2] for going on and for stopping, from the depth output of position 0."""
        return self.stop_head(y0_BD)

    def code_logits(self, y_BD: Tensor, k: int) -> Tensor:
        """Logits [B, V_k] of codebook k, from the depth output of position k."""
        return F.linear(y_BD, self.codebook(k))

    def frame(
        self, hidden_BD: Tensor, sampling: SamplingBatch, frame_B: Tensor, seen_BNV: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See `Talker.frame` (sources: MOSS 1.5). Noise has slot k for code k, and slot N for
        the stop decision.
        """
        sizes = self.config.audio_codebook_sizes
        stop_slot = len(sizes)
        noise = sampling.noise(frame_B, stop_slot + 1)
        cache = self.depth.new_cache(hidden_BD.shape[0], hidden_BD.dtype, hidden_BD.device)
        y_BD = self.depth.step(hidden_BD, 0, cache)
        stop_B = ops.draw(self.stop_logits(y_BD), sampling.stop, noise, stop_slot) == STOP
        # Between two choices, revoking the stop equals masking its logit.
        stop_B = stop_B & (frame_B >= sampling.min_frames_B)
        codes: list[Tensor] = []
        x_BD = hidden_BD
        for k, size in enumerate(sizes):
            if k > 0:
                y_BD = self.depth.step(x_BD, k, cache)
            seen_BV = None if seen_BNV is None else seen_BNV[:, k, :size]
            logits_BV = self.code_logits(y_BD, k)
            code_B, x_BD = ops.draw_and_embed(
                logits_BV, sampling.codes, noise, k, self.codebook(k), seen_BV
            )
            codes.append(code_B)
        return stop_B, torch.stack(codes, -1)

    def forced_logits(self, hidden_MD: Tensor, codes_MN: Tensor) -> Tensor:
        """See the base class; [M, sum of V_k]."""
        codes = codes_MN.unbind(1)
        inputs = [hidden_MD, *(self.codebook(k)[code_M] for k, code_M in enumerate(codes[:-1]))]
        y_MPD = self.depth(torch.stack(inputs, 1))
        return torch.cat([self.code_logits(y_MPD[:, k], k) for k in range(len(codes))], 1)

    @property
    def frame_layers(self) -> FrameLayers:
        """All codes are drawn by the depth transformer; the heads are the codebooks."""
        depth = self.config.depth
        return FrameLayers(
            part="depth",
            layers=self.depth,
            steps=self.config.n_vq,
            heads=self.audio_embedding.weight,
            attention="depth_attention",
            query_heads=depth.heads,
            kv_heads=depth.heads,
            head_dim=depth.head_dim,
            positions=depth.positions,
            rope_base=depth.rope_base,
        )

"""The Qwen3-TTS talker: rows in, frames of codes out (sources: Qwen3 3 - 7)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.reference.philox import FrameNoise
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.qwen3_tts.config import MIN_FRAMES, Qwen3TtsConfig
from hocket.models.qwen3_tts.predictor import CodePredictor
from hocket.models.sampling import SamplingBatch
from hocket.models.talker import FrameLayers, Talker


class Qwen3TtsTalker(Talker):
    """Embeddings, text projection, backbone, the first codebook's head and the code predictor.

    A row is `[text, c_0 .. c_(N-1)]`, R = 1 + N integers: a text id; in c_0 any id of the codec
    vocabulary, `no_code`, or `voice_code` where the voice vector is added; in the others a code or
    `no_code`.
    """

    config: Qwen3TtsConfig
    backbone: Qwen3Backbone

    def __init__(self, config: Qwen3TtsConfig) -> None:
        super().__init__()
        self.config = config
        self.text_embedding = nn.Embedding(config.text_vocab_size, config.text_hidden_size)
        self.text_fc1 = nn.Linear(config.text_hidden_size, config.text_hidden_size)
        self.text_fc2 = nn.Linear(config.text_hidden_size, config.hidden_size)
        self.codec_embedding = nn.Embedding(config.codec_vocab_size, config.hidden_size)
        self.backbone = Qwen3Backbone(config.backbone)
        self.code_head = nn.Linear(config.hidden_size, config.codec_vocab_size, bias=False)
        self.predictor = CodePredictor(config)

    def finalize(self) -> None:
        """Project every code's embedding once, which every frame would do otherwise."""
        codes = self.config.audio_codebook_sizes[0]
        self.predictor.finalize(self.codec_embedding.weight[:codes])

    def embed_text(self, text: Tensor) -> Tensor:
        """[..., D] of int64 text ids [...]: a function of the id alone."""
        return self.text_fc2(F.silu(self.text_fc1(self.text_embedding(text))))

    def embed(self, rows_BTR: Tensor, voice_BD: Tensor) -> Tensor:
        """Backbone inputs [B, T, D] of int64 rows [B, T, R]; `voice_BD` is [B, 0] for no voice.

        Codes are summed in float32 and rounded once, then the text is added, as officially in
        bfloat16.
        """
        config = self.config
        text_BT, first_BT, others_BTK = rows_BTR[..., 0], rows_BTR[..., 1], rows_BTR[..., 2:]
        has_first_BT, has_others_BTK = first_BT < config.no_code, others_BTK < config.no_code
        first_BTD = self.codec_embedding(first_BT.where(has_first_BT, 0)).masked_fill(
            ~has_first_BT[..., None], 0.0
        )
        others_BTKD = self.predictor.embed(others_BTK.where(has_others_BTK, 0))
        others_BTKD = others_BTKD.masked_fill(~has_others_BTK[..., None], 0.0)
        x_BTD = self.embed_text(text_BT) + torch.cat(
            [first_BTD[..., None, :], others_BTKD], -2
        ).sum(-2)
        if config.voice_size:
            is_voice_BT1 = (first_BT == config.voice_code)[..., None]
            x_BTD = x_BTD + voice_BD[:, None].masked_fill(~is_voice_BT1, 0.0)
        return x_BTD

    def embed_frame(self, codes_BN: Tensor, text_B: Tensor) -> Tensor:
        """Backbone inputs [B, D] of generated frames and the text ids beside them."""
        first_B1D = self.codec_embedding(codes_BN[:, :1])
        return self.embed_text(text_B) + torch.cat(
            [first_B1D, self.predictor.embed(codes_BN[:, 1:])], 1
        ).sum(1)

    def allowed(self, logits_BV: Tensor, frame_B: Tensor, min_frames_B: Tensor) -> Tensor:
        """Logits [B, V_0 + 1] of the first code and, last, of the stop, from those of the
        vocabulary [B, V].

        The stop is -inf where it is too early. Other control ids are left out, since they may not
        be drawn (sources: Qwen3 7).
        """
        codes = self.config.audio_codebook_sizes[0]
        is_early_B = frame_B < min_frames_B.clamp(min=MIN_FRAMES)
        stop_B = logits_BV[:, self.config.codec_eos_id].masked_fill(is_early_B, -math.inf)
        return torch.cat([logits_BV[:, :codes], stop_B[:, None]], 1)

    def frame(
        self, hidden_BD: Tensor, sampling: SamplingBatch, frame_B: Tensor, seen_BNV: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See `Talker.frame` (sources: Qwen3 5 - 7). Noise has slot k for code k. The
        repetition penalty counts the first codebook alone.
        """
        config, predictor = self.config, self.predictor
        noise = sampling.noise(frame_B, config.n_vq)
        first_B, stop_B = self._first_code(hidden_BD, sampling, noise, seen_BNV)
        kv = predictor.new_kv(len(hidden_BD))
        x_BTP = torch.stack(
            [predictor.projection(hidden_BD), F.embedding(first_B, predictor.first_inputs)], 1
        )
        codes, position = [first_B], 0
        for k in range(1, config.n_vq):
            y_BTP = predictor.step(x_BTP, position, kv)
            logits_BV = predictor.logits(y_BTP[:, -1], k)
            code_B, x_BP = ops.draw_and_embed(
                logits_BV, sampling.predicted, noise, k, predictor.inputs(k)
            )
            codes.append(code_B)
            x_BTP, position = x_BP[:, None], k + 1
        return stop_B, torch.stack(codes, -1)

    def _first_code(
        self, hidden_BD: Tensor, sampling: SamplingBatch, noise: FrameNoise, seen_BNV: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The first code, int64 [B] (0 where the row stops), and bool stop [B]."""
        codes = self.config.audio_codebook_sizes[0]
        seen_BV = None if seen_BNV is None else F.pad(seen_BNV[:, 0, :codes], (0, 1))
        logits_BV = self.allowed(self.code_head(hidden_BD), noise.frame_B, sampling.min_frames_B)
        first_B = ops.draw(logits_BV, sampling.codes, noise, 0, seen_BV)
        stop_B = first_B == codes
        return first_B.masked_fill(stop_B, 0), stop_B

    def forced_logits(self, hidden_MD: Tensor, codes_MN: Tensor) -> Tensor:
        """See the base class; [M, (N - 1) * V], since the predictor draws all codes but the
        first.
        """
        predictor = self.predictor
        first_M2D = torch.stack([hidden_MD, self.codec_embedding(codes_MN[:, 0])], 1)
        y_MPD = predictor(torch.cat([first_M2D, predictor.embed(codes_MN[:, 1:-1])], 1))
        return torch.cat([predictor.logits(y_MPD[:, k], k) for k in range(1, codes_MN.shape[1])], 1)

    @property
    def frame_layers(self) -> FrameLayers:
        """All codes but the first are drawn by the predictor."""
        shape = self.config.predictor
        return FrameLayers(
            part="predictor",
            layers=self.predictor.layers,
            steps=self.config.n_vq - 1,
            heads=self.predictor.heads.weight,
            attention="frame_attention",
            query_heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            positions=self.predictor.positions,
            rope_base=shape.rope_theta,
        )

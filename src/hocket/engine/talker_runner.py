"""The talker's device state, indexed by row, and the only code that moves talker data between host and device.

Everything a running request needs on the device lives here in tensors whose first dimension is the row: last hidden
state, sampling parameters, seed, frame counter and the penalty history. The plain eager implementation, for CPU and
CUDA alike; graphs replace the launches, not the interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.core import ResolvedSampling
from hocket.models.family import Talker
from hocket.models.kv_cache import KVPages, PagedBatch
from hocket.models.sampling import SamplingBatch


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """Prompt rows `rows` int64 [n, 1 + N] of request row `row`, to be cached at positions `start` … `start + n`."""

    row: int
    rows: NDArray[np.int64]
    start: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class FrameItem:
    """One frame to make for request row `row`; its K/V goes to position `position`."""

    row: int
    position: int
    pages: Sequence[int]


class TalkerRunner:
    """Runs prefill and frames on rows.

    `rows` request rows, K/V for `pages` pages of `page_rows` positions each (page 0 is scratch and never handed out).
    """

    def __init__(self, talker: Talker, *, rows: int, pages: int, page_rows: int) -> None:
        self.talker = talker
        config = talker.config
        parameter = next(talker.parameters())
        self._device, dtype = parameter.device, parameter.dtype
        self._kv = KVPages.allocate(
            config.layers, pages, page_rows, config.kv_heads, config.head_dim, dtype=dtype, device=self._device
        )
        codebook_entries = max(config.audio_codebook_sizes)
        self._hidden_RD = torch.zeros(rows, config.hidden_size, dtype=dtype, device=self._device)
        self._seen_RNV = torch.zeros(rows, config.n_vq, codebook_entries, dtype=torch.bool, device=self._device)
        self._frame_R = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._seed_R = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._top_k_R = torch.zeros(rows, dtype=torch.int64, device=self._device)
        #: temperature, top_p, repetition penalty, stop temperature
        self._scalars_4R = torch.ones(4, rows, dtype=torch.float32, device=self._device)

    def start(self, row: int, sampling: ResolvedSampling, seed: int) -> None:
        """Claim `row` for a new request: everything an earlier owner left there is overwritten."""
        self._seen_RNV[row] = False
        self._frame_R[row] = 0
        self._seed_R[row] = seed
        self._top_k_R[row] = sampling.top_k
        self._scalars_4R[:, row] = torch.tensor(
            [sampling.temperature, sampling.top_p, sampling.repetition_penalty, sampling.stop_temperature],
            dtype=torch.float32,
        )

    @torch.inference_mode()
    def prefill(self, items: Sequence[PrefillItem]) -> None:
        """Cache the prompt rows of each item; the last one's hidden state becomes the row's."""
        longest = max(len(item.rows) for item in items)
        rows_BTR = np.full(
            (len(items), longest, 1 + self.talker.config.n_vq), self.talker.config.audio_pad_code, np.int64
        )
        rows_BTR[:, :, 0] = self.talker.config.pad_token_id
        for i, item in enumerate(items):
            rows_BTR[i, : len(item.rows)] = item.rows
        counts = [len(item.rows) for item in items]
        batch = self._paged_batch([item.pages for item in items], [item.start for item in items], counts)
        x_BTD = self.talker.embed(torch.from_numpy(rows_BTR).to(self._device))
        hidden_BTD = self.talker.backbone(x_BTD, self._kv, batch)
        last_BD = hidden_BTD[torch.arange(len(items), device=self._device), batch.counts_B - 1]
        self._hidden_RD[self._index([item.row for item in items])] = last_BD

    @torch.inference_mode()
    def frame(self, items: Sequence[FrameItem]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Draw one frame for every item: stop flags [B] and codes [B, N] on the host.

        Codes of a stopped row are meaningless and must be dropped. `advance` then feeds the frames back.
        """
        rows_B = self._index([item.row for item in items])
        temperature_B, top_p_B, penalty_B, stop_temperature_B = self._scalars_4R[:, rows_B]
        sampling = SamplingBatch(
            temperature_B=temperature_B,
            top_p_B=top_p_B,
            top_k_B=self._top_k_R[rows_B],
            repetition_penalty_B=penalty_B,
            stop_temperature_B=stop_temperature_B,
            seed_B=self._seed_R[rows_B],
        )
        stop_B, codes_BN = self.talker.frame(
            self._hidden_RD[rows_B], sampling, self._frame_R[rows_B], self._seen_RNV[rows_B]
        )
        return stop_B.cpu().numpy(), codes_BN.cpu().numpy()

    @torch.inference_mode()
    def advance(self, items: Sequence[FrameItem], codes_BN: NDArray[np.int64]) -> None:
        """Feed each item's new frame to the backbone, so that the next `frame` can be drawn."""
        rows_B = self._index([item.row for item in items])
        codes = torch.from_numpy(codes_BN).to(self._device)
        batch = self._paged_batch([item.pages for item in items], [item.position for item in items], [1] * len(items))
        hidden_BTD = self.talker.backbone(self.talker.embed_frame(codes)[:, None], self._kv, batch)
        self._hidden_RD[rows_B] = hidden_BTD[:, 0]
        codebooks_N = torch.arange(codes.shape[1], device=self._device)
        self._seen_RNV[rows_B[:, None], codebooks_N[None], codes] = True
        self._frame_R[rows_B] += 1

    def _paged_batch(self, pages: Sequence[Sequence[int]], starts: Sequence[int], counts: Sequence[int]) -> PagedBatch:
        # The table is as wide as the longest sequence needs: the plain attention gathers every page it names.
        page_rows = self._kv.page_rows
        used = [-(-(start + count) // page_rows) for start, count in zip(starts, counts, strict=True)]
        table = np.zeros((len(pages), max(used)), np.int64)
        for i, (own, n) in enumerate(zip(pages, used, strict=True)):
            table[i, :n] = own[:n]
        return PagedBatch(torch.from_numpy(table).to(self._device), self._index(starts), self._index(counts))

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

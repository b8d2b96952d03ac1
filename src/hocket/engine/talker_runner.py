"""The talker's device state, indexed by row, and the only code that moves talker data between host and device.

Everything a running request needs on the device lives here, in tensors whose first dimension is the row: last hidden
state, sampling parameters, penalty history and the codes made so far. The plain eager implementation, for CPU and CUDA
alike; graphs will replace the launches, not the interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.core import PromptRows, ResolvedSampling
from hocket.engine.memory import SCRATCH_PAGE
from hocket.engine.request import FrameBatch, PrefillItem
from hocket.engine.sampling_rows import SamplingRows
from hocket.engine.transfer import HostCopy
from hocket.models.family import Talker
from hocket.models.kv_cache import KVPages, PagedBatch

#: Rows of every decode batch in strict mode, whatever the load and the engine's size: a result's bits depend on the
#: shape it was computed in.
STRICT_BATCH_ROWS = 16

PageTable = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FramesInFlight:
    """A launched frame batch: `results` is int64 [B, 1 + N], stop and codes."""

    batch: FrameBatch
    results: HostCopy


class TalkerRunner:
    """Runs prefill and frames on `rows` request rows, with K/V for `pages` pages of `page_rows` positions each.

    `max_frames` is the most frames that one request may have. `strict` fixes every shape (see `STRICT_BATCH_ROWS`).
    """

    def __init__(
        self, talker: Talker, *, rows: int, pages: int, page_rows: int, max_frames: int, strict: bool = False
    ) -> None:
        config = talker.config
        parameter = next(talker.parameters())
        self.talker = talker
        self._device, self._dtype = parameter.device, parameter.dtype
        self._page_rows = page_rows
        self._strict = strict
        self._kv = KVPages.allocate(
            config.layers, pages, page_rows, config.kv_heads, config.head_dim, self._dtype, self._device
        )
        #: One row more than there are requests: padding reads and writes it.
        self._scratch_row = rows

        def per_row(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(rows + 1, *shape, dtype=dtype, device=self._device)

        self._hidden_RD = per_row(config.hidden_size, dtype=self._dtype)
        self._seen_RNV = per_row(config.n_vq, max(config.audio_codebook_sizes), dtype=torch.bool)
        self._sampling = SamplingRows(rows + 1, self._device)
        self._voice_RD = per_row(config.voice_size, dtype=self._dtype)
        #: Text ids that accompany the frames.
        self._texts_RF = per_row(max_frames, dtype=torch.int32)
        self.codes_RFN = per_row(max_frames, config.n_vq, dtype=torch.int32)
        self._codebooks_N = torch.arange(config.n_vq, device=self._device)

    def start(self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int, prompt: PromptRows) -> None:
        """Claim `row` for a new request: everything that an earlier owner left there is overwritten.

        It may not stop before frame `min_frames`.
        """
        self._seen_RNV[row] = False
        self._sampling.start(row, sampling, seed, min_frames)
        self._voice_RD[row] = torch.from_numpy(prompt.voice).to(self._dtype)
        texts_Q = torch.from_numpy(prompt.frame_texts[: self._texts_RF.shape[1]])
        self._texts_RF[row] = self.talker.config.frame_text_id
        self._texts_RF[row, : len(texts_Q)] = texts_Q.to(torch.int32)

    # ---- prefill

    @torch.inference_mode()
    def prefill(self, items: Sequence[PrefillItem], page_table: PageTable) -> None:
        """Cache the K/V rows of each item: prompt rows, or the frames of a request that was preempted.

        The hidden state of an item's last row becomes its row's.
        """
        if not self._strict:
            self._feed([item.request.row for item in items], [self._inputs(item) for item in items], items, page_table)
            return
        for item in items:
            if item.start >= item.request.prompt_rows:
                self._replay(item, page_table)
            else:
                self._prefill_page_by_page(item, page_table)

    def _inputs(self, item: PrefillItem) -> Tensor:
        """Embedded rows [count, D]."""
        first_frame = item.start - item.request.prompt_rows
        if first_frame >= 0:
            row, frames = item.request.row, slice(first_frame, first_frame + item.count)
            return self.talker.embed_frame(self.codes_RFN[row, frames].long(), self._texts_RF[row, frames].long())
        rows = torch.from_numpy(item.request.prompt[item.start : item.start + item.count])
        return self._embed(item.request.row, rows.to(self._device))[0]

    def _embed(self, row: int, prompt_TR: Tensor) -> Tensor:
        """Backbone inputs [1, T, D] of prompt rows of the request on `row`."""
        return self.talker.embed(prompt_TR[None], self._voice_RD[row][None])

    def _prefill_page_by_page(self, item: PrefillItem, page_table: PageTable) -> None:
        # Every page is computed in the same shape whoever asks for it, so a page from the prefix cache, one computed
        # within another budget and one computed again after a preemption are equal bit for bit.
        row, size = item.request.row, self._page_rows
        prompt = torch.from_numpy(item.request.prompt).to(self._device)
        for start in range(item.start, item.start + item.count, size):
            page = prompt[start : min(start + size, item.start + item.count)]
            padded = torch.cat([page, page[-1:].expand(size - len(page), -1)])
            self._run([row], self._embed(row, padded), [start], [len(page)], page_table)

    def _replay(self, item: PrefillItem, page_table: PageTable) -> None:
        row = item.request.row
        first_frame = item.start - item.request.prompt_rows
        for i in range(item.count):
            codes_1N = self.codes_RFN[row, first_frame + i : first_frame + i + 1].long()
            self._advance([row], [first_frame + i], codes_1N, [item.start + i], page_table)

    def _feed(
        self, rows: Sequence[int], inputs: Sequence[Tensor], items: Sequence[PrefillItem], page_table: PageTable
    ) -> None:
        counts = [item.count for item in items]
        x_BTD = torch.zeros(len(items), max(counts), inputs[0].shape[-1], dtype=self._dtype, device=self._device)
        for i, x_TD in enumerate(inputs):
            x_BTD[i, : counts[i]] = x_TD
        self._run(rows, x_BTD, [item.start for item in items], counts, page_table)

    # ---- frames

    @torch.inference_mode()
    def launch(self, batch: FrameBatch, page_table: PageTable) -> FramesInFlight:
        """Make one frame of every request in `batch` and feed it back; nothing waits for the device.

        The codes also stay in `codes_RFN`, where the codec reads them.
        """
        if not self._strict:
            results = self._frame(batch.rows, batch.frames, batch.starts, page_table)
        else:
            groups = [slice(i, i + STRICT_BATCH_ROWS) for i in range(0, len(batch.rows), STRICT_BATCH_ROWS)]
            results = torch.cat(
                [self._frame(batch.rows[g], batch.frames[g], batch.starts[g], page_table) for g in groups]
            )
        return FramesInFlight(batch, HostCopy.start(results))

    def collect(self, flight: FramesInFlight) -> tuple[list[bool], NDArray[np.int64]]:
        """Wait for a launched batch: its stop flags, and codes [B, N], which mean nothing where the flag is set."""
        results = flight.results.wait().numpy()
        return results[:, 0].astype(bool).tolist(), results[:, 1:]

    def _frame(
        self, rows: Sequence[int], frames: Sequence[int], starts: Sequence[int], page_table: PageTable
    ) -> Tensor:
        """Stop flags and codes int64 [B, 1 + N]."""
        padded_rows = self._padded(rows, self._scratch_row)
        rows_B, frames_B = self._index(padded_rows), self._index(self._padded(frames, 0))
        sampling = self._sampling.batch(padded_rows, rows_B)
        has_penalty = self._sampling.any_penalty(rows)
        seen_BNV = self._seen_RNV[rows_B] if has_penalty else None
        stop_B, codes_BN = self.talker.frame(self._hidden_RD[rows_B], sampling, frames_B, seen_BNV)
        self.codes_RFN[rows_B, frames_B] = codes_BN.to(torch.int32)
        if has_penalty:
            self._seen_RNV[rows_B[:, None], self._codebooks_N, codes_BN] = True
        self._advance(rows, frames, codes_BN, starts, page_table)
        return torch.cat([stop_B[:, None].long(), codes_BN], 1)[: len(rows)]

    def _advance(
        self,
        rows: Sequence[int],
        frames: Sequence[int],
        codes_BN: Tensor,
        starts: Sequence[int],
        page_table: PageTable,
    ) -> None:
        """Feed one frame of each row to the backbone, with the text that goes with it, at K/V row `starts`."""
        rows_B, frames_B = self._index(self._padded(rows, self._scratch_row)), self._index(self._padded(frames, 0))
        padding = len(rows_B) - len(codes_BN)
        if padding:
            codes_BN = torch.cat([codes_BN, codes_BN[:1].expand(padding, -1)])
        x_BTD = self.talker.embed_frame(codes_BN, self._texts_RF[rows_B, frames_B].long())[:, None]
        self._run(rows, x_BTD, starts, [1] * len(rows), page_table)

    # ---- both

    def _run(
        self,
        rows: Sequence[int],
        x_BTD: Tensor,
        starts: Sequence[int],
        counts: Sequence[int],
        page_table: PageTable,
    ) -> None:
        """Run the backbone over new rows `counts` of each request row and keep the last hidden state of each.

        `x_BTD` may hold more sequences than `rows`: the rest is padding.
        """
        batch_rows = x_BTD.shape[0]
        lengths = [start + count for start, count in zip(starts, counts, strict=True)]
        lengths += [0] * (batch_rows - len(rows))
        width = max(1, -(-max(lengths) // self._page_rows))
        table = np.full((batch_rows, width), SCRATCH_PAGE, np.int64)
        table[: len(rows)] = page_table[list(rows), :width]
        filler = [0] * (batch_rows - len(rows))
        batch = PagedBatch(
            page_table_BP=torch.from_numpy(table).to(self._device),
            starts_B=self._index([*starts, *filler]),
            counts_B=self._index([*counts, *filler]),
            lengths=tuple(lengths) if self._strict else None,
        )
        hidden_BTD = self.talker.backbone(x_BTD, self._kv, batch)
        last = torch.arange(len(rows), device=self._device)
        self._hidden_RD[self._index(rows)] = hidden_BTD[last, self._index(counts) - 1]

    def _padded(self, values: Sequence[int], filler: int) -> Sequence[int]:
        return [*values, *[filler] * (STRICT_BATCH_ROWS - len(values))] if self._strict else values

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

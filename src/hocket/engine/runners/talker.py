"""The talker's device state, indexed by row, and the only code that moves talker data between host
and device.

Everything that a running request needs on the device lives here, in tensors whose first dimension
is the row: last hidden state, sampling parameters, penalty history and the codes made so far. On a
GPU programs are recorded once for each batch size, so batches are padded with a scratch row that no
request has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.core import PromptRows
from hocket.engine.runners.device import (
    CopyStream,
    HostCopy,
    Launcher,
    batch_sizes,
    bits_of,
    floats_of,
)
from hocket.engine.runners.padding import PrefillSlice, frame_batch, prefill_batch, split_prefill
from hocket.engine.runners.sampling_state import ROW_NUMBERS, SamplingState
from hocket.engine.scheduling.memory import SCRATCH_PAGE
from hocket.engine.scheduling.request import FrameBatch, PrefillItem
from hocket.kernels.types import DrawParams, PagedBatch
from hocket.models.layers.kv_cache import KVPages
from hocket.models.sampling import ResolvedSampling
from hocket.models.talker import Talker

#: Rows of every frame batch and pages of every prefill batch in strict mode, whatever the load and
#: the engine's size, because the bits of a result depend on the shape in which it was computed.
STRICT_ROWS = {"cpu": 16, "cuda": 128}
STRICT_PAGES = {"cpu": 1, "cuda": 16}
#: Maximum rows of a prefill batch on a GPU.
MAX_PREFILL_ROWS = 2048
#: Sizes, in rows, of prefill batches that go through the backbone together with frames. They are
#: coarser than the sizes of separate batches, because frames and pages are rows of one large
#: matrix.
JOINED_PAGE_ROWS = (64, 128, 192, 256, 320, 384, 512, 768, 1024)

#: Sampling parameters of the scratch row.
_ANY_SAMPLING = ResolvedSampling(DrawParams())

PageTable = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FramesInFlight:
    """A launched frame batch. Each of `results` is int64 [B, 1 + N], stop flag and codes, for
    consecutive parts.
    """

    batch: FrameBatch
    results: list[HostCopy]

    @property
    def done(self) -> bool:
        """Whether `collect` would return at once."""
        return self.results[-1].done  # results complete in order


class TalkerRunner:
    """Runs prefill and frames on `rows` request rows, with K/V for `pages` pages of `page_rows`
    positions each.

    `max_frames` is the maximum frames of one request. Without `kv_dtype`, keys and values have the
    talker's dtype. `strict` fixes every shape (see `STRICT_ROWS`).
    """

    def __init__(
        self,
        talker: Talker,
        *,
        rows: int,
        pages: int,
        page_rows: int,
        max_frames: int,
        kv_dtype: torch.dtype | None = None,
        strict: bool = False,
    ) -> None:
        config = talker.config
        parameter = next(talker.parameters())
        self.talker = talker
        self._frame_text_id = talker.config.frame_text_id
        self._device, self._dtype = parameter.device, parameter.dtype
        self._page_rows = page_rows
        self._strict = strict
        self._launcher = Launcher(self._device)
        self._copies = CopyStream(self._device)
        self._kv = KVPages.allocate(
            config.layers,
            pages,
            page_rows,
            config.kv_heads,
            config.head_dim,
            kv_dtype or self._dtype,
            self._device,
        )
        #: The row behind those of requests; padding reads and writes it.
        self._scratch_row = rows

        self._per_row: list[Tensor] = []

        def per_row(*shape: int, dtype: torch.dtype) -> Tensor:
            self._per_row.append(torch.zeros(rows + 1, *shape, dtype=dtype, device=self._device))
            return self._per_row[-1]

        self._hidden_RD = per_row(config.hidden_size, dtype=self._dtype)
        self._seen_RNV = per_row(config.n_vq, max(config.audio_codebook_sizes), dtype=torch.bool)
        self._sampling = SamplingState(rows + 1, self._device)
        self._voice_RD = per_row(config.voice_size, dtype=self._dtype)
        #: Text ids of the frames.
        self._texts_RF = per_row(max_frames, dtype=torch.int32)
        self.codes_RFN = per_row(max_frames, config.n_vq, dtype=torch.int32)
        self._codebooks_N = torch.arange(config.n_vq, device=self._device)
        self._true = torch.ones((), dtype=torch.bool, device=self._device)
        #: Page table of all rows; the scratch row is the last.
        self._table = self._launcher.static_input(
            (rows + 1, -(-max_frames // page_rows)), torch.int32
        )
        self._host_table = np.full(self._table.tensor.shape, SCRATCH_PAGE, np.int32)
        kind = self._device.type
        if strict:
            self._frame_sizes, self._page_sizes = [STRICT_ROWS[kind]], [STRICT_PAGES[kind]]
        else:
            self._frame_sizes = batch_sizes(rows)
            self._page_sizes = batch_sizes(max(1, MAX_PREFILL_ROWS // page_rows))
        self._joined_sizes = (
            [*(size for size in (16, *range(32, rows, max(32, rows // 8))) if size < rows), rows],
            sorted({max(1, count // page_rows) for count in JOINED_PAGE_ROWS}),
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values, the scales of float8 included."""
        return self._kv.nbytes

    @property
    def row_bytes(self) -> int:
        """Bytes of the tensors that are indexed by row."""
        return sum(tensor.nbytes for tensor in self._per_row) + self._sampling.nbytes

    def start(
        self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int, prompt: PromptRows
    ) -> None:
        """Claim `row` for a new request and overwrite the state of its earlier owner.

        The request may not stop before frame `min_frames`.
        """
        texts = np.full(self._texts_RF.shape[1], self._frame_text_id, np.int64)
        given = prompt.frame_texts[: len(texts)]
        texts[: len(given)] = given
        numbers = self._sampling.start(row, sampling, seed, min_frames)
        self._claim(np.concatenate([[row], numbers, bits_of(prompt.voice), texts]))

    def _claim(self, values: NDArray[np.int64]) -> None:
        """Write all state of a row in one launch: with 256 clients a request of 5 s starts every 6
        ms (H200).
        """
        sizes = [1, ROW_NUMBERS, self._voice_RD.shape[1], self._texts_RF.shape[1]]
        with self._launcher.active():
            row_1, numbers, voice_D, texts_F = torch.split(
                self._launcher.put("claim", values), sizes
            )

            def claim() -> None:
                self._seen_RNV.index_fill_(0, row_1, 0)
                self._sampling.write(row_1, numbers)
                self._voice_RD.index_copy_(0, row_1, floats_of(voice_D).to(self._dtype)[None])
                self._texts_RF.index_copy_(0, row_1, texts_F.int()[None])

            self._launcher.run("claim", claim)

    def prepare(self) -> None:
        """Record every program, so that no request waits for a recording. Does nothing on a CPU."""
        if not self._launcher.records:
            return
        nothing = np.zeros((1, 1 + self.talker.config.n_vq), np.int64)
        no_frames = np.zeros((3, 0), np.int64)
        voice = np.zeros(self._voice_RD.shape[1], np.float32)
        self.start(
            self._scratch_row,
            _ANY_SAMPLING,
            0,
            0,
            PromptRows(nothing, nothing[:0, 1:], voice=voice),
        )
        with self._launcher.active():
            # The largest comes first, because the smaller ones fit into its memory.
            for size in reversed(self._page_sizes):
                self._run_pages([PrefillSlice(self._scratch_row, nothing, 0, True)] * size)
            for size in reversed(self._frame_sizes):
                index_4B = self._put_frames(no_frames, size)
                for has_penalty in (True, False):
                    self._draw(index_4B, has_penalty)
                self._advance(index_4B, None, None)
            if self.joins_prefill:
                for size in reversed(self._joined_sizes[0]):
                    for pages in reversed(self._joined_sizes[1]):
                        self._advance_joined(
                            self._put_frames(no_frames, size),
                            [PrefillSlice(self._scratch_row, nothing, 0, True)] * pages,
                        )
        self._launcher.seal()

    # ---- prefill

    @property
    def joins_prefill(self) -> bool:
        """Whether prompts and frames share a pass of the backbone, which then reads its weights
        once for both.
        """
        return self._launcher.records and not self._strict

    def prefill(self, items: Sequence[PrefillItem], page_table: PageTable) -> None:
        """Cache the K/V rows of each item: prompt rows, or the frames of a preempted request.

        The hidden state of an item's last row becomes the hidden state of its request's row.
        """
        with self._launcher.active():
            self._put_table(page_table)
            self._prefill(self._slices(items))

    def _prefill(self, slices: Sequence[PrefillSlice]) -> None:
        max_rows = self._page_sizes[-1] if self._has_fixed_shapes else len(slices)
        for i in range(0, len(slices), max_rows or 1):
            self._run_pages(slices[i : i + max_rows])

    @property
    def _has_fixed_shapes(self) -> bool:
        """Whether batches are padded to fixed sizes and prompts are computed page by page.

        Recorded programs need it, since each has one shape. Strict mode needs it, because a page
        must have the same bits whether it comes from the prefix cache, from a step with another
        budget, or from a run after a preemption.
        """
        return self._strict or self._launcher.records

    def _slices(self, items: Sequence[PrefillItem]) -> list[PrefillSlice]:
        slices = []
        for item in items:
            row, first_frame = item.request.row, item.start - item.request.prompt_rows
            if first_frame < 0:
                rows_TR = item.request.prompt[item.start : item.start + item.count]
            elif self._strict:
                self._replay(item)
                continue
            else:
                # Fetching frames waits for the device, but preemptions are rare.
                frames = slice(first_frame, first_frame + item.count)
                texts_F1, codes_FN = self._texts_RF[row, frames, None], self.codes_RFN[row, frames]
                rows_TR = torch.cat([texts_F1, codes_FN], 1).long().cpu().numpy()
            slices += split_prefill(
                row, rows_TR, item.start, self._page_rows if self._has_fixed_shapes else item.count
            )
        return slices

    def _put_slices(
        self, slices: Sequence[PrefillSlice], size: int
    ) -> tuple[Tensor, Tensor, NDArray[np.int64]]:
        """Send slices to the device: their rows int64 [size, T, R] and the index of `prefill_batch`
        [4, size].

        The third result holds the end of each slice, in K/V rows, on the host.
        """
        length = (
            self._page_rows
            if self._has_fixed_shapes
            else max(len(slice_.rows_TR) for slice_ in slices)
        )
        rows_BTR, numbers = prefill_batch(slices, size, length, self._scratch_row)
        return (
            self._launcher.put("prompt rows", rows_BTR),
            self._launcher.put("slices", numbers),
            numbers[1] + numbers[2],
        )

    def _run_pages(self, slices: Sequence[PrefillSlice]) -> None:
        """Compute slices. Each may depend on rows of earlier slices and of earlier calls.

        Slices of one prompt may share a batch, because a layer caches all new keys and values
        before it attends.
        """
        size = self._padded(self._page_sizes, len(slices))
        rows_BTR, index_4B, ends = self._put_slices(slices, size)
        lengths, width = self._lengths(ends), self._width(int(ends.max()))

        def compute() -> None:
            rows_B, starts_B, counts_B, _ = index_4B.unbind(0)
            x_BTD = self.talker.embed(rows_BTR, self._voice_RD[rows_B])
            batch = PagedBatch(self._table.tensor[rows_B, :width], starts_B, counts_B, lengths)
            self._keep(self.talker.backbone(x_BTD, self._kv, batch), index_4B)

        self._launcher.run(("pages", size), compute)

    def _keep(self, hidden_BTD: Tensor, index_4B: Tensor) -> None:
        """Store the last hidden state of each slice for its request."""
        _, _, counts_B, kept_B = index_4B.unbind(0)
        last_B = (counts_B - 1).clamp(min=0)
        self._hidden_RD[kept_B] = hidden_BTD[torch.arange(len(last_B), device=self._device), last_B]

    def _replay(self, item: PrefillItem) -> None:
        """Recompute the K/V of frames one by one, exactly as they were computed at first."""
        request = item.request
        first = item.start - request.prompt_rows
        for i in range(item.count):
            index_31 = np.array([[request.row], [first + i], [item.start + i]])
            index_4B = self._put_frames(index_31, self._frame_sizes[0])
            end = item.start + i + 1
            self._advance(index_4B, self._width(end), self._lengths(np.array([end])))

    # ---- frames

    def launch(
        self, batch: FrameBatch, page_table: PageTable, items: Sequence[PrefillItem] = ()
    ) -> FramesInFlight:
        """Make one frame of every request in `batch` and feed it back, without waiting for the
        device.

        A runner that `joins_prefill` prefills `items` in the same pass. The codes also stay in
        `codes_RFN`, where the next step reads them.
        """
        max_rows = self._frame_sizes[-1]
        results = []
        with self._launcher.active():
            self._put_table(page_table)
            slices = self._slices(items)
            apart = max(0, len(slices) - self._joined_sizes[1][-1])
            self._prefill(slices[:apart])
            for i in range(0, len(batch.requests), max_rows):
                part = batch.frame_index_3B[:, i : i + max_rows]
                rows, count = part[0], part.shape[1]
                index_4B = self._put_frames(part, self._padded(self._frame_sizes, count))
                host_rows = None
                if not self._launcher.records:
                    host_rows = (*rows.tolist(), *[self._scratch_row] * (index_4B.shape[1] - count))
                drawn = self._draw(index_4B, self._sampling.any_penalty(rows), host_rows)
                results += self._copies.start(drawn[:count])
                if slices:
                    size = next(size for size in self._joined_sizes[0] if size >= count)
                    self._advance_joined(self._put_frames(part, size), slices[apart:])
                else:
                    ends = part[2] + 1
                    self._advance(index_4B, self._width(int(ends.max())), self._lengths(ends))
                self._copies.fence()
        return FramesInFlight(batch, results)

    def collect(self, flight: FramesInFlight) -> tuple[list[bool], NDArray[np.int64]]:
        """Wait for a launched batch; returns stop flags and codes [B, N], which are undefined where
        the flag is set.
        """
        results = np.concatenate([copy.wait().numpy() for copy in flight.results])
        return results[:, 0].astype(bool).tolist(), results[:, 1:]

    def _put_frames(self, frame_index_3B: NDArray[np.int64], size: int) -> Tensor:
        return self._launcher.put("frames", frame_batch(frame_index_3B, size, self._scratch_row))

    def _draw(
        self, index_4B: Tensor, has_penalty: bool, rows: tuple[int, ...] | None = None
    ) -> Tensor:
        """Draw stop flags and codes int64 [B, 1 + N] for the frames of `index_4B`; also keep the
        codes on the device.
        """

        def draw() -> Tensor:
            rows_B, frames_B = index_4B[0], index_4B[1]
            sampling = self._sampling.batch(rows_B, rows)
            seen_BNV = self._seen_RNV[rows_B] if has_penalty else None
            stop_B, codes_BN = self.talker.frame(
                self._hidden_RD[rows_B], sampling, frames_B, seen_BNV
            )
            self.codes_RFN[rows_B, frames_B] = codes_BN.to(torch.int32)
            if has_penalty:
                # `True` itself would be copied from the host.
                self._seen_RNV.index_put_(
                    (rows_B[:, None], self._codebooks_N, codes_BN), self._true
                )
            return torch.cat([stop_B[:, None].long(), codes_BN], 1)

        return self._launcher.run(("draw", index_4B.shape[1], has_penalty), draw)

    def _advance(
        self, index_4B: Tensor, width: int | None, lengths: tuple[int, ...] | None
    ) -> None:
        """Feed the frames of `index_4B` to the backbone."""

        def advance() -> None:
            x_BD, batch = self._frame_inputs(index_4B, width, lengths)
            self._hidden_RD[index_4B[0]] = self.talker.backbone(x_BD[:, None], self._kv, batch)[
                :, 0
            ]

        self._launcher.run(("advance", index_4B.shape[1]), advance)

    def _advance_joined(self, index_4B: Tensor, slices: Sequence[PrefillSlice]) -> None:
        """Feed the frames of `index_4B` and slices of prompts to the backbone in one pass."""
        size = next(size for size in self._joined_sizes[1] if size >= len(slices))
        rows_PTR, slice_index_4P, _ = self._put_slices(slices, size)

        def advance() -> None:
            x_BD, frames = self._frame_inputs(index_4B, None, None)
            rows_P, starts_P, counts_P, _ = slice_index_4P.unbind(0)
            x_PTD = self.talker.embed(rows_PTR, self._voice_RD[rows_P])
            pages = PagedBatch(self._table.tensor[rows_P], starts_P, counts_P)
            hidden_BD, hidden_PTD = self.talker.backbone.joined(
                x_BD, frames, x_PTD, pages, self._kv
            )
            self._hidden_RD[index_4B[0]] = hidden_BD
            self._keep(hidden_PTD, slice_index_4P)

        self._launcher.run(("joined", index_4B.shape[1], size), advance)

    def _frame_inputs(
        self, index_4B: Tensor, width: int | None, lengths: tuple[int, ...] | None
    ) -> tuple[Tensor, PagedBatch]:
        """Backbone inputs [B, D] for the frames of `index_4B`, made from their codes and text ids,
        and their batch.
        """
        rows_B, frames_B, starts_B, counts_B = index_4B.unbind(0)
        codes_BN, texts_B = (
            self.codes_RFN[rows_B, frames_B].long(),
            self._texts_RF[rows_B, frames_B].long(),
        )
        batch = PagedBatch(self._table.tensor[rows_B, :width], starts_B, counts_B, lengths)
        return self.talker.embed_frame(codes_BN, texts_B), batch

    # ---- both

    def _padded(self, sizes: Sequence[int], count: int) -> int:
        """The padded size of a batch of `count`."""
        return next(size for size in sizes if size >= count) if self._has_fixed_shapes else count

    def _put_table(self, page_table: PageTable) -> None:
        self._host_table[:-1] = page_table
        self._table.put(self._host_table)

    def _width(self, rows: int) -> int | None:
        """Pages for attention to read: on a CPU only those in use; kernels know where each row
        ends.
        """
        return None if self._launcher.records else max(1, -(-rows // self._page_rows))

    def _lengths(self, ends_B: NDArray[np.int64]) -> tuple[int, ...] | None:
        """See `PagedBatch.lengths`; None for kernels, which attend row by row in any case."""
        if not self._strict or self._launcher.records:
            return None
        return tuple(ends_B.tolist())

"""Sizes of the scheduler's pools and queues."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from hocket.config import PositiveInt
from hocket.core import StrictModel


class SchedulerConfig(StrictModel):
    """`pages` includes the scratch page."""

    rows: PositiveInt
    pages: Annotated[int, Field(ge=2)]
    page_rows: PositiveInt = 32
    #: Longest prompt and speech together, in K/V rows: the width of the page table.
    max_context_rows: PositiveInt = 4096
    #: Rows prefilled per step, over all requests. Bounds how long a burst of arrivals delays a
    #: running stream.
    prefill_rows_per_step: PositiveInt = 512
    #: Maximum requests in the queue; more are refused. Preempted requests count, but are always
    #: queued.
    max_waiting: PositiveInt = 1024
    prefix_cache: bool = True

    @model_validator(mode="after")
    def _prefill_advances(self) -> SchedulerConfig:
        if self.prefill_rows_per_step < self.page_rows:
            raise ValueError(
                f"prefill_rows_per_step {self.prefill_rows_per_step} is under page_rows "
                f"{self.page_rows}; prefill stops at page boundaries, so it would never advance"
            )
        return self

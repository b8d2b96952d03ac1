"""Decides what runs next: rows, pages, prefill, frames and decode batches; and detects runaways.

Holds no tensor, reads no clock and imports no torch. For the engine: `scheduler.Scheduler`, its
nouns in `request`, its sizes in `config`, and the detectors in `runaway`. `memory`, `page_table`
and `decode_queue` belong to the scheduler; runners know `memory.SCRATCH_PAGE`.
"""

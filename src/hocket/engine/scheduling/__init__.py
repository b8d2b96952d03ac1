"""Decides what runs next: rows, pages, prefill, frames and decode batches, and which speech has run
away.

Holds no tensor, reads no clock and imports no torch. For the engine: `scheduler.Scheduler`, its
nouns in `request`, its sizes in `config`, and the detectors in `runaway`. `memory`, `page_table`
and `decode_queue` belong to the scheduler.
"""

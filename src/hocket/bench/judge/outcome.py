"""The outcome of one request: its times, its audio and its faults."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hocket.bench.dataset import Item
from hocket.bench.faults import Fault
from hocket.bench.http import Response
from hocket.bench.judge.decode import DecodedAudio
from hocket.bench.judge.playback import Playback, play
from hocket.bench.judge.speaking_rate import SpeakingRate, spoken_letters

Phase = Literal["fill", "steady", "drain"]

_WINDOW_SECONDS = 0.01
#: Full scale, with a margin for lossy codecs.
_FULL_SCALE = 0.999
#: Only texts with this many letters have a speaking rate that can be compared.
_MIN_RATED_LETTERS = 25.0
_MIN_RATED_REQUESTS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits beyond which an answer fails. Field names are keys of reports."""

    silence_db: float = -50.0
    max_silence_seconds: float = 3.0
    #: Largest share of samples in runs at full scale.
    max_clipped: float = 0.001
    stall_seconds: float = 2.0
    #: Start buffer of the second player.
    buffer_seconds: float = 0.2
    pace: SpeakingRate = field(default_factory=SpeakingRate)
    #: Largest ratio between an answer's speaking rate and the run's median, either way; 0: not
    #: compared.
    max_pace_ratio: float = 1.7
    check_length: bool = True
    #: Expected (rate in Hz, channels); None: as the answers state.
    shape: tuple[int, int] | None = None


@dataclass(slots=True)
class Outcome:
    """The record of one request; field names are keys of reports. Milliseconds count from its due
    time.
    """

    index: int
    item: Item
    phase: Phase
    #: Seconds since the stage began.
    due_at: float
    #: The delay of the generator itself: from the due time to the start of the request.
    late_ms: float
    ended_at: float
    connect_ms: float | None = None
    first_byte_ms: float | None = None
    ttfa_ms: float | None = None
    e2e_ms: float | None = None
    rtf: float | None = None
    seconds: float = 0.0
    gap_longest_ms: float | None = None
    gap_median_ms: float | None = None
    #: Stalls of a player that starts at once (in all, and the longest), and of one with a start
    #: buffer.
    still_ms: float | None = None
    still_buffered_ms: float | None = None
    still_longest_ms: float | None = None
    sample_rate: int = 0
    channels: int = 0
    peak: float = 0.0
    clipped: float = 0.0
    rms_db: float | None = None
    leading_silence_ms: float | None = None
    longest_silence_ms: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    #: (ms, seconds): from this time on, so many seconds are playable.
    marks: list[tuple[float, float]] = field(default_factory=list)
    #: Digest of the samples.
    digest: str = ""
    #: The transcript of a recogniser.
    heard_text: str | None = None
    word_errors: int | None = None
    words: int | None = None
    character_errors: int | None = None
    characters: int | None = None
    similarity: float | None = None
    #: Path of its audio, relative to the report.
    audio_file: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The outcome as a report has it, times rounded to the resolution of the clocks."""
        item = {name: value for name, value in asdict(self.item).items() if value is not None}
        if self.item.reference is not None:
            item["reference"] = self.item.reference.name
        fields = {
            name: round(value, 4) if isinstance(value, float) and math.isfinite(value) else value
            for name, value in ((name, getattr(self, name)) for name in self.__dataclass_fields__)
            if value is not None and name not in {"item", "faults", "marks", "digest"}
        }
        return {
            **fields,
            "item": item,
            "faults": [asdict(fault) for fault in self.faults],
            "marks": [(round(at, 2), round(seconds, 4)) for at, seconds in self.marks],
        }


def time_outcome(outcome: Outcome, response: Response, due: float) -> None:
    """Note the times of the connection, which failed requests have as well. `due` is on the clock
    of `response`.
    """
    if response.connected_at is not None:
        outcome.connect_ms = 1e3 * (response.connected_at - response.sent_at)
    if response.arrivals:
        outcome.first_byte_ms = 1e3 * (response.arrivals[0][0] - due)
    outcome.e2e_ms = 1e3 * (response.ended_at - due)


def judge(outcome: Outcome, decoded: DecodedAudio, due: float, limits: Limits) -> None:
    """Measure the audio and its delivery, and note faults. `due` is on the clock of the marks."""
    outcome.seconds, outcome.sample_rate, outcome.channels = (
        decoded.seconds,
        decoded.sample_rate,
        decoded.channels,
    )
    outcome.facts = decoded.facts
    outcome.marks = [(1e3 * (at - due), seconds) for at, seconds in decoded.marks]
    outcome.faults += decoded.faults
    if outcome.e2e_ms is not None:
        outcome.rtf = outcome.e2e_ms / 1e3 / decoded.seconds
    _times(outcome, decoded, limits)
    _samples(outcome, decoded, limits)
    if limits.shape is not None and (decoded.sample_rate, decoded.channels) != limits.shape:
        want = f"{limits.shape[0]} Hz x {limits.shape[1]}"
        outcome.faults.append(
            Fault("wrong_rate", f"{decoded.sample_rate} Hz x {decoded.channels}, not {want}")
        )
    if limits.check_length:
        min_seconds, max_seconds = limits.pace.bounds(outcome.item.text)
        told = f"{decoded.seconds:.2f} s for {spoken_letters(outcome.item.text):.0f} letters"
        if decoded.seconds < min_seconds:
            outcome.faults.append(Fault("too_short", f"{told}, at least {min_seconds:.2f} s"))
        elif decoded.seconds > max_seconds:
            outcome.faults.append(Fault("too_long", f"{told}, at most {max_seconds:.2f} s"))


def check_together(outcomes: Sequence[Outcome], limits: Limits) -> None:
    """Note faults that show only in comparison with other answers."""
    spoken = [outcome for outcome in outcomes if outcome.seconds > 0.0]
    _same_audio(spoken)
    shapes = Counter((outcome.sample_rate, outcome.channels) for outcome in spoken)
    if len(shapes) > 1:
        (usual, _), *_ = shapes.most_common(1)
        for outcome in spoken:
            if (outcome.sample_rate, outcome.channels) != usual and not _has(outcome, "wrong_rate"):
                others = f"most others {usual[0]} Hz x {usual[1]}"
                outcome.faults.append(Fault("wrong_rate", f"{_shape(outcome)}, {others}"))
    if limits.check_length and limits.max_pace_ratio:
        _unusual_rate(spoken, limits.max_pace_ratio)


def check_probe(outcomes: Sequence[Outcome], shape: tuple[int, int]) -> None:
    """Compare raw samples to the probe, a whole WAV file of the same server, in rate and
    channels.
    """
    for outcome in outcomes:
        if (
            outcome.seconds > 0.0
            and (outcome.sample_rate, outcome.channels) != shape
            and not _has(outcome, "wrong_rate")
        ):
            files = f"this server's WAV files {shape[0]} Hz x {shape[1]}"
            outcome.faults.append(Fault("wrong_rate", f"{_shape(outcome)}, {files}"))


def audible_windows(
    mono_S: NDArray[np.float32], sample_rate: int, silence_db: float
) -> NDArray[np.bool_]:
    """For each 10 ms, whether the level is above `silence_db`."""
    width = max(1, round(sample_rate * _WINDOW_SECONDS))
    padded = np.pad(mono_S, (0, -len(mono_S) % width)).reshape(-1, width)
    power_N = np.einsum("ij,ij->i", padded, padded) / width
    audible: NDArray[np.bool_] = power_N > 10.0 ** (silence_db / 10.0)
    return audible


def _times(outcome: Outcome, decoded: DecodedAudio, limits: Limits) -> None:
    arrivals = [
        at
        for (at, seconds), before in zip(decoded.marks, [(0.0, 0.0), *decoded.marks], strict=False)
        if seconds > before[1]
    ]
    if len(arrivals) > 1:
        gaps = np.diff(arrivals) * 1e3
        outcome.gap_longest_ms, outcome.gap_median_ms = float(gaps.max()), float(np.median(gaps))
    at_once: Playback = play(decoded.marks, 0.0)
    outcome.still_ms = 1e3 * at_once.stalled_seconds
    outcome.still_longest_ms = 1e3 * at_once.longest_stall_seconds
    outcome.still_buffered_ms = 1e3 * play(decoded.marks, limits.buffer_seconds).stalled_seconds
    if at_once.longest_stall_seconds > limits.stall_seconds:
        at, seconds = max(at_once.stalls, key=lambda item: item[1])
        outcome.faults.append(
            Fault(
                "stalled", f"{seconds:.2f} s, {at - at_once.began_at:.2f} s after the first audio"
            )
        )


def _samples(outcome: Outcome, decoded: DecodedAudio, limits: Limits) -> None:
    mono_S = decoded.samples.mean(axis=0, dtype=np.float32)
    size_CS = np.abs(decoded.samples)
    outcome.peak = float(size_CS.max())
    outcome.digest = hashlib.blake2b(
        np.rint(decoded.samples * 32768.0).astype(np.int32).tobytes(), digest_size=16
    ).hexdigest()
    full_CS = size_CS >= _FULL_SCALE
    # Three samples in a row at full scale are clipping, not a peak.
    held_CS = full_CS[:, 2:] & full_CS[:, 1:-1] & full_CS[:, :-2]
    outcome.clipped = float(held_CS.mean()) if held_CS.size else 0.0
    if outcome.clipped > limits.max_clipped:
        outcome.faults.append(
            Fault("clipped", f"{100 * outcome.clipped:.1f} % of samples held at full scale")
        )
    rms = float(np.sqrt(np.mean(np.square(mono_S, dtype=np.float64))))
    outcome.rms_db = 20.0 * math.log10(max(rms, 1e-6))
    audible = audible_windows(mono_S, decoded.sample_rate, limits.silence_db)
    if not audible.any():
        outcome.faults.append(
            Fault("silent", f"{decoded.seconds:.2f} s below {limits.silence_db:g} dB")
        )
        return
    first = int(audible.argmax())
    # A window is a whole number of samples, so not always quite 10 ms.
    window_seconds = max(1, round(decoded.sample_rate * _WINDOW_SECONDS)) / decoded.sample_rate
    outcome.leading_silence_ms = 1e3 * first * window_seconds
    outcome.ttfa_ms = next(at for at, seconds in outcome.marks if seconds > first * window_seconds)
    edges = np.flatnonzero(np.concatenate(([True], audible, [True])))
    longest = float((np.diff(edges) - 1).max() * window_seconds)
    outcome.longest_silence_ms = 1e3 * longest
    if longest > limits.max_silence_seconds:
        outcome.faults.append(Fault("silent", f"{longest:.2f} s of silence at a time"))


def _same_audio(spoken: Sequence[Outcome]) -> None:
    by_digest: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in spoken:
        by_digest[outcome.digest].append(outcome)
    for same in by_digest.values():
        if len({outcome.item.text for outcome in same}) > 1:
            for outcome in same:
                others = [
                    str(other.index) for other in same if other.item.text != outcome.item.text
                ]
                outcome.faults.append(
                    Fault(
                        "same_audio", f"as request {', '.join(others[:5])}, which has another text"
                    )
                )


def _unusual_rate(spoken: Sequence[Outcome], max_ratio: float) -> None:
    rates: defaultdict[str | None, list[tuple[Outcome, float]]] = defaultdict(list)
    for outcome in spoken:
        letters = spoken_letters(outcome.item.text)
        if letters >= _MIN_RATED_LETTERS:
            rates[outcome.item.language].append((outcome, letters / outcome.seconds))
    for group in rates.values():
        if len(group) < _MIN_RATED_REQUESTS:
            continue
        usual = median(rate for _, rate in group)
        for outcome, rate in group:
            told = f"{rate:.1f} letters a second, others {usual:.1f}"
            if rate > usual * max_ratio and not _has(outcome, "too_short"):
                outcome.faults.append(Fault("too_short", told))
            elif rate < usual / max_ratio and not _has(outcome, "too_long"):
                outcome.faults.append(Fault("too_long", told))


def _shape(outcome: Outcome) -> str:
    return f"{outcome.sample_rate} Hz x {outcome.channels}"


def _has(outcome: Outcome, kind: str) -> bool:
    return any(fault.kind == kind for fault in outcome.faults)

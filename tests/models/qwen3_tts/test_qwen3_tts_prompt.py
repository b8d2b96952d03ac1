"""Prompts of Qwen3-TTS: the published example, edges of the cut, and what a checkpoint refuses.

The golden rows are compared in tests/models/qwen3_tts/test_qwen3_tts_talker.py, where they can be
embedded.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.core import SpeechRequest
from hocket.engine.intake import check_fields
from hocket.errors import CheckpointError, InvalidRequestError
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.prompt import Qwen3TtsPrompt
from hocket.text.tokenizer import TextTokenizer
from tests.support import paths

GOLDEN = paths.GOLDEN / "qwen3_tts"
#: Ids of the golden files: on the codec side the published ones minus 1984, on the text side their
#: own.
IM_START, IM_END, TTS_PAD, TTS_BOS, TTS_EOS = 301, 302, 303, 304, 305
CODEC_PAD, CODEC_BOS, THINK, NOTHINK, THINK_BOS, THINK_EOS = 164, 165, 170, 171, 172, 173
NO_CODE, VOICE_CODE = 1088, 1089
VOICE = np.ones(64, np.float32)
CODES = np.arange(32).reshape(2, 16)


def builder(name: str) -> Qwen3TtsPrompt:
    folder = GOLDEN / name
    config = Qwen3TtsConfig.from_dict(json.loads((folder / "config.json").read_text()))
    return Qwen3TtsPrompt(config, TextTokenizer.load(folder, vocab_size=config.text_vocab_size))


def two_columns(rows: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Text and first code of each row, which has no other codes."""
    assert (rows[:, 2:] == NO_CODE).all()
    return [(int(text), int(code)) for text, code in rows[:, :2]]


def test_the_layout_of_the_specification() -> None:
    """ "Hello there." by vivian in English, with all of the text up front and a token a frame
    (sources: Qwen3 4).
    """
    make, text = builder("custom_1b7"), "ab."
    a, b, stop = 97, 98, 46
    head = [
        *[(IM_START, NO_CODE), (263, NO_CODE), (10, NO_CODE)],
        *[
            (TTS_PAD, THINK),
            (TTS_PAD, THINK_BOS),
            (TTS_PAD, 66),
            (TTS_PAD, THINK_EOS),
            (TTS_PAD, 1081),
        ],
        (TTS_BOS, CODEC_PAD),
    ]
    whole = make.build(SpeechRequest(text=text, voice="Vivian", language="ENGLISH"), [])
    tail = [*((token, CODEC_PAD) for token in (a, b, stop, TTS_EOS)), (TTS_PAD, CODEC_BOS)]
    assert two_columns(whole.rows) == head + tail
    assert whole.frame_texts.tolist() == []
    assert whole.voice.shape == (0,)
    streaming = make.build(
        SpeechRequest(text=text, voice="vivian", language="english", streaming_text=True), []
    )
    assert two_columns(streaming.rows) == [*head, (a, CODEC_BOS)]
    assert streaming.frame_texts.tolist() == [b, stop, TTS_EOS]


def test_without_a_language_the_model_guesses() -> None:
    rows = builder("design_1b7").build(SpeechRequest(text="a", streaming_text=True), []).rows
    tags = [
        (TTS_PAD, NOTHINK),
        (TTS_PAD, THINK_BOS),
        (TTS_PAD, THINK_EOS),
        (TTS_BOS, CODEC_PAD),
        (97, CODEC_BOS),
    ]
    assert two_columns(rows)[3:] == tags


def test_a_recording_gives_its_vector_and_with_its_words_its_frames() -> None:
    make = builder("base_1b7")
    alone = make.build(SpeechRequest(text="ab", reference=b"x"), [], [VOICE])
    assert (TTS_PAD, VOICE_CODE) in two_columns(alone.rows)
    assert np.array_equal(alone.voice, VOICE)
    assert alone.prefix_codes.shape == (0, 16)
    request = SpeechRequest(text="ab", reference=b"x", reference_text="cd")
    beside = make.build(request, [CODES], [VOICE])
    assert np.array_equal(beside.prefix_codes, CODES)
    assert np.array_equal(beside.rows[-2:, 1:], CODES)
    assert beside.rows[-3:, 0].tolist() == [99, 100, 97]
    assert beside.frame_texts.tolist() == [98, TTS_EOS]
    in_turn = make.build(request.model_copy(update={"streaming_text": False}), [CODES], [VOICE])
    assert in_turn.rows[-8:, 0].tolist() == [99, 100, 97, 98, TTS_EOS, TTS_PAD, TTS_PAD, TTS_PAD]
    assert in_turn.rows[-8:, 1].tolist() == [*[CODEC_PAD] * 5, CODEC_BOS, *CODES[:, 0]]


@pytest.mark.parametrize(
    ("voice", "language", "tag"),
    [
        ("dylan", None, 90),
        ("dylan", "auto", 90),
        ("DYLAN", "Chinese", 90),
        ("dylan", "english", 66),
        ("eric", "chinese", 78),
        ("vivian", "chinese", 71),
        ("vivian", None, None),
    ],
)
def test_dialects(voice: str, language: str | None, tag: int | None) -> None:
    rows = (
        builder("custom_1b7")
        .build(SpeechRequest(text="a", voice=voice, language=language), [])
        .rows
    )
    assert rows[3, 1] == (NOTHINK if tag is None else THINK)
    assert tag is None or rows[5, 1] == tag


def test_control_tokens_in_a_text_are_text() -> None:
    """Control tokens are text in an instruction and in a transcript, too."""
    spelled = "<|im_end|> <tts_pad><tts_text_eod><|endoftext|>"
    prompts = [
        builder("design_1b7").build(SpeechRequest(text=spelled, instruction=spelled), []),
        builder("base_1b7").build(
            SpeechRequest(
                text=spelled, reference=b"x", reference_text=spelled, streaming_text=False
            ),
            [CODES],
            [VOICE],
        ),
    ]
    for prompt in prompts:
        texts = prompt.rows[:, 0].tolist()
        assert texts.count(IM_END) == (1 if prompt is prompts[0] else 0)
        assert texts.count(TTS_EOS) == 1
        assert 300 not in texts
    plain = [ord(character) for character in "<|im_"]
    assert plain == [60, 124, 105, 109, 95]
    assert prompts[1].rows[:, 0].tolist().count(ord("|")) == 8


def test_the_text_is_cut_by_position() -> None:
    """A leading line break belongs to the role's tokens, as in the joined string."""
    make = builder("design_1b7")
    ids = make.build(SpeechRequest(text="\na"), []).rows[:, 0].tolist()
    assert ids[:3] == [IM_START, 263, 10]
    assert ids[-4:] == [10, 97, TTS_EOS, TTS_PAD]


def test_an_instruction_comes_first_where_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    request = SpeechRequest(text="a", voice="vivian", instruction="b")
    large, small = (builder(name).build(request, []).rows for name in ("custom_1b7", "custom_0b6"))
    assert large[: len(large) - len(small), 0].tolist() == [IM_START, 266, 10, 98, IM_END, 10]
    assert np.array_equal(large[-len(small) :], small)
    assert [(record.levelno, record.message.split()[0]) for record in caplog.records] == [
        (logging.WARNING, "event=instruction_left_out")
    ]


REFERENCE = {"reference": b"x"}


@pytest.mark.parametrize(
    ("name", "fields", "param", "words"),
    [
        ("custom_1b7", {}, "voice", "needs a voice; it has aiden, dylan"),
        ("custom_1b7", {"voice": "nobody"}, "voice", "no voice 'nobody'; this model has aiden"),
        (
            "custom_1b7",
            {"voice": "vivian", "task_type": "Base"},
            "task_type",
            "this checkpoint is for CustomVoice",
        ),
        ("custom_1b7", REFERENCE, "reference", "takes no reference"),
        (
            "custom_1b7",
            {"voice": "vivian", "language": "klingon"},
            "language",
            "knows auto, chinese, english",
        ),
        (
            "custom_1b7",
            {"voice": "vivian", "language": "beijing_dialect"},
            "language",
            "knows auto",
        ),
        ("design_1b7", {"voice": "vivian"}, "voice", "VoiceDesign checkpoint has no voices"),
        ("design_1b7", REFERENCE, "reference", "takes no reference"),
        ("base_1b7", {}, "reference", "voice of one recording, got 0"),
        ("base_1b7", {"reference": [b"x", b"y"]}, "reference", "got 2"),
        ("base_1b7", REFERENCE | {"instruction": "sad"}, "instruction", "takes no instruction"),
        ("base_1b7", {"voice": "vivian"}, "reference", "got 0"),
    ],
)
def test_refusals(name: str, fields: dict[str, Any], param: str, words: str) -> None:
    request = SpeechRequest(text="a", **fields)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        builder(name).needs(request)
    assert caught.value.param == param
    with pytest.raises(InvalidRequestError, match=words):
        builder(name).build(request, [], [VOICE])


@pytest.mark.parametrize(
    "fields",
    [
        {"quality": "high"},
        {"sound_event": "rain"},
        {"ambient_sound": "park"},
        {"tokens": 5},
        {"join": " "},
    ],
)
def test_fields_of_other_families_are_refused(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InvalidRequestError, match=f"does not know {name}") as caught:
        check_fields(SpeechRequest(text="a", **fields), builder("design_1b7").takes)
    assert caught.value.param == name
    own = SpeechRequest(
        text="a", language="en", instruction="b", task_type="Base", streaming_text=True
    )
    check_fields(own, builder("design_1b7").takes)


def test_needs() -> None:
    make = builder("base_1b7")
    alone, continued = (
        SpeechRequest(text="a", reference=b"x", reference_text=words) for words in (None, "b")
    )
    assert (make.needs(alone).codes, make.needs(alone).voice) == (False, True)
    assert (make.needs(continued).codes, make.needs(continued).voice) == (True, True)


# ---- vocab.json and merges.txt


def copied(
    tmp_path: Path, names: Sequence[str] = ("vocab.json", "merges.txt", "added_tokens.json")
) -> Path:
    for name in names:
        shutil.copy(GOLDEN / "base_1b7" / name, tmp_path / name)
    return tmp_path


def test_merges_apply_in_order_and_text_is_composed(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(copied(tmp_path))
    assert tokenizer.encode("assistant\nhello there") == [263, 10, 272, 269, 104, 265, 101]
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9") != tokenizer.encode("e")
    assert tokenizer.encode("12") == [49, 50]
    assert tokenizer.encode(" \n\n a") == tokenizer.encode(" \n\n") + tokenizer.encode(" a")


def test_control_ids_are_kept_from_the_vocabulary(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(vocab | {"<|im_end|>": 302}))
    assert 302 not in TextTokenizer.load(folder, reserved=[302]).encode("<|im_end|>")
    (folder / "added_tokens.json").unlink()
    with pytest.raises(CheckpointError, match="control id 302"):
        TextTokenizer.load(folder, reserved=[302])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("merges.txt", None, "merges.txt' is missing"),
        ("merges.txt", b"\xff", "not UTF-8"),
        ("merges.txt", b"a b c", "not a byte-pair tokenizer"),
        ("merges.txt", b"xq qx", "not a byte-pair tokenizer"),
        ("vocab.json", b"[]", "not a byte-pair tokenizer"),
        ("vocab.json", b'{"a": 0}', "not a byte-pair tokenizer|cannot spell"),
        ("added_tokens.json", b"{", "not valid JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    folder = copied(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        TextTokenizer.load(folder)


def test_neither_kind_of_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json' is missing"):
        TextTokenizer.load(tmp_path)

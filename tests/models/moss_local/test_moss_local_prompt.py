"""Prompt rows against the official processor's; no text produces a control id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file

from hocket.core import SpeechRequest
from hocket.engine.intake import check_fields
from hocket.errors import CheckpointError, InvalidRequestError
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.prompt import MossLocalPrompt
from hocket.text.join import join_texts
from hocket.text.tokenizer import TextTokenizer
from tests.support import paths

TINY = paths.GOLDEN / "local_tiny"
GOLDEN: dict[str, Any] = json.loads((TINY / "golden_prompts.json").read_text())
TENSORS = {
    name: tensor.numpy() for name, tensor in load_file(TINY / "golden_prompts.safetensors").items()
}
CONFIG = MossLocalConfig.from_dict(json.loads((TINY / "config.json").read_text()))
TOKENIZER = TextTokenizer.load(TINY, vocab_size=CONFIG.vocab_size)
PROMPT = MossLocalPrompt(CONFIG, TOKENIZER)
N_VQ = len(CONFIG.audio_codebook_sizes)

REFERENCES = {
    "plain": [],
    "fields": [],
    "unicode": [],
    "one_ref": ["codes/r1"],
    "two_ref": ["codes/r1", "codes/r2"],
    "continuation": ["codes/c1"],
    "continuation_ignores_reference": ["codes/c1"],
}


def request(codes: Sequence[NDArray[np.int64]] = (), **fields: Any) -> SpeechRequest:
    return SpeechRequest(**({"text": "Hello world."} | fields), reference=list(codes) or None)


def codes(frames: int = 2, codebooks: int = N_VQ) -> NDArray[np.int64]:
    return np.arange(frames * codebooks).reshape(frames, codebooks) % 64


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_rows_are_the_official_ones(case: str) -> None:
    references = [TENSORS[name] for name in REFERENCES[case]]
    fields = dict(GOLDEN["cases"][case]["fields"])
    if case.startswith("continuation"):
        fields |= {"reference_text": "None of this.", "text": " Hello world.", "join": ""}
    prompt = PROMPT.build(request(references, **fields), references)
    assert prompt.rows.dtype == np.int64
    np.testing.assert_array_equal(prompt.rows, TENSORS[f"prompt/{case}"])
    prefix_FN = TENSORS["codes/c1"] if case.startswith("continuation") else np.empty((0, N_VQ))
    np.testing.assert_array_equal(prompt.prefix_codes, prefix_FN)


@pytest.mark.parametrize("piece", GOLDEN["pieces"].values(), ids=list(GOLDEN["pieces"]))
def test_pieces_have_the_official_ids(piece: dict[str, Any]) -> None:
    assert TOKENIZER.encode(piece["text"]) == piece["ids"]


def test_joint_tokenisation_would_be_another_prompt() -> None:
    pieces = GOLDEN["pieces"]
    joined = TOKENIZER.encode(pieces["ref_prefix"]["text"] + pieces["none"]["text"])
    assert joined != pieces["ref_prefix"]["ids"] + pieces["none"]["ids"]


def test_the_default_join_of_a_continuation_is_a_space() -> None:
    reference = codes()
    built = PROMPT.build(request([reference], reference_text="None of this."), [reference])
    spelled = PROMPT.build(
        request([reference], reference_text="None of this. Hello", text=" world.", join=""),
        [reference],
    )
    assert np.array_equal(built.rows, spelled.rows)


def test_blank_fields_and_the_text_around_them() -> None:
    blank = request(
        instruction=" \n", quality="", sound_event="\t", ambient_sound=" ", language="  "
    )
    assert np.array_equal(PROMPT.build(blank, []).rows, PROMPT.build(request(), []).rows)
    padded = PROMPT.build(request(text=" Hello world.\n"), []).rows
    assert len(padded) > len(PROMPT.build(request(), []).rows)


def test_codebooks_beyond_the_models_are_left_out() -> None:
    wide = codes(3, N_VQ + 4)
    wide[:, N_VQ:] = 10**6
    narrow = np.ascontiguousarray(wide[:, :N_VQ]).astype(np.uint8)
    narrow_rows = PROMPT.build(request([narrow]), [narrow]).rows  # type: ignore[list-item]
    assert np.array_equal(PROMPT.build(request([wide]), [wide]).rows, narrow_rows)
    prefix_FN = PROMPT.build(request([wide], reference_text="So."), [wide]).prefix_codes
    assert np.array_equal(prefix_FN, narrow)


def with_code(code: int, codebook: int) -> NDArray[np.int64]:
    reference = codes()
    reference[1, codebook] = code
    return reference


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            codes(2, N_VQ - 1),
            r"reference 2: int64 codes of the shape \(2, 11\); .*at least 12 codebooks",
        ),
        (codes(0), r"shape \(0, 12\)"),
        (codes()[0], r"shape \(12,\)"),
        (codes() * 1.0, "float64 codes"),
        (with_code(64, 7), "code 64 in codebook 7 of frame 1; this model's codes are 0 to 63"),
        (with_code(-1, 0), "code -1 in codebook 0 of frame 1"),
    ],
)
def test_codes_that_the_model_does_not_have_are_refused(
    reference: NDArray[np.int64], message: str
) -> None:
    both = [codes(), reference]
    with pytest.raises(InvalidRequestError, match=message) as caught:
        PROMPT.build(request(both), both)
    assert caught.value.param == "reference"


@pytest.mark.parametrize("fields", [{"task_type": "Base"}, {"streaming_text": False}])
def test_fields_of_other_families_are_refused(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(InvalidRequestError, match=f"does not know {name}") as caught:
        check_fields(SpeechRequest(text="a", **fields), PROMPT.takes)
    assert caught.value.param == name
    own = SpeechRequest(
        text="a",
        language="en",
        instruction="b",
        quality="c",
        sound_event="d",
        ambient_sound="e",
        tokens=1,
        join=" ",
    )
    check_fields(own, PROMPT.takes)


# ---------------------------------------------------------------------------------- joining texts


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ("One.", "Two.", " "),
        ("One. ", "Two.", ""),
        ("One.", "\nTwo.", ""),
        ("Один.", "Два.", " "),
        ("안녕하세요.", "반갑습니다.", " "),
        ("مرحبا.", "أهلا.", " "),
        ("שלום", "עולם", " "),
        ("नमस्ते", "दुनिया", " "),
        ("你好。", "世界", ""),
        ("你好.", "世界", ""),
        ("他说“你好”", "然后", ""),
        ("こんにちは", "世界", ""),
        ("カタカナ", "ﾊﾝｶｸ", ""),
        ("สวัสดี", "ครับ", ""),
        ("ສະບາຍດີ", "ທ່ານ", ""),
        ("សួស្តី", "អ្នក", ""),
        ("မင်္ဂလာပါ", "ခင်ဗျာ", ""),
        ("བཀྲ་ཤིས།", "བདེ་ལེགས།", ""),
        ("Hello.", "你好", ""),
        ("你好", "Hello.", ""),
        ("今天是2024", "3月", ""),
        ("In 2024", "3 cats", " "),
        ("123", "456", " "),
        ("Hello 😀", "world", " "),
        ("你好 ❤️", "世界", ""),
        ("你好 ❤️", "Mac", ""),
        ("안녕 😀", "👋🏽 여러분", " "),
        ("한국어。", "다음", ""),
        ("我用iPhone", "Mac也好", " "),
    ],
)
def test_a_space_goes_only_where_both_scripts_have_one(
    before: str, after: str, wanted: str
) -> None:
    assert join_texts(before, after, None) == before + wanted + after


@pytest.mark.parametrize("join", ["", " ", "\n", " ... "])
def test_a_given_join_is_taken_as_it_is(join: str) -> None:
    assert join_texts("你好 ", " world", join) == f"你好 {join} world"


# ---------------------------------------------------------------------------------- the tokenizer

SPECIAL_IDS = set(GOLDEN["special_ids"].values())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=20), st.sampled_from(list(GOLDEN["special_ids"]))), max_size=6
    )
)
def test_no_text_spells_a_special_id(parts: list[str]) -> None:
    assert not SPECIAL_IDS & set(TOKENIZER.encode("".join(parts)))


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter(str.strip))
def test_a_prompt_has_the_same_special_ids_for_every_text(text: str) -> None:
    def special_ids(built: SpeechRequest) -> list[int]:
        return [
            text_id
            for text_id in PROMPT.build(built, []).rows[:, 0].tolist()
            if text_id in SPECIAL_IDS
        ]

    assert special_ids(
        request(text=f"{text}<|im_end|>{text}", language="<|audio_start|>")
    ) == special_ids(request())


def tokenizer_of(folder: Path, **changes: Any) -> TextTokenizer:
    definition = json.loads((TINY / "tokenizer.json").read_text())
    model = definition["model"] | changes.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps(definition | changes | {"model": model}))
    return TextTokenizer.load(folder)


def added(content: str, token_id: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": token_id, "content": content, "special": special, **flags}


def test_added_tokens_of_both_kinds_are_plain_text(tmp_path: Path) -> None:
    tokens = [added("<|im_end|>", 300, special=True), added("<think>", 301, special=False)]
    found = tokenizer_of(tmp_path, added_tokens=tokens)
    for text in ("<|im_end|>", "a<think>b", "<|im_end|><think>"):
        assert found.encode(text) == TOKENIZER.encode(text)
        assert not {300, 301} & set(found.encode(text))


def test_a_special_token_among_the_ordinary_ones_is_plain_text(tmp_path: Path) -> None:
    vocab = json.loads((TINY / "tokenizer.json").read_text())["model"]["vocab"] | {
        "<|im_end|>": 300
    }
    tokens = [added("<|im_end|>", 300, special=True)]
    found = tokenizer_of(
        tmp_path, added_tokens=tokens, model={"vocab": vocab, "ignore_merges": True}
    )
    assert 300 not in found.encode("<|im_end|>")


def test_nothing_is_added_cut_or_padded_and_the_normaliser_stays(tmp_path: Path) -> None:
    ends = {"<|im_end|>": {"id": "<|im_end|>", "ids": [278], "tokens": ["<|im_end|>"]}}
    template = [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}},
    ]
    found = tokenizer_of(
        tmp_path,
        post_processor={
            "type": "TemplateProcessing",
            "single": template,
            "pair": template,
            "special_tokens": ends,
        },
        truncation={"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 276,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        },
        normalizer={"type": "NFC"},
    )
    assert found.encode("He\u0301llo.") == TOKENIZER.encode("H\u00e9llo.")
    assert len(found.encode("He\u0301llo.")) > 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is missing"),
        ("{", "is not valid JSON"),
        ("[]", "is not a byte-pair tokenizer"),
        ("{}", "is not a byte-pair tokenizer"),
        (
            '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {}}}',
            "is not a byte-pair tokenizer",
        ),
        (
            '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}',
            "is not a byte-pair tokenizer",
        ),
    ],
)
def test_broken_tokenizer_files_are_refused_by_name(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        TextTokenizer.load(tmp_path)
    assert repr(str(tmp_path / "tokenizer.json")) in str(caught.value)


def test_ids_beyond_the_models_are_refused() -> None:
    assert TextTokenizer.load(TINY, vocab_size=276).encode("a") == TOKENIZER.encode("a")
    with pytest.raises(CheckpointError, match="ids up to 275, but the model embeds 275"):
        TextTokenizer.load(TINY, vocab_size=275)


def test_a_tokenizer_that_cannot_spell_every_byte_is_refused(golden: Path, tmp_path: Path) -> None:
    definition = json.loads((golden / "local_tiny" / "tokenizer.json").read_text(encoding="utf-8"))
    del definition["model"]["vocab"]["q"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition), encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot spell 1 of 256 bytes"):
        TextTokenizer.load(tmp_path)
    empty = {"model": {"type": "BPE", "vocab": {}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(empty), encoding="utf-8")
    with pytest.raises(CheckpointError, match="not byte-level"):
        TextTokenizer.load(tmp_path)


def test_a_deeply_nested_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        TextTokenizer.load(tmp_path)

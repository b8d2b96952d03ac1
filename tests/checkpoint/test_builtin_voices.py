"""Voices of a checkpoint: their files are checked, and whoever names one speaks with it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from hocket.checkpoint.extras import load_extras
from hocket.checkpoint.voices import (
    DEFAULT_VOICE,
    ONLY_DEFAULT,
    Voices,
    find_voice,
    load_voices,
    with_reference_of_voice,
)
from hocket.core import AudioArray, Sampling, SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import CheckpointError, InvalidRequestError
from hocket.models.registry import checkpoint_extras, load_talker
from hocket.worker.client import EngineClient
from hocket.worker.messages import EngineSpec, read_request, submit_message
from tests.support.cli_runner import TALKER, refused, run

#: Of the golden talker.
N_VQ, ENTRIES = 12, 64
ANNA = {
    "description": "a calm alto",
    "language": "English",
    "transcript": "The words of Anna.",
    "source": "drawn from a seed",
    "licence": "CC0-1.0",
}
GREEDY = Sampling(temperature=0.0)


def codes(seed: int, frames: int = 20) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, ENTRIES, (frames, N_VQ))


def write_voice(
    checkpoint: Path, name: str, codes_FN: NDArray[np.int64] | None, **facts: object
) -> None:
    folder = checkpoint / "voices"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**ANNA, **facts}), encoding="utf-8")
    if codes_FN is not None:
        np.save(folder / f"{name}.npy", codes_FN.astype(np.int16))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the voices anna, to be cloned, and bert, to be continued, and a text normalizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "voiced"
    shutil.copytree(TALKER, folder, ignore=shutil.ignore_patterns("golden_*"))
    write_voice(folder, "anna", codes(1))
    write_voice(folder, "bert", codes(2), mode="continuation", transcript="The words of Bert.")
    write_voice(folder, DEFAULT_VOICE, None, description="a voice of its own", transcript=None)
    (folder / "hocket.json").write_text('{"text_front": "en", "segment_characters": 90}')
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Engine:
    return Engine.load(checkpoint, "none", rows=2)


def load(folder: Path) -> Voices:
    return load_voices(folder, n_vq=N_VQ, codebook_sizes=[ENTRIES] * N_VQ)


# ---- files


def test_voices_are_read_with_the_default_first(checkpoint: Path) -> None:
    voices = load(checkpoint)
    assert list(voices) == ["default", "anna", "bert"]
    assert (voices["default"].description, voices["default"].codes) == ("a voice of its own", None)
    anna, bert = voices["anna"], voices["bert"]
    assert anna.codes is not None
    assert anna.codes.dtype == np.int64
    assert np.array_equal(anna.codes, codes(1))
    assert (anna.description, anna.licence, anna.transcript) == (
        "a calm alto",
        "CC0-1.0",
        "The words of Anna.",
    )
    assert (anna.reference_text, bert.reference_text) == (None, "The words of Bert.")


def test_a_checkpoint_without_extras_has_the_default() -> None:
    extras = load_extras(Path(TALKER), n_vq=N_VQ, codebook_sizes=[ENTRIES] * N_VQ)
    assert extras.text_front is None
    assert extras.segment_characters is None
    assert extras.voices == ONLY_DEFAULT
    assert ONLY_DEFAULT[DEFAULT_VOICE].codes is None


def edit(**facts: object) -> Callable[[Path], None]:
    return lambda folder: write_voice(folder, "carl", codes(3), **facts)


def text(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "voices").mkdir()
        (folder / "voices" / name).write_bytes(content)

    return write


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "unknown key": (edit(pitch=9), "carl.json' describes no voice: pitch: Extra inputs"),
    "no licence": (
        edit(licence=""),
        "carl.json' describes no voice: licence: String should have at least 1",
    ),
    "no such mode": (edit(mode="sing"), "mode: Input should be 'clone' or 'continuation'"),
    "no words": (
        edit(mode="continuation", transcript=None),
        "mode is continuation, which needs the transcript",
    ),
    "not JSON": (text("carl.json", b"{"), "carl.json' describes no voice: Invalid JSON"),
    "no codes": (
        lambda folder: write_voice(folder, "carl", None),
        "the codes of a voice: cannot read .*carl.npy",
    ),
    "capitals": (
        lambda folder: write_voice(folder, "Carl", codes(3)),
        "small letters; rename it to carl.json",
    ),
    "spaces": (
        lambda folder: write_voice(folder, "car l", codes(3)),
        "car l.json': 'car l' is no voice name",
    ),
    "codes alone": (text("carl.npy", b""), "carl.npy' has no carl.json beside it"),
    "stray file": (text("notes.txt", b""), "notes.txt' is no part of a voice"),
    "long": (
        lambda folder: write_voice(folder, "carl", codes(3, 751)),
        "751 frames; a voice has 750 at most",
    ),
    "few codebooks": (
        lambda folder: write_voice(folder, "carl", codes(3)[:, :9]),
        "in 9 codebooks, the model 12",
    ),
    "another codec": (
        lambda folder: write_voice(folder, "carl", codes(3) + ENTRIES),
        "in 12 codebooks, the model 12 codebooks of 64 codes",
    ),
    "default with codes": (
        lambda folder: write_voice(folder, "default", codes(3), transcript=None),
        "the voice 'default' is the model's own and has no codes",
    ),
    "default with words": (
        lambda folder: write_voice(folder, "default", None),
        "has no codes and no transcript",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_voice_is_said(tmp_path: Path, case: str) -> None:
    damage, message = BROKEN[case]
    damage(tmp_path)
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text_front": "fr"}', "text_front: Input should be 'en'"),
        ('{"front": "en"}', "front: Extra inputs are not permitted"),
        (
            '{"segment_characters": 19}',
            "segment_characters: Input should be greater than or equal to 20",
        ),
        ('{"segment_characters": "160"}', "segment_characters: Input should be a valid integer"),
        ('{"segment_characters": 160.5}', "segment_characters: Input should be a valid integer"),
        ('{"sampling": {"top_p": 2}}', "sampling.top_p: Input should be less than or equal to 1"),
        ('{"sampling": {"stop_temperature": 2.0}}', "stop_temperature cannot be recommended"),
        ("[]", "hocket.json': "),
        ("{", "hocket.json': Invalid JSON"),
    ],
)
def test_a_wrong_hocket_file_is_said(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "hocket.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        load_extras(tmp_path, n_vq=N_VQ, codebook_sizes=[ENTRIES] * N_VQ)


def test_recommended_sampling_replaces_what_it_gives_of_the_family_s(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cool"
    shutil.copytree(checkpoint, folder)
    (folder / "hocket.json").write_text('{"sampling": {"temperature": 0.5, "top_k": 7}}')
    usual = load_talker(checkpoint, device=torch.device("cpu"), dtype=torch.float32).sampling
    loaded = load_talker(folder, device=torch.device("cpu"), dtype=torch.float32).sampling
    assert loaded == replace(usual, codes=replace(usual.codes, temperature=0.5, top_k=7))


def test_codebooks_that_the_model_does_not_read_may_be_there(tmp_path: Path) -> None:
    write_voice(tmp_path, "carl", np.concatenate([codes(3), codes(4) + ENTRIES], axis=1))
    assert find_voice(load(tmp_path), "Carl").codes is not None


def test_the_shipped_model_is_given_short_texts() -> None:
    assert checkpoint_extras(None).segment_characters == 160


def test_the_shipped_voices_are_sound() -> None:
    voices = checkpoint_extras(None).voices
    assert next(iter(voices)) == DEFAULT_VOICE
    assert (
        sum(voice.codes.size * 2 for voice in voices.values() if voice.codes is not None) < 100_000
    )


# ---- requests


def test_a_voice_stands_for_its_reference(checkpoint: Path) -> None:
    voices = load(checkpoint)
    request = SpeechRequest(text="Hi.", seed=3)

    def cast(name: str) -> SpeechRequest:
        return with_reference_of_voice(request.model_copy(update={"voice": name}), voices)

    assert with_reference_of_voice(request, voices) is request
    assert (cast("default").references, cast("default").reference_text) == ((), None)
    assert np.array_equal(cast("ANNA").references[0], codes(1))  # type: ignore[arg-type]
    assert cast("anna").reference_text is None
    assert cast("bert").reference_text == "The words of Bert."
    with pytest.raises(
        InvalidRequestError, match="no voice 'carl'; there are default, anna, bert"
    ) as caught:
        cast("carl")
    assert caught.value.param == "voice"


def test_a_speaker_of_the_model_keeps_its_name(tmp_path: Path) -> None:
    voices = load_voices(
        tmp_path, n_vq=N_VQ, codebook_sizes=[ENTRIES] * N_VQ, speakers=["Vivian", "Uncle_Fu"]
    )
    assert list(voices) == ["default", "uncle_fu", "vivian"]
    request = SpeechRequest(text="Hi.", voice="Vivian")
    assert with_reference_of_voice(request, voices) is request


@pytest.mark.parametrize(
    "fields", [{"reference": "a.wav"}, {"reference": "a.wav", "reference_text": "Hi."}]
)
def test_voice_and_reference_exclude_each_other(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="voice and reference both say who speaks"):
        SpeechRequest.model_validate({"text": "Hi.", "voice": "anna", **fields})


def test_voice_and_text_front_travel() -> None:
    request = SpeechRequest(text="Hi.", voice="anna", text_front=False)
    header = submit_message("r", request, [], priority=0, streaming=True)[0]
    from hocket.worker.messages import _to_worker

    received = read_request(_to_worker.decode(header), [])  # type: ignore[arg-type]
    assert (received.voice, received.text_front) == ("anna", False)


def test_the_engine_speaks_with_a_voice_as_with_its_reference(engine: Engine) -> None:
    def spoken(**fields: object) -> NDArray[np.int64]:
        common = {"text": "Hello there.", "sampling": GREEDY, "seed": 1, "max_frames": 12}
        return engine.generate(SpeechRequest.model_validate(common | fields)).codes

    default = spoken()
    anna, bert = spoken(voice="anna"), spoken(voice="Bert")
    assert np.array_equal(spoken(voice="default"), default)
    assert np.array_equal(anna, spoken(reference=codes(1)))
    assert np.array_equal(bert, spoken(reference=codes(2), reference_text="The words of Bert."))
    assert len({each.tobytes() for each in (default, anna, bert)}) == 3
    with pytest.raises(InvalidRequestError, match="there is no voice 'carl'"):
        spoken(voice="carl")


def test_the_engine_reads_out_as_the_checkpoint_says(engine: Engine, checkpoint: Path) -> None:
    assert engine.info.text_front == "en"

    def spoken(speaker: Engine, text: str, **fields: object) -> bytes:
        request = SpeechRequest(text=text, sampling=GREEDY, seed=1, max_frames=12, **fields)  # type: ignore[arg-type]
        return speaker.generate(request).codes.tobytes()

    words = spoken(engine, "five kilometers", text_front=False)
    assert spoken(engine, "5 km") == words
    assert spoken(engine, "5 km", text_front=False) != words
    raw = Engine.load(TALKER, "none", rows=1)
    assert raw.info.text_front is None
    assert spoken(raw, "5 km") == spoken(engine, "5 km", text_front=False)
    assert spoken(raw, "5 km", text_front=True) == words
    off = Engine.load(
        checkpoint, "none", config=raw.config.model_copy(update={"text_front": False})
    )
    assert off.info.text_front is None
    assert spoken(off, "5 km") == spoken(raw, "5 km")


# ---- the command line


def test_voices_are_listed(checkpoint: Path) -> None:
    done = run("voices", "--model", str(checkpoint))
    assert done.out.splitlines() == [
        "default  a voice of its own",
        "anna     a calm alto",
        "bert     a calm alto",
    ]
    listed = json.loads(run("voices", "--model", str(checkpoint), "--json").out)
    assert [entry["name"] for entry in listed] == ["default", "anna", "bert"]
    assert listed[2] == {
        "name": "bert",
        **ANNA,
        "transcript": "The words of Bert.",
        "mode": "continuation",
    }
    assert run("voices").out.startswith("default ")


def test_info_counts_voices_and_names_the_text_front(checkpoint: Path) -> None:
    facts = json.loads(run("info", str(checkpoint), "--json").out)
    assert (facts["voices"], facts["text_front"]) == (3, "en")
    facts = json.loads(run("info", TALKER, "--json").out)
    assert (facts["voices"], facts["text_front"]) == (1, "none")


def test_say_with_a_voice(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("reference.npy", codes(1))
    common = (
        "say",
        "5 km",
        "--model",
        str(checkpoint),
        "--codec",
        "none",
        "--max-frames",
        "6",
        "--seed",
        "1",
    )

    def say(*options: str) -> bytes:
        done = run(*common, "--codes-out", "codes.npy", *options)
        assert done.code == 0, done.err
        return Path("codes.npy").read_bytes()

    anna = say("--voice", "anna")
    assert anna == say("--reference", "reference.npy") != say()
    assert say("--voice", "anna", "--no-text-front") != anna
    refused(
        "no voice 'carl'; there are default, anna, bert",
        *common,
        "--voice",
        "carl",
        "--codes-out",
        "codes.npy",
    )
    both = ("--voice", "anna", "--reference", "reference.npy", "--codes-out", "codes.npy")
    refused("voice and reference both say who speaks", *common, *both)


def test_codes_made_by_the_command_line_are_a_voice(
    babble: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented way to a voice of one's own: encode a recording, describe it."""
    from hocket.audio.io import write_audio

    monkeypatch.chdir(tmp_path)
    shutil.copytree(babble, "model", symlinks=True)
    write_voice(Path("model"), "dora", None)
    noise = (0.1 * np.random.default_rng(0).standard_normal((1, 24_000))).astype(np.float32)
    write_audio(Path("dora.wav"), AudioArray(noise, 24_000).samples, 24_000)
    target = ("-o", "model/voices/dora.npy", "--as-reference", "--codec", "model/codec")
    assert run("codec", "encode", "dora.wav", *target).code == 0
    said = run(
        "say", "Hi.", "--model", "model", "--voice", "dora", "--max-frames", "3", "-o", "out.wav"
    )
    assert said.code == 0, said.err


def test_a_front_end_reads_out_for_its_worker(engine: Engine, checkpoint: Path) -> None:
    request = SpeechRequest(text="5 km", voice="anna", sampling=GREEDY, seed=1, max_frames=12)

    async def speak() -> tuple[str | None, int | None, list[NDArray[np.int64]]]:
        async with await EngineClient.start(
            EngineSpec(model=str(checkpoint), codec="none")
        ) as client:
            facts = await client.wait_ready()
            long = request.model_copy(update={"text": "5 km, " * 200})  # on a thread
            spoken = [(await client.generate(each)).codes for each in (request, long)]
            return facts.text_front, facts.segment_characters, spoken

    front, segment_characters, (short_FN, long_FN) = asyncio.run(speak())
    assert (front, segment_characters) == ("en", 90)
    assert np.array_equal(short_FN, engine.generate(request).codes)
    words = request.model_copy(
        update={"text": ("five kilometers, " * 200).strip(), "text_front": False}
    )
    assert np.array_equal(long_FN, engine.generate(words).codes)

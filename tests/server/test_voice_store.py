"""Named voices on disk: old ones are kept, other folders untouched, and all survive a restart."""

from __future__ import annotations

import io
import os
import sys
import threading
import unicodedata
import wave
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save as to_safetensors

from hocket.audio.io import FORMATS, decode_audio, encode_audio
from hocket.audio.reference import prepare_reference
from hocket.checkpoint.voices import BuiltinVoice, VoiceNotFoundError, voice_name
from hocket.config import ReferenceLimits
from hocket.core import EncodedReference, EngineInfo, PreparedReference, VoiceTraits
from hocket.errors import ConfigError, HocketError, InvalidRequestError, ReferenceAudioError
from hocket.server.voice_store import VoiceDraft, VoiceStore
from tests.support.fake_engine import fake_info

RATE = 24000
CODES = np.arange(24).reshape(8, 3)
TINY, OTHER = fake_info(reference_id="tiny"), fake_info(reference_id="other")
BUILTIN = {
    "default": BuiltinVoice("the model's own"),
    "echo": BuiltinVoice("a tone", codes=CODES + 7, transcript="beep", mode="continuation"),
    "shadow": BuiltinVoice("a tone", codes=CODES + 8, transcript="beep"),
    "vivian": BuiltinVoice("known to the model", is_speaker=True),
}


def recording(seconds: float = 1.0, hertz: float = 220.0) -> bytes:
    t = np.arange(round(16000 * seconds)) / 16000
    return encode_audio(
        FORMATS[".wav"], (0.1 * np.sin(2 * np.pi * hertz * t)[None]).astype(np.float32), 16000
    )


PREPARED = PreparedReference(
    prepare_reference(recording(), sample_rate=RATE, channels=2, limits=ReferenceLimits()), RATE
)


def upload(
    store: VoiceStore,
    name: str = "anna",
    codes: NDArray[np.int64] = CODES,
    description: str = "",
    transcript: str | None = None,
) -> None:
    draft = store.draft(name, 9, description=description, transcript=transcript)
    store.save(draft, PREPARED, EncodedReference(codes), "tiny")


def codes_of(store: VoiceStore, info: EngineInfo = TINY) -> NDArray[np.int64]:
    reference, _ = store.reference("anna", info)
    assert isinstance(reference, EncodedReference)
    assert reference.codes is not None
    return reference.codes


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices", BUILTIN)


def test_an_uploaded_voice_survives_a_restart(store: VoiceStore, tmp_path: Path) -> None:
    upload(store, "Anna", description="a sine", transcript="uuuh")
    again = VoiceStore(tmp_path / "voices", BUILTIN)
    assert [(voice.name, voice.kind) for voice in again.listed()] == [
        *((name, "builtin") for name in BUILTIN),
        ("anna", "uploaded"),
    ]
    anna = again.listed()[-1]
    assert (anna.description, anna.transcript, anna.seconds, anna.problem) == (
        "a sine",
        "uuuh",
        1.0,
        None,
    )
    reference, words = again.reference("ANNA", TINY)
    assert isinstance(reference, EncodedReference)
    assert reference.codes is not None
    assert reference.codes.dtype == np.int64
    assert np.array_equal(reference.codes, CODES)
    assert reference.voice is None
    assert words == "uuuh"


@pytest.mark.parametrize("codes", [CODES, None])
def test_a_speaker_vector_is_stored_too(store: VoiceStore, codes: NDArray[np.int64] | None) -> None:
    vector = np.linspace(-1, 1, 8, dtype=np.float32)
    store.save(store.draft("anna", 9), PREPARED, EncodedReference(codes, vector), "tiny")
    reference, _ = store.reference("anna", TINY)
    assert isinstance(reference, EncodedReference)
    assert (reference.codes is None) == (codes is None)
    assert reference.voice is not None
    assert reference.voice.tobytes() == vector.tobytes()


def test_what_another_model_has_read_is_not_used(store: VoiceStore) -> None:
    upload(store)
    reference, _ = store.reference("anna", OTHER)
    assert isinstance(reference, bytes)
    audio = decode_audio(reference, max_bytes=len(reference), max_seconds=2.0)
    assert audio.sample_rate == RATE
    assert np.abs(audio.samples - PREPARED.samples).max() < 2**-15
    store.save(VoiceDraft("coded", "", None), None, EncodedReference(CODES), "tiny")
    assert store.listed()[-1].seconds is None
    with pytest.raises(InvalidRequestError, match="codes of another model"):
        store.reference("coded", OTHER)
    with pytest.raises(VoiceNotFoundError, match="no recording"):
        store.preview("coded")


def test_a_file_of_an_older_version_is_read(store: VoiceStore, tmp_path: Path) -> None:
    """It has codes of all codebooks and the codec's id; a model that hears recordings takes its
    recording.
    """
    metadata = (
        '{"description":"old","transcript":"uuuh","created":7,"seconds":1.0,"codec":"codec of old"}'
    )
    flac: NDArray[Any] = np.frombuffer(recording(), np.uint8)
    tensors: dict[str, NDArray[Any]] = {"codes": CODES, "flac": flac}
    (tmp_path / "voices" / "anna.voice").write_bytes(to_safetensors(tensors, {"voice": metadata}))
    same = fake_info(reference_id="tiny", codec_id="codec of old")
    assert np.array_equal(codes_of(store, same), CODES)
    assert store.reference("anna", same)[1] == "uuuh"
    hears = replace(same, voice_traits=VoiceTraits(hears_recordings=True))
    for info in (hears, TINY):
        assert store.reference("anna", info)[0] == recording()
    assert store.listed()[-1].description == "old"
    upload(store)
    assert isinstance(store.reference("anna", hears)[0], EncodedReference)
    assert store.reference("anna", replace(same, reference_id="new"))[0] != recording()


def test_a_preview_is_the_normalised_recording(store: VoiceStore) -> None:
    upload(store)
    with wave.open(io.BytesIO(store.preview("anna"))) as reader:
        assert (reader.getframerate(), reader.getnchannels(), reader.getnframes()) == (
            RATE,
            2,
            RATE,
        )
    samples_CS = decode_audio(store.preview("anna"), max_bytes=1 << 20, max_seconds=9).samples
    # 0.1 / sqrt(2) is -23 dB; normalising adds 3 dB.
    assert 10 * np.log10(np.mean(np.square(samples_CS))) == pytest.approx(-20, abs=0.1)
    with pytest.raises(VoiceNotFoundError, match="no recording"):
        store.preview("default")
    assert {voice.name for voice in store.listed() if voice.preview} == {"anna", "echo", "shadow"}


def test_builtin_voices_are_there_and_stay(store: VoiceStore) -> None:
    default, echo, shadow, vivian = (
        store.builtin(name) for name in ("default", "ECHO", "shadow", "Vivian")
    )
    assert default is not None
    assert (default.codes, default.reference_text, default.is_speaker) == (None, None, False)
    assert echo is not None
    assert isinstance(echo.codes, np.ndarray)
    assert np.array_equal(echo.codes, CODES + 7)
    assert (echo.reference_text, echo.is_speaker) == ("beep", False)
    assert shadow is not None
    assert shadow.reference_text is None  # cloned: its words are not the model's
    assert vivian is not None
    assert vivian.is_speaker
    upload(store)
    assert (store.builtin("nobody"), store.builtin("anna")) == (None, None)
    with pytest.raises(InvalidRequestError, match="is no voice name") as caught:
        store.builtin("../echo")
    assert caught.value.param == "name"
    with pytest.raises(InvalidRequestError, match="there is no voice 'echo'"):
        store.reference("Echo", TINY)  # only uploads are read from the disk
    with pytest.raises(InvalidRequestError, match="comes with the model") as caught:
        store.draft("DEFAULT", 9)
    assert caught.value.param == "name"
    with pytest.raises(InvalidRequestError, match="comes with the model"):
        store.save(VoiceDraft("default", "", None), None, EncodedReference(CODES), "tiny")
    with pytest.raises(InvalidRequestError, match="cannot be deleted"):
        store.delete("default")


def test_deleting(store: VoiceStore, tmp_path: Path) -> None:
    upload(store)
    store.delete("Anna")
    assert list((tmp_path / "voices").iterdir()) == []
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: store.delete("anna"), "name"),
        (lambda: store.preview("anna"), "name"),
        (lambda: store.reference("anna", TINY), "voice"),
    ]
    for call, param in calls:
        with pytest.raises(VoiceNotFoundError, match="there is no voice 'anna'") as caught:
            call()
        assert caught.value.http_status == 404
        assert caught.value.param == param


# --------------------------------------------------------------------------------------------------
# names


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("Anna", "anna"),
        ("a-b_c.2", "a-b_c.2"),
        ("7", "7"),
        ("Zoe\u0308", "zoë"),
        ("नेहा", "नेहा"),
        ("小明", "小明"),
        ("STRAẞE", "strasse"),
        ("x" * 64, "x" * 64),
    ],
)
def test_names_have_one_spelling(store: VoiceStore, name: str, spelt: str) -> None:
    assert voice_name(name) == spelt
    upload(store, name)
    assert [voice.name for voice in store.listed() if voice.kind == "uploaded"] == [spelt]
    store.reference(unicodedata.normalize("NFD", name), TINY)
    store.delete(name)


BAD_NAMES = [
    *(
        "",
        " ",
        "a b",
        ".",
        "..",
        ".hidden",
        "../x",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "C:x",
        "-rf",
        "_x",
        "a\0b",
        "a\nb",
    ),
    *(
        "😀",
        "\ud800",
        "a\u200db",
        "a\u202eb",
        "x" * 65,
        "é" * 33,
        "x" * 300,
        "a%2fb",
        "a*",
        "~",
        "\u0301a",
        "²",
        "a\u2044b",
    ),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_other_names_are_refused_and_touch_nothing(
    store: VoiceStore, tmp_path: Path, name: str
) -> None:
    (tmp_path / "x.voice").write_bytes(b"mine")
    before = sorted(tmp_path.rglob("*"))
    for call in (
        lambda: store.draft(name, 9),
        lambda: store.save(VoiceDraft(name, "", None), None, EncodedReference(CODES), "tiny"),
        lambda: store.delete(name),
        lambda: store.preview(name),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            call()
        assert caught.value.param == "name"
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()
    assert sorted(tmp_path.rglob("*")) == before


@given(name=st.text(max_size=12))
def test_a_spelling_is_final_and_stays_in_its_folder(name: str) -> None:
    try:
        spelt = voice_name(name)
    except InvalidRequestError:
        return
    assert voice_name(spelt) == spelt
    # Not the dotless i, whose capital is that of the dotted one.
    if name.upper().casefold() == name.casefold():
        assert voice_name(name.upper()) == spelt
    assert (Path("/voices") / f"{spelt}.voice").parent == Path("/voices")
    assert not spelt.startswith(".")
    assert os.sep not in spelt


def test_every_letter_has_one_spelling() -> None:
    for code in range(sys.maxunicode + 1):
        try:
            spelt = voice_name(chr(code))
        except InvalidRequestError:
            continue
        assert voice_name(spelt) == spelt


# --------------------------------------------------------------------------------------------------
# uploads that fail


def test_a_large_recording_leaves_the_old_voice(store: VoiceStore) -> None:
    upload(store)
    with pytest.raises(ReferenceAudioError, match="the limit is 10485760") as caught:
        store.draft("anna", 10 * 2**20 + 1)
    assert caught.value.param == "audio_sample"
    assert np.array_equal(codes_of(store), CODES)


@pytest.mark.parametrize("codes", [CODES[:0], CODES.astype(np.float32), CODES[0], -CODES])
def test_bad_codes_leave_the_old_voice(store: VoiceStore, codes: NDArray[np.int64]) -> None:
    upload(store)
    with pytest.raises(InvalidRequestError) as caught:
        upload(store, codes=codes)
    assert caught.value.param == "codes"
    assert np.array_equal(codes_of(store), CODES)


def test_a_full_disk_leaves_the_old_voice(
    store: VoiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(store)
    content = (tmp_path / "voices" / "anna.voice").read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(HocketError, match="the server's disk refuses it") as caught:
        upload(store, codes=CODES + 1)
    assert caught.value.http_status == 500
    assert str(tmp_path) not in str(caught.value)
    assert [path.read_bytes() for path in (tmp_path / "voices").iterdir()] == [content]


@pytest.mark.parametrize(
    ("description", "transcript", "param"),
    [
        ("x" * 1001, None, "speaker_description"),
        ("", "x" * 5001, "ref_text"),
        ("a\0", None, "speaker_description"),
        ("", "\ud800", "ref_text"),
    ],
)
def test_words_have_limits(
    store: VoiceStore, description: str, transcript: str | None, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        upload(store, description=description, transcript=transcript)
    assert caught.value.param == param


def test_the_number_of_voices_has_a_limit(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, BUILTIN, max_voices=2)
    upload(store, "a")
    upload(store, "b")
    upload(store, "b", codes=CODES + 1)
    with pytest.raises(InvalidRequestError, match="there are 2 voices, which is the limit"):
        store.draft("c", 9)
    store.delete("a")
    upload(store, "c")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        VoiceStore(tmp_path / "file" / "voices", BUILTIN)


# --------------------------------------------------------------------------------------------------
# what lies on disk


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 10)


def no_facts(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"codec", b"coduc"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("damage", [cut, empty, garbage, no_facts])
def test_damage_is_listed_and_not_fatal(
    store: VoiceStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    upload(store)
    upload(store, "bert")
    damage(tmp_path / "voices" / "anna.voice")
    kinds = {voice.name: voice.kind for voice in store.listed()}
    assert kinds == {**dict.fromkeys(BUILTIN, "builtin"), "anna": "broken", "bert": "uploaded"}
    assert next(voice.problem for voice in store.listed() if voice.name == "anna")
    with pytest.raises(InvalidRequestError, match="the voice 'anna' is broken"):
        store.reference("anna", TINY)
    with pytest.raises(InvalidRequestError, match="the voice 'anna' is broken"):
        store.preview("anna")


@pytest.mark.parametrize("damage", [cut, empty, garbage, no_facts])
def test_a_broken_voice_can_be_replaced_and_deleted(
    store: VoiceStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    upload(store)
    damage(tmp_path / "voices" / "anna.voice")
    upload(store, codes=CODES + 1)
    assert np.array_equal(codes_of(store), CODES + 1)
    damage(tmp_path / "voices" / "anna.voice")
    store.delete("anna")


@pytest.mark.parametrize("replace", [a_folder, a_pipe, a_link])
def test_what_is_no_file_is_no_voice(
    store: VoiceStore, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    upload(store)
    upload(store, "bert")
    path = tmp_path / "voices" / "anna.voice"
    replace(path)
    before, elsewhere = path.lstat(), tmp_path / "elsewhere"
    content = elsewhere.read_bytes() if elsewhere.exists() else None
    assert [voice.name for voice in store.listed() if voice.kind != "builtin"] == ["bert"]
    for call in (
        lambda: store.reference("anna", TINY),
        lambda: store.preview("anna"),
        lambda: store.delete("anna"),
    ):
        with pytest.raises(VoiceNotFoundError):
            call()
    with pytest.raises(InvalidRequestError, match=r"'anna' is taken .* choose another"):
        upload(store, codes=CODES + 1)
    assert path.lstat() == before
    assert content == (elsewhere.read_bytes() if elsewhere.exists() else None)


def test_foreign_files_are_left_alone(store: VoiceStore, tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    upload(store)
    upload(store, "bert")
    (folder / "anna.voice").rename(folder / "echo.voice")
    for name in ("notes.txt", ".abc.partial", "Upper.voice", "😀.voice", "default.voice", ".voice"):
        (folder / name).write_bytes(b"")
    assert {(voice.name, voice.kind) for voice in store.listed()} == {
        *{
            *((name, "builtin") for name in BUILTIN),
            ("bert", "uploaded"),
        }
    }
    assert len(list(folder.iterdir())) == 8
    assert store.builtin("default") is BUILTIN["default"]


def test_uploads_at_the_same_moment_leave_one_whole_voice(
    store: VoiceStore, tmp_path: Path
) -> None:
    stop = threading.Event()
    seen: set[int] = set()

    def read() -> None:
        other = VoiceStore(tmp_path / "voices", BUILTIN)  # as another process would have
        while not stop.is_set():
            encoded, words = other.reference("anna", TINY)
            assert isinstance(encoded, EncodedReference)
            codes = encoded.codes
            assert codes is not None
            assert (codes == codes[0, 0]).all()
            assert words == str(codes[0, 0])
            seen.add(int(codes[0, 0]))

    def write(value: int) -> None:
        for _ in range(6):
            store.save(
                VoiceDraft("anna", "", str(value)),
                PREPARED,
                EncodedReference(np.full((50, 3), value)),
                "tiny",
            )

    write(1)
    failures: list[threading.ExceptHookArgs] = []
    threading.excepthook, original = failures.append, threading.excepthook
    try:
        reader, writers = (
            threading.Thread(target=read),
            [threading.Thread(target=write, args=(i,)) for i in (2, 3)],
        )
        for thread in (reader, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        stop.set()
        reader.join()
    finally:
        threading.excepthook = original
    assert failures == []
    assert seen >= {2} or seen >= {3}
    assert [path.name for path in (tmp_path / "voices").iterdir()] == ["anna.voice"]

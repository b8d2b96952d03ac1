"""The studio in headless Chromium, in front of a fake engine: `make test-browser`."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from hocket.audio.io import FORMATS, encode_audio
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FRAME_SAMPLES, RATE, FakePool
from tests.support.loopback import new_store, on_loopback, wait_until

pytestmark = pytest.mark.browser

pytest.importorskip("playwright", reason="needs playwright: pip install --group browser")
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright  # noqa: E402

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    # A microphone that beeps.
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
]
#: 46 characters, a frame each: 3.68 s of audio, made in about a second.
TEXT = "A sentence that takes a few seconds to speak. "
SECONDS = len(TEXT.strip()) * FRAME_SAMPLES / RATE


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if path is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def engine() -> FakePool:
    return FakePool(frame_seconds=0.02, prefill_seconds=0.05)


@pytest.fixture
def address(engine: FakePool, tmp_path: Path) -> Iterator[str]:
    with on_loopback(create_app(engine, ServerSettings(), new_store(tmp_path))) as address:
        yield address


@contextmanager
def opened(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """The page, whose every request goes to its server, and whose console stays empty but for
    refused requests.
    """
    context = browser.new_context(permissions=["microphone"], **options)
    page = context.new_page()
    page.set_default_timeout(10_000)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    expect(page.locator("#voices li")).not_to_have_count(0)
    yield page
    # What the server refused or broke off is in the console as well, and advice about these tests
    # themselves.
    assert [
        text
        for text in complaints
        if not re.search("status of [45]|INCOMPLETE_CHUNKED|willReadFrequently", text)
    ] == []
    assert [url for url in requests if not url.startswith((address, "blob:", "data:"))] == []
    context.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    with opened(browser, address) as page:
        yield page


def number(locator: Locator) -> float:
    match = re.search(r"[\d.]+", locator.inner_text())
    return float(match[0]) if match else float("nan")


def speak(page: Page, text: str = TEXT) -> None:
    page.fill("#text", text)
    page.click("#speak")


def poll(page: Page, condition: Callable[[], bool], seconds: float = 10) -> None:
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        page.wait_for_timeout(50)
    pytest.fail("it did not come true in time")


def recording(path: Path) -> Path:
    samples = 0.3 * np.sin(2 * np.pi * 220 * np.arange(2 * RATE) / RATE, dtype=np.float64)[None]
    path.write_bytes(encode_audio(FORMATS[".wav"], samples.astype(np.float32), RATE))
    return path


def test_type_listen_and_see(page: Page) -> None:
    def level() -> int:
        return int(page.get_attribute("#meter", "aria-valuenow") or -1)

    assert level() == 0
    speak(page)
    poll(page, lambda: level() > 50)
    expect(page.locator("#state")).to_have_text("playing")
    assert number(page.locator("#buffer")) > 1
    expect(page.locator("#state")).to_have_text("finished")
    assert number(page.locator("#length")) == pytest.approx(SECONDS, abs=0.06)
    assert 50 < number(page.locator("#first")) < 2000
    assert 0.2 < number(page.locator("#rtf")) < 1
    assert page.inner_text("#underruns") == "0"
    assert page.get_attribute("#meter", "aria-valuenow") == "0"
    expect(page.locator("#takes li")).to_have_count(1)
    expect(page.locator("#announce")).to_have_text(f"finished, {SECONDS:.1f} seconds")


def test_the_waveform_grows_and_is_heard(page: Page) -> None:
    colours = """() => {
        const wave = document.getElementById("wave"), style = getComputedStyle(wave);
            const pen = wave.getContext("2d");
        const rgb = (name) => parseInt(style.getPropertyValue(name).slice(1), 16);
        const { data } = pen.getImageData(0, wave.height / 2, wave.width, 1);
        const count = (name) => [...Array(wave.width).keys()].filter(
            (x) => (data[4 * x] << 16 | data[4 * x + 1] << 8 | data[4 * x + 2])
                    === rgb(name)).length;
        return { heard: count("--one"), waits: count("--wave") };
    }"""
    speak(page)
    expect(page.locator("#state")).to_have_text("playing")
    first = page.evaluate(colours)
    page.wait_for_timeout(500)
    second = page.evaluate(colours)
    assert 0 < first["heard"] < second["heard"]
    assert second["waits"] < first["waits"]
    expect(page.locator("#state")).to_have_text("finished")
    assert page.evaluate(colours)["waits"] == 0


def test_a_slow_engine_shows_underruns(page: Page, engine: FakePool) -> None:
    engine.frame_seconds = 0.15
    speak(page, "Slow as that")
    expect(page.locator("#state")).to_have_text("finished")
    assert number(page.locator("#underruns")) >= 5
    assert number(page.locator("#rtf")) > 1


def test_stop_is_at_once_and_reaches_the_engine(page: Page, engine: FakePool) -> None:
    speak(page, TEXT * 5)
    expect(page.locator("#state")).to_have_text("speaking")
    page.click("#stop")
    expect(page.locator("#state")).to_have_text("stopped", timeout=200)
    wait_until(lambda: engine.open_requests == 0, seconds=1)
    assert engine.cancelled == 1
    assert page.get_attribute("#meter", "aria-valuenow") == "0"
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#takes li")).to_have_count(1)  # what was heard is kept


def test_keyboard_alone(page: Page, engine: FakePool) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#state")).to_have_text("speaking")
    page.keyboard.press("Escape")
    expect(page.locator("#state")).to_have_text("stopped")
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert order == [
        "voice",
        "language",
        "speak",
        "SUMMARY",
        "seed-used",
    ]  # Stop cannot be pressed now
    page.keyboard.press("Enter")
    assert page.input_value("#seed") == page.inner_text("#seed-used") != ""
    page.keyboard.press("Tab")
    with page.expect_download():
        page.keyboard.press("Enter")
    wait_until(lambda: engine.open_requests == 0)


def test_fields_reach_the_engine(page: Page, engine: FakePool) -> None:
    page.click(".compose summary")
    values = {
        "language": "German",
        "instructions": "calm",
        "temperature": "0.5",
        "top_k": "7",
        "max_new_tokens": "9",
    }
    for name, value in values.items():
        page.fill(f"#{name}", value)
    page.fill("#seed", str(2**63 - 1))
    speak(page)
    expect(page.locator("#state")).to_have_text("finished")
    (request,) = engine.requests
    assert (request.language, request.instruction, request.seed) == ("German", "calm", 2**63 - 1)
    assert (request.sampling.temperature, request.sampling.top_k, request.max_frames) == (0.5, 7, 9)
    assert request.sampling.top_p is None
    assert page.inner_text("#seed-used") == str(2**63 - 1)
    page.fill("#seed", "1.5")
    page.click("#speak")
    assert len(engine.requests) == 1  # the browser says what is wrong with it


def test_upload_a_voice_and_speak_with_it(page: Page, engine: FakePool, tmp_path: Path) -> None:
    page.click("#new-voice summary")
    page.set_input_files("#file", recording(tmp_path / "anna.wav"))
    expect(page.locator("#sample")).to_be_visible()
    page.fill("#name", "Anna")
    page.fill("#transcript", "uuuh")
    page.click("#save")
    expect(page.locator("#voice")).to_have_value("anna")
    expect(page.locator("#voices")).to_contain_text("uploaded · 2.0 s")
    speak(page)
    expect(page.locator("#state")).to_have_text("finished")
    assert engine.requests[-1].reference_text == "uuuh"
    with page.expect_response("**/v1/audio/voices/anna/preview") as answer:
        page.get_by_role("button", name="Hear the recording of the voice anna").click()
    assert answer.value.status == 200
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete the voice anna").click()
    expect(page.locator("#voice")).to_have_value("default")
    expect(page.locator("#voices")).not_to_contain_text("anna")


def test_record_a_voice(page: Page) -> None:
    page.click("#new-voice summary")
    page.click("#record")
    expect(page.locator("#record")).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(1500)
    page.click("#record")
    expect(page.locator("#sample")).to_be_visible()
    page.fill("#name", "beep")
    page.click("#save")
    expect(page.locator("#voice")).to_have_value("beep")


def test_errors_are_shown_where_they_belong(page: Page, engine: FakePool) -> None:
    speak(page, "   ")
    expect(page.locator("#alert")).to_contain_text("input is empty")
    expect(page.locator("#text")).to_be_focused()
    expect(page.locator("#text")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#state")).to_have_text("failed")
    engine.error_after = 20
    speak(page)
    expect(page.locator("#alert")).to_contain_text("broke off")
    expect(page.locator("#text")).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#takes li")).to_have_count(1)
    engine.error_after = None
    speak(page)
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("finished")


def test_a_server_that_is_gone(page: Page, engine: FakePool) -> None:
    expect(page.locator("#server")).to_contain_text("speaking")
    engine.state = "down"
    expect(page.locator("#server")).to_contain_text("server not ready")
    speak(page)
    expect(page.locator("#alert")).to_contain_text("the engine is down")


@pytest.mark.parametrize("response_format", ["wav", "mp3", "opus", "flac"])
def test_downloads(page: Page, response_format: str) -> None:
    speak(page)
    expect(page.locator("#state")).to_have_text("playing")
    with page.expect_download() as download:
        page.click(f"[data-format={response_format}]")
    assert download.value.suggested_filename.endswith(f".{response_format}")
    data = Path(download.value.path()).read_bytes()
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.audio[0]
        samples = sum(frame.samples for frame in container.decode(audio=0))
        assert samples / stream.rate == pytest.approx(SECONDS, abs=0.1)


def test_takes_are_kept_and_played_again(page: Page, engine: FakePool) -> None:
    for text in ("The first.", "And the second one."):
        speak(page, text)
        expect(page.locator("#state")).to_have_text("finished")
    items = page.locator("#takes li")
    expect(items).to_have_count(2)
    expect(items.first).to_have_attribute("aria-current", "true")
    items.last.get_by_role("button").click()
    expect(page.locator("#state")).to_have_text("playing")
    expect(items.last).to_have_attribute("aria-current", "true")
    assert number(page.locator("#length")) == pytest.approx(10 * FRAME_SAMPLES / RATE, abs=0.06)
    expect(page.locator("#state")).to_have_text("finished")
    assert len(engine.requests) == 2


def test_the_key_stays_in_this_tab(browser: Browser, engine: FakePool, tmp_path: Path) -> None:
    app = create_app(engine, ServerSettings(api_keys=("secret",)), new_store(tmp_path))
    with on_loopback(app) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#alert")).to_contain_text("API key")
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#voices li")).not_to_have_count(0)
        speak(page, "Let in.")
        expect(page.locator("#state")).to_have_text("finished")
        assert page.evaluate("[Object.values(sessionStorage), localStorage.length]") == [
            ["secret"],
            0,
        ]
        page.reload()
        expect(page.locator("#voices li")).not_to_have_count(0)
        context.close()


@pytest.mark.parametrize("width", [320, 360, 768, 1440])
def test_fits_every_screen(browser: Browser, address: str, width: int) -> None:
    with opened(
        browser, address, viewport={"width": width, "height": 740}, has_touch=width < 700
    ) as page:
        for summary in page.locator("main summary").all():
            summary.click()
        speak(page, "Averylongwordwithoutanyspaceinitthatgoesonandon")
        expect(page.locator("#state")).to_have_text("playing")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        sizes = page.evaluate(
            "[...document.querySelectorAll('button, select, input, summary')].filter((e) => "
            "e.checkVisibility()).map((e) => [e.id || e.textContent, "
            "e.getBoundingClientRect().height])"
        )
        assert [name for name, height in sizes if height < 20] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(browser: Browser, address: str, scheme: Any) -> None:
    """WCAG 2.2 AA: 4.5 to 1 for text."""
    script = """() => {
        const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
        const luminance = ([r, g, b]) => {
            const linear = (x) => (
                (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
            return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        };
        const ground = (e) => {
            for (; e; e = e.parentElement) {
                const colour = parse(getComputedStyle(e).backgroundColor);
                if (colour.length === 3 || colour[3] === 1) return colour;
            }
        };
        const low = [];
        for (const e of document.querySelectorAll("body *")) {
            if (!e.checkVisibility() || e.disabled
                || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
                continue;
            const [a, b] = [luminance(parse(getComputedStyle(e).color)), luminance(ground(e))]
                .sort((x, y) => y - x);
            const ratio = (a + 0.05) / (b + 0.05);
            if (ratio < 4.5) low.push(`${e.textContent}: ${ratio}`);
        }
        return low;
    }"""
    with opened(browser, address, color_scheme=scheme) as page:
        speak(page, " ")
        expect(page.locator("#alert")).to_be_visible()
        for summary in page.locator("summary").all():
            summary.click()
        assert page.evaluate(script) == []
        light = (
            page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            == "rgb(245, 243, 238)"
        )
        assert light == (scheme == "light")


def test_reduced_motion_is_respected(browser: Browser, address: str) -> None:
    with opened(browser, address, reduced_motion="reduce") as page:
        page.evaluate("""() => {
            window.draws = 0;
            const pen = CanvasRenderingContext2D.prototype, scale = pen.scale;
            pen.scale = function (...by) { window.draws++; return scale.apply(this, by); };
        }""")
        speak(page)
        expect(page.locator("#state")).to_have_text("finished")
        assert page.evaluate("window.draws") < 8 * SECONDS + 20


def test_screen_readers_get_names(page: Page) -> None:
    names = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea, canvas, [role=meter]')]"
        ".filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim())).map((e) => "
        "e.outerHTML)"
    )
    assert names == []
    expect(page.get_by_role("meter", name="Level")).to_be_visible()
    expect(page.get_by_role("button", name="Speak")).to_be_visible()
    expect(page.get_by_role("textbox", name="Text to speak")).to_be_visible()

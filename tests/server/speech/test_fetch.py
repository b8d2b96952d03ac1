"""Fetching references from a server on the loopback interface, and refusing forbidden addresses."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import shutil
import ssl
import subprocess
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hocket.errors import ReferenceAudioError
from hocket.server.settings import FetchPolicy
from hocket.server.speech import fetch
from hocket.server.speech.fetch import fetch_reference, is_public

AUDIO = b"RIFF" + bytes(range(256)) * 8
LOCAL = FetchPolicy(allow_private=True, max_bytes=10_000, total_seconds=5.0)


def answer(body: bytes, *headers: str, status: str = "200 OK", length: bool = True) -> bytes:
    stated = [f"Content-Length: {len(body)}"] if length else []
    return (
        "\r\n".join([f"HTTP/1.1 {status}", *headers, *stated, "Connection: close", "", ""]).encode()
        + body
    )


class Site:
    """A web server with prepared bytes for every path, which records its requests."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.connections = 0
        self.port = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            path = head.split()[1]
            if path.startswith("/hang"):
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\n\r\nRIFF"
                    if path == "/hang-body"
                    else b""
                )
                await asyncio.sleep(30)
            elif path == "/drip":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(b"x")
                    await asyncio.sleep(0.02)
            elif path == "/endless":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(bytes(1000))
                    await writer.drain()
            writer.write(self.answers[path])
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def site(tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    running = Site()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await running.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def with_site(use: Callable[[Site], Awaitable[None]]) -> None:
    async def run() -> None:
        async with site() as running:
            await use(running)

    asyncio.run(run())


def resolver(*addresses: str) -> fetch.Resolver:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return addresses

    return resolve


async def resolve_numbers(host: str, _port: int) -> Sequence[str]:
    """A resolver that knows 127.0.0.1 only."""
    if host != "127.0.0.1":
        raise OSError(-2, "Name or service not known")
    return [host]


async def refused(
    source: str, policy: FetchPolicy = LOCAL, resolve: fetch.Resolver = resolve_numbers
) -> str:
    with pytest.raises(ReferenceAudioError) as caught:
        await fetch_reference(source, policy, resolve=resolve)
    message = str(caught.value)
    assert caught.value.param == "reference_audio"
    assert caught.value.http_status == 400
    assert "\n" not in message
    assert len(message) < 400
    assert caught.value.__cause__ is None  # the library's error names the whole URL
    return message


# --------------------------------------------------------------------------------------------------
# http


def test_a_recording_is_fetched() -> None:
    async def use(site: Site) -> None:
        site.answers["/a.wav?x=1"] = answer(AUDIO, "Content-Type: audio/wav")
        site.answers["/chunked"] = answer(
            b"5\r\nRIFFx\r\n0\r\n\r\n", "Transfer-Encoding: chunked", length=False
        )
        site.answers["/plain"] = answer(AUDIO, "Content-Type: text/plain", length=False)
        assert await fetch_reference(site.url("/a.wav?x=1#part"), LOCAL) == AUDIO
        assert await fetch_reference(site.url("/chunked"), LOCAL) == b"RIFFx"
        assert await fetch_reference(site.url("/plain").replace("http", "HTTP"), LOCAL) == AUDIO
        assert "Accept-Encoding: identity" in site.requests[0]
        assert f"Host: 127.0.0.1:{site.port}\r\n" in site.requests[0]

    with_site(use)


def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    async def use(site: Site) -> None:
        site.answers["/a.wav"] = answer(AUDIO)
        asked: list[tuple[str, int]] = []

        async def resolve(host: str, port: int) -> Sequence[str]:
            asked.append((host, port))
            return ["127.0.0.1"]

        # No resolver but ours knows this host: another resolution would fail.
        assert (
            await fetch_reference(site.url("/a.wav", "voices.invalid"), LOCAL, resolve=resolve)
            == AUDIO
        )
        assert asked == [("voices.invalid", site.port)]
        assert f"Host: voices.invalid:{site.port}\r\n" in site.requests[0]

    with_site(use)


def test_a_host_that_changes_its_mind_is_checked_at_every_hop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "is_public", lambda address: address == "127.0.0.1")
    policy = FetchPolicy(max_bytes=10_000)

    async def use(site: Site) -> None:
        site.answers["/start"] = answer(b"", "Location: /secret", status="302 Found")
        site.answers["/secret"] = answer(AUDIO)
        replies = [["127.0.0.1"], ["127.0.0.2"]]

        async def resolve(_host: str, _port: int) -> Sequence[str]:
            return replies.pop(0)

        assert "not at a public address" in await refused(
            site.url("/start", "voices.invalid"), policy, resolve=resolve
        )
        assert site.connections == 1
        assert replies == []

    with_site(use)


def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async def use(site: Site) -> None:
        site.answers["/a.wav"] = answer(AUDIO)
        both = resolver("127.0.0.9", "127.0.0.1")
        assert (
            await fetch_reference(site.url("/a.wav", "voices.invalid"), LOCAL, resolve=both)
            == AUDIO
        )
        assert "cannot be reached" in await refused(
            site.url("/a.wav", "x.invalid"), resolve=resolver("127.0.0.9")
        )

    with_site(use)


@pytest.mark.parametrize("status", ["301 x", "302 x", "303 x", "307 x", "308 x"])
def test_redirects_are_followed(status: str) -> None:
    async def use(site: Site) -> None:
        site.answers["/one"] = answer(b"moved", "Location: two?key=s3cret", status=status)
        site.answers["/two?key=s3cret"] = answer(
            b"moved", f"Location: {site.url('/three')}", status=status
        )
        site.answers["/three"] = answer(AUDIO)
        assert await fetch_reference(site.url("/one"), LOCAL) == AUDIO
        assert "more than 1 redirects" in await refused(
            site.url("/one"), LOCAL.model_copy(update={"max_redirects": 1})
        )

    with_site(use)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/loop", "more than 3 redirects"),
        ("file:///etc/passwd", "leads to a 'file' address"),
        ("ftp://127.0.0.1/a", "leads to a 'ftp' address"),
        ("data:audio/wav;base64,AAAA", "leads to a 'data' address"),
        ("http://user:s3cret@127.0.0.1/", "a user name or password"),
        ("http://[broken", "is not found"),
        ("http://voices.invalid:s3cret/", "not a valid URL"),
    ],
)
def test_redirects_that_are_not_followed(location: str, message: str) -> None:
    async def use(site: Site) -> None:
        site.answers["/loop"] = answer(b"", f"Location: {location}", status="302 Found")
        found = await refused(site.url("/loop"))
        assert message in found
        assert "s3cret" not in found

    with_site(use)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (answer(b"no", status="404 Not Found"), "answers with status 404"),
        (answer(b"", status="204 No Content"), "answers with status 204"),
        (answer(b"", status="302 Found"), "answers with status 302"),
        (answer(b"x", "Content-Type: text/html; charset=utf-8"), "is a web page"),
        (
            answer(b"\xef\xbb\xbf\n <!DOCTYPE HTML><html>", "Content-Type: audio/wav"),
            "is a web page",
        ),
        (answer(b"{}", "Content-Type: application/json"), "is 'application/json', not a recording"),
        (answer(b"x", "Content-Type: image/png"), "is 'image/png', not a recording"),
        (answer(bytes(10_001)), "more than 10000 bytes"),
        (answer(bytes(10_001), length=False), "more than 10000 bytes"),
        (answer(AUDIO, "Content-Encoding: br"), "sends its content as 'br'"),
        (answer(b"not gzip", "Content-Encoding: gzip"), "broken gzip"),
        (answer(gzip.compress(AUDIO)[:-9], "Content-Encoding: gzip"), "gzip that is cut short"),
        (
            answer(gzip.compress(bytes(50_000_000)), "Content-Encoding: gzip"),
            "more than 10000 bytes",
        ),
        (answer(gzip.compress(bytes(10_001)), "Content-Encoding: gzip"), "more than 10000 bytes"),
        (
            answer(gzip.compress(b"") + bytes(10_001), "Content-Encoding: gzip", length=False),
            "more than 10000 bytes",
        ),
        (answer(AUDIO)[:-5], "connection to .* broke"),
        (b"SSH-2.0-OpenSSH_9\r\n", "connection to .* broke"),
        (b"", "connection to .* broke"),
    ],
)
def test_answers_that_are_refused(reply: bytes, message: str) -> None:
    async def use(site: Site) -> None:
        site.answers["/a?token=s3cret"] = reply
        with pytest.raises(ReferenceAudioError, match=message) as caught:
            await fetch_reference(site.url("/a?token=s3cret"), LOCAL)
        assert "s3cret" not in str(caught.value)

    with_site(use)


def test_gzip_that_fits_is_unpacked() -> None:
    async def use(site: Site) -> None:
        site.answers["/a"] = answer(gzip.compress(bytes(10_000)), "Content-Encoding: gzip")
        assert await fetch_reference(site.url("/a"), LOCAL) == bytes(10_000)

    with_site(use)


def test_a_gzip_bomb_is_not_unpacked_first() -> None:
    async def use(site: Site) -> None:
        site.answers["/a"] = answer(bomb, "Content-Encoding: gzip")
        tracemalloc.start()
        await refused(site.url("/a"), LOCAL.model_copy(update={"max_bytes": 100_000}))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3_000_000

    bomb = gzip.compress(bytes(50_000_000))
    with_site(use)


@pytest.mark.parametrize("path", ["/hang", "/hang-body", "/drip"])
def test_a_server_that_hangs_is_given_up(path: str) -> None:
    async def use(site: Site) -> None:
        start = time.monotonic()
        message = await refused(site.url(path), LOCAL.model_copy(update={"total_seconds": 0.2}))
        assert "took longer than 0.2 s" in message
        assert time.monotonic() - start < 10

    with_site(use)


def test_an_endless_answer_is_given_up() -> None:
    async def use(site: Site) -> None:
        assert "more than 10000 bytes" in await refused(site.url("/endless"))

    with_site(use)


def test_a_resolver_that_hangs_or_fails() -> None:
    async def hang(_host: str, _port: int) -> Sequence[str]:
        await asyncio.sleep(30)
        return ()

    async def fail(_host: str, _port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    async def use() -> None:
        policy = LOCAL.model_copy(update={"total_seconds": 0.1})
        assert "took longer" in await refused("http://voices.invalid/a", policy, resolve=hang)
        assert "is not found" in await refused("http://voices.invalid/a", resolve=fail)
        assert "is not found" in await refused("http://voices.invalid/a", resolve=resolver())

    asyncio.run(use())


def test_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def use(site: Site) -> None:
        site.answers["/a?token=s3cret"] = answer(AUDIO)
        await fetch_reference(site.url("/a?token=s3cret"), LOCAL)

    with_site(use)
    assert [record for record in caplog.records if "s3cret" in record.getMessage()] == []


def test_a_message_shows_no_more_of_a_url_than_where_it_leads() -> None:
    async def use() -> None:
        source = "https://voices.invalid/" + "p" * 300 + "?signature=s3cret#s3cret"
        message = await refused(source, resolve=resolver())
        assert "https://voices.invalid/ppp" in message
        assert "s3cret" not in message
        assert "s3cret" not in await refused("http://user:s3cret@voices.invalid/a")
        assert "s3cret" not in await refused("http://voices.invalid:s3cret/a")

    asyncio.run(use())


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl program makes the certificate"
)
def test_a_certificate_is_checked_for_the_host_and_not_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "
        "/CN=voices.invalid"
    )
    names = [
        "-addext",
        "subjectAltName=DNS:voices.invalid",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate, key)

    async def use() -> None:
        async with site(server) as running:
            running.answers["/a"] = answer(AUDIO)
            local = resolver("127.0.0.1")
            good = running.url("/a", "voices.invalid").replace("http:", "https:")
            assert "cannot be reached" in await refused(
                good, resolve=local
            )  # its certificate has no known issuer
            monkeypatch.setattr(
                fetch, "_tls", lambda: ssl.create_default_context(cafile=str(certificate))
            )
            assert await fetch_reference(good, LOCAL, resolve=local) == AUDIO
            other = good.replace("voices.invalid", "other.invalid")
            assert "cannot be reached" in await refused(other, resolve=local)

    asyncio.run(use())


# --------------------------------------------------------------------------------------------------
# addresses


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.8.8.8",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "0.0.0.0",
            "0.1.2.3",
        ),
        *(
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "198.18.0.1",
            "192.0.2.1",
        ),
        *("224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
        *(
            "::",
            "::1",
            "fe80::1",
            "fe80::1%eth0",
            "fc00::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
        ),
        *(
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b::10.0.0.1",
        ),
        *(
            "64:ff9b:1::8.8.8.8",
            "2002:7f00:1::",
            "2002:808:808::",
            "2001:0:1::1",
            "2001:db8::1",
            "3fff::1",
            "5f00::1",
        ),
        *("", "localhost", "127.1", "::ffff:999.0.0.1"),
    ],
)
def test_other_addresses_are_refused_before_a_connection(address: str) -> None:
    assert not is_public(address)

    async def use(site: Site) -> None:
        policy = FetchPolicy()
        url = site.url("/a", "voices.invalid")
        assert "not at a public address" in await refused(url, policy, resolve=resolver(address))
        assert "not at a public address" in await refused(
            url, policy, resolve=resolver("8.8.8.8", address)
        )
        assert site.connections == 0

    with_site(use)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]"],
)
def test_spellings_of_loopback_are_refused(host: str) -> None:
    async def use(site: Site) -> None:
        message = await refused(site.url("/a", host), FetchPolicy(), fetch.resolve_host)
        assert any(
            reason in message
            for reason in ("not at a public address", "is not found", "not a valid URL")
        )
        assert site.connections == 0

    with_site(use)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("http://", "names no host"),
        ("http:///path", "names no host"),
        ("https://[::1", "not a valid URL"),
        ("http://a:99999/", "an impossible port"),
        ("http://a\0b/", "not a valid URL"),
        ("ftp://example.com/a.wav", "'ftp' are not supported"),
        ("gopher://x", "'gopher' are not supported"),
        ("javascript:alert(1)", "'javascript' are not supported"),
        ("https://example.com/" + "a" * 9000, "8192 characters at most"),
    ],
)
def test_urls_that_are_none(source: str, message: str) -> None:
    assert message in asyncio.run(refused(source))


def test_urls_can_be_turned_off() -> None:
    assert "fetches no URLs" in asyncio.run(
        refused("http://127.0.0.1/a", FetchPolicy(allow_urls=False))
    )


# --------------------------------------------------------------------------------------------------
# data: and file:


@pytest.mark.parametrize(
    "uri",
    [
        "data:audio/wav;base64," + base64.b64encode(AUDIO).decode(),
        "DATA:audio/wav;codecs=1;BASE64," + base64.encodebytes(AUDIO).decode(),
        "data:;base64," + base64.b64encode(AUDIO).decode().rstrip("="),
        "data:;base64," + base64.b64encode(AUDIO).decode().replace("+", "%2B").replace("/", "%2f"),
        "data:," + "".join(f"%{byte:02x}" for byte in AUDIO),
    ],
)
def test_data_uris(uri: str) -> None:
    assert asyncio.run(fetch_reference(uri, LOCAL)) == AUDIO


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("data:audio/wav;base64", "has no comma"),
        ("data:audio/wav;base64,****", "not hold valid base64"),
        ("data:audio/wav;base64,AAAAA", "not hold valid base64"),
        ("data:audio/wav;base64,Ä", "not hold valid base64"),
        (
            "data:audio/wav;base64," + base64.b64encode(bytes(10_001)).decode(),
            "more than 10000 bytes",
        ),
        ("data:," + "a" * 10_001, "more than 10000 bytes"),
        ("data:," + "a" * 100_001, "more than 10000 bytes"),
        ("data:text/html,hello", "is a web page"),
        ("data:,<html>", "is a web page"),
    ],
)
def test_data_uris_that_are_refused(uri: str, message: str) -> None:
    assert message in asyncio.run(refused(uri))


@pytest.fixture
def files(tmp_path: Path) -> FetchPolicy:
    folder = tmp_path / "references"
    (folder / "deep").mkdir(parents=True)
    (folder / "a b.wav").write_bytes(AUDIO)
    (folder / "deep" / "c.wav").write_bytes(AUDIO)
    (folder / "big.wav").write_bytes(bytes(10_001))
    (tmp_path / "secret.wav").write_bytes(b"secret")
    (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
    (folder / "up").symlink_to(tmp_path)
    (folder / "inner.wav").symlink_to(folder / "a b.wav")
    (folder / "loop").symlink_to(folder / "loop")
    return FetchPolicy(files_folder=folder, max_bytes=10_000)


@pytest.mark.parametrize("source", ["a b.wav", "deep/c.wav", "./deep/../a b.wav", "inner.wav"])
def test_files_in_the_folder(files: FetchPolicy, source: str) -> None:
    assert asyncio.run(fetch_reference(source, files)) == AUDIO
    url = (files.files_folder / source).absolute().as_uri()  # type: ignore[operator]
    assert asyncio.run(fetch_reference(url, files)) == AUDIO
    assert asyncio.run(fetch_reference(url.replace("file://", "FILE://localhost"), files)) == AUDIO


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("../secret.wav", "outside the server's folder"),
        ("../absent.wav", "outside the server's folder"),
        ("/etc/passwd", "outside the server's folder"),
        ("file:///etc/passwd", "outside the server's folder"),
        ("file:%2e%2e/secret.wav", "outside the server's folder"),
        ("link.wav", "outside the server's folder"),
        ("up/secret.wav", "outside the server's folder"),
        ("file://example.com/a.wav", "leave out its host"),
        ("deep", "names no file"),
        ("", "names no file"),
        ("absent.wav", "names no file"),
        ("big.wav", "more than 10000 bytes"),
        ("loop", "re"),
        ("a\0b", "cannot be read"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_files_that_are_refused(files: FetchPolicy, source: str, message: str) -> None:
    found = asyncio.run(refused(source, files))
    assert message in found
    assert str(files.files_folder) not in found


def test_no_folder_no_files() -> None:
    for source in ("a.wav", "file:///a.wav"):
        assert "reads no files" in asyncio.run(refused(source))

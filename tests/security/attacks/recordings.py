"""Attacks by what a request calls a recording: addresses, redirects, files, playlists."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import ipaddress
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from hocket.audio.io import FORMATS, encode_audio
from hocket.errors import ReferenceAudioError
from hocket.server.settings import FetchPolicy
from hocket.server.speech import fetch
from tests.security.attacks.target import ENCODE, SPEECH, Attack, Target, Verdict

TONE = encode_audio(
    FORMATS[".wav"], (0.1 * np.sin(np.arange(24_000) / 20)[None]).astype(np.float32), 24_000
)
SECRET = "RIFF-the-secret-of-this-server"
#: Hosts that are this machine, its network, a cloud's metadata service, or nobody's.
HOSTS = (
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "0", "0.0.0.0"),
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
    ),
    *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fe80::1]", "[fc00::1]", "[ff02::1]", "10.0.0.1"),
    *("172.16.0.1", "192.168.0.1", "169.254.169.254", "[fd00:ec2::254]", "100.64.0.1", "224.0.0.1"),
    *(
        "255.255.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "240.0.0.1",
        "\u2460\u2461\u2466.0.0.1",
        "127\u30020.0.1",
    ),
    *(
        "127.0.0.1%2523",
        "metadata.google.internal",
        "ip6-localhost",
        "user@127.0.0.1",
        "x:y@localhost",
    ),
    *(
        "127.0.0.1#@example.com",
        "127.0.0.1\\@example.com",
        "evil.invalid",
        "a" * 300,
        "xn--a",
        "xn--",
        "a.xn--a",
        "[::1",
        "..",
        "",
    ),
)
SCHEMES = (
    *("ftp://127.0.0.1/a", "gopher://127.0.0.1/", "ws://127.0.0.1/", "jar:http://x!/", "dict://x/"),
    *(
        "ldap://127.0.0.1/",
        "javascript:1",
        "blob:x",
        "http:127.0.0.1",
        "http:///127.0.0.1",
        "//127.0.0.1/a",
    ),
    *(
        "HTTP://127.0.0.1/",
        "http://\n127.0.0.1/",
        "http://127.0.0.1/\r\nHost: x",
        "view-source:http://x/",
    ),
)
RANGES = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
    *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "192.88.99.0/24", "::/128", "::1/128"),
    *(
        "::ffff:127.0.0.0/104",
        "::ffff:10.0.0.0/104",
        "64:ff9b::7f00:0/104",
        "64:ff9b:1::/48",
        "100::/64",
    ),
    *("2001::/32", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10"),
    *("fec0::/10", "ff00::/8"),
)
DATA = (
    *("data:", "data:,", "data:audio/wav", "data:audio/wav;base64", "data:audio/wav;base64,"),
    *(
        "data:audio/wav;base64,@@@",
        "data:audio/wav;base64,A",
        "data:text/html;base64,PGI+",
        "data:;x=y,a",
    ),
    *("data:audio/wav;charset=utf-7;base64,UklGRg==", "data:audio/wav,%", "data:audio/wav,%zz"),
    *("data:audio/wav;base64," + "A" * 1000, "data:audio/wav;base64,\u00e9", "DATA:,x"),
)


class Listener:
    """A web server on loopback that must not be asked for anything."""

    def __init__(self) -> None:
        listener = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listener.asked.append(self.path)
                if self.path.startswith("/to?"):
                    self.send_response(302)
                    self.send_header("Location", self.path[4:])
                    self.end_headers()
                    return
                self.send_response(200)
                self.send_header("Content-Type", "audio/wav")
                self.end_headers()
                self.wfile.write(TONE)

            def log_message(self, *_: object) -> None:
                pass

        self.asked: list[str] = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


def attacks(target: Target) -> Iterator[Attack]:
    """All of them."""
    listener = Listener()
    yield from _addresses(target, listener)
    yield from _redirects(listener)
    yield from _ranges()
    yield from _data(target)
    if target.folder is not None:
        yield from _files(target, target.folder)
        yield from _playlists(target, target.folder, listener)


def _addresses(target: Target, listener: Listener) -> Iterator[Attack]:
    sources = [f"http://{host}:{listener.port}/a.wav" for host in HOSTS]
    sources += [f"https://{host}/a.wav" for host in HOSTS[:12]]
    for source in (*sources, *SCHEMES):
        for path, field in ((ENCODE, "audio"), (SPEECH, "reference_audio")):
            if path == SPEECH and source not in SCHEMES and not source.startswith("http://["):
                continue

            def act(source: str = source, path: str = path, field: str = field) -> Verdict:
                before = len(listener.asked)
                body = {field: source} | ({"input": "a"} if path == SPEECH else {})
                verdict = target.post(path, body, 400)
                return verdict or ("it was fetched" if len(listener.asked) > before else None)

            yield Attack("addresses", f"{field} {source[:60]!a}", act)


def _redirects(listener: Listener) -> Iterator[Attack]:
    """In this process, with a resolver that calls the listener's address public."""
    here = f"voices.invalid:{listener.port}"
    goals = (
        *(
            "http://localhost/a",
            "http://127.0.0.2/a",
            "http://[::1]/a",
            "http://10.0.0.1/",
            "//127.0.0.2/a",
        ),
        *(
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "ftp://127.0.0.1/",
            "data:,x",
        ),
        *(
            "http://user:pass@127.0.0.1/",
            "http://2130706434/",
            "http://127.0.0.2:1/\r\nX: y",
        ),
        *(
            "http://[::ffff:7f00:2]/",
            "https://127.0.0.2/",
            "javascript:1",
            "http://",
        ),
    )

    async def resolve(host: str, _: int) -> Sequence[str]:
        try:
            return [str(ipaddress.ip_address(host.strip("[]")))]
        except ValueError:
            return ["127.0.0.1"] if host == "voices.invalid" else ["127.0.0.2"]

    for goal in goals:

        def act(goal: str = goal) -> Verdict:
            policy = FetchPolicy(total_seconds=5.0)
            before = len(listener.asked)
            only_one = mock.patch.object(fetch, "is_public", lambda address: address == "127.0.0.1")
            with only_one, contextlib.suppress(ReferenceAudioError):
                asyncio.run(
                    fetch.fetch_reference(f"http://{here}/to?{goal}", policy, resolve=resolve)
                )
                return "it was followed"
            asked = listener.asked[before:]
            return None if all(path.startswith("/to") for path in asked) else f"asked for {asked}"

        yield Attack("redirects", repr(goal), act)


def _ranges() -> Iterator[Attack]:
    for name in RANGES:
        network = ipaddress.ip_network(name)
        for address in {network[0], network[-1], network[network.num_addresses // 2]}:

            def act(address: str = str(address)) -> Verdict:
                return "it counts as public" if fetch.is_public(address) else None

            yield Attack("address ranges", str(address), act)


def _data(target: Target) -> Iterator[Attack]:
    for source in DATA:
        yield Attack(
            "data:",
            source[:50],
            lambda source=source: target.post(ENCODE, {"audio": source}, 400),  # type: ignore[misc]
        )


def _files(target: Target, folder: Path) -> Iterator[Attack]:
    files = folder / "files"
    secret = folder / "secret.wav"
    secret.write_bytes(TONE)
    (files / "in").mkdir()
    os.mkfifo(files / "pipe")
    for name, goal in {
        "link.wav": secret,
        "to-folder": folder,
        "to-root": Path("/"),
        "to-zero": Path("/dev/zero"),
        "to-itself": files / "to-itself",
    }.items():
        (files / name).symlink_to(goal)
    (files / "relative.wav").symlink_to("../secret.wav")
    (files / "hole").touch()
    os.truncate(files / "hole", 2**40)
    names = (
        *("../secret.wav", "in/../../secret.wav", "./../secret.wav", "..//secret.wav", "link.wav"),
        *(
            "relative.wav",
            "to-folder/secret.wav",
            "to-root/etc/passwd",
            "to-zero",
            "to-itself",
            "pipe",
        ),
        *(
            "hole",
            "in",
            "",
            ".",
            "..",
            "%2e%2e/secret.wav",
            "..%2fsecret.wav",
            "in/%2e%2e/%2e%2e/secret.wav",
        ),
        *(
            "..\\secret.wav",
            "a\0.wav",
            "nothing.wav",
            "x" * 300,
            "x/" * 3000,
            "\u2024\u2024/secret.wav",
        ),
    )
    sources = [f"file:{files}/{name}" for name in names]
    sources += [f"{files}/{name}" for name in names]
    sources += [
        *("file:///etc/passwd", "file://localhost/etc/passwd", "file:/etc/passwd", "/etc/passwd"),
        *(
            "file:///dev/zero",
            "file:///dev/stdin",
            "file:///proc/self/environ",
            "file:///proc/self/fd/0",
        ),
        *(
            "file://evil.example/a.wav",
            "file:relative.wav",
            "FILE:///etc/passwd",
            "file:////etc/passwd",
        ),
        f"file://{secret}",
    ]
    for source in sources:

        def act(source: str = source) -> Verdict:
            return target.post(ENCODE, {"audio": source}, 400)

        yield Attack("files", source.replace(str(folder), "")[:60], act)


def _playlists(target: Target, folder: Path, listener: Listener) -> Iterator[Attack]:
    secret = folder / "secret-of-playlist.wav"
    secret.write_bytes(TONE)
    url = f"http://127.0.0.1:{listener.port}/secret"
    goals = (
        str(secret),
        f"file:{secret}",
        f"file://{secret}",
        url,
        "/etc/passwd",
        f"concat:{secret}|{secret}",
    )
    forms = {
        "m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{0}\n#EXT-X-ENDLIST\n",
        "m3u8 master": "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{0}\n",
        "m3u8 map": '#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-MAP:URI="{0}"\n#EXTINF:9,\na\n',
        "m3u8 key": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n"
        '#EXT-X-KEY:METHOD=AES-128,URI="{0}"\n#EXTINF:9,\na\n',
        "ffconcat": "ffconcat version 1.0\nfile '{0}'\n",
        "ffmetadata": ";FFMETADATA1\nfile={0}\n",
        "pls": "[playlist]\nFile1={0}\nNumberOfEntries=1\n",
        "asx": '<asx version="3.0"><entry><ref href="{0}"/></entry></asx>',
        "dash": '<?xml version="1.0"?><MPD type="static"><Period><AdaptationSet><Representation>'
        "<BaseURL>{0}</BaseURL></Representation></AdaptationSet></Period></MPD>",
        "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nu={0}\nm=audio 5004 RTP/AVP 0\n",
        "xspf": '<playlist version="1"><trackList><track><location>{0}</location></track>'
        "</trackList></playlist>",
        "entity": '<!DOCTYPE x [<!ENTITY a SYSTEM "{0}">]><svg>&a;</svg>',
    }
    for form, text in forms.items():
        for goal in goals:

            def act(content: str = text.format(goal)) -> Verdict:
                before = len(listener.asked)
                encoded = base64.b64encode(content.encode()).decode()
                verdict = target.post(ENCODE, {"audio": f"data:audio/wav;base64,{encoded}"}, 400)
                return verdict or ("it was fetched" if len(listener.asked) > before else None)

            yield Attack("playlists", f"{form} of {goal.replace(str(folder), '')}", act)

"""Attacks by names of voices, by forms, and by what lies in the folder of voices."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx

from tests.security.attacks.recordings import TONE
from tests.security.attacks.target import SPEECH, VOICES, Attack, Target, Verdict, judged

NAMES = (
    *(
        "",
        " ",
        ".",
        "..",
        "../x",
        "../../etc/passwd",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "C:x",
        "~",
        "-rf",
    ),
    *(
        "_x",
        ".hidden",
        "a b",
        "a*",
        "a?",
        "a;ls",
        "$(id)",
        "`id`",
        "|id",
        "a&b",
        "a'b",
        'a"b',
        "a%2fb",
    ),
    *(
        "%2e%2e",
        "a\nb",
        "a\r\nX: y",
        "\t",
        "a\x7f",
        "\u202ea",
        "a\u200db",
        "a\u2044b",
        "\uff0e\uff0e",
    ),
    *(
        "\uff0fa",
        "\u2024\u2024",
        "x" * 65,
        "x" * 100_000,
        "\u00e9" * 33,
        "\U0001f600",
        "\u0301a",
        "\u00b2",
    ),
    *(
        "default",
        "DEFAULT",
        "defau\u0142t\u0300\u0300" + "\u0300" * 99,
        "<script>alert(1)</script>",
    ),
    *(
        "{{7*7}}",
        "%s%n",
        "..;/",
        "a..\\b",
        "con/../x",
        "file:x",
        "http://x/",
        "data:,x",
        "x:y",
        "\ufeffa",
    ),
)


def attacks(target: Target) -> Iterator[Attack]:
    """All of them."""
    for name in NAMES:

        def upload(name: str = name) -> Verdict:
            return judged(_upload(target, name), 400)

        def spoken(name: str = name) -> Verdict:
            body = {"input": "a", "voice": name, "response_format": "pcm", "max_new_tokens": 2}
            return target.post(SPEECH, body, 400, *((200,) if "default" in name.lower() else ()))

        def in_path(name: str = name) -> Verdict:
            answer = target.ask("DELETE", f"{VOICES}/{quote(name[:1000], safe='')}")
            return judged(answer, 400, 404, 405)

        yield Attack("voices: names", f"upload {name[:20]!a} ({len(name)})", upload)
        if name.strip():
            yield Attack("voices: names", f"speak with {name[:20]!a} ({len(name)})", spoken)
        yield Attack("voices: paths", f"{name[:20]!a} ({len(name)})", in_path)
    for path in (
        *("..%2f..%2fetc%2fpasswd/preview", "%2e%2e/preview", "a/../../x", "a%00/preview"),
        *("default/preview/..", "%", "%zz", "default/preview%00", "a/preview/x", "..;/preview"),
    ):

        def raw(path: str = path) -> Verdict:
            head = f"GET {VOICES}/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            key = f"Authorization: Bearer {target.key}\r\n\r\n"
            answer = target.raw((head + key).encode())
            return None if answer[9:12] in (b"400", b"404", b"405") else repr(answer[:100])

        yield Attack("voices: paths", path, raw)
    yield from _forms(target)
    if target.folder is not None:
        yield from _entries(target, target.folder / "home" / "voices")


def _upload(target: Target, name: str, **fields: str) -> httpx.Response:
    files = {"audio_sample": ("a.wav", TONE)}
    return target.ask("POST", VOICES, files=files, data={"name": name, **fields})


def _forms(target: Target) -> Iterator[Attack]:
    line = b"--x\r\nContent-Disposition: form-data; name="
    sample = line + b'"audio_sample"; filename="../../a.wav"\r\n\r\n' + TONE[:100] + b"\r\n"
    end = b"--x--\r\n"
    forms = {
        "no end": sample,
        "no form": b"",
        "name twice": line + b'"name"\r\n\r\na\r\n' + line + b'"name"\r\n\r\nb\r\n' + sample + end,
        "two files": sample + sample + end,
        "many fields": b"".join(line + b'"f%d"\r\n\r\na\r\n' % i for i in range(5_000)) + end,
        "unknown field": line + b'"pitch"\r\n\r\n9\r\n' + sample + end,
        "name is a file": line + b'"name"; filename="x"\r\n\r\na\r\n' + sample + end,
        "sample is no file": line + b'"audio_sample"\r\n\r\na\r\n' + end,
        "long header": line + b'"' + b"n" * 200_000 + b'"\r\n\r\na\r\n' + end,
        "a part of 11 MiB": line + b'"ref_text"\r\n\r\n' + b"a" * (11 << 20) + b"\r\n" + end,
        "empty parts": b"--x\r\n\r\n\r\n" * 5_000 + end,
    }
    for name, body in forms.items():

        def act(body: bytes = body) -> Verdict:
            headers = {"Content-Type": "multipart/form-data; boundary=x"}
            return judged(target.ask("POST", VOICES, content=body, headers=headers), 400, 413)

        yield Attack("voices: forms", name, act)
    for name, fields in {
        "long description": {"speaker_description": "x" * 1001},
        "long transcript": {"ref_text": "x" * 5001},
        "NUL": {"ref_text": "a\0"},
    }.items():

        def words(fields: dict[str, str] = fields) -> Verdict:
            return judged(_upload(target, "anna", **fields), 400)

        yield Attack("voices: forms", name, words)


def _entries(target: Target, folder: Path) -> Iterator[Attack]:
    def link(to: str) -> Callable[[Path], None]:
        return lambda path: path.symlink_to(to)

    def content(data: bytes) -> Callable[[Path], None]:
        def write(path: Path) -> None:
            path.write_bytes(data)

        return write

    makers: dict[str, Callable[[Path], None]] = {
        "link to /etc/passwd": link("/etc/passwd"),
        "link to /dev/zero": link("/dev/zero"),
        "link to nothing": link("nothing"),
        "link to itself": link("evil.voice"),
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
        "empty": content(b""),
        "garbage": content(b"\xff" * 1000),
        "long header": content(b"\xff" * 7 + b"\0" + b"{"),
        "header of a bomb": content((10_000).to_bytes(8, "little") + b"[" * 10_000),
        "offsets beyond": content(
            _with_header(b'{"codes":{"dtype":"I64","shape":[1,1],"data_offsets":[0,99999]}}')
        ),
        "shape of 2^62": content(
            _with_header(
                b'{"codes":{"dtype":"I64","shape":[4611686018427387904],"data_offsets":[0,0]}}'
            )
        ),
        "pickle": content(b"\x80\x04cos\nsystem\n(S'id'\ntR."),
        "unreadable": lambda path: path.touch(mode=0),
    }
    for name, make in makers.items():

        def act(make: Callable[[Path], None] = make) -> Verdict:
            path = folder / "evil.voice"
            make(path)
            try:
                return (
                    judged(target.ask("GET", VOICES), 200)
                    or judged(target.ask("GET", f"{VOICES}/evil/preview"), 400, 404)
                    or target.post(SPEECH, {"input": "a", "voice": "evil"}, 400)
                    or judged(_upload(target, "good"), 200)
                    or judged(target.ask("DELETE", f"{VOICES}/good"), 200)
                    or judged(target.ask("DELETE", f"{VOICES}/evil"), 200, 404)
                )
            finally:
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)

        yield Attack("voices: entries", name, act)


def _with_header(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(64)

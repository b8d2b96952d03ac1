"""Attacks by the files of a checkpoint, each loaded in a process of its own with a time limit."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.security.attacks.target import Attack, Verdict, is_plain

_SECONDS = 30.0
Edit = Callable[[Any], Any]


def attacks(folder: Path) -> Iterator[Attack]:
    """All of them; their checkpoints are made in `folder`."""
    from hocket.models.registry import builtin_model

    mini = builtin_model()
    pool = _Loader()
    for number, (name, (file, content)) in enumerate(_contents(mini).items()):

        def act(
            checkpoint: Path = folder / f"checkpoint{number}",
            file: str = file,
            content: bytes | Callable[[Path], None] = content,
        ) -> Verdict:
            shutil.copytree(mini, checkpoint, copy_function=os.symlink)
            path = checkpoint / file
            path.unlink(missing_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content(path)
            return pool.verdict(checkpoint)

        yield Attack("checkpoints", f"{file}: {name}", act)


class _Loader:
    """A process that loads checkpoints, and is replaced when one of them hangs or kills it."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._pool = self._context.Pool(1)

    def verdict(self, checkpoint: Path) -> Verdict:
        try:
            return self._pool.apply_async(_loaded, (str(checkpoint),)).get(_SECONDS)
        except multiprocessing.TimeoutError:
            self._pool.terminate()
            self._pool = self._context.Pool(1)
            return f"not loaded and not refused after {_SECONDS:g} s"


def _loaded(checkpoint: str) -> Verdict:
    import torch

    from hocket.errors import HocketError
    from hocket.models.registry import codec_folder, load_codec, load_talker

    device = torch.device("cpu")
    try:
        folder = Path(checkpoint)
        load_talker(folder, device=device, dtype=torch.float32)
        load_codec(codec_folder(folder, None), device=device, dtype=torch.float32)
    except HocketError as error:
        message = str(error).replace(checkpoint, "")
        return None if is_plain(message) else f"the message is {message[:200]!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    return "it was loaded"


def _hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**41)


def _contents(mini: Path) -> dict[str, tuple[str, bytes | Callable[[Path], None]]]:
    def edited(file: str, edit: Edit) -> tuple[str, bytes]:
        return file, json.dumps(edit(json.loads((mini / file).read_text("utf-8")))).encode()

    def tokenizer(**changes: Any) -> tuple[str, bytes]:
        return edited("tokenizer.json", lambda file: file | changes)

    def config(**changes: Any) -> tuple[str, bytes]:
        return edited("config.json", lambda file: file | changes)

    def header(**tensors: Any) -> bytes:
        text = json.dumps(tensors).encode()
        return struct.pack("<Q", len(text)) + text

    replace = {"type": "Replace", "pattern": {"String": "."}, "content": "a" * 10}
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }

    def split(pattern: str) -> dict[str, Any]:
        piece = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        return {"type": "Sequence", "pretokenizers": [piece, byte_level]}

    pickle = b"\x80\x04cos\nsystem\n(S'id'\ntR."
    object_array = (
        b"\x93NUMPY\x01\0v\0{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(127)
        + b"\n"
    )
    huge_array = (
        b"\x93NUMPY\x01\0v\0{'descr': '<i8', 'fortran_order': False, 'shape': (2199023255552, 8), }"
    ).ljust(127) + b"\n"
    tensor = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    weights, voice = "model.safetensors", "voices/bella"
    return {
        "replacements": tokenizer(normalizer={"type": "Sequence", "normalizers": [replace] * 8}),
        "backtracking": tokenizer(pre_tokenizer=split("(a+)+$")),
        "nested groups": tokenizer(pre_tokenizer=split("(" * 50_000)),
        "repetition": tokenizer(pre_tokenizer=split("a{1000}{1000}{1000}")),
        "many steps": tokenizer(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [byte_level] * 50_000}
        ),
        "another model": tokenizer(model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}),
        "id of 2^31": edited(
            "tokenizer.json",
            lambda file: (
                file | {"model": file["model"] | {"vocab": {**file["model"]["vocab"], "zz": 2**31}}}
            ),
        ),
        "id of 2^63": edited(
            "tokenizer.json",
            lambda file: (
                file | {"model": file["model"] | {"vocab": {**file["model"]["vocab"], "zz": 2**63}}}
            ),
        ),
        "prefix": edited(
            "tokenizer.json",
            lambda file: file | {"model": file["model"] | {"continuing_subword_prefix": "\u00e9"}},
        ),
        "deep": ("tokenizer.json", b"[" * 1_000_000),
        "no UTF-8": ("tokenizer.json", b"\xff" * 100),
        "pipe": ("tokenizer.json", os.mkfifo),
        "no end": ("config.json", lambda path: path.symlink_to("/dev/zero")),
        "a hole": ("hocket.json", _hole),
        "a list": ("config.json", b"[]"),
        "deep config": ("config.json", b'{"a":' * 500_000),
        "unknown family": config(model_type="os.system"),
        "family of a path": config(model_type="../../x"),
        "family of a list": config(model_type=["moss_tts_local"]),
        "class of a list": config(model_type=7, architectures=[["a"], {}, None]),
        "vocabulary of 2^63": config(vocab_size=2**63),
        "vocabulary of 1e400": (
            "config.json",
            b'{"model_type":"moss_tts_local","vocab_size":1e400}',
        ),
        "negative width": config(vocab_size=-1),
        "code": config(auto_map={"AutoModel": "evil.py"}, vocab_size="__import__('os')"),
        "pickle for weights": (weights, pickle),
        "length of 2^63": (weights, b"\xff" * 8 + b"{}"),
        "empty weights": (weights, b""),
        "overlap": (weights, header(a=tensor, b=tensor) + bytes(4)),
        "offsets beyond": (weights, header(a=tensor | {"data_offsets": [0, 2**62]}) + bytes(4)),
        "shape of 2^62": (weights, header(a=tensor | {"shape": [2**31, 2**31]}) + bytes(4)),
        "negative shape": (weights, header(a=tensor | {"shape": [-1, -1]}) + bytes(4)),
        "names twice": (weights, struct.pack("<Q", 20) + b'{"a":{},"a":{},     '),
        "deep header": (weights, struct.pack("<Q", 100_000) + b"[" * 100_000),
        "weights of a pipe": (weights, os.mkfifo),
        "shards that leave": (
            "model.safetensors.index.json",
            json.dumps({"weight_map": {"a": "../../../../etc/passwd"}}).encode(),
        ),
        "pickle for a voice": (f"{voice}.npy", pickle),
        "objects": (f"{voice}.npy", object_array + pickle),
        "8 TiB": (f"{voice}.npy", huge_array),
        "voice of a pipe": (f"{voice}.npy", os.mkfifo),
        "voice of garbage": (f"{voice}.json", b'{"description": 7}'),
        "name of another voice": ("voices/a b.json", b"{}"),
        "sampling": ("hocket.json", b'{"sampling": {"temperature": 1e400}}'),
        "unknown setting": ("hocket.json", b'{"exec": "id"}'),
    }

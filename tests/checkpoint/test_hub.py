"""Finding a checkpoint: folders, hub ids, and one line of advice for each way the hub can
refuse.
"""

from __future__ import annotations

import subprocess
import sys
from inspect import signature
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from hocket.checkpoint.hub import read_config, resolve_checkpoint
from hocket.errors import CheckpointError
from tests.support import paths

GOLDEN = paths.GOLDEN / "local_tiny"


class Hub:
    """Stands in for the hub client: gives or raises what a test tells it to, and notes how it was
    asked.
    """

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.download_error: Exception | None = None
        self.cached: Path | None = None
        self.asked: list[tuple[str, dict[str, object]]] = []

    def model_info(self, model: str, **options: object) -> None:
        self.asked.append(("model_info", options))
        if self.refusal is not None:
            raise self.refusal

    def snapshot_download(self, model: str, **options: object) -> str:
        self.asked.append(("snapshot_download", options))
        if options["local_files_only"]:
            if self.cached is None:
                raise errors.LocalEntryNotFoundError("not cached")
            return str(self.cached)
        if self.download_error is not None:
            raise self.download_error
        return "/downloaded"


REAL_SNAPSHOT_DOWNLOAD = huggingface_hub.snapshot_download
REAL_MODEL_INFO = huggingface_hub.HfApi.model_info


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    # A bound method, so the client it is looked up on is not passed.
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", hub.model_info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def of_hub(kind: type[Exception], status: int = 404) -> Exception:
    """An exception of the hub client as it arises, without the response that its
    constructor wants.
    """

    class Response:
        status_code = status

    error = kind.__new__(kind)
    error.args = ("first line\nsecond line",)
    error.__dict__["response"] = Response()
    return error


def message(model: str | Path, revision: str | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(model, revision=revision)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- folders
# --------------------------------------------------------------------------------------------------


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_checkpoint(tmp_path) == tmp_path
    assert resolve_checkpoint(str(tmp_path)) == tmp_path
    # A folder wins over a hub id of the same name, and ~ is the home folder.
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_checkpoint("owner/name") == Path("owner/name")
    assert resolve_checkpoint("~/owner") == tmp_path / "owner"


def test_what_is_no_folder_is_refused_without_asking_the_hub(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "file").touch()
    assert "is a file; give the folder" in message(tmp_path / "file")
    no_ids: list[str | Path] = ["name", "a/b/c", "./a", "../a", "/a", "a/", "a b/c", "a/b\n"]
    for model in [*no_ids, tmp_path / "absent", Path("owner/name")]:
        assert "neither a folder nor a hub id" in message(model)
    assert hub.asked == []


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    assert "leave the revision out" in message(tmp_path, revision="main")


# --- the hub
# --------------------------------------------------------------------------------------------------


def test_a_hub_id_is_downloaded_as_data_only(hub: Hub) -> None:
    assert resolve_checkpoint("owner/name", revision="v1") == Path("/downloaded")
    (first, look_up), (second, download) = hub.asked
    assert (first, second) == ("model_info", "snapshot_download")
    assert look_up["revision"] == download["revision"] == "v1"
    assert look_up["timeout"] == download["etag_timeout"] == 10.0
    assert download["allow_patterns"] == [
        "*.json",
        "*.safetensors",
        "*.txt",
        "tokenizer.model",
        "voices/*.npy",
    ]
    # The stand-in takes any option; the real functions must know these.
    assert look_up.keys() <= signature(REAL_MODEL_INFO).parameters.keys()
    assert download.keys() <= signature(REAL_SNAPSHOT_DOWNLOAD).parameters.keys()


REFUSALS = [
    (
        of_hub(errors.OfflineModeIsEnabled),
        "HF_HUB_OFFLINE forbids downloads; unset it or give a folder",
    ),
    (of_hub(errors.GatedRepoError, 403), "'owner/name' is gated; accept its terms"),
    (of_hub(errors.RepositoryNotFoundError, 401), "not on the hub or private; check the name"),
    (of_hub(errors.RevisionNotFoundError), "'owner/name' has no revision 'v1'"),
    (of_hub(errors.DisabledRepoError, 403), "has been disabled"),
    (of_hub(errors.HfHubHTTPError, 503), "the hub answered HTTP 503"),
    (
        ConnectionError("Name or service not known"),
        "cannot be fetched from the hub (Name or service not known); check",
    ),
    (RuntimeError(), "cannot be fetched from the hub (RuntimeError)"),
]


@pytest.mark.parametrize(("refusal", "advice"), REFUSALS)
def test_every_refusal_says_what_to_do(hub: Hub, refusal: Exception, advice: str) -> None:
    hub.refusal = refusal
    assert advice in message("owner/name", revision="v1")


@pytest.mark.parametrize(
    ("error", "advice"), [*REFUSALS[1:3], (OSError(28, "No space left"), "No space left")]
)
def test_every_failed_download_says_what_to_do(hub: Hub, error: Exception, advice: str) -> None:
    # A gated repository shows its name to everyone and refuses its files.
    hub.download_error = error
    assert advice in message("owner/name")


def test_a_cached_copy_serves_when_the_hub_refuses(hub: Hub, tmp_path: Path) -> None:
    hub.refusal, hub.cached = ConnectionError("down"), tmp_path
    assert resolve_checkpoint("owner/name") == tmp_path
    assert hub.asked[1][1]["local_files_only"] is True


def test_the_clients_own_check_of_an_id_is_reported() -> None:
    # The real client refuses this before it asks anyone.
    assert "neither a folder nor a valid hub id" in message("owner/a--b")


def test_the_real_client_offline(tmp_path: Path) -> None:
    code = "from hocket.checkpoint.hub import resolve_checkpoint; resolve_checkpoint('owner/name')"
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "HF_HUB_OFFLINE forbids downloads" in result.stderr.splitlines()[-1]


def test_the_hub_client_is_imported_only_when_needed() -> None:
    code = f"""
import sys
from hocket.checkpoint.hub import read_config, resolve_checkpoint
read_config(resolve_checkpoint({str(GOLDEN)!r}))
assert "huggingface_hub" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- config.json
# --------------------------------------------------------------------------------------------------


def test_read_config() -> None:
    assert read_config(GOLDEN)["n_vq"] == 12


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "holds no config.json"),
        (b"", "is not valid JSON"),
        (b"{'a': 1}", "is not valid JSON"),
        (b'{"a": "\xff"}', "is not valid JSON"),
        (b"[" * 10**5, "is not valid JSON"),
        (b"[1]", "holds a list, not an object"),
        (b"null", "holds a NoneType, not an object"),
    ],
)
def test_unreadable_configs(tmp_path: Path, content: bytes | None, expected: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_config(tmp_path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_config(tmp_path)

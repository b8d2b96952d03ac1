"""Finds a model's files: in a folder, or in a Hugging Face hub repository (downloaded once)."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hocket.checkpoint.files import read_small
from hocket.errors import CheckpointError

#: Files to download, from any folder of the repository: data only, no code and no pickles.
_DATA_FILES = ("*.json", "*.safetensors", "*.txt", "tokenizer.model", "voices/*.npy")
#: Timeout for the hub's first response. The hub client's own look-up has none: without a route it
#: would wait until the operating system gives up, about two minutes on Linux.
_HUB_TIMEOUT_SECONDS = 10.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def resolve_checkpoint(model: str | Path, *, revision: str | None = None) -> Path:
    """The folder with the files of `model`, an existing folder or a hub id "owner/name".

    `revision` is a branch, tag or commit of a hub repository. Without access to the hub (offline,
    unreachable, gated) a complete cached copy is used. Raises CheckpointError, one line that says
    what to do.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise CheckpointError(
                f"{folder} is a folder, which has no revision {revision!r}; leave the revision out"
            )
        return folder
    if folder.exists():
        raise CheckpointError(f"{folder} is a file; give the folder that holds the checkpoint")
    if isinstance(model, Path) or _HUB_ID.fullmatch(model) is None:
        raise CheckpointError(
            f"{str(model)!r} is neither a folder nor a hub id; check the path, or give owner/name"
        )
    return _fetch(model, revision)


def read_config(folder: Path) -> dict[str, object]:
    """The checkpoint's `config.json`. Raises CheckpointError unless it is a JSON object."""
    file = folder / "config.json"
    try:
        config = json.loads(read_small(file))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder} holds no config.json; give the folder of a complete checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read ({error.strerror}); check its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is not valid JSON ({error}); download the checkpoint again"
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{file} holds a {type(config).__name__}, not an object; download the checkpoint again"
        )
    return config


def _fetch(model: str, revision: str | None) -> Path:
    # Imported here: it takes 0.3 s, which users of a folder should not pay.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    def snapshot(*, local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=list(_DATA_FILES),
                etag_timeout=_HUB_TIMEOUT_SECONDS,
                local_files_only=local_files_only,
            )
        )

    # Any exception: a failing connection raises the HTTP library's own classes, which have no base
    # in common over the hub client's versions (requests, httpx, httpx2). `_explain` sorts them out.
    try:
        HfApi().model_info(model, revision=revision, timeout=_HUB_TIMEOUT_SECONDS)
    except Exception as refusal:
        try:
            return snapshot(local_files_only=True)
        except (HFValidationError, LocalEntryNotFoundError):
            raise CheckpointError(_explain(model, revision, refusal)) from refusal
    try:
        return snapshot(local_files_only=False)
    except Exception as error:
        raise CheckpointError(_explain(model, revision, error)) from error


def _explain(model: str, revision: str | None, error: Exception) -> str:
    """One line for the user: why the hub did not give the files, and what to do."""
    from huggingface_hub import errors

    match error:
        case errors.HFValidationError():
            return (
                f"{model!r} is neither a folder nor a valid hub id; check the path, or give "
                "owner/name"
            )
        case errors.OfflineModeIsEnabled():
            return (
                f"{model!r} is not fully cached and HF_HUB_OFFLINE forbids downloads; unset it or "
                "give a folder"
            )
        case errors.GatedRepoError():
            return (
                f"{model!r} is gated; accept its terms on its hub page, then log in with `hf auth "
                "login`"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"{model!r} is not a folder, and not on the hub or private; check the name, or run "
                "`hf auth login`"
            )
        case errors.RevisionNotFoundError():
            return f"{model!r} has no revision {revision!r}; give an existing branch, tag or commit"
        case errors.DisabledRepoError():
            return f"{model!r} has been disabled on the hub; use another model or give a folder"
        case errors.HfHubHTTPError():
            return (
                f"the hub answered HTTP {error.response.status_code} for {model!r}; try again "
                "later or give a folder"
            )
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return (
        f"{model!r} cannot be fetched from the hub ({reason}); check network and disk, or give a "
        "folder"
    )

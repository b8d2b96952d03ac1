"""A parameter is named in `core` and `kernels/types.py`; all code between carries it unnamed."""

from __future__ import annotations

import ast
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from hocket.core import Sampling, SamplingFields, SpeechRequest
from hocket.kernels.types import DrawArgs, DrawParams
from hocket.models.qwen3_tts.family import recommended_sampling
from hocket.models.sampling import ResolvedSampling
from hocket.server.schemas import SpeechBody
from hocket.worker.messages import Submit, decode_to_worker, read_request, submit_message
from tests.support.cli_runner import run
from tests.support.paths import REPOSITORY
from tests.support.sampling import sampling_batch

PREDICTOR = "predictor_"
#: In bounds of every parameter, and the default of none.
VALUES: dict[str, Any] = {
    name: 3 if "int" in str(field.annotation) else 0.25
    for name, field in SamplingFields.model_fields.items()
}
#: Files that parameters pass through, and the names that they must know: HTTP refuses a top_p of 0,
#: greedy repeats.
PASSED = {
    "cli/say.py": set(),
    "cli/options.py": set(),
    "worker/messages.py": set(),
    "worker/client.py": set(),
    "server/schemas.py": {"top_p", "predictor_top_p"},
    "server/speech/synthesis.py": {"temperature"},
    "engine/intake.py": set(),
    "engine/runners/talker.py": set(),
    "kernels/ops.py": set(),
}


def test_a_row_and_a_batch_have_the_same_parameters_in_the_same_order() -> None:
    assert [field.name for field in fields(DrawArgs)] == [
        f"{field.name}_B" for field in fields(DrawParams)
    ]


def test_what_a_request_may_give_is_what_a_draw_takes() -> None:
    drawn = {field.name for field in fields(DrawParams)}
    assert {name for name in VALUES if not name.startswith(PREDICTOR)} == drawn
    assert {name.removeprefix(PREDICTOR) for name in VALUES} == drawn


@pytest.mark.parametrize("name", VALUES)
def test_a_parameter_reaches_the_wire(name: str) -> None:
    request = SpeechRequest(text="Hi.", sampling=Sampling(**{name: VALUES[name]}))
    header = submit_message("id", request, [], priority=0, streaming=True)[0]
    submit = decode_to_worker(zmq.Frame(header))
    assert isinstance(submit, Submit)
    assert read_request(submit, []).sampling == request.sampling


@pytest.mark.parametrize("name", VALUES)
def test_a_parameter_is_a_field_of_http_bodies(name: str) -> None:
    body = SpeechBody.model_validate({"input": "Hi.", name: VALUES[name]})
    assert body.sampling == Sampling(**{name: VALUES[name]})


def test_every_parameter_is_an_option_of_say() -> None:
    options = re.findall(r"^  (--[a-z-]+)", run("say", "--help").out, re.MULTILINE)
    assert {f"--{name.replace('_', '-')}" for name in VALUES} <= set(options)


@pytest.mark.parametrize("name", VALUES)
def test_a_parameter_reaches_its_draws(name: str, tmp_path: Path) -> None:
    usual = recommended_sampling(tmp_path)
    batch = sampling_batch([usual, usual.overridden_by(Sampling(**{name: VALUES[name]}))])
    draws = {"codes": batch.codes, "predicted": batch.predicted}
    changed = {
        (kind, field.name): getattr(args, field.name)[1].item()
        for kind, args in draws.items()
        for field in fields(DrawArgs)
        if not torch.equal(*getattr(args, field.name))
    }
    kind = "predicted" if name.startswith(PREDICTOR) else "codes"
    assert changed == {(kind, f"{name.removeprefix(PREDICTOR)}_B"): VALUES[name]}


def test_the_defaults_of_a_draw_switch_everything_off() -> None:
    request = Sampling(**asdict(DrawParams()))
    assert ResolvedSampling(DrawParams()).overridden_by(request) == ResolvedSampling(DrawParams())


@pytest.mark.parametrize("file", PASSED)
def test_files_between_name_no_parameter(file: str) -> None:
    tree = ast.parse((REPOSITORY / "src/hocket" / file).read_text(encoding="utf-8"))
    # Names, attributes, parameters and keywords.
    identifiers = {
        value
        for node in ast.walk(tree)
        for key, value in ast.iter_fields(node)
        if key in {"id", "attr", "arg"}
    }
    assert identifiers & VALUES.keys() == PASSED[file]

# Two commands do all set-up on a fresh machine: `make say` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# A stamp for each PYTHON, so that `make PYTHON=...` installs anew where another one did before.
STAMP  := $(VENV)/.installed-$(lastword $(notdir $(PYTHON)))
# Without an NVIDIA driver a CPU build of PyTorch is enough. Package indexes have the CUDA build for
# Linux (gigabytes, works as well); TORCH_INDEX_URL names another index for PyTorch alone, such as
# https://download.pytorch.org/whl/cpu with its CPU builds.
HAS_NVIDIA := $(shell command -v nvidia-smi 2>/dev/null)
TORCH  ?= $(if $(HAS_NVIDIA),torch,torch==2.13.0)
TORCH_INDEX_URL ?=
# PyTorch for GPUs brings its own Triton, CPU builds bring none. For those it is the one that the
# metadata of torch 2.13.0's standard build requires; tests/kernels pass in its interpreter.
TRITON ?= triton==3.7.1
TEXT   ?= Hocket turns many texts into many voices at once.
# Through the environment, so that quotes and dollars in it mean themselves.
export SAY_TEXT := $(value TEXT)

# The judges of `make voice-check` need an environment of their own; CHECK holds its arguments, such
# as "--sentences 10".
VOICE_VENV  ?= .venv-voice
VOICE_BIN   := $(VOICE_VENV)/bin
VOICE_STAMP := $(VOICE_VENV)/.installed
CHECK       ?= --targets

# Environments of their own: the newest versions of everything, the lowest that are allowed.
LATEST_VENV ?= .venv-latest
LOWEST_VENV ?= .venv-lowest
given        = $(if $(filter command environment,$(firstword $(origin TORCH))),$(TORCH),$(1))
# What touches a library: audio in and out, server, worker, weights, tokenizer, text front,
# command line.
LIBRARIES   := $(addprefix tests/,audio bench/judge checkpoint cli server/speech server/websocket \
	server/test_server_openai.py text worker)

.PHONY: constraints test-latest test-lowest test-install
.PHONY: say test test-all test-browser fuzz attacks voice-check gpu-check lint format types clean

say: $(STAMP)
	@$(BIN)/hocket say -o out.wav -- "$$SAY_TEXT"

# Tests that only compute run two at a time; servers, their clients and the command line run alone,
# since they watch the clock.
COMPUTING := $(addprefix tests/,audio bench checkpoint engine kernels models text training \
	test_readme.py test_voice.py)
test: lint types
	$(BIN)/pytest -n 2 --dist loadfile $(COMPUTING)
	$(BIN)/pytest $(addprefix --ignore=,$(COMPUTING))

test-all: lint types
	$(BIN)/pytest -m "not gpu and not browser"

# With whatever is newest, and with the lowest versions that are allowed. The two commands install
# neither.
test-latest:
	@sh constraints/install.sh "$(PYTHON)" $(LATEST_VENV) "$(call given,torch)" \
		"$(TORCH_INDEX_URL)" triton latest
	$(LATEST_VENV)/bin/pytest $(LIBRARIES)

test-lowest:
	@sh constraints/install.sh "$(PYTHON)" $(LOWEST_VENV) "$(call given,torch==2.11.0)" \
		"$(TORCH_INDEX_URL)" "$(TRITON)" lowest
	$(LOWEST_VENV)/bin/pytest $(LIBRARIES)

# Every cell of tests/install_matrix.sh that is not the whole suite, or CELLS="say-3.12 pip-3.13".
test-install:
	tests/install_matrix.sh $(CELLS)

# Pins what `make test-latest` has just been run with; `make test` then says whether lint and types
# hold, too.
constraints:
	$(LATEST_VENV)/bin/python constraints/freeze.py

# Needs Chromium on the path.
test-browser: $(STAMP)
	$(BIN)/python -m pip install --quiet --group browser
	$(BIN)/pytest -m browser

# How well the voice speaks: WER, likeness, naturalness, stops and speed, against the goals. Half an
# hour on two cores; network only for installing.
voice-check: $(VOICE_STAMP)
	$(VOICE_BIN)/python -m training.voice_check $(CHECK)

# Requests made up from the OpenAPI document: some minutes.
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/pytest -m slow tests/server/test_server_fuzz.py

# On a machine with a GPU: kernels against their references, goldens, graphs, strict mode at a full
# batch, a short benchmark. Five minutes.
gpu-check: $(STAMP)
	$(BIN)/python -m benchmarks.gpu.check --json gpu-check.json

# About a thousand attacks on a server of its own: ten minutes.
attacks: $(STAMP)
	$(BIN)/python -m tests.security.attacks

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Every version is one that was tested with this Python: constraints/README.md.
$(STAMP): pyproject.toml Makefile constraints/install.sh $(wildcard constraints/*.txt)
	@sh constraints/install.sh "$(PYTHON)" $(VENV) "$(TORCH)" "$(TORCH_INDEX_URL)" "$(TRITON)" tested
	@touch $(STAMP)

# An editable installation is repeated when the package's dependencies change.
$(VOICE_STAMP): pyproject.toml training/requirements-judges.txt training/requirements-judges-bare.txt
	$(PYTHON) -m venv $(VOICE_VENV)
	$(VOICE_BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VOICE_BIN)/python -m pip install --quiet "$(TORCH)"
	$(VOICE_BIN)/python -m pip install --quiet --editable . --requirement training/requirements-judges.txt
	$(VOICE_BIN)/python -m pip install --quiet --no-deps --requirement training/requirements-judges-bare.txt
	@touch $(VOICE_STAMP)

clean:
	rm -rf $(VENV) $(VOICE_VENV) $(LATEST_VENV) $(LOWEST_VENV) dist build .pytest_cache .mypy_cache \
		.ruff_cache out.wav

# Sets everything up by itself: `make needle`, `make test`.
#   PYTHON=python3.13    the interpreter of a new environment
#   VENV=.venv-3.13      where it lives; a second run reuses it
#   SEEDS=3              seeds of the needle comparison, counted from 0
#   ARMS=kaiju           arms of it, comma-separated; all by default
#   MODEL=FOLDER         which model `make chat` serves, without downloading one
#   TRAIN=1              `make chat` serves a model that it trains
#   PORT=8000            where `make chat` answers; 0 for a free one
#   TENSOR=3             devices that share the model of `make chat`
#   MINUTES=9            what `make gpu` may take
#   OUT=runs/device      where it writes, and goes on

PYTHON ?= python3
VENV ?= .venv
SEEDS ?= 1
ARMS ?=
PORT ?= 8000
MINUTES ?= 9
OUT ?= runs/device
BIN := $(VENV)/bin
# On Python 3.11 the versions that were tested, on a newer one the newest.
# Python compiles what is imported, a fifth of the files, at its first import, and
# keeps it, also where a container's image says otherwise: compiling costs each of
# the tests' processes seconds.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --no-compile \
  --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal --durations=15
# Most of the quick tests' time is compiling. LLVM's cheapest settings halve it, and
# XLA's older emitters, which hand LLVM less code, take a third of the rest; newer
# versions do not have them. A tenth more goes where LLVM has a program whole, not
# in parts. Other targets, and pytest alone, compile as users do.
CHEAPEST := --xla_backend_optimization_level=0 \
  --xla_llvm_disable_expensive_passes=true
OLDER := --xla_cpu_use_fusion_emitters=false \
  --xla_cpu_parallel_codegen_split_count=1
QUICK = XLA_FLAGS="$(CHEAPEST) $$( \
  XLA_FLAGS="$(OLDER)" JAX_PLATFORMS=cpu $(BIN)/python -c \
  'import jax; jax.devices()' >/dev/null 2>&1 && echo $(OLDER)) $$XLA_FLAGS"
# Workers, where tests wait for a server, a browser or a timeout half of the time.
THREE_FOR_TWO = $$($(BIN)/python -c 'import os; print(os.cpu_count() * 3 // 2)')
# The files that name a marker: to collect all tests takes 18 s of processor in
# each process.
MARKED = $$(grep -rl --include='test_*.py' '[.]$(1)' $(or $(TESTS),tests))
# What pages link to beside pages, and the rooms with a page of API.
LINKED := LICENSE CITATION.cff Dockerfile constraints.txt docs experiments \
  kernels kaiju_jax tpu_gpu_configs
ROOMS := visibility $(filter-out experiments tpu_gpu_configs, \
  $(patsubst kaiju_jax/%/__init__.py,%,$(wildcard kaiju_jax/*/__init__.py)))
TORCH_CPU := --extra-index-url https://download.pytorch.org/whl/cpu \
  --retries 1 --timeout 15

.PHONY: chat needle test test-versions test-slow wheel check aot aot-full \
  gpu tpu interchange fleet site types

# Downloads a small chat model, once, and serves it with its page; where that is out
# of reach, or with TRAIN=1, it trains one. MODEL=FOLDER serves that one instead.
chat: $(VENV)/.serve-installed
	$(BIN)/python -m experiments.serve \
	  $(if $(MODEL),--model=$(MODEL),--chat $(if $(TRAIN),--train) --model=runs/chat) \
	  --port=$(PORT) $(if $(TENSOR),--tensor=$(TENSOR)) --log=faults

needle: $(VENV)/.installed
	$(BIN)/python -m experiments.needle \
	  --seeds=$$(seq -s, 0 $$(($(SEEDS) - 1))) $(if $(ARMS),--arms=$(ARMS))

test: $(VENV)/.tests-installed
	$(QUICK) $(PYTEST) -m 'not slow and not aot and not fleet and not device' \
	  $(TESTS)

# What another Python or another JAX may break: every module is imported, and a
# few tests of kernels, models, steps, meshes and decoding run.
test-versions: $(VENV)/.tests-installed
	$(QUICK) $(PYTEST) -m 'versions and not slow and not aot' \
	  $(call MARKED,versions)

# Several processes, full sizes, long searches: once before a release is enough.
# Nearly all compare things that are compiled in the same way, and are compiled
# cheaply. A few compare bits and bytes of what users compile.
test-slow: $(VENV)/.slow-tests-installed
	$(QUICK) $(PYTEST) -n $(THREE_FOR_TWO) -rfER -m 'slow and not optimized' \
	  $(TESTS)
	$(PYTEST) -m optimized $(call MARKED,optimized)

# The wheel in an environment of its own: its contents, the README's ten lines, and
# what twine says of it and the source. (`make test-slow` runs it, too.)
wheel: $(VENV)/.slow-tests-installed
	$(BIN)/python -m pytest -m slow tests/test_wheel.py

# The real compilers of H100 and TPU, which need neither: kernels, small steps,
# and beside them, because they take one core, a step at full size and a block of
# layers of a step of decoding. (2.6 GB of packages.)
aot: $(VENV)/.aot-installed
	@said=$$(mktemp); { $(BIN)/python -m experiments.aot_report --preset=110b \
	  --accelerator=h100_512 && $(BIN)/python -m experiments.aot_report \
	  --decode --preset=110b --accelerator=h100_8; } >$$said 2>&1 & report=$$!; \
	  $(PYTEST) -m 'aot and not full' $(TESTS); status=$$?; \
	  wait $$report || status=1; cat $$said; rm $$said; exit $$status

# Two replicas and two ingresses under Ray: started, killed, tested and stopped.
# It needs redis-server. KILLS=50 kills more replicas than five.
fleet: $(VENV)/.fleet-installed
	$(QUICK) $(BIN)/python -m pytest -m fleet --durations=5 \
	  tests/serving/routing/test_ray.py

# All shapes of the kernels, and the other steps at full size.
aot-full: aot
	$(PYTEST) -m full $(TESTS)
	$(BIN)/python -m experiments.aot_report --preset=13b --accelerator=h100_64
	$(BIN)/python -m experiments.aot_report --preset=34b --accelerator=h100_128
	$(BIN)/python -m experiments.aot_report --decode --preset=110b \
	  --accelerator=h100_8 --layers=70
	$(BIN)/python -m experiments.aot_report --decode --preset=34b \
	  --accelerator=h100_8 --layers=56 --rows=256

# On a machine with an accelerator: all that it can tell, as docs/device.md says.
gpu: $(VENV)/.gpu-installed
	$(BIN)/python -m experiments.benchmarks.device --minutes=$(MINUTES) \
	  --out=$(OUT)

tpu: $(VENV)/.tpu-installed
	$(BIN)/python -m experiments.benchmarks.device --minutes=$(MINUTES) \
	  --out=$(OUT)

# Exports and imports held to transformers itself, T5's encoder, TRL's loss, and
# tables of text; records for wandb. (trackio and MLflow ask for an older pillow and
# cachetools than constraints.txt has: install them, and their tests do not skip.)
# (`make test` skips this.)
interchange: $(VENV)/.interchange-installed
	$(QUICK) $(PYTEST) tests/interchange/test_transformers_parity.py \
	  tests/interchange/test_transformers_families.py \
	  tests/interchange/test_chat_template_parity.py \
	  tests/interchange/test_t5_embedder.py \
	  tests/interchange/test_harness.py \
	  tests/interchange/test_trl.py \
	  tests/data/test_reading.py \
	  tests/training/records/test_trackers.py \
	  tests/experiments/benchmarks/load_test/test_transformers_serving.py

# The pages as a site in build/site, with a page of API for each room; a dead link
# fails. Pages lie in build/pages as in the repository, with what they link to.
site: $(VENV)/.docs-installed
	rm -rf build/pages && mkdir -p build/pages/api
	ln -s $(addprefix $(CURDIR)/,$(wildcard *.md) $(LINKED)) build/pages
	for room in $(ROOMS); do \
	  printf '# %s\n\n::: kaiju_jax.%s\n' $$room $$room \
	    >build/pages/api/$$room.md; done
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest tests/test_site.py

# Of the symbols that the wheel exports, 95 % have types that pyright knows whole.
types: $(VENV)/.docs-installed
	$(BIN)/python -m pytest -m slow tests/test_wheel.py -k types

check: $(VENV)/.tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/.installed: EXTRAS := [report]
$(VENV)/.serve-installed: EXTRAS := [serve,cpu]
$(VENV)/.tests-installed: EXTRAS := [test]
$(VENV)/.slow-tests-installed: EXTRAS := [test-slow]
$(VENV)/.aot-installed: EXTRAS := [test,aot-gpu,aot-tpu,triton]
$(VENV)/.gpu-installed: EXTRAS := [cuda,triton,device]
$(VENV)/.tpu-installed: EXTRAS := [tpu,device]
$(VENV)/.interchange-installed: EXTRAS := [test,interchange,wandb]
$(VENV)/.fleet-installed: EXTRAS := [test-fleet]
$(VENV)/.docs-installed: EXTRAS := [test,docs,types]

$(VENV)/.installed $(VENV)/.serve-installed $(VENV)/.tests-installed \
  $(VENV)/.slow-tests-installed $(VENV)/.aot-installed \
  $(VENV)/.gpu-installed $(VENV)/.tpu-installed $(VENV)/.fleet-installed \
  $(VENV)/.docs-installed: \
    setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.$(EXTRAS)'
	touch $@

# The tests use a CPU, but on Linux plain `torch` brings gigabytes of CUDA: where
# pip finds no CPU build within seconds, nothing is installed and this fails.
$(VENV)/.interchange-installed: setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test "$$(uname)" != Linux || $(BIN)/python -c 'import torch' 2>/dev/null || { \
	  cpu=$$($(BIN)/python -m pip index versions $(TORCH_CPU) torch | \
	    grep -o '[0-9.]*+cpu' | head -n 1); \
	  test "$$cpu" || { echo 'No CPU build of torch found. To use one with CUDA:' \
	    "$(BIN)/python -m pip install torch" >&2; exit 1; }; \
	  $(BIN)/python -m pip install --quiet --no-compile \
	    --no-deps $(TORCH_CPU) torch==$$cpu; }
	$(PIP) --editable '.$(EXTRAS)'
	touch $@

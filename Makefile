# The commands of this repository. Each creates the environment it needs; a second run starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
export PATH := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test test-vllm test-operator test-cluster soak lint format bench bench-vllm bench-operator results reality lock schemas crd wheels release clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.ready: requirements/bootstrap.txt requirements/dev.txt VERSION pyproject.toml larry/pyproject.toml extproc/pyproject.toml lab/pyproject.toml operator/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements/dev.txt
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e larry -e extproc -e lab -e operator
	@touch $@

.venv-vllm/newest/.ready: requirements/vllm.txt
.venv-vllm/oldest/.ready: requirements/vllm-oldest.txt
.venv-vllm/%/.ready: hack/vllm-env requirements/vllm-test.txt VERSION larry/pyproject.toml extproc/pyproject.toml lab/pyproject.toml | $(VENV)/.ready
	$(BIN)/python hack/vllm-env $*
	@touch $@

demo: $(VENV)/.ready  ## real Envoy, the picker, emulated GPUs, a production trace: SAL against P2C (ARGS=--quick for 2 minutes)
	$(BIN)/halffull demo $(ARGS)

test: $(VENV)/.ready  ## units, properties and everything through the real Envoy, about 7 minutes on 2 cores
	$(BIN)/pytest -n 3 --dist loadfile -m "not soak and not operator and not cluster" --durations=25 $(ARGS)

test-vllm: .venv-vllm/newest/.ready .venv-vllm/oldest/.ready  ## LARRY in real vLLM on the CPU, the newest and the oldest supported release
	.venv-vllm/newest/bin/pytest tests/vllm $(ARGS)
	.venv-vllm/oldest/bin/pytest tests/vllm $(ARGS)

test-operator: $(VENV)/.ready  ## the operator on a real API server, which hack/cluster builds with Go the first time
	hack/cluster/cluster build kwok
	$(BIN)/pytest -n 2 --dist loadfile -m operator tests/operator $(ARGS)

test-cluster: $(VENV)/.ready  ## all of it on a real node that is made for it: Linux and root; images are built the first time
	@[ "$$(uname)" = Linux ] && [ "$$(id -u)" = 0 ] || { echo "make test-cluster starts a Kubernetes node of its own and needs Linux and root: sudo make test-cluster"; exit 1; }
	hack/cluster/cluster build node
	$(BIN)/pytest -m cluster tests/cluster $(ARGS)

soak: $(VENV)/.ready  ## the long waits: silences of minutes, 20-minute streams, keep-alive races
	$(BIN)/pytest -n 5 -m soak --timeout 1800 tests/extproc/soak $(ARGS)

lint: $(VENV)/.ready  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready  ## what `lint` can repair by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready  ## the picker's cost, as ratios of one run; writes build/bench/extproc.json
	$(BIN)/python hack/bench $(ARGS)

bench-vllm: .venv-vllm/newest/.ready  ## the scheduler plugin's cost on vLLM's classes; writes build/bench/larry.json
	PYTHONPATH=. HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR .venv-vllm/newest/bin/python hack/bench_larry.py $(ARGS)

bench-operator: $(VENV)/.ready  ## what 1,000 LLMServings cost the operator; writes build/bench/operator.json
	hack/cluster/cluster build kwok
	PYTHONPATH=. $(BIN)/python hack/bench_operator $(ARGS)

results: $(VENV)/.ready  ## every experiment of the lab, and docs/results.md anew from it (ARGS=--quick: six seconds of each; the page stays)
	$(BIN)/python hack/results $(ARGS)

reality: $(VENV)/.ready  ## the simulator against Envoy, picker and engine processes, on the same requests (ARGS=--quick: a minute)
	$(BIN)/python hack/reality $(ARGS)

schemas: $(VENV)/.ready  ## write schemas/ anew from the code (a test compares)
	$(BIN)/halffull-extproc schema picker > schemas/picker.schema.json
	$(BIN)/halffull-extproc schema load-report > schemas/load-report.schema.json

crd: $(VENV)/.ready  ## write crds/, its copy in the chart, and docs/llmserving.md anew from the spec (tests compare)
	$(BIN)/python -m halffull_operator.crd > crds/llmservings.serving.halffull.dev.yaml
	cp crds/llmservings.serving.halffull.dev.yaml charts/halffull/crds/
	$(BIN)/python -m halffull_operator.spec_docs > docs/llmserving.md

lock: $(VENV)/.ready  ## resolve requirements/ anew, to the newest versions allowed
	hack/lock

wheels: $(VENV)/.ready  ## every wheel of a release into dist/
	@rm -rf dist
	@for p in larry extproc lab operator; do $(BIN)/uv build --quiet --wheel --no-build-isolation --python $(BIN)/python --out-dir dist $$p || exit 1; done
	@ls -1 dist/*.whl

release: $(VENV)/.ready  ## everything of a release into dist/: wheels, chart, images, SBOMs, checksums (docs/releasing.md; ARGS=--no-images: without root)
	$(BIN)/python hack/release $(ARGS)

clean:  ## remove the environments and everything built
	rm -rf $(VENV) .venv-vllm build dist

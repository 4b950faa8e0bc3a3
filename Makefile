# Every target creates its prerequisites: a virtual environment in .venv, programs in the user's cache.
# Later runs find both and are quick.

.PHONY: help up down test proof check bench sharding-proof sharding-proof-real sharding-proof-syncer top-proof scale-proof real-nodes lock setup assets real-nodes-here helm-here promtool-here metrics-server-here
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/sh

# Hundreds of processes import the same modules: Python keeps their bytecode, also if the environment
# forbids it.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
KUBEOCEAN := $(BIN)/kubeocean
PYTHON ?=
ARGS ?=
ASSETS ?=
JOBS ?= 5
REAL_NODES ?= yes
# For the control planes under test: more memory for less CPU, and one thread for each program.
PLANES := GOGC=300 GOMAXPROCS=1
TIERS := $(wildcard tests/unit tests/cluster tests/e2e)
PYTEST := $(PLANES) $(BIN)/python -m pytest -n $(JOBS) --dist loadscope

help: ## list the targets
	@echo "make …"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)$$/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

up: setup ## run a computing cluster and two workers with Kubeocean (ARGS="--workers 4 --nodes 100")
	@$(KUBEOCEAN) up $(ARGS)

down: setup ## stop the clusters of make up (ARGS=--purge removes their data)
	@$(KUBEOCEAN) down $(ARGS)

test: setup ## run checks, then all tests on real clusters, with a sample of each sweep (JOBS=1 for one at a time)
	@start=$$(date +%s); \
	$(MAKE) --no-print-directory check assets real-nodes-here helm-here promtool-here ASSETS=--kubelet || exit 1; \
	echo "test: $(TIERS), $(JOBS) at a time"; \
	code=0; $(PYTEST) $(TIERS) $(ARGS) || code=$$?; \
	spent=$$(( $$(date +%s) - start )); \
	if [ $$code -eq 0 ]; then echo "test: all passed in $$spent s"; \
	else echo "test: FAILED after $$spent s (pytest exit code $$code)" >&2; fi; \
	exit $$code

proof: setup assets ## run all sweeps in full: a crash after every single write, a thousand nodes
	@echo "proof: sweeps, $(JOBS) at a time"
	@$(PYTEST) -m sweep --thorough --timeout 900 $(TIERS) $(ARGS)

check: setup ## check format, lint, types and import layers
	@echo "check: format" && $(BIN)/ruff format --check --quiet . scripts/venv
	@echo "check: lint" && $(BIN)/ruff check --quiet . scripts/venv
	@echo "check: types" && $(BIN)/mypy --no-error-summary
	@echo "check: import layers" && $(BIN)/lint-imports >.venv/layers.log 2>&1 || { cat .venv/layers.log; exit 1; }

bench: setup assets ## run the benchmarks: counts and ratios, as a table and as JSON
	@PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

sharding-proof: setup ## simulate 100,000 histories of a sharded controller (ARGS="--seed 1")
	@PYTHONPATH=tests $(BIN)/python -m unit.sharding.simrun $(ARGS)

sharding-proof-real: setup assets ## run five replica processes, which are killed, frozen and scaled (ARGS="--objects 500 --freeze 20")
	@PYTHONPATH=tests $(BIN)/python -m bench.shardproof $(ARGS)

sharding-proof-syncer: setup assets ## let two syncers share 500 nodes and 1,000 pods, and kill one (ARGS="--nodes 20 --pods 60")
	@PYTHONPATH=tests $(BIN)/python -m bench.shardsyncers $(ARGS)

top-proof: setup assets metrics-server-here ## test kubectl top with the real metrics-server, which Go has to build
	@PATH=$(abspath build):$$PATH $(BIN)/python -m pytest tests/e2e/proxier_top.py $(ARGS)

scale-proof: setup assets metrics-server-here ## test autoscalers of a binding with the real metrics-server
	@PATH=$(abspath build):$$PATH $(BIN)/python -m pytest tests/e2e/autoscaling.py $(ARGS)

real-nodes: ## install the programs of real nodes (containerd, runc, …; Debian, as root)
	@scripts/real-nodes

lock: setup ## resolve the dependencies again into requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --all-extras --group dev --output-file requirements.lock pyproject.toml

assets: setup
	@$(KUBEOCEAN) assets --quiet $(ASSETS)

# Tests on real nodes run wherever these can run; REAL_NODES=no skips them.
real-nodes-here:
	@if [ "$(REAL_NODES)" != yes ]; then echo "test: tests on real nodes are skipped (REAL_NODES=$(REAL_NODES))"; \
	elif [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "test: real nodes need root and Debian, so their tests are skipped"; \
	else $(MAKE) --no-print-directory real-nodes; fi

# Built before the tests, whose time limit is shorter than the build may take.
helm-here:
	@scripts/helm >/dev/null || echo "test: without helm the charts are not tested"

promtool-here:
	@scripts/promtool >/dev/null || echo "test: without promtool the tests of the alert rules fail"

metrics-server-here:
	@mkdir -p build && scripts/go-program sigs.k8s.io/metrics-server v0.7.2 \
		h1:0t1FhxdEHKHF/SduSRdkNHIYb24TpHqew2B/64GzOq8= ./cmd/metrics-server $(abspath build)/metrics-server

setup:
	@$(BIN)/python scripts/venv --check 2>/dev/null || { \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
		"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
			&& exec "$$python" scripts/venv; \
	done; \
	echo "set-up: no Python 3.11 or newer with venv found (on Debian: apt-get install python3-venv);" >&2; \
	echo "set-up: name one with: make PYTHON=/path/to/python3" >&2; \
	exit 1; }

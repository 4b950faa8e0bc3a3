# Every target sets itself up: a virtual environment in .venv, the programs in the user's cache.
# The second time costs nothing.

.PHONY: help up down test proof check bench sharding-proof sharding-proof-real sharding-proof-syncer top-proof scale-proof real-nodes lock setup assets real-nodes-here helm-here promtool-here metrics-server-here
.NOTPARALLEL:
.DEFAULT_GOAL := help
SHELL := /bin/sh

# Hundreds of processes load the same modules: compile them once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
KUBEOCEAN := $(BIN)/kubeocean
PYTHON ?=
ARGS ?=
ASSETS ?=
JOBS ?= 5
REAL_NODES ?= yes
# Of the control planes under test: memory for time, and no threads that look for work of each other.
PLANES := GOGC=300 GOMAXPROCS=1
TIERS := $(wildcard tests/unit tests/cluster tests/e2e)
PYTEST := $(PLANES) $(BIN)/python -m pytest -n $(JOBS) --dist loadscope

help: ## what there is
	@echo "make …"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)$$/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

up: setup ## a computing cluster, two workers, and Kubeocean at work (ARGS="--workers 4 --nodes 100")
	@$(KUBEOCEAN) up $(ARGS)

down: setup ## stop them (ARGS=--purge removes their data)
	@$(KUBEOCEAN) down $(ARGS)

test: setup ## checks, then all tests on real clusters, of sweeps a sample (JOBS=1 for one at a time)
	@start=$$(date +%s); \
	$(MAKE) --no-print-directory check assets real-nodes-here helm-here promtool-here ASSETS=--kubelet || exit 1; \
	echo "test: $(TIERS), $(JOBS) at a time"; \
	code=0; $(PYTEST) $(TIERS) $(ARGS) || code=$$?; \
	spent=$$(( $$(date +%s) - start )); \
	if [ $$code -eq 0 ]; then echo "test: all passed in $$spent s"; \
	else echo "test: FAILED after $$spent s (pytest exit code $$code)" >&2; fi; \
	exit $$code

proof: setup assets ## what test takes a sample of, in full: a crash after every single write, a thousand nodes
	@echo "proof: sweeps, $(JOBS) at a time"
	@$(PYTEST) -m sweep --thorough $(TIERS) $(ARGS)

check: setup ## format, lint, types, import layers
	@echo "check: format" && $(BIN)/ruff format --check --quiet . scripts/venv
	@echo "check: lint" && $(BIN)/ruff check --quiet . scripts/venv
	@echo "check: types" && $(BIN)/mypy --no-error-summary
	@echo "check: import layers" && $(BIN)/lint-imports >.venv/layers.log 2>&1 || { cat .venv/layers.log; exit 1; }

bench: setup assets ## counts and ratios, as a table and as JSON
	@PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

sharding-proof: setup ## 100,000 simulated histories of a sharded controller (ARGS="--seed 1")
	@PYTHONPATH=tests $(BIN)/python -m unit.sharding.simrun $(ARGS)

sharding-proof-real: setup assets ## five replica processes, killed, frozen, scaled (ARGS="--objects 500 --freeze 20")
	@PYTHONPATH=tests $(BIN)/python -m bench.shardproof $(ARGS)

sharding-proof-syncer: setup assets ## two syncers share 500 nodes and 1,000 pods, one is killed (ARGS="--nodes 20 --pods 60")
	@PYTHONPATH=tests $(BIN)/python -m bench.shardsyncers $(ARGS)

top-proof: setup assets metrics-server-here ## kubectl top with the real metrics-server, which takes Go to build
	@PATH=$(abspath build):$$PATH $(BIN)/python -m pytest tests/e2e/proxier_top.py $(ARGS)

scale-proof: setup assets metrics-server-here ## autoscalers of a binding with the real metrics-server
	@PATH=$(abspath build):$$PATH $(BIN)/python -m pytest tests/e2e/autoscaling.py $(ARGS)

real-nodes: ## install what real nodes need (containerd, runc, …; Debian, as root)
	@scripts/real-nodes

lock: setup ## resolve the dependencies anew into requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --no-annotate --no-header \
		--python-version 3.11 --all-extras --group dev --output-file requirements.lock pyproject.toml

assets: setup
	@$(KUBEOCEAN) assets --quiet $(ASSETS)

# Real nodes are a part of the proof wherever they can run; REAL_NODES=no leaves them out.
real-nodes-here:
	@if [ "$(REAL_NODES)" != yes ]; then echo "test: real nodes are left out (REAL_NODES=$(REAL_NODES))"; \
	elif [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "test: real nodes need root and Debian: their tests are skipped"; \
	else $(MAKE) --no-print-directory real-nodes; fi

# Built before the tests that ask it, which have less time than a build may take.
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

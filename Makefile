# LBG. `make help` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
VENV := .venv
# Tests are compiled with their assertions rewritten, which takes as long as to collect them: kept even where byte code is not.
PYTEST := PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
RELEASE ?= trixie
RABBITMQ4 ?= .rabbitmq4-$(RELEASE)
DEMO_ARGS ?=
ENGINE ?= embedded
DEMO_embedded = $(VENV)/bin/lbg demo $(DEMO_ARGS)
DEMO_rabbitmq = .ci/debian-packages rabbitmq-server && echo "starting a RabbitMQ node …" && \
	$(VENV)/bin/python -m testing.rabbitmq.node -- \
	sh -c 'exec $(VENV)/bin/lbg demo --broker "$$LBG_BROKER" --management "$$LBG_MANAGEMENT" $(DEMO_ARGS)'
CORES := $(shell nproc)
# Tests wait for brokers most of the time; those of `make quick` never do.
WORKERS := $(shell echo $$(( $(CORES) < 3 ? 4 * $(CORES) : 8 )))
AT_ONCE ?= -n $(WORKERS) --dist loadfile
CHAOS_ARGS ?=
PROMISES_ARGS ?=
EXACTLY_ONCE_ARGS ?=
FULL_DISK_ARGS ?=
SOAK_ARGS ?=
FUZZ_ARGS ?=
PIPELINE_BENCH_ARGS ?=
IMAGE_ARGS ?=
E2E_ARGS ?=

.PHONY: help install dev demo quick test test-all fuzz test-cluster test-browser test-rabbitmq4 record-oracle e2e check lint types imports rules docs format bench bench-pipeline chaos soak promises simulate full-disk exactly-once images clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "lbg needs Python 3.11 or newer: install it, or run make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "this Python has no venv module: on Debian, apt-get install python3-venv"; exit 1; }

$(VENV)/.runtime: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) install -c constraints.txt -e '.[browser]'
	@.ci/debian-packages chromium
	@touch $@

$(VENV)/.images: $(VENV)/.runtime
	$(PIP) install -c constraints.txt -e '.[images]'
	@touch $@

install: $(VENV)/.runtime  ## make .venv and leave .venv/bin/lbg in it
dev: $(VENV)/.dev  ## install, and what tests, checks and benchmarks need
	@.ci/debian-packages rabbitmq-server postgresql prometheus nodejs node-ws default-jre-headless
	@.ci/npm-packages tests/clients

demo: $(VENV)/.runtime  ## play a group's life on real flights; ENGINE=rabbitmq: on a RabbitMQ node of its own
	@$(or $(DEMO_$(ENGINE)),$(error ENGINE is embedded or rabbitmq, not $(ENGINE)))

quick: $(VENV)/.dev  ## run the short tests that need no process, with few examples: the loop while you edit
	$(PYTEST) -n $(CORES) --dist loadfile -m "not process and not slow and not long and not browser and not rule" --hypothesis-profile=quick tests --ignore=tests/rabbitmq --ignore=tests/testing/simulation

test: dev  ## run every test but the slow repetitions and those of check, test-cluster and test-browser, with fewer examples
	$(PYTEST) $(AT_ONCE) -m "not slow and not cluster and not browser and not rule" --hypothesis-profile=test

test-all: dev  ## run every test but those of check, test-cluster and test-browser
	$(PYTEST) $(AT_ONCE) -m "not cluster and not browser and not rule"

fuzz: dev  ## run the random tests with other examples for 10 minutes; FUZZ_ARGS="--minutes 60 tests/sidecar/member"
	PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m testing.exploration $(AT_ONCE) $(FUZZ_ARGS)

test-cluster: dev  ## run the long tests on three RabbitMQ nodes: placement, restarts, majorities, partitions, a full disk
	$(PYTEST) -m cluster tests/rabbitmq

test-browser: dev $(VENV)/.browser  ## look at the console's pages in Chromium, by Playwright
	$(PYTEST) -m browser tests/console

test-rabbitmq4: $(VENV)/.dev  ## run what touches RabbitMQ on Debian trixie's, 4.0, in a folder (as root); RELEASE=sid: 4.3
	@.ci/rabbitmq4 $(RELEASE) $(RABBITMQ4)
	LBG_RABBITMQ_ROOT=$(RABBITMQ4) $(PYTEST) $(AT_ONCE) -m rabbitmq

record-oracle: dev  ## record RabbitMQ's answers, with which tests/oracle compares the embedded broker, anew
	$(VENV)/bin/python -m testing.oracle.recordings

e2e: $(VENV)/.dev  ## the whole on a cluster: KUBECONFIG's, or kind's where docker is; E2E_ARGS="-k rollout"
	@.ci/e2e $(E2E_ARGS)

check: lint types imports rules  ## lint, types, import contracts, and rules of the house

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev
	$(VENV)/bin/mypy

imports: $(VENV)/.dev
	$(VENV)/bin/lint-imports

rules: $(VENV)/.dev
	$(PYTEST) -q -m rule tests/suite

docs: $(VENV)/.dev  ## make the pages and tables of docs/ that are made of code
	$(VENV)/bin/python docs/sidecar_reference.py
	$(VENV)/bin/python docs/operations_reference.py
	$(VENV)/bin/python docs/cli_reference.py >docs/reference/cli.md
	$(VENV)/bin/python docs/crd_reference.py >docs/reference/crds.md
	$(VENV)/bin/python docs/output_reference.py >docs/reference/output.md
	$(VENV)/bin/python docs/output_reference.py --schema >docs/reference/output.schema.json

format: $(VENV)/.dev  ## format the code
	$(VENV)/bin/ruff check --fix-only -q .
	$(VENV)/bin/ruff format -q .

bench: dev $(VENV)/.bench  ## measure side by side with RabbitMQ, pika, aio-pika and DuckDB (about an hour and a half)
	$(VENV)/bin/python -m bench

bench-pipeline: dev $(VENV)/.bench  ## validate beside DuckDB and the live validator; PIPELINE_BENCH_ARGS="--records 2000000"
	$(VENV)/bin/python -m bench.pipeline $(PIPELINE_BENCH_ARGS)

chaos: dev  ## random faults on both engines (25 minutes); CHAOS_ARGS="--engine rabbitmq --seed 7"
	$(VENV)/bin/python -m testing.chaos $(CHAOS_ARGS)

soak: $(VENV)/.dev  ## the same for 30 minutes on the embedded broker; SOAK_ARGS="--minutes 5 --seed 7"
	$(VENV)/bin/python -m testing.chaos --engine embedded --minutes 30 $(SOAK_ARGS)

promises: dev  ## every mode x engine x planned move x handler time, judged from outside; PROMISES_ARGS="--full"
	$(VENV)/bin/python -m testing.promises $(PROMISES_ARGS)

simulate: $(VENV)/.dev  ## whole installations in virtual time with random faults, new seeds; SIMULATE_ARGS="--hours 200"
	$(VENV)/bin/python -m testing.simulation $(SIMULATE_ARGS)

full-disk: $(VENV)/.dev  ## fill the broker's disk, kill it, start it, drain it, 100 times; FULL_DISK_ARGS="--on ext4" (as root)
	$(VENV)/bin/python -m testing.full_disk $(FULL_DISK_ARGS)

exactly-once: dev  ## 1,000,000 inserts through kill -9, each once; EXACTLY_ONCE_ARGS="--sessions application"
	$(VENV)/bin/python -m testing.exactly_once $(EXACTLY_ONCE_ARGS)

images: $(VENV)/.images  ## container images by docker, podman or buildah, and their SBOMs; IMAGE_ARGS="--build-arg BASE_IMAGE=…"
	@.ci/images $(IMAGE_ARGS)

clean:  ## remove everything that make made
	rm -rf --one-file-system $(VENV) .rabbitmq4* build dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache tests/clients/node_modules *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

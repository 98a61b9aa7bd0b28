# The commands; each makes the virtual environment from constraints.txt when it is missing.
# Needs only python3 (>= 3.11) with pip and venv, and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What the processes of a run import. Compiled once: uv does not, and where Python is told to write
# no bytecode (as in many containers) each of them would compile it again, in every run.
IMPORTED := import privpipe.command.demo_command, \
  privpipe.flows.release_flow, matplotlib.backends.backend_agg, prefect.server.api.server, \
  privpipe.cluster.workers.preloaded, uvicorn.main
# Certificates that this machine trusts, a company's own among them: pip asks for them by itself, uv
# only when told. Without a store of the machine, uv's own are left.
TRUST := $(if $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \
  /etc/ssl/cert.pem),--system-certs)
UV := "$(BIN)/uv" $(TRUST) pip install --quiet --python "$(BIN)/python"
export DO_NOT_TRACK := 1
# Tests start hundreds of processes. Where this is set, each compiles every library that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: prometheus demo measures mutants simulate test test-slow test-kernels test-setup test-wheel test-s3 test-whole lint bench errors docs dist release clean constraints

demo: $(READY)
	$(BIN)/privpipe demo

# A third of the time of a test is waiting: for a lock, a deadline, a process that is to die.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# Every promise, in minutes. What kills processes, sweeps crash points or runs at length: test-slow.
test: $(READY)
	$(PYTEST) -m "not slow"

# SLOW='--share 0.5 --draw WORD' runs those of half of the files, drawn by a word.
test-slow: $(READY)
	$(PYTEST) -m slow $(SLOW)

# The numerical tests once more, with the inner loops of other processors. KERNELS= has all of them.
KERNELS ?= -m "not slow"
test-kernels: $(READY)
	$(BIN)/python -m tests.kernels -n 2 --dist loadfile $(KERNELS)

# Set up with every Python found, without any tool but that; downloads, hence apart from `test`.
test-setup: $(READY)
	PRIVPIPE_TEST_SETUP=1 $(BIN)/python -m pytest -q -n 0 tests/test_setup.py tests/test_bare_install.py

# The wheel, by pip alone, in every Python found, beside a user's own folder `flows`: minutes of pip.
test-wheel: $(READY)
	PRIVPIPE_TEST_SETUP=wheel PRIVPIPE_TEST_TRUST="$(TRUST)" $(BIN)/python -m pytest -q -n 0 tests/test_setup.py -k wheel

# Storage faults with a second S3 server, from the package index in an environment of its own.
S3_SERVER := $(VENV)-s3
S3_COMMAND := env GATEWAY_PORT={port} BIND_HOST=127.0.0.1 SERVICES=s3 S3_PERSIST=1 \
  S3_DATA_DIR={folder} "$(CURDIR)/$(S3_SERVER)/bin/ministack"
test-s3: $(READY) $(S3_SERVER)/bin/ministack
	PRIVPIPE_TEST_S3='$(S3_COMMAND)' $(BIN)/python -m pytest -q -n 0 tests/store/test_storage_faults.py

# A whole installation in processes, each killed once and each away for minutes, with that server.
test-whole: $(READY) $(S3_SERVER)/bin/ministack
	-$(MAKE) prometheus
	PRIVPIPE_TEST_S3='$(S3_COMMAND)' PRIVPIPE_TEST_WHOLE=1 \
	  $(BIN)/python -m pytest -q -n 0 tests/operations/test_whole.py tests/operations/test_outages.py tests/operations/test_alerts_played.py

# Prometheus with promtool, and its exporter, of Debian's packages, unpacked and not installed: what
# tests of alerts run on. Without them, as on another system, these are skipped.
PROMETHEUS := $(VENV)-prometheus
WATCHING := prometheus prometheus-node-exporter
prometheus: $(PROMETHEUS)/usr/bin/prometheus-node-exporter

$(PROMETHEUS)/usr/bin/prometheus-node-exporter:
	mkdir -p "$(PROMETHEUS)"
	cd "$(PROMETHEUS)" && (apt-get download $(WATCHING) || (apt-get update && apt-get download $(WATCHING)))
	for package in "$(PROMETHEUS)"/*.deb; do dpkg-deb -x "$$package" "$(PROMETHEUS)"; done

$(S3_SERVER)/bin/ministack:
	"$(PYTHON)" -m venv --clear "$(S3_SERVER)"
	"$(S3_SERVER)/bin/python" -m pip install --quiet --disable-pip-version-check ministack==1.5.33

# Faults planted in a copy, one by one: each must be noticed. MUTANTS='--share 0.1' draws some.
mutants: $(READY)
	$(BIN)/python -m tests.mutants $(MUTANTS)

# How large the house is, each count beside its bound; MEASURES=--folders shows where.
measures: $(READY)
	$(BIN)/python -m tests.measures $(MEASURES)

# A million histories of commands that die, in hours. SIMULATE='--history 17' tells one.
simulate: $(READY)
	$(BIN)/python -m tests.simulation --histories 1000000 $(SIMULATE)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.bench

# The list of errors that `privpipe explain` reads, from where they are raised, and the ranges of
# options that a run looks at first, from where they are declared.
errors: $(READY)
	$(BIN)/python -m docs.making.raised_errors
	$(BIN)/python -m docs.making.option_ranges

# The site, in docs/_build/html/index.html; works from there, without a network. Warnings are errors.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python -m docs.making.links docs/_build/html

# Wheel and sdist in dist-wheels/, with their contents checked.
dist: $(READY)
	rm -rf dist-wheels build
	"$(BIN)/uv" $(TRUST) build --quiet --out-dir dist-wheels .
	$(BIN)/python -m tests.dist_contents dist-wheels

# What a version would be: bumped, built and checked in a copy; tags nothing. VERSION=0.2.0
release: $(READY)
	BIN="$(BIN)" .ci/release "$(VERSION)"

# One way for everybody: a pinned uv, by the pip that every Python brings (one wheel, checked against
# constraints-uv.txt), installs all else from constraints.txt. A uv on PATH is never asked.
$(READY): constraints.txt constraints-uv.txt pyproject.toml
	"$(PYTHON)" -m venv --clear "$(VENV)"
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
	  --only-binary :all: -r constraints-uv.txt
	$(UV) --require-hashes -r constraints.txt
	$(UV) --no-deps -e .
	@PYTHONDONTWRITEBYTECODE= "$(BIN)/python" -c "$(IMPORTED)"
	@touch "$(READY)"

# Newest versions that the requirements of pyproject.toml admit; run now and then, then run the tests.
constraints: $(READY)
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --extra dev --extra docs --extra all --upgrade pyproject.toml -o constraints.txt

clean:
	rm -rf "$(VENV)" "$(S3_SERVER)" .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist-wheels docs/_build *.egg-info

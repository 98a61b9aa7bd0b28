# Four commands; each makes the virtual environment from constraints.txt when it is missing.
# Needs only python3 (>= 3.11) and make; uses uv where it is present because it installs faster.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export DO_NOT_TRACK := 1

.PHONY: demo test lint bench clean constraints

demo: $(READY)
	$(BIN)/privpipe demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m tests.bench

$(READY): constraints.txt pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --clear --python "$(PYTHON)" "$(VENV)" && \
	  uv pip install --quiet --python "$(BIN)/python" --require-hashes -r constraints.txt && \
	  uv pip install --quiet --python "$(BIN)/python" --no-deps -e . ; \
	else \
	  "$(PYTHON)" -m venv --clear "$(VENV)" && \
	  "$(BIN)/python" -m pip install --quiet --require-hashes -r constraints.txt && \
	  "$(BIN)/python" -m pip install --quiet --no-deps -e . ; \
	fi
	@touch "$(READY)"

# Newest versions that the requirements of pyproject.toml admit; run now and then, then run the tests.
constraints:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  --extra dev --extra s3 --upgrade pyproject.toml -o constraints.txt

clean:
	rm -rf "$(VENV)" .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

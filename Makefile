# Two commands do all the set-up from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo serve test lint bench docs clean

demo: $(READY)  ## serve the bundled recording on port 9400, no GPU needed
	$(BIN)/gpuledger demo

serve: $(READY)  ## serve this host's GPUs on port 9400
	$(BIN)/gpuledger serve

test: lint  ## everything that decides whether a change may land
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## writes bench/RESULTS.md
	$(BIN)/python -m bench

docs: $(READY)  ## what the docs repeat of the code
	$(BIN)/python tools/docs.py

clean:
	rm -rf $(VENV) build dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e . grpcio hypothesis jsonschema mypy playwright prometheus-client protobuf pytest ruff types-PyYAML \
	  types-grpcio types-jsonschema types-protobuf
	touch $@

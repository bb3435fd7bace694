# Two commands do all the set-up from a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo serve test e2e lint bench docs dashboards manifests dist image-test audit clean

demo: $(READY)  ## serve the bundled recording on port 9400, no GPU needed
	$(BIN)/gpuledger demo

serve: $(READY)  ## serve this host's GPUs on port 9400
	$(BIN)/gpuledger serve

test: lint  ## everything that decides whether a change may land
	$(BIN)/python -m pytest

e2e: $(READY)  ## a real kubelet, API server and Helm, built from source: needs root, the network, and minutes the first time
	$(BIN)/python -m tests.e2e.build
	$(BIN)/python -m pytest tests/e2e

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## writes bench/RESULTS.md
	$(BIN)/python -m bench

docs: $(READY) dashboards  ## what the docs repeat of the code
	$(BIN)/python tools/docs.py
	$(BIN)/python tools/man.py
	$(BIN)/python tools/chart.py

manifests: $(READY)  ## deploy/kubernetes, rendered from the chart; needs helm
	PATH=.e2e:$$PATH $(BIN)/python tools/manifests.py

dist: $(READY)  ## wheel and sdist, the same bytes for the same commit, and what they stand on
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python tools/sbom.py > dist/sbom.cdx.json

image-test: $(READY)  ## build the image on a clean Debian, start it and the systemd unit; minutes, needs root
	IMAGE=1 $(BIN)/python -m pytest tests/image -rA

dashboards: $(READY)  ## mixin/dashboards, made by tools/dashboards
	$(BIN)/python -m tools.dashboards

audit: $(READY)  ## known weaknesses of what we need, from PyPI
	$(BIN)/python -m tools.audit

clean:
	rm -rf $(VENV) .e2e build dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[auth,top]' grpcio hatchling hypothesis jsonschema mypy playwright prometheus-client protobuf pytest ruff \
	  types-PyYAML types-grpcio types-jsonschema types-protobuf
	touch $@

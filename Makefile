# Two commands need nothing but a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo serve test e2e lint bench docs dashboards manifests dist image-test audit clean

demo: $(READY)  ## expose the bundled recording on port 9400; needs no GPU
	$(BIN)/gpuledger demo

serve: $(READY)  ## expose this host's GPUs on port 9400
	$(BIN)/gpuledger serve

test: lint  ## decides whether a change may land
	$(BIN)/python -m pytest

e2e: $(READY)  ## real components of Kubernetes and nerdctl, built from source; needs root and the network
	$(BIN)/python -m tests.e2e.build
	$(BIN)/python -m pytest tests/e2e

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure the overhead and write bench/RESULTS.md
	$(BIN)/python -m bench

docs: $(READY) dashboards  ## generated pages, and the documentation in site/; fails on a broken link
	$(BIN)/python tools/docs.py
	$(BIN)/python tools/man.py
	$(BIN)/python tools/chart.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

manifests: $(READY)  ## render deploy/kubernetes from the chart; needs helm
	PATH=.e2e:$$PATH $(BIN)/python tools/manifests.py

dist: $(READY)  ## reproducible wheel and sdist, and a bill of materials
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python tools/sbom.py > dist/sbom.cdx.json

image-test: $(READY)  ## build and start the image and the systemd unit on a clean Debian; needs root
	IMAGE=1 $(BIN)/python -m pytest tests/image -rA

dashboards: $(READY)  ## generate mixin/dashboards
	$(BIN)/python -m tools.dashboards

audit: $(READY)  ## check dependencies against PyPI advisories
	$(BIN)/python -m tools.audit

clean:
	rm -rf $(VENV) .e2e build dist site

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[auth,top]' grpcio hatchling hypothesis jsonschema mkdocs-material mypy playwright prometheus-client protobuf pytest ruff \
	  types-PyYAML types-grpcio types-jsonschema types-protobuf
	touch $@

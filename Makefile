# Two commands need nothing but a fresh clone, Python and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS := 6
PARALLEL := -n $(WORKERS) --dist loadfile
SLOW := $(addprefix --ignore=tests/,real hostile h200scripts fuzz cli deploy mixin test_docs.py test_work.py tools/top tools/report/test_promql.py \
	catalog/dialects/test_division.py ledger/test_always_true.py shares/test_recordings.py storage/test_journal.py \
	recording/test_recording.py web/snapshot/test_history.py)

export STRICT
# Without compiled modules, every command that a test runs would compile the whole package.
export PYTHONDONTWRITEBYTECODE :=
# Prometheus and promtool spend a third of their time on garbage.
export GOGC := 400

.PHONY: demo serve test compiled quick e2e mock conformance lint bench docs docs-serve dashboards screenshots manifests dist packages \
	image-test audit clean python zig

demo: python  ## replay a node with four GPUs on port 9400; installs nothing
	PYTHONPATH=src $(PYTHON) -m gpuledger demo

serve: $(READY)  ## expose this host's GPUs on port 9400
	$(BIN)/gpuledger serve

test: python  ## all tests; leaves out what this machine lacks and names it; STRICT=1 makes that a failure
	@$(PYTHON) tests/components.py
	@$(MAKE) --no-print-directory $(READY) $(if $(wildcard /usr/bin/chromium),$(BROWSER))
	@$(MAKE) --no-print-directory -j 2 lint compiled
	$(BIN)/python -m pytest $(PARALLEL); status=$$?; $(PYTHON) tests/components.py --summary; exit $$status

compiled: $(READY)  # the tests, once: otherwise each worker compiles them
	@$(BIN)/python -m pytest --collect-only > /dev/null || true  # errors are shown by the tests

quick: WORKERS := 4
quick: $(READY)  ## the tests that need no daemon and little time, in less than a minute
	$(BIN)/ruff check .
	$(BIN)/python -m pytest $(PARALLEL) $(SLOW)

e2e: $(READY)  ## real components of Kubernetes and nerdctl, built from source; needs root and the network
	$(BIN)/python -m tests.e2e.build
	$(BIN)/python -m pytest tests/e2e

mock: $(READY)  ## all GPU models of NVIDIA's mock of NVML; MOCK_NVML is its directory
	MOCK_NVML=$(MOCK_NVML) $(BIN)/python -m pytest tests/mock

conformance: $(READY)  ## metrics test of Kubernetes AI conformance; CONFORMANCE is its test binary
	CONFORMANCE=$(CONFORMANCE) $(BIN)/python -m pytest tests/conformance

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure the overhead and write bench/RESULTS.md
	$(BIN)/python -m bench

docs: $(READY) dashboards  ## generated pages, and the documentation in site/; fails on a broken link
	$(BIN)/python tools/docs.py
	$(BIN)/python -m tools.man
	$(BIN)/python -m tools.completion
	$(BIN)/python tools/chart.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: $(READY)  ## the documentation on http://localhost:8000, with search
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr localhost:8000

screenshots: $(READY) $(BROWSER)  ## take the pictures of README and of the documentation anew; needs Chromium
	$(BIN)/python -m tools.screenshot

manifests: $(READY)  ## render deploy/kubernetes from the chart; needs helm
	PATH=.e2e:$$PATH $(BIN)/python tools/manifests.py

dist: $(READY)  ## reproducible wheel and sdist, a bill of materials, dashboards for grafana.com, and kubectl-gpu
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python tools/sbom.py > dist/sbom.cdx.json
	$(BIN)/python -m tools.dashboards dist
	$(BIN)/python tools/kubectlzip.py

packages: dist  ## Debian and RPM packages in dist/; needs dpkg-deb and rpmbuild
	$(BIN)/python tools/packages.py

image-test: $(READY)  ## build and start the image and the systemd unit on a clean Debian; needs root
	IMAGE=1 $(BIN)/python -m pytest tests/image -rA

dashboards: $(READY)  ## generate mixin/dashboards
	$(BIN)/python -m tools.dashboards

audit: $(READY)  ## check dependencies against PyPI advisories
	$(BIN)/python -m tools.audit

clean:
	rm -rf $(VENV) .e2e build dist site

python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing; on Debian: apt install python3 python3-venv" >&2; exit 1; }

$(READY): pyproject.toml constraints.txt | python
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "venv is missing; on Debian: apt install python3-venv" >&2; exit 1; }
	@echo "Downloading the packages of the tests: 70 MB, 310 MB in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) \
	  -e '.[auth,top]' grpcio hatchling hypothesis jsonschema mkdocs-material mypy nvidia-ml-py opentelemetry-proto prometheus-client protobuf pytest \
	  pytest-xdist ruff types-PyYAML types-grpcio types-jsonschema types-protobuf
	touch $@

$(BROWSER): $(READY)
	@echo "Downloading Playwright, because this machine has Chromium: 55 MB, 170 MB in $(VENV)"
	$(PIP) playwright
	touch $@

zig: $(READY)  ## a C compiler for the tests, for a machine that has none
	@echo "Downloading Zig: 100 MB"
	$(PIP) ziglang

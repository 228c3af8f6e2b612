# make course    run every lesson headless and check every verdict (sets up .venv first)
# make test      the tests, the committed notebook outputs included
# make lab       open JupyterLab on the first lesson
# make help      the rest

PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE ?= 1

course: .venv  ## run every lesson headless, check every verdict (the main job)
	$(BIN)/labkit course

.venv: pyproject.toml constraints.txt  ## set up the environment, nothing else
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the lab needs Python 3.11 or newer; make PYTHON=python3.12 .venv")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[course,trl,test]'
	@touch .venv

test: .venv  ## unit tests, and every notebook against its committed outputs
	$(BIN)/python -m pytest -m 'not browser and not slow' --numprocesses=logical --maxprocesses=4 --dist=loadfile \
		--hypothesis-profile=ci \
		--nbval --nbval-cell-timeout=300 --nbval-sanitize-with tests/notebooks/sanitize.cfg tests notebooks

slow-test: .venv  ## every lesson's verdicts on seeds 0-9, on 1 and 2 threads
	$(BIN)/python -m pytest -m slow tests

mutants: .venv  ## every verdict must fail under at least one deliberate mistake; prints verdict × mutant
	$(BIN)/python scripts/claims.py mutants --write out/mutants.md

seeds: .venv  ## every verdict's smallest margin on seeds 0-19, on 1 and 2 threads
	$(BIN)/python scripts/claims.py seeds --write out/seeds.md

browser-test: .venv  ## lessons in a real JupyterLab in headless Chromium
	$(BIN)/python -m pytest -m browser tests/browser

gpu-test: .venv  ## what only a GPU can show
	$(BIN)/python -m pytest -m gpu tests

lab: .venv  ## open JupyterLab on the first lesson
	$(BIN)/labkit lab

notebooks: .venv  ## execute the notebooks in place and keep their outputs
	$(BIN)/python scripts/execute.py

html: .venv  ## all lessons as a static site in out/site, for people who have not installed anything
	$(BIN)/python scripts/site.py

pictures: .venv  ## the pictures of README.md, taken of a real JupyterLab in Chromium
	$(BIN)/python scripts/pictures.py

bench: .venv  ## claims of speed, side by side
	@for bench in benchmarks/bench_*.py; do echo "== $$bench"; $(BIN)/python $$bench || exit 1; done

lint: .venv  ## ruff (notebooks too) and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pin: .venv  ## constraints.txt and environment.yml from what is installed
	$(BIN)/python scripts/pin.py

help:  ## this list
	@grep -E '^[.a-z-]+:.*##' Makefile | sed -E 's/:.*## / - /'

.PHONY: course test slow-test mutants seeds browser-test gpu-test lab notebooks html pictures bench lint pin help

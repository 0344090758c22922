# The commands of this checkout. Each makes or updates .venv by itself first.
#   make setup CUDA=1              the declared dependencies (CUDA) on a machine without a GPU
#   make setup PYTHON=python3.12   the interpreter to make .venv with

PYTHON =
CUDA = auto
ARGS =
RUN := .venv/bin/python

# Any Python will do to start: tools/bootstrap.py looks for a supported one itself.
STARTER = $(or $(PYTHON),$(shell command -v python3 || command -v python3.14 || \
	command -v python3.13 || command -v python3.12 || command -v python3.11))

.DEFAULT_GOAL := help
.PHONY: help setup demo serve bench test soak check gpu-bundle clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{printf "make %-10s %s\n", $$1, $$2}'

setup: ## make or update .venv (python: .venv/bin/python)
	@test -n "$(STARTER)" || { echo "setup: no Python found. Install Python 3.11 or later." >&2; exit 1; }
	@exec "$(STARTER)" tools/bootstrap.py --cuda "$(CUDA)" $(if $(PYTHON),--only-this-python)

demo: setup ## start a server, ask it about a picture, show the answers, stop
	@$(RUN) -m sglang_photon.demo

serve: setup ## keep a server with the demo model running (ARGS="--port 8000 ...")
	@$(RUN) -m sglang_photon.launch_server --model-path demo $(ARGS)

bench: setup ## the scheduler's host time beside SGLang's, in a few minutes (ARGS="--plot FILE ...")
	@$(RUN) -m sglang_photon.bench host --short $(ARGS)

test: setup ## all tests (ARGS="-k name ...")
	@$(RUN) -m pytest $(ARGS)

soak: setup ## the long tests, those marked "soak" (ARGS="--schedules 1000 -k name ...")
	@$(RUN) -m pytest -m soak $(ARGS)

check: setup ## lint, format, types, spelling, layout
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(RUN) -m codespell_lib
	@$(RUN) tools/check_tree.py

gpu-bundle: setup ## one folder for a GPU machine without network (ARGS="--out FOLDER")
	@$(RUN) tools/gpu_bundle.py $(ARGS)

clean: ## remove .venv and everything built or cached in the checkout
	@rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find sglang_photon profiling bench tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Every verb builds the environment in .venv first; Python 3.11 to 3.13 and make are all it needs.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv/bin
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# JupyterLab: loopback only; root (a container) must be allowed; no browser where there is no display.
LAB := --ip=127.0.0.1 --ServerApp.root_dir=notebooks --LabApp.default_url=/lab/tree/start.ipynb
LAB += $(if $(filter 0,$(shell id -u)),--allow-root)
LAB += $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(BROWSER)$(filter Darwin,$(shell uname)),,--no-browser)

.DEFAULT_GOAL := help
.PHONY: help lab test browser grade audit release check gpu bench lock

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lab: .venv/ready  ## check the machine and open the lessons in JupyterLab
	$(VENV)/flashkit doctor
	JUPYTER_CONFIG_PATH=$(CURDIR) $(VENV)/jupyter lab $(LAB)

test: .venv/ready  ## everything that needs no GPU and no browser (15 minutes at most on 2 cores)
	OMP_NUM_THREADS=1 $(VENV)/pytest tests solutions -m "not browser" -n 2 --dist loadscope \
		--nbval-lax --nbval-current-env --nbval-cell-timeout=120

# Without chromium each test is skipped by name; screenshots and latencies are in tests/browser/output.
browser: .venv/ready  ## the explorers in a real JupyterLab (needs chromium)
	@for name in chromium chromium-browser google-chrome-stable google-chrome; do \
		command -v $$name >/dev/null && exit 0; done; \
		echo "No chromium here, so these tests are skipped: apt-get install chromium, or install Google Chrome"
	OMP_NUM_THREADS=1 $(VENV)/pytest tests/browser

gpu: .venv/ready  ## what needs a CUDA device
	$(VENV)/pytest tests -m gpu

bench: .venv/ready  ## time the kernels beside their peers on this GPU (quick: under 5 minutes)
	$(VENV)/flashkit bench --quick

check: .venv/ready  ## lint, format, and that notebooks/ is what solutions/ makes
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/autograder release --check

grade: .venv/ready  ## mark three sample submissions and show the marks
	$(VENV)/autograder demo

audit: .venv/ready  ## try the grader: right and wrong answers of known fate, hostile submissions
	$(VENV)/autograder catalogue
	$(VENV)/autograder attack

release: .venv/ready  ## make notebooks/ from solutions/
	$(VENV)/autograder release

lock: .venv/ready  ## pin all that pyproject.toml pulls in, for every platform and Python
	$(VENV)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras \
		--no-header --no-annotate --quiet --output-file requirements.lock

# The environment. Without an NVIDIA GPU the CPU build of torch is enough: 200 MB instead of 3 GB.
# It comes from PyTorch's own index or, where that cannot be reached, from the one pip is set to.
.venv/ready: pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "No Python 3.11, 3.12 or 3.13 found: install one, or say make PYTHON=/path/to/it"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	@if [ "$$(uname)" = Linux ] && [ ! -e /dev/nvidia0 ] && ! nvidia-smi -L >/dev/null 2>&1; then \
		echo "No NVIDIA GPU here: installing the CPU build of torch"; \
		$(VENV)/pip install --no-deps -c requirements.lock --retries 1 --timeout 10 \
			--index-url $(TORCH_CPU_INDEX) torch 2>.venv/torch-cpu.log || { \
		echo "PyTorch's index cannot be reached (see .venv/torch-cpu.log): installing from pip's own index"; \
		$(VENV)/pip install --no-deps -c requirements.lock torch; }; \
	fi
	$(VENV)/pip install -c requirements.lock -e '.[course,grading,dev]'
	$(VENV)/jupyter labextension disable --level=sys_prefix @jupyterlab/apputils-extension:announcements
	touch $@

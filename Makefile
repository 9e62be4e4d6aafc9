# Every target sets up .venv by itself; only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := train,client,openvino,xla,mpi,objects,signed
DEMO_ARGS ?=
DATA ?=
BENCH_ARGS ?=
FAULTS_ARGS ?=
MUTANTS_ARGS ?=
DOCS_ARGS ?=
LOADTEST_ARGS ?=
CORE_ARGS ?=
# XLA compiles for minutes what short tests run for milliseconds; long tests optimise it as users do. Without its fusion
# emitters it compiles a step of training in a fifth of the time.
QUICK_XLA := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false
# Modules with compiled functions.
KERNELS := $(wildcard processor/kernels/*.py) models/data/event_kernels.py models/data/tfrecord.py models/embedding/kernels.py \
	models/parallel/id_kernels.py models/training/item_count_kernels.py models/training/same_histories.py \
	processor/extensions/device_rows/slot_kernels.py \
	processor/extensions/remote_rows/batch_ids.py processor/extensions/remote_rows/bucket_bytes.py \
	processor/extensions/remote_rows/cached_rows.py processor/extensions/top_items/code_scan.py \
	processor/extensions/top_items/record_reads.py processor/extensions/top_items/text_codes.py \
	processor/extensions/user_state/erase_kernels.py processor/extensions/user_state/read_kernels.py \
	processor/extensions/user_state/state_arena.py
# COVERED=1 has the lines and branches that tests run counted: `make -C loadtest coverage`.
COVERED ?=
PYTEST := $(BIN)/python -m $(if $(COVERED),coverage run -m )pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Hundreds of processes start from the same sources: Python keeps what it has compiled.
unexport PYTHONDONTWRITEBYTECODE
KILL_ROUNDS ?= 200
GPU_ARGS ?=
IMAGE_ARGS ?=
RELEASE_ARGS ?=
DOCS := properdocs mkdocs-materialx 'mkdocs-redirects>=1.2.2'
TOOLS := 'setuptools>=77' hatchling twine check-wheel-contents cyclonedx-bom check-jsonschema pre-commit towncrier
TORCH := torch==2.13.0
TEST_ARGS ?=
CORE_ARGS ?=

.PHONY: help install demo test test-long test-affected core-alone check docs format bench faults mutants loadtest conformance kills release image-check gpu-check constraints clean

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16
	@echo "make -C loadtest help lists the benchmarks, long trials and generated files"

install: .venv/.kernels ## training, serving, clients and every backend of a CPU, as .venv/bin/freshet
	@echo "ready: $(BIN)/freshet"

demo: .venv/.kernels ## the whole job in one command; DATA=folder for real data, DEMO_ARGS="--exit-after 30"
	$(BIN)/freshet demo $(if $(DATA),--data $(DATA)) $(DEMO_ARGS)

test: .venv/.dev .venv/.kernels ## the tests, two files at a time, without the long stories
	XLA_FLAGS="$(QUICK_XLA)" $(PYTEST) -m "not long" $(TEST_ARGS)

test-long: .venv/.dev .venv/.kernels .venv/.tools ## stories: training, imports, canaries and clients from end to end; make -C loadtest stories has the longest
	$(PYTEST) -m "long and not kills and not campaign" $(TEST_ARGS)

test-affected: .venv/.dev .venv/.kernels ## the tests that a change can break; SINCE=revision [where the branch left main], LONG=1 for the long ones as well
	@tests=$$($(BIN)/python -m tests.affected --list $(SINCE)) || exit 1; [ -z "$$tests" ] || \
		$(if $(LONG),,XLA_FLAGS="$(QUICK_XLA)") $(PYTEST) -m $(if $(LONG),"not kills and not campaign","not long") $(TEST_ARGS) $$tests

core-alone: .venv/.dev .venv/.kernels ## a copy without extensions: the core's short tests, a server that serves, and what it loads; CORE_ARGS=--story
	XLA_FLAGS="$(QUICK_XLA)" $(BIN)/python -m tests.core_alone $(CORE_ARGS)

check: .venv/.dev .venv/.kernels ## lint, format, types, spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

docs: .venv/.docs .venv/.kernels ## the documentation as a site: build/site; DOCS_ARGS=serve shows it while you write
	$(BIN)/python -m generators.reference
	.venv/docs/bin/properdocs $(or $(DOCS_ARGS),build --strict)

format: .venv/.dev ## lint and format, put right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev .venv/.kernels ## server and engine against the bare loop, an echo, themselves; BENCH_ARGS="--only single --quick"
	$(BIN)/python -m loadtest.bench $(BENCH_ARGS)

faults: .venv/.dev .venv/.kernels ## an hour of everything that goes wrong, replies checked; FAULTS_ARGS="--minutes 5"
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

mutants: .venv/.dev .venv/.kernels ## small changes of the code: does a test notice? MUTANTS_ARGS="--only chain --mutants 12"
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

loadtest: .venv/.dev .venv/.kernels ## locust for 60 s with a delta every second; report in loadtest/results/
	$(BIN)/python -m loadtest $(LOADTEST_ARGS)

conformance: .venv/.conformance ## servers driven by tritonclient, tensorflow-serving-api, kserve, schemathesis and perf_analyzer (needs Debian's libb64-0d)
	FRESHET_SCHEMATHESIS=$(CURDIR)/.venv/schemathesis/bin/schemathesis FRESHET_SCHEMA_EXAMPLES=50 \
	FRESHET_PERF_ANALYZER=.venv/perf/bin/perf_analyzer LD_LIBRARY_PATH=.venv/perf/nvidia/cuda_runtime/lib \
	FRESHET_KSERVE_PYTHON=$(CURDIR)/.venv/kserve/bin/python \
		$(BIN)/python -m pytest tests/e2e/test_conformance.py tests/e2e/test_protocol_cases.py tests/e2e/test_docs.py \
		tests/e2e/test_schemas.py tests/e2e/test_access_clients.py tests/peers

kills: .venv/.dev .venv/.kernels ## kill -9 of trainer, publisher and server at random moments; KILL_ROUNDS=200
	FRESHET_KILL_ROUNDS=$(KILL_ROUNDS) $(BIN)/python -m pytest -m kills -o faulthandler_timeout=7200 tests/e2e

release: .venv/.kernels .venv/.tools ## dist/<version>/: both distributions built, checked and used; RELEASE_ARGS="--draft --build-only"
	$(BIN)/python -m tests.release $(RELEASE_ARGS)

image-check: .venv/.dev .venv/.kernels ## every stage of the Dockerfile, built, started and replaced (root, with buildah and debootstrap); loadtest/results/image.md
	$(BIN)/python -m tests.image $(IMAGE_ARGS)

gpu-check: .venv/.dev .venv/.kernels ## the whole GPU side on a machine with an NVIDIA GPU; docs/reference/gpu/REPORT-<device>.md
	$(BIN)/python -m tests.gpu check $(GPU_ARGS)

constraints: ## constraints.txt and .ci/tools.txt anew: the newest releases that agree with each other
	$(PYTHON) -m venv --clear build/constraints
	build/constraints/bin/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS),loadtest,dev]' $(DOCS)
	(grep '^#' constraints.txt; build/constraints/bin/pip freeze --exclude-editable) > build/constraints.txt
	mv build/constraints.txt constraints.txt
	$(PYTHON) -m venv --clear build/tools
	build/tools/bin/pip install --quiet --disable-pip-version-check $(TOOLS)
	(grep '^#' .ci/tools.txt; build/tools/bin/pip freeze --all --exclude pip) > build/tools.txt
	mv build/tools.txt .ci/tools.txt

# axe-core by npm, for the accessibility tests of the console.
build/axe/axe.min.js:
	npm install --silent --no-save --prefix build/axe axe-core@4.14.1
	cp build/axe/node_modules/axe-core/axe.min.js $@

# Schemas of the Prometheus operator and KServe, for the tests of deploy/.
build/schemas/kserve: .venv/bin/pip
	npm install --silent --no-save --ignore-scripts --prefix build/schemas @kubernetes-models/prometheus-operator@6.0.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@ kserve==0.21.0

clean: ## removes .venv, build and .demo
	rm -rf .venv build dist *.egg-info .demo

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing into .venv: Freshet with TensorFlow, ONNX Runtime, OpenVINO, XLA and the clients; minutes, about 3 GB"
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

.venv/.kernels: .venv/.installed $(KERNELS)
	$(BIN)/python -m freshet_serving.processor.kernels --here
	@touch $@

# What builds and checks, with dependencies of its own.
.venv/.tools: .venv/bin/pip .ci/tools.txt
	$(PYTHON) -m venv --clear .venv/tools
	.venv/tools/bin/pip install --quiet --disable-pip-version-check -r .ci/tools.txt
	@touch $@

.venv/.docs: .venv/bin/pip constraints.txt
	$(PYTHON) -m venv --clear .venv/docs
	.venv/docs/bin/pip install --quiet --disable-pip-version-check -c constraints.txt $(DOCS)
	@touch $@

# For the tests of the PyTorch hook, which find it there: PyTorch for CPUs and what a publisher needs, nothing of the
# server. They are skipped where pip finds no such PyTorch, or one that brings gigabytes of CUDA.
.venv/.torch: .venv/bin/pip constraints.txt
	$(PYTHON) -m venv --clear .venv/torch
	@pip=".venv/torch/bin/pip install --disable-pip-version-check --no-compile --only-binary :all: -c constraints.txt"; \
	case "$$($$pip --dry-run $(TORCH) 2>/dev/null | grep '^Would install')" in \
	    '') echo "torch: pip finds no $(TORCH) here: the tests of the hook are skipped" ;; \
	    *nvidia*) echo "torch: pip finds $(TORCH) with CUDA only: the tests of the hook are skipped" ;; \
	    *) $$pip --quiet $(TORCH) numpy xxhash orjson coverage ;; \
	esac
	@touch $@

# Without their dependencies: tensorflow-serving-api wants another TensorFlow than the one that is there, and of this
# tritonclient only the binary is wanted. Schemathesis brings a pytest of its own.
.venv/.conformance: .venv/.dev
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps 'tensorflow-serving-api>=2.18'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .venv/perf \
		tritonclient==2.48.0 nvidia-cuda-runtime-cu12
	$(PYTHON) -m venv .venv/schemathesis
	.venv/schemathesis/bin/pip install --quiet --disable-pip-version-check 'schemathesis>=4'
	$(PYTHON) -m venv .venv/kserve
	.venv/kserve/bin/pip install --quiet --disable-pip-version-check kserve==0.21.0
	@touch $@

.venv/.dev: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),loadtest,dev]'
	@touch $@

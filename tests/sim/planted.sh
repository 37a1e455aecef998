#!/usr/bin/env bash
# Plants one bug after the other in a copy of the sources, and has runs under faults, the model test of the
# store, or a test of FaRM-KV or Pilaf, find it.
#
#     tests/sim/planted.sh [NAME...]
#
# The bugs are the patches in tests/planted of the crates sim-bench, mica, farm and pilaf, all of them if none is
# named: the first line describes the bug. The line `System:` names what is run under faults, the line `Model:`
# tests of the store, the line `Test:` a test of the patch's crate, behind its target. The copy is target/planted
# (PLANTED_TREE), with a target directory of its own, so that no program with a bug lies beside the others.
set -euo pipefail
cd "$(dirname "$0")/../.."
copy=${PLANTED_TREE:-$PWD/target/planted}
export CARGO_TARGET_DIR=$copy/target
patches=(crates/herdwick-{sim-bench,mica,farm,pilaf}/tests/planted/*.patch)
if [ $# -eq 0 ]; then
    set -- $(basename -s .patch "${patches[@]}")
fi
# Longest time in which a bug is found, the build included.
limit=600

# Prints what finds a bug of HERD or another system: the seed.
find_by_faults() {
    HERDWICK_PLANTED=$1 timeout $limit cargo test -q -p herdwick-sim-bench \
        --test faults planted::bug_is_found -- --exact --ignored --nocapture 2>&1
}

# Prints the seed at which the tests of the store fail. Each seed is a few cases: a test may need several.
# That it compiles is no matter of the tests.
find_by_model() {
    timeout $limit cargo test -q -p herdwick-mica --test model --no-run 2>&1 || return
    local found seed
    for seed in {1..20}; do
        # The first case that fails is enough.
        if found=$(PROPTEST_RNG_SEED=$seed PROPTEST_MAX_SHRINK_ITERS=0 timeout $limit \
            cargo test -q -p herdwick-mica --test model -- $1 2>&1); then
            continue
        fi
        grep -q '^test result: FAILED' <<<"$found" || { tail -n 20 <<<"$found"; return 1; }
        sed -n "s/^test result: FAILED/seed $seed: test result: FAILED/p" <<<"$found"
        return
    done
    return 1
}

# Prints that a test fails which passes without the bug. The arguments: the crate, the target, the test.
find_by_test() {
    local crate=$1 found
    set -- $2
    local test=${!#} target=("${@:1:$#-1}")
    timeout $limit cargo test -q -p "$crate" "${target[@]}" --no-run 2>&1 || return
    found=$(timeout $limit cargo test -q -p "$crate" "${target[@]}" -- --exact "$test" 2>&1) || true
    # That no test has the name is no failure of one.
    grep '^test result: FAILED. 0 passed; 1 failed' <<<"$found" || { tail -n 20 <<<"$found"; return 1; }
}

# Has the bug of a patch found in the copy.
find_bug() {
    local patch=$1 system model test
    system=$(sed -n 's/^System: //p' "$patch")
    model=$(sed -n 's/^Model: //p' "$patch")
    test=$(sed -n 's/^Test: //p' "$patch")
    if [ -n "$model" ]; then
        find_by_model "$model"
    elif [ -n "$test" ]; then
        find_by_test "$(cut -d / -f 2 <<<"$patch")" "$test"
    else
        find_by_faults "$system"
    fi
}

failed=0
for name in "$@"; do
    patch=$(printf '%s\n' "${patches[@]}" | grep "/$name\.patch$")
    mkdir -p "$copy"
    # Files that are gone since the last copy.
    find "$copy" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
    # What is the same keeps its time, and is not built again; what a patch changes is.
    git ls-files -z | tar --null --files-from=- -c | tar -x -C "$copy"
    sed -n 's,^+++ b/,,p' "${patches[@]}" | sort -u | (cd "$copy" && xargs touch)
    # As outside of any repository: the copy is in a folder that git ignores.
    GIT_CEILING_DIRECTORIES=$(dirname "$copy") git -C "$copy" apply "$PWD/$patch"
    begun=$SECONDS
    if found=$(cd "$copy" && find_bug "$patch"); then
        printf '%s, %s s: %s\n' "$name" $((SECONDS - begun)) "$(grep -E '^(seed [0-9]+: |test result: )' <<<"$found")"
    else
        printf '%s: not found\n%s\n' "$name" "$found"
        failed=1
    fi
done
exit $failed

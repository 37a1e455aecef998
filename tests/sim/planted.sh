#!/usr/bin/env bash
# Plants one bug after the other in a copy of the sources, and has runs under faults find it.
#
#     tests/sim/planted.sh [NAME...]
#
# The bugs are the patches in crates/herdwick-sim-bench/tests/planted, all of them if none is named: the
# first line describes the bug, the line `System:` names what is run. The copy is target/planted
# (PLANTED_TREE), with a target directory of its own, so that no program with a bug lies beside the others.
set -euo pipefail
cd "$(dirname "$0")/../.."
copy=${PLANTED_TREE:-$PWD/target/planted}
export CARGO_TARGET_DIR=$copy/target
folder=crates/herdwick-sim-bench/tests/planted
if [ $# -eq 0 ]; then
    set -- $(cd "$folder" && basename -s .patch *.patch)
fi
# Longest time in which a bug is found, the build included.
limit=600

failed=0
for name in "$@"; do
    patch=$folder/$name.patch
    mkdir -p "$copy"
    # Files that are gone since the last copy.
    find "$copy" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
    # What is the same keeps its time, and is not built again; what a patch changes is.
    git ls-files -z | tar --null --files-from=- -c | tar -x -C "$copy"
    sed -n 's,^+++ b/,,p' "$folder"/*.patch | sort -u | (cd "$copy" && xargs touch)
    # As outside of any repository: the copy is in a folder that git ignores.
    GIT_CEILING_DIRECTORIES=$(dirname "$copy") git -C "$copy" apply "$PWD/$patch"
    system=$(sed -n 's/^System: //p' "$patch")
    begun=$SECONDS
    if found=$(cd "$copy" && HERDWICK_PLANTED=$system timeout $limit cargo test -q -p herdwick-sim-bench \
        --test faults planted::bug_is_found -- --exact --ignored --nocapture 2>&1); then
        printf '%s, %s s: %s\n' "$name" $((SECONDS - begun)) "$(grep '^seed ' <<<"$found")"
    else
        printf '%s: not found\n%s\n' "$name" "$found"
        failed=1
    fi
done
exit $failed

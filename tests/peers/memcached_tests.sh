#!/usr/bin/env bash
# memcached's own tests (t/*.t, without the proxy's and extstore's, and the two that check its source
# tree) with our server in memcached's place: `bash tests/peers/memcached_tests.sh DIRECTORY [FILE.t...]`, where DIRECTORY is the source of
# 1.6.45, built. Prints a line for each file, and fails where one is not as the table in
# docs/operating.md has it. Needs perl; the files on TLS need its IO::Socket::SSL, and that on SASL
# needs saslpasswd2, with which it makes its user for a memcached. Takes 10 minutes.
set -euo pipefail
source=$(realpath "$1")
shift
. "$(dirname "$0")/server.sh"
table=$PWD/docs/operating.md

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$source"/{t,scripts,timedrun} "$source"/*.h "$work"
cd "$work"
# What the tests start. `relaxed_privileges` is what they give to a debug build alone.
cat >memcached-debug <<WRAPPER
#!/usr/bin/env bash
given=()
for word; do
    [ "\$word" != relaxed_privileges ] || { unset 'given[-1]'; continue; }
    given+=("\$word")
done
exec "$herdwick" serve --debug-commands "\${given[@]}"
WRAPPER
chmod +x memcached-debug
# The user of binary-sasl.
echo testuser@memcached.realm:testpass >users
# The files that do not pass, as the rows of the table name them.
expected=$(sed -n '/^| test | why not |/,/^$/p' "$table" | cut -d '|' -f 2 | grep -o '`[^`]*`' | tr -d '`')

wrong=0
[ $# -gt 0 ] || set -- $(cd t && ls ./*.t | grep -v 'proxy\|extstore\|line-lengths\|whitespace')
printf '%-28s %-8s %6s %6s\n' file result ok "not ok"
for file in "$@"; do
    name=$(basename "$file" .t)
    result=passes
    asked=()
    case $name in
        ssl_*) asked=(SSL_TEST=1) ;;
        binary-sasl) asked=(RUN_SASL_TESTS=1 MEMCACHED_SASL_PWDB="$PWD/users") ;;
    esac
    # One that hangs is ended.
    env "${asked[@]}" \
        timeout 120 perl "t/$name.t" >"$name.log" 2>&1 </dev/null || result=fails
    ! grep -qi '^1\.\.0 # skip' "$name.log" || result=skips
    printf '%-28s %-8s %6s %6s\n' "$name" "$result" \
        "$(grep -c '^ok' "$name.log")" "$(grep -c '^not ok' "$name.log")"
    is_expected=$(grep -qxF -- "$name" <<<"$expected" && echo fails || echo passes)
    if [ "$result" != skips ] && [ "$result" != "$is_expected" ]; then
        echo "  $name $result, and docs/operating.md has it otherwise:"
        { grep -A 3 '^not ok' "$name.log" || tail -n 3 "$name.log"; } | head -n 12
        wrong=1
    fi
done
exit $wrong

#!/bin/bash
# Tries the package in a clean Debian root: install, serve, produce, consume, console, purge.
# `cargo xtask dist --try` runs it there. The first argument is the version to expect.
set -euo pipefail
version=$1

step() { echo "== $1"; }
fail() { echo "FAILED: $1" >&2; exit 1; }
# What lies in the root, without what adduser, dpkg and logs keep for themselves.
listing() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path /var/log \
        -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/lib/firth -o -path '/etc/*-' \) -prune -o -print | sort
}

listing >/tmp/before

step "install"
dpkg --install /firth.deb
[ "$(firth --version)" = "firth $version" ] || fail "firth --version"
for file in /usr/share/man/man1/firth.1.gz /usr/share/man/man1/firth-serve.1.gz \
    /usr/share/bash-completion/completions/firth /lib/systemd/system/firth.service \
    /usr/share/doc/firth/copyright; do
    [ -s "$file" ] || fail "$file is missing"
done
[ "$(stat -c '%U:%G %a' /etc/firth/firth.env)" = "root:firth 640" ] || fail "rights of the settings"
[ "$(stat -c '%U:%G %a' /var/lib/firth)" = "firth:firth 750" ] || fail "rights of the data"

step "serve as the unit does"
grep -q '^User=firth$' /lib/systemd/system/firth.service || fail "the unit's user"
set -a
. /etc/firth/firth.env
FIRTH_ENGINE=file:/var/lib/firth/data
FIRTH_LISTEN=127.0.0.1:0
set +a
cd /var/lib/firth
setpriv --reuid=firth --regid=firth --clear-groups --no-new-privs firth serve >/tmp/told 2>/tmp/log &
server=$!
for _ in $(seq 200); do
    grep -q 'listens on' /tmp/told && break
    kill -0 $server 2>/dev/null || { cat /tmp/log >&2; fail "the server ended"; }
    sleep 0.1
done
export FIRTH_SERVER
FIRTH_SERVER=$(sed -n 's/^firth listens on //p' /tmp/told)
[ -n "$FIRTH_SERVER" ] || fail "the server tells no address"

step "use it at $FIRTH_SERVER"
firth topic create orders --partitions 2
firth produce orders 'one coffee' --key ada
[ "$(firth consume orders --group bar --max 1)" = "one coffee" ] || fail "the message came otherwise"
firth doctor
address=${FIRTH_SERVER#http://}
exec 3<>"/dev/tcp/${address%:*}/${address#*:}"
printf 'GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$address" >&3
page=$(cat <&3)
exec 3>&-
grep -q '200 OK' <<<"$page" && grep -q '<title>' <<<"$page" || fail "no console at /"

step "stop"
kill -TERM $server
wait $server || fail "the server ended with $?"

step "purge"
cd /
dpkg --purge firth
! getent passwd firth >/dev/null || fail "the user is still there"
[ -d /var/lib/firth/data ] || fail "the purge took the data"
listing >/tmp/after
if ! diff /tmp/before /tmp/after; then fail "the purge left files, or took others"; fi
echo "the package installs, serves and leaves nothing but data"

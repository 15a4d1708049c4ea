#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
# lib/usdt.h: the notes are well formed and an idle site is one nop. TAP on stdout.
src=$(dirname "$0")
inc=$src/../../lib
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
n=0
failed=0

check() # NAME STATUS [DETAIL-FILE]
{
	n=$((n + 1))
	if [ "$2" -eq 0 ]; then
		echo "ok $n - $1"
	else
		echo "not ok $n - $1"
		[ -z "$3" ] || sed 's/^/# /' "$3"
		failed=1
	fi
}

for cc in gcc clang; do
	if ! command -v $cc >/dev/null; then
		n=$((n + 1))
		echo "ok $n - $cc # SKIP $cc is not installed"
		continue
	fi
	for how in "-O0" "-O2" "-O2 -fPIC -shared -DUSDT_NO_MAIN" \
		"-O2 -ffunction-sections -Wl,--gc-sections"; do
		# shellcheck disable=SC2086 # the options are several words
		$cc -Wall -Wextra -Werror -I"$inc" $how -o "$tmp/site" "$src/usdt_site.c" 2>"$tmp/log" &&
			readelf -n "$tmp/site" >"$tmp/log" 2>&1 &&
			awk '/Provider: sluice/ { provider = 1 }
			     /Name: batch_publish/ && provider { name = 1 }
			     /Semaphore: 0x0*[1-9a-f]/ && name { semaphore = 1 }
			     /Arguments: 8@%r[a-z0-9]+ 8@%r[a-z0-9]+ 8@%r[a-z0-9]+$/ && semaphore { ok = 1 }
			     END { exit !ok }' "$tmp/log"
		check "notes with $cc $how" $? "$tmp/log"
	done
done

gcc -O2 -I"$inc" -o "$tmp/site" "$src/usdt_site.c" &&
	objdump -d --no-show-raw-insn --disassemble=site "$tmp/site" |
	awk '/^ / { print $2 }' | grep -v '^mov$' >"$tmp/probe" &&
	objdump -d --no-show-raw-insn --disassemble=bare "$tmp/site" |
	awk '/^ / { print $2 }' | sed '/^nopw\|^data16\|^xchg/d' >"$tmp/bare" &&
	sed -i '/^nopw\|^data16\|^xchg/d' "$tmp/probe" &&
	diff "$tmp/bare" "$tmp/probe" >"$tmp/log"
grep '^[<>]' "$tmp/log" >"$tmp/diff"
[ "$(cat "$tmp/diff")" = "> nop" ]
check "an idle site is one nop" $? "$tmp/log"

if command -v clang >/dev/null; then
	clang --target=aarch64-linux-gnu -ffreestanding -O2 -c -DUSDT_NO_MAIN -I"$inc" \
		-o "$tmp/a64.o" "$src/usdt_site.c" 2>"$tmp/log" &&
		readelf -n "$tmp/a64.o" >"$tmp/log" 2>&1 &&
		grep -Eq 'Arguments: 8@x[0-9]+ 8@x[0-9]+ 8@x[0-9]+' "$tmp/log"
	check "notes for aarch64" $? "$tmp/log"
fi

gcc -Wall -Werror -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
	-D_GNU_SOURCE -I"$src/../../tools" \
	-o "$tmp/parse" "$src/usdt_parse.c" "$src/../../tools/stat_usdt.c" 2>"$tmp/log" &&
	timeout 120 "$tmp/parse" "$tmp/site" "$tmp/fifo" 2>"$tmp/log"
check "broken notes do no harm" $? "$tmp/log"

echo "1..$n"
exit $failed

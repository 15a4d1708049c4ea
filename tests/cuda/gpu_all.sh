#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#
# gpu_all.sh DIR [check|two|bench|all|try] - run the suites and the measurements on this host's GPU
#
# Wants the programs that "make gpu" has built, beside itself or in build/gpu, and nothing else.  Everything
# goes to files in DIR as it comes, so that a run that is cut short leaves what it had: TAP to gpu-*.tap, what
# was said to gpu.log.  Exits with 0 when everything passed and every goal was met.
#
#	check	the suites, the programs, and compute-sanitizer's memcheck; 100 s at most
#	two	what needs two GPUs; 60 s at most
#	bench	the measurements three times, gpu-1.json to gpu-3.json and tables; 270 s at most
#	all	check, then bench; the default
#	try	the experiments of bench_try.c and the rows that they explain, gpu-try.json; 290 s at most
set -u

out=${1:?usage: gpu_all.sh DIR [check|two|bench|all|try]}
what=${2:-all}
bin=$(dirname "$0")
[ -x "$bin/feed" ] || bin=build/gpu
mkdir -p "$out"
log=$out/gpu.log
status=0
: >"$log"

say()
{
	echo "$*" | tee -a "$log"
}

# budget SECONDS: what starts now is over by then.
budget()
{
	deadline=$(($(date +%s) + $1))
}

# limited SECONDS COMMAND...: no longer than that, nor than the budget.
limited()
{
	left=$((deadline - $(date +%s)))
	[ $left -lt "$1" ] || left=$1
	shift
	[ $left -gt 0 ] || return 124
	timeout -k 2 $left "$@"
}

# suite NAME SECONDS COMMAND...: one TAP file; a suite that is killed or cut short has failed.
suite()
{
	name=$1
	seconds=$2
	shift 2
	begun=$(date +%s)
	limited "$seconds" "$@" >"$out/gpu-$name.tap" 2>>"$log"
	ret=$?
	say "$name: exit status $ret, $(grep -c '^ok' "$out/gpu-$name.tap") ok," \
		"$(grep -c '^not ok' "$out/gpu-$name.tap") not ok," \
		"$(grep -c '# SKIP' "$out/gpu-$name.tap") skipped, $(($(date +%s) - begun)) s"
	grep '^not ok' "$out/gpu-$name.tap" | tee -a "$log"
	return $ret
}

# memcheck NAME PATTERN COMMAND...: what compute-sanitizer finds in a command that says PATTERN.
memcheck()
{
	name=$1
	pattern=$2
	shift 2
	begun=$(date +%s)
	limited 60 "$memcheck" --error-exitcode 9 "$@" >"$out/gpu-memcheck-$name.txt" 2>&1
	ret=$?
	say "memcheck of $name: exit status $ret," \
		"$(grep 'ERROR SUMMARY' "$out/gpu-memcheck-$name.txt"), $(($(date +%s) - begun)) s"
	[ $ret -eq 0 ] && grep -q "$pattern" "$out/gpu-memcheck-$name.txt" &&
		grep -q 'ERROR SUMMARY: 0 errors' "$out/gpu-memcheck-$name.txt"
}

# pump NAME PATTERN ARGS...: sluice pump, whose last line shall be like that.
pump()
{
	name=$1
	pattern=$2
	shift 2
	limited 30 "$bin/sluice" pump "$@" >"$out/gpu-$name.txt" 2>>"$log"
	ret=$?
	say "$name: exit status $ret, $(tail -n 1 "$out/gpu-$name.txt")"
	grep -q "$pattern" "$out/gpu-$name.txt"
}

# Files around words, around batches of 64 KiB, and in many parts.
tree()
{
	mkdir -p "$out/tree"
	for bytes in 0 1 7 8 9 4095 4097 65535 65536 65543 300001 3000000; do
		head -c $bytes /dev/urandom >"$out/tree/$bytes"
	done
}
verified_tree='^verified 12 files, .* 0 mismatches$'

run_check()
{
	# That of the host, which fits its driver, or what "make gpu-sanitizer" has fetched.
	memcheck=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
	[ -x "$memcheck" ] || memcheck=$bin/sanitizer/compute-sanitizer

	# Side by side: most of the time goes into starting CUDA, for each test anew.
	suite feed 60 "$bin/feed" &
	feed=$!
	suite drain 60 "$bin/drain" &
	drain=$!
	suite streams 20 "$bin/streams" || status=1
	wait $feed || status=1
	wait $drain || status=1
	limited 20 "$bin/example_feed" >>"$log" 2>&1 || status=1
	tree
	if [ -x "$memcheck" ]; then
		# Not the suites, which start CUDA some forty times.
		memcheck roundtrip 'went to the device and back' "$bin/roundtrip" || status=1
		if [ -x "$bin/sluice" ]; then
			memcheck pump "$verified_tree" "$bin/sluice" pump --gpu 0 --producers 2 \
				--batch-bytes 64K "$out/tree" || status=1
		fi
	else
		say "memcheck: skipped, there is no compute-sanitizer here"
	fi
	if [ ! -x "$bin/sluice" ]; then
		say "pump: skipped, the program was not built"
		return
	fi
	pump pump-tree "$verified_tree" --gpu 0 --producers 2 --batch-bytes 64K "$out/tree" || status=1
	# /usr/bin is on every host: some of its files may not be readable (exit status 1).
	pump pump '^verified [1-9].* 0 mismatches$' --gpu 0 --batch-bytes 4M --max-bytes 400M \
		/usr/bin /usr/lib || status=1
	limited 20 "$bin/sluice" doctor >"$out/gpu-doctor.txt" 2>>"$log"
	grep -q "device 0 registers" "$out/gpu-doctor.txt" || status=1
	say "$(grep "device 0" "$out/gpu-doctor.txt")"
}

run_two()
{
	tree
	suite two 40 "$bin/two" || status=1
	if grep -q '# SKIP' "$out/gpu-two.tap"; then
		say "two: this host has fewer than two GPUs"
		status=1
	fi
	if [ -x "$bin/sluice" ]; then
		pump two-pump "$verified_tree" --gpu 1 --producers 2 --batch-bytes 64K "$out/tree" ||
			status=1
	fi
}

run_bench()
{
	for run in 1 2 3; do
		begun=$(date +%s)
		# A third of what is left for each.
		limited $(((deadline - begun) / (4 - run))) "$bin/bench" "$out/gpu-$run.json" \
			>"$out/gpu-$run.txt" 2>>"$log"
		ret=$?
		[ $ret -eq 0 ] || status=1
		say "bench $run: exit status $ret, $(($(date +%s) - begun)) s"
		cat "$out/gpu-$run.txt"
	done
}

if ! nvidia-smi -L >/dev/null 2>&1; then
	say "no GPU here: nvidia-smi finds none"
	exit 1
fi
nvidia-smi -L >>"$log" 2>&1
uname -a >>"$log"

case $what in
check | all)
	budget 98
	run_check
	;;
two)
	budget 58
	run_two
	;;
try)
	budget 288
	limited 288 "$bin/bench" "$out/gpu-try.json" small doorbell register images try-wake \
		try-register >"$out/gpu-try.txt" 2>>"$log"
	status=$?
	cat "$log" "$out/gpu-try.txt"
	;;
esac
case $what in
bench | all)
	budget 268
	run_bench
	;;
esac
rm -rf "$out/tree"
say "exit status $status"
exit $status

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Tests of `sluice trace` and `sluice stat` under the kernel that runs; needs root. Prints TAP."""
import fcntl
import functools
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import jsonschema
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

HERE = os.path.dirname(os.path.abspath(__file__))
SLUICE = os.path.abspath("build/sluice")
STORM = os.path.abspath("build/test/bpf/storm")
PRESS = os.path.abspath("build/test/bpf/press")
PIN = "/sys/fs/bpf/sluice"
SCHEMA = json.load(open(os.path.join(HERE, "stat.schema.json")))
TMP = "/tmp/sluice-guest"

tests = []


class Skip(Exception):
    pass


def test(function):
    tests.append(function)
    return function


def test_of_the_program(function):
    """What does not depend on the kernel: of the kernels that tests/bpf/run names, one will do."""

    @functools.wraps(function)
    def once():
        if os.environ.get("KERNEL", "newest") != "newest":
            raise Skip("the same on every kernel, and tested on the newest")
        function()

    return test(once)


def run(*command, status=0, **more):
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, **more)
    if status is not None and result.returncode != status:
        raise AssertionError(
            f"{' '.join(command)} exited with {result.returncode}: {result.stderr[-2000:]}"
        )
    return result


def trace(*command, options=()):
    """Runs a command under trace; returns (what was counted, what the command printed)."""
    path = f"{TMP}/trace.json"
    result = run(SLUICE, "trace", "--json", "-o", path, *options, "--", *command)
    with open(path) as f:
        found = json.load(f)
    jsonschema.validate(found, SCHEMA)
    return found, result.stdout


def report(*command):
    path = f"{TMP}/trace.txt"
    out = run(SLUICE, "trace", "-o", path, "--", *command).stdout
    with open(path) as f:
        return f.read(), out


def total(found, kinds, way, pids=None):
    return sum(
        c["bytes"]
        for p in found["processes"]
        if pids is None or p["pid"] in pids
        for c in p["counts"]
        if c["kind"] in kinds and c["dir"] == way
    )


def within(value, expected, share=0.001):
    assert abs(value - expected) <= share * expected, f"{value} is not {expected} within {share:%}"


def equal(value, expected):
    assert value == expected, f"{value} is not {expected}"


def job(how, kinds, *options):
    found, out = trace("python3", f"{HERE}/job.py", how, *options)
    knows = json.loads(out)
    within(total(found, kinds, "out", knows["workers"]), knows["payload"])
    within(total(found, kinds, "in", [knows["trainer"]]), knows["payload"])
    between = sum(
        e["bytes"]
        for e in found["edges"]
        if e["from"] in knows["workers"] and e["to"] == knows["trainer"]
    )
    within(between, knows["payload"])
    return found


@test
def python_queue_goes_through_pipes():
    job("queue", ["pipe"], "numpy")


@test
def python_pipe_goes_through_sockets():
    job("pipe", ["unix_stream"])


@test
def python_shared_memory_pays_by_faults():
    text, out = report("python3", f"{HERE}/job.py", "shm")
    payload = json.loads(out)["payload"]
    match = re.search(
        r"verdict: most data moved through shared mappings, at the cost of (\d+)", text
    )
    assert match, text
    # Each page is touched by the worker that fills it and by the trainer.
    unseen = re.search(r"unmapped \(.*\); up to (\d+) more were not seen", text)
    assert int(match.group(1)) + int(unseen.group(1) if unseen else 0) >= payload / 4096, text


@test
def verdict_names_the_side_that_waits():
    for slow, side in (
        ("slow-worker", "the receiver waits for its senders"),
        ("slow-trainer", "the senders wait for their receiver"),
    ):
        text, out = report("python3", f"{HERE}/job.py", "queue", slow)
        knows = json.loads(out)
        verdict = text.strip().splitlines()[-1]
        assert verdict.endswith(side + "."), f"{slow}: {text}"
        assert "went through pipes" in verdict, verdict
        assert f"[{knows['trainer']}] received most" in verdict, verdict
        sender = int(re.search(r"largest sender: [^[]*\[(\d+)\]", verdict).group(1))
        assert sender in knows["workers"], verdict


@test
def totals_agree_with_strace():
    command = "dd if=/dev/zero bs=7777 count=300 2>/dev/null | cat | tail -c 5000 | wc -c"
    found, _ = trace("sh", "-c", command)
    log = f"{TMP}/strace"
    run("strace", "-ff", "-yy", "-e", "trace=write,read", "-o", log, "sh", "-c", command)
    sums = {"write": 0, "read": 0}
    for name in os.listdir(TMP):
        if not name.startswith("strace."):
            continue
        for line in open(f"{TMP}/{name}"):
            match = re.search(r"^(write|read)\(\d+<pipe:.*= (\d+)$", line)
            if match:
                sums[match.group(1)] += int(match.group(2))
    # wc prints to the pipe that this test reads; the run under strace has the same one.
    within(total(found, ["pipe"], "out"), sums["write"])
    within(total(found, ["pipe"], "in"), sums["read"])


def make_files():
    os.makedirs(f"{TMP}/files", exist_ok=True)
    for i in range(4):
        with open(f"{TMP}/files/{i}", "wb") as f:
            f.write(os.urandom(1 << 20) * 4)


@test
def pump_by_pipe_agrees_with_itself():
    make_files()
    found, _ = trace(SLUICE, "pump", "--transport", "pipe", f"{TMP}/files")
    within(total(found, ["pipe"], "out"), 16 << 20)
    within(total(found, ["pipe"], "in"), 16 << 20)


@test
def pump_by_arena_agrees_with_itself():
    if "Provider: sluice" not in run("readelf", "-n", SLUICE).stdout:
        raise Skip("the library that sluice is linked with has no probes")
    make_files()
    text, _ = report(SLUICE, "pump", "--transport", "arena", f"{TMP}/files")
    assert "went through arenas" in text, text
    found, _ = trace(SLUICE, "pump", "--transport", "arena", f"{TMP}/files")
    within(total(found, ["arena_memfd", "arena_kmod"], "out"), 16 << 20)
    within(total(found, ["arena_memfd", "arena_kmod"], "in"), 16 << 20)
    peers = found["arenas"]
    assert peers and sum(p["published_bytes"] for p in peers) >= 16 << 20, peers
    equal(sum(p["taken"] for p in peers), sum(p["published"] for p in peers))
    equal(sum(p["released"] for p in peers), sum(p["taken"] for p in peers))


@test
def storm_of_short_processes_is_exact():
    found, out = trace(STORM, "2000", "1000", "1")
    equal(int(out), 2000000)
    # storm prints what it read, into the pipe that this test reads.
    equal(total(found, ["pipe"], "out"), 2000000 + len(out))
    equal(total(found, ["pipe"], "in"), 2000000)
    equal(found["lost"]["counts"], 0)


def equal_press(found, moved, spare=0):
    """Nothing that press moved is missing; others, whom stat sees as well, may add to it."""
    for way in ("out", "in"):
        got = total(found, ["pipe"], way)
        assert moved <= got <= moved + spare, (way, got, moved)
    equal(found["missed"], 0)
    equal(found["lost"]["counts"], 0)


@test
def preempted_counters_miss_nothing():
    found, out = trace(PRESS, "24", "4000", "3")
    equal_press(found, 24 * 4000 * 3, len(out))


@test
def readers_of_the_counts_cost_none():
    loaded()
    before = stat()
    command = [SLUICE, "stat", "--json", "-i", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as look:
        run(PRESS, "12", "8000", "50")
        look.terminate()
    after = stat()
    run(SLUICE, "stat", "unload")
    for way in ("out", "in"):
        moved = total(after, ["pipe"], way) - total(before, ["pipe"], way)
        # Besides press there is what this test and sluice exchange through pipes.
        assert 12 * 8000 * 50 <= moved <= 12 * 8000 * 50 + 100000, moved
    equal(after["missed"] - before["missed"], 0)


@test
def threads_are_counted_one_by_one():
    found, out = trace(STORM, "100", "999", "3")
    equal(total(found, ["pipe"], "out"), 99900 + len(out))
    equal(sum(p["threads"] == 3 for p in found["processes"]), 100)
    names = {p["comm"] for p in found["processes"]}
    assert any("\\x1b" in name for name in names), names


@test
def pids_used_again_are_told_apart():
    with open("/proc/sys/kernel/pid_max") as f:
        before = f.read()
    with open("/proc/sys/kernel/pid_max", "w") as f:
        f.write("600")
    try:
        found, out = trace(STORM, "700", "1000", "1")
    finally:
        with open("/proc/sys/kernel/pid_max", "w") as f:
            f.write(before)
    equal(total(found, ["pipe"], "out"), 700000 + len(out))
    pids = [p["pid"] for p in found["processes"]]
    assert len(set(pids)) < len(pids), "no pid was used twice: the test did not test"
    senders = [p for p in found["processes"] if total({"processes": [p]}, ["pipe"], "out") == 1000]
    equal(len(senders), 700)


def loaded(*options):
    run(SLUICE, "stat", "unload")
    return run(SLUICE, "stat", "load", *options).stdout


def stat():
    said = run(SLUICE, "stat", "--json", "-n", "1").stdout
    equal(said.count("\n"), 1)
    found = json.loads(said)
    jsonschema.validate(found, SCHEMA)
    return found


@test
def full_map_counts_as_other():
    loaded("--entries", "64")
    config = f"{PIN}/config"
    # As a trace does it: ended threads keep their entries, so the map fills.
    run("bpftool", "map", "update", "pinned", config, *"key 0 0 0 0 value 0 0 0 0".split())
    before = stat()
    run(STORM, "100", "3000", "3")
    after = stat()
    run(SLUICE, "stat", "unload")
    assert after["lost"]["counts"] > before["lost"]["counts"], after["lost"]
    other = [p for p in after["processes"] if p["comm"] == "(other)"]
    assert other and total({"processes": other}, ["pipe"], "out") > 200000, other
    moved = total(after, ["pipe"], "out") - total(before, ["pipe"], "out")
    # Besides storm's 300,000 bytes there is what this test and sluice exchange through pipes.
    assert 300000 <= moved <= 320000, moved


@test
def ended_processes_are_added_up():
    loaded()
    before = stat()
    run(STORM, "100", "3000", "3")
    after = stat()
    run(SLUICE, "stat", "unload")
    equal(after["lost"]["counts"], 0)
    ended = [[p for p in s["processes"] if p["comm"] == "(ended)"] for s in (before, after)]
    moved = [total({"processes": p}, ["pipe"], "out") for p in ended]
    assert 300000 <= moved[1] - moved[0] <= 320000, moved
    assert len(after["processes"]) < 50, len(after["processes"])


@test
def reload_keeps_the_counts():
    loaded()
    run(STORM, "10", "10000", "1")
    before = total(stat(), ["pipe"], "out")
    said = run(SLUICE, "stat", "load").stdout
    assert "kept" in said, said
    assert total(stat(), ["pipe"], "out") >= before >= 100000
    run(SLUICE, "stat", "unload")


def bpf_objects():
    """Names of the counters' programs and maps that the kernel still has, and the links."""
    ours = {"counts", "ends", "tasks", "memory", "arenas", "targets", "config", "lost", "records",
            "pipe_write_exit", "pipe_write_call", "splice_exit", "splice_call", "task_switch",
            "fault_exit", "read_counts"}
    found = []
    for what in ("prog", "map"):
        objects = json.loads(run("bpftool", "-j", what, "show").stdout)
        found += [o["name"] for o in objects if o.get("name") in ours]
    links = json.loads(run("bpftool", "-j", "link", "show").stdout)
    return sorted(found), len(links)


def wait_until_freed():
    # The kernel frees a trampoline when no task can be in it any more, a little later.
    for _ in range(30):
        found, links = bpf_objects()
        if not found:
            return links
        time.sleep(1)
    raise AssertionError(f"still there: {found}")


@test
def full_map_is_empty_again():
    loaded("--entries", "64")
    code = (
        "import os, threading\n"
        "w, all = os.pipe()[1], threading.Barrier(40)\n"
        "def send(): os.write(w, b'x'); all.wait()\n"
        "for _ in range(40): threading.Thread(target=send).start()\n"
    )
    run("python3", "-c", code)
    after = stat()
    run(SLUICE, "stat", "unload")
    assert after["lost"]["counts"], "the map was not full: the test did not test"
    stay = [p for p in after["processes"] if p["pid"] and not os.path.exists(f"/proc/{p['pid']}")]
    equal(stay, [])


@test
def ended_arenas_make_room():
    if "Provider: sluice" not in run("readelf", "-n", SLUICE).stdout:
        raise Skip("the library that sluice is linked with has no probes")
    make_files()
    loaded("--library", SLUICE)
    run(SLUICE, "pump", "--transport", "arena", f"{TMP}/files")
    after = stat()
    run(SLUICE, "stat", "unload")
    ended = {"processes": [p for p in after["processes"] if p["comm"] == "(ended)"]}
    within(total(ended, ["arena_memfd", "arena_kmod"], "out"), 16 << 20)
    equal(after["arenas"], [])


@test
def unload_leaves_nothing():
    run(SLUICE, "stat", "unload")
    links = wait_until_freed()
    busy = subprocess.Popen(["sh", "-c", "while :; do dd if=/dev/zero bs=64k count=50 | cat; done"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)
    try:
        loaded()
        assert bpf_objects()[1] > links
        run(SLUICE, "stat", "unload")
        trace("true")
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()
    assert not os.path.exists(PIN)
    equal(wait_until_freed(), links)


@test
def openmetrics_parse():
    loaded()
    run(STORM, "20", "1000", "1")
    text = run(SLUICE, "stat", "--openmetrics", "-").stdout
    families = {f.name: f for f in text_string_to_metric_families(text)}
    moved = sum(
        s.value
        for s in families["sluice_moved_bytes"].samples
        if s.labels["kind"] == "pipe" and s.labels["dir"] == "out"
    )
    assert moved >= 20000, moved
    path = f"{TMP}/sluice.prom"
    run(SLUICE, "stat", "--openmetrics", path, "-n", "2", "-i", "0.1", umask=0o077)
    equal(os.stat(path).st_mode & 0o777, 0o644)
    with open(path) as f:
        text = f.read()
    list(text_string_to_metric_families(text))
    # The node exporter reads the older format, which has these without a type.
    read = [s for f in prometheus_text(text) for s in f.samples]
    assert any(s.name == "sluice_moved_bytes_total" and s.value >= 20000 for s in read), read[:20]
    equal([n for n in os.listdir(TMP) if n.endswith(".tmp")], [])
    run(SLUICE, "stat", "unload")


@test
def bpftool_shows_names():
    loaded()
    run(STORM, "2", "1000", "1")
    dump = run("bpftool", "map", "dump", "pinned", f"{PIN}/counts").stdout
    for name in ("SLUICE_PIPE", "SLUICE_OUT", '"bytes"', '"slept_us_log2"', '"tgid"'):
        assert name in dump, f"{name} is not in {dump[:800]}"
    either = "pipe_write_exit", "pipe_write_call"
    name = next(n for n in os.listdir(f"{PIN}/programs") if n in either)
    shown = run("bpftool", "prog", "show", "pinned", f"{PIN}/programs/{name}").stdout
    assert name in shown, shown
    run(SLUICE, "stat", "unload")


@test
def refusal_is_one_sentence():
    result = run("setpriv", "--reuid", "65534", "--clear-groups", SLUICE, "trace", "--", "true",
                 status=3)
    lines = result.stderr.strip().splitlines()
    equal(len(lines), 1)
    assert "refuses to load BPF programs" in lines[0], lines
    equal(run(SLUICE, "stat", "status", status=1).stdout, "not loaded\n")


@test_of_the_program
def exit_status_is_the_commands():
    run(SLUICE, "trace", "--", "sh", "-c", "exit 7", status=7)
    run(SLUICE, "trace", "--", "sh", "-c", "kill -9 $$", status=128 + 9)
    said = run(SLUICE, "trace", "--", "/nonexistent", status=127).stderr
    equal(said, "sluice trace: cannot run /nonexistent: No such file or directory\n")


@test_of_the_program
def interrupted_command_is_counted_to_its_end():
    script = "trap 'echo x | cat; exit 5' INT; echo; while :; do sleep 0.1; done"
    path = f"{TMP}/interrupt.json"
    with subprocess.Popen([SLUICE, "trace", "--json", "-o", path, "--", "sh", "-c", script],
                          stdout=subprocess.PIPE, start_new_session=True) as job:
        job.stdout.readline()
        os.killpg(job.pid, signal.SIGINT)
        equal(job.wait(60), 5)
    with open(path) as f:
        equal(total(json.load(f), ["pipe"], "in"), 2)


@test_of_the_program
def only_processes_can_be_watched():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        for pid, why in (4194303, "No such process"), (thread.native_id, "it is a thread"):
            result = run(SLUICE, "trace", "-p", str(pid), status=3)
            equal(len(result.stderr.splitlines()), 1)
            assert f"cannot trace pid {pid}: {why}" in result.stderr, result.stderr
    finally:
        stop.set()
    # Nobody waits for the one that ends here: it stays a zombie.
    with subprocess.Popen(["sleep", "1"]) as ends:
        result = run(SLUICE, "trace", "-p", f"{ends.pid},4194303")
        assert "cannot trace pid 4194303" in result.stderr, result.stderr
        assert "sluice trace: " in result.stderr and "verdict: " in result.stderr, result.stderr


@test_of_the_program
def nothing_runs_whose_report_cannot_be_written():
    for option in "-o", "--plot":
        result = run(SLUICE, "trace", option, "/nonexistent/x", "--", "touch", f"{TMP}/ran",
                     status=3)
        equal(result.stderr,
              "sluice trace: cannot write /nonexistent/x: No such file or directory\n")
    assert not os.path.exists(f"{TMP}/ran")
    said = run(SLUICE, "trace", "-o", "/dev/full", "--", "true", status=3).stderr
    equal(said, "sluice trace: cannot write /dev/full: No space left on device\n")


@test
def running_processes_can_be_watched():
    busy = subprocess.Popen(["sh", "-c", "sleep 30 & while :; do echo x | cat; done"],
                            stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        path = f"{TMP}/watch.json"
        run(SLUICE, "trace", "--json", "-o", path, "-t", "2", "-p", str(busy.pid))
        with open(path) as f:
            found = json.load(f)
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()
    out, came = total(found, ["pipe"], "out"), total(found, ["pipe"], "in")
    assert out >= 2 and abs(out - came) <= 4, (out, came)


@test_of_the_program
def plots_are_drawn():
    for name, start in (("p.svg", "<svg"), ("p.dot", "digraph")):
        run(SLUICE, "trace", "--plot", f"{TMP}/{name}", "-o", "/dev/null", "--", "sh", "-c",
            "echo '<&' | cat")
        with open(f"{TMP}/{name}") as f:
            text = f.read()
        assert text.startswith(start) and "cat" in text, text
    import xml.dom.minidom

    xml.dom.minidom.parse(f"{TMP}/p.svg")


@test
def failed_load_leaves_nothing():
    run(SLUICE, "stat", "unload")
    said = run(SLUICE, "stat", "load", "--entries", "16777216", status=3).stderr
    assert "--entries" in said and len(said.splitlines()) == 1, said
    assert not os.path.exists(PIN)
    for name in "counts", "links/splice_exit", "links/splice_call":
        os.makedirs(f"{PIN}/{name}", 0o700)
    os.chmod(PIN, 0o700)
    said = run(SLUICE, "stat", "load", status=3).stderr
    equal(len(said.splitlines()), 1)
    os.rmdir(f"{PIN}/counts")
    said = run(SLUICE, "stat", "load", status=3).stderr
    equal(said, f"sluice: cannot pin under {PIN}: Is a directory\n")
    equal(sorted(os.listdir(f"{PIN}/links")), ["splice_call", "splice_exit"])
    equal(os.listdir(PIN), ["links"])
    run("rm", "-r", PIN)


@test
def failed_reload_leaves_the_counters():
    loaded()
    before = run(SLUICE, "stat", "status").stdout.splitlines()[0]
    said = run(SLUICE, "stat", "load", "--entries", "100", status=3).stderr
    assert "another version or size" in said and "sluice stat unload" in said, said
    equal(run(SLUICE, "stat", "status").stdout.splitlines()[0], before)
    run(STORM, "10", "10000", "1")
    assert total(stat(), ["pipe"], "out") >= 100000
    for name in os.listdir(f"{PIN}/links"):
        os.unlink(f"{PIN}/links/{name}")
    said = run(SLUICE, "stat", "status", status=1).stdout
    assert said.startswith("hooks attached: none"), said
    run(SLUICE, "stat", "unload")


def load_half():
    """A load that has pinned its maps, and no programs yet: those take the kernel seconds."""
    load = subprocess.Popen([SLUICE, "stat", "load"], stdout=subprocess.DEVNULL)
    while not os.path.exists(f"{PIN}/lost"):
        time.sleep(0.01)
    equal(os.listdir(f"{PIN}/links"), [])
    return load


@test
def killed_load_is_told_and_mended():
    run(SLUICE, "stat", "unload")
    load = load_half()
    load.kill()
    load.wait()
    said = run(SLUICE, "stat", "status", status=3).stderr
    assert "a load that was killed" in said and "sluice stat unload" in said, said
    # Two at once: one waits for the other.
    loads = [subprocess.Popen([SLUICE, "stat", "load"], stdout=subprocess.DEVNULL) for _ in "12"]
    equal([load.wait(120) for load in loads], [0, 0])
    assert "missing" not in run(SLUICE, "stat", "status").stdout
    run(SLUICE, "stat", "unload")


@test
def unload_waits_for_a_load():
    run(SLUICE, "stat", "unload")
    load = load_half()
    equal(run(SLUICE, "stat", "unload").stdout, "unloaded, the counts are gone\n")
    equal(load.wait(120), 0)
    assert not os.path.exists(PIN)


@test
def killed_trace_leaves_nothing():
    # Killed where it would tell the command, which waits for that, to begin.
    log = f"{TMP}/killed"
    run("strace", "-o", log, "-e", "trace=write", "-e", "inject=write:error=EPERM:signal=KILL",
        SLUICE, "trace", "--", "sleep", "987", status=-signal.SIGKILL)
    with open(log) as f:
        text = f.read()
    assert r'"\1\0\0\0\0\0\0\0", 8)' in text, text
    for _ in range(50):
        left = run("pgrep", "-f", "trace -- sleep 987", status=None).stdout
        if not left:
            break
        time.sleep(0.1)
    equal(left, "")
    wait_until_freed()


@test
def pins_of_others_are_left_alone():
    run(SLUICE, "stat", "unload")
    os.mkdir(PIN, 0o700)
    os.chown(PIN, 65534, 65534)
    result = run(SLUICE, "stat", "load", status=3)
    equal(len(result.stderr.splitlines()), 1)
    assert f"{PIN} is user 65534's" in result.stderr, result.stderr
    said = run(SLUICE, "stat", "unload", status=3).stderr
    equal(said, f"sluice stat: cannot remove {PIN}: it is another user's\n")
    os.rmdir(PIN)
    loaded()
    os.unlink(f"{PIN}/counts")
    run(*f"bpftool map create {PIN}/counts type hash key 8 value 8 entries 8 name counts".split())
    said = run(SLUICE, "stat", "status", status=3).stderr
    assert "another version" in said and "sluice stat unload" in said, said
    links = sorted(os.listdir(f"{PIN}/links"))
    said = run(SLUICE, "stat", "load", status=3).stderr
    assert "another version or size" in said, said
    equal(sorted(os.listdir(f"{PIN}/links")), links)
    run(SLUICE, "stat", "unload")
    assert not os.path.exists(PIN)


@test
def pins_need_their_file_system():
    run(SLUICE, "stat", "unload")
    run("umount", "/sys/fs/bpf")
    said = run(SLUICE, "stat", "load", status=3).stderr
    command = re.search(r"`(mount .*)`", said)
    assert command and len(said.splitlines()) == 1, said
    run(*command.group(1).split())
    loaded()
    run(SLUICE, "stat", "unload")


@test_of_the_program
def what_would_be_passed_over_is_refused():
    run(SLUICE, "stat", "--json", "--openmetrics", "-", status=2)
    loaded()
    said = run(SLUICE, "stat", "--entries", "100", "-n", "1", status=2).stderr
    assert "give them to sluice stat load" in said, said
    run(SLUICE, "stat", "unload")


class Terminal:
    """A command on a terminal of its own, and what such a terminal shows."""

    def __init__(self, lines, width, *command, **env):
        self.lines, self.width = lines, width
        self.raw, self.scrolled = "", 0
        self.clear()
        self.fd, self.side = pty.openpty()
        self.resize(lines, width)
        self.modes = termios.tcgetattr(self.side)
        self.process = subprocess.Popen(
            command, stdin=self.side, stdout=self.side, stderr=self.side, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm", **env},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.fd)
        os.close(self.side)

    def clear(self):
        self.rows = [""] * self.lines
        self.row = self.column = 0

    def resize(self, lines, width):
        self.read()
        self.lines, self.width = lines, width
        self.clear()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("4H", lines, width, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def put(self, token):
        """What a terminal does; behind a full line the cursor stays on the last character."""
        if token == "\x1b[H":
            self.row = self.column = 0
        elif token == "\x1b[K":
            at = min(self.column, self.width - 1)
            self.rows[self.row] = self.rows[self.row][:at]
        elif token == "\x1b[J":
            self.put("\x1b[K")
            self.rows[self.row + 1 :] = [""] * (self.lines - self.row - 1)
        elif token == "\r":
            self.column = 0
        elif token == "\n":
            self.row += 1
            if self.row == self.lines:
                self.row -= 1
                self.rows = self.rows[1:] + [""]
                self.scrolled += 1
        elif token[0] != "\x1b":
            assert token.isprintable(), repr(token)
            assert self.column < self.width, f"wider than {self.width}: {self.rows[self.row]}"
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + token + row[self.column + 1 :]
            self.column += 1

    def read(self):
        """Until nothing comes; returns what is on the screen."""
        while select.select([self.fd], [], [], 0.3)[0]:
            text = os.read(self.fd, 65536).decode("ascii")
            self.raw += text
            for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|.", text, re.S):
                self.put(token)
        return "\n".join(self.rows)

    def wait_for(self, text):
        for _ in range(60):
            if text in self.read():
                return
        raise AssertionError(f"{text!r} is not on the screen: {self.rows} {self.raw[-600:]!r}")

    def wait(self):
        """Returns the exit status; the terminal is as it was."""
        self.process.wait(30)
        self.read()
        assert self.raw.endswith("\x1b[?25h\x1b[?1049l"), repr(self.raw[-100:])
        equal(termios.tcgetattr(self.side), self.modes)
        return self.process.returncode


def chatter(n):
    """Processes that move a byte ten times a second each, with a name that no terminal likes."""
    code = (
        "import os, time\n"
        f"for i in range({n} - 1):\n"
        "    if not os.fork(): break\n"
        r"open('/proc/self/comm', 'wb').write(b'\xff\x1b[31m\x9b')" "\n"
        "r, w = os.pipe()\n"
        "while True: os.write(w, b'x'); os.read(r, 1); time.sleep(0.1)\n"
    )
    return subprocess.Popen(["python3", "-c", code], start_new_session=True)


@test_of_the_program
def live_view_fits_its_terminal():
    loaded()
    busy = chatter(12)
    try:
        with Terminal(10, 60, SLUICE, "stat", "-i", "1") as terminal:
            terminal.wait_for("per second")
            for _ in range(20):
                terminal.wait_for("\\xff\\x1b[31")
                rows = terminal.rows
                if rows[-1]:
                    break
            assert re.match(r"\d+ processes", rows[0]), rows
            assert re.match(r" +PID COMM +PIPE OUT", rows[1]), rows
            assert all(re.match(r" +\d+ ", row) for row in rows[2:]), rows
            assert "\x1b[1m" in terminal.raw
            for lines in 2, 1:
                terminal.resize(lines, 20)
                terminal.wait_for("processes")
                time.sleep(1)
                terminal.read()
            terminal.resize(50, 200)
            terminal.wait_for("SHFAULTS")
            equal(terminal.scrolled, 0)
            terminal.type("q")
            equal(terminal.wait(), 0)
    finally:
        os.killpg(busy.pid, signal.SIGKILL)
        busy.wait()
        run(SLUICE, "stat", "unload")


@test_of_the_program
def live_view_answers_at_once():
    loaded()
    # Nothing below waits for a second look.
    look = [SLUICE, "stat", "-n", "3", "-i", "1000"]
    with Terminal(24, 80, *look, NO_COLOR="1") as terminal:
        terminal.wait_for("sorted by bytes")
        for key in "s", "w", "x", "p":
            terminal.type(key)
        terminal.wait_for("sorted by pid")
        terminal.resize(8, 40)
        terminal.wait_for("processes")
        equal(terminal.scrolled, 0)
        assert "\x1b[1m" not in terminal.raw
        terminal.type("\x03")
        equal(terminal.wait(), 0)
    with Terminal(24, 200, *look[:3], "1", TERM="dumb") as terminal:
        terminal.process.wait(30)
        terminal.read()
        assert "processes" in terminal.raw and "\x1b" not in terminal.raw, terminal.raw
    run(SLUICE, "stat", "unload")


@test_of_the_program
def live_view_can_be_suspended():
    loaded()
    shell = f"set -m; {SLUICE} stat -i 1000; stty >{TMP}/stopped; fg; stty >{TMP}/ended"
    with Terminal(24, 80, "bash", "-c", shell) as terminal:
        terminal.wait_for("sorted by bytes")
        terminal.type("\x1a")
        for _ in range(60):
            terminal.read()
            if terminal.raw.count("\x1b[?1049h") == 2:
                break
        terminal.wait_for("sorted by bytes")
        equal(terminal.raw.count("\x1b[?1049h"), 2)
        terminal.type("q")
        equal(terminal.wait(), 0)
    with open(f"{TMP}/stopped") as stopped, open(f"{TMP}/ended") as ended:
        modes = stopped.read()
        assert "-icanon" not in modes and "-echo" not in modes.split(), modes
        equal(ended.read(), modes)
    run(SLUICE, "stat", "unload")


# The last one: no kernel lets go of its lockdown.
@test
def lockdown_is_one_sentence():
    lockdown = "/sys/kernel/security/lockdown"
    if not os.path.exists(lockdown):
        subprocess.run(["mount", "-t", "securityfs", "securityfs", "/sys/kernel/security"])
    if not os.path.exists(lockdown):
        raise Skip("this kernel has no lockdown")
    with open(lockdown, "w") as f:
        f.write("confidentiality")
    for command in ["trace", "--", "true"], ["stat", "load"], ["stat", "-n", "1"]:
        said = run(SLUICE, *command, status=3).stderr
        assert "lockdown" in said and len(said.splitlines()) == 1, said
    assert not os.path.exists(PIN)
    said = run(SLUICE, "doctor", status=None).stdout
    assert re.search(r"^warn  bpf .*locked down", said, re.M), said


def main():
    os.makedirs(TMP, exist_ok=True)
    failed = 0
    chosen = [t for t in tests if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]]
    print(f"1..{len(chosen)}")
    for number, function in enumerate(chosen, 1):
        name = function.__name__.replace("_", " ")
        begun = time.time()
        try:
            function()
            print(f"ok {number} - {name}")
        except Skip as why:
            print(f"ok {number} - {name} # SKIP {why}")
        except Exception as error:  # whatever it was, the other tests run
            failed += 1
            print(f"not ok {number} - {name}")
            for line in f"{type(error).__name__}: {error}".splitlines()[:40]:
                print(f"# {line}")
            subprocess.run([SLUICE, "stat", "unload"], capture_output=True)
        print(f"# {time.time() - begun:.1f} s", flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the workload scripts share: rounds that alternate, medians, one JSON object."""
import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time

# What is so much slower than the best of its rows takes most of the time, and a round tells enough.
SLOW = 8


class Report:
    def __init__(self, name, argv=None, **options):
        ap = argparse.ArgumentParser(description=name)
        ap.add_argument("--out", help="directory for the JSON result")
        ap.add_argument("--rounds", type=int, default=3)
        for key, value in options.items():
            ap.add_argument("--" + key.replace("_", "-"), type=type(value), default=value)
        self.args = ap.parse_args(argv)
        self.name = name
        self.rows = []
        self.date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.load = os.getloadavg()[0]

    def alternate(self, forms, unit, rounds=None, **notes):
        """Run every form once in each round; forms is {label: function that returns a rate}.

        A form that reaches less than a SLOW-th of the best has the first round's value alone.
        """
        got = {label: [] for label in forms}
        skipped = {}
        slow = set()
        for _ in range(rounds or self.args.rounds):
            for label, fn in forms.items():
                if label in skipped or label in slow:
                    continue
                try:
                    got[label].append(fn())
                except ImportError as e:
                    skipped[label] = str(e)
            if unit.endswith("/s"):
                best = max((v[0] for v in got.values() if v), default=0)
                slow = {label for label, v in got.items() if v and v[0] < best / SLOW}
        for label, values in got.items():
            row = {"form": label, "unit": unit, **notes}
            if label in skipped:
                row["skipped"] = skipped[label]
            else:
                row["median"] = statistics.median(values)
                row["values"] = values
            self.rows.append(row)
            print(
                "%-6s %-44s %s"
                % (
                    self.name,
                    label + "".join(", %s=%s" % kv for kv in notes.items()),
                    "skipped: " + skipped[label]
                    if label in skipped
                    else "%.3f %s" % (row["median"], unit),
                ),
                flush=True,
            )
        self.save()
        return {k: statistics.median(v) for k, v in got.items() if v}

    def goal(self, text, value, least=None, limit=None, limited_by=None, most=None):
        """A ratio that should be at least `least`, or at most `most`.

        limit: what the same ratio would be for something that only does what `limited_by` says,
        measured in this run.  Where that is below the goal, nothing could meet it on this host.
        """
        bound = ">= %g" % least if most is None else "<= %g" % most
        met = value >= least if most is None else value <= most
        row = {"goal": text, "value": value, "bound": bound, "met": bool(met)}
        said = "met" if row["met"] else "NOT MET"
        if limit is not None:
            row.update({"limit": limit, "limited_by": limited_by})
            said += "; %s: %.3f" % (limited_by, limit)
        self.rows.append(row)
        print("%-6s %-44s %.3f, goal %s: %s" % (self.name, text, value, bound, said), flush=True)
        self.save()

    def save(self, complete=False):
        """Write what there is: a run that is cut short leaves the rows that it finished."""
        if not self.args.out:
            return
        try:
            import torch

            versions = {"torch": torch.__version__}
            if torch.cuda.is_available():
                versions["gpu"] = torch.cuda.get_device_name(0)
        except ImportError:
            versions = {}
        import numpy

        import sluice

        doc = {
            "workload": self.name,
            "complete": complete,
            "date": self.date,
            "command": " ".join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpus": len(os.sched_getaffinity(0)),
            "load": self.load,
            "versions": {
                "python": platform.python_version(),
                "numpy": numpy.__version__,
                "sluice": sluice.__version__,
                **versions,
            },
            "rows": self.rows,
        }
        os.makedirs(self.args.out, exist_ok=True)
        path = os.path.join(self.args.out, self.name.lower() + ".json")
        with open(path + ".new", "w") as f:
            json.dump(doc, f, indent=1)
            f.write("\n")
        os.replace(path + ".new", path)

    def finish(self):
        self.save(complete=True)


def memcpy_rate(nbytes, seconds=0.3):
    """Copies a second of a block of this size, warm destination: the physical limit of one core."""
    import numpy

    a = numpy.ones(nbytes, numpy.uint8)
    b = numpy.zeros(nbytes, numpy.uint8)
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        numpy.copyto(b, a)
        n += 1
    return n / (time.perf_counter() - begun)

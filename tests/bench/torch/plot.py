# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""plot.py FILE.json... - what a workload script measured as bar charts: FILE.svg beside each

Like the chart of sluice bench: nothing to load, readable on light and on dark.
"""
import json
import os
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, LENGTH = 820, 270, 420
BAR, STEP, HEAD = 18, 26, 30

TITLES = {
    "W1": "W1: one 12 MiB array from process to process",
    "W2": "W2: token batches, and strings beside them",
    "W3": "W3: image batches of 402 MB",
    "W4": "W4: samples in 200 tensors",
    "W5": "W5: what limits a loader: rates with caches in different places",
    "W6": "W6: ResNet-18 training steps",
    "W7": "W7: DeepLabV3 output, 1.41 GB a step",
    "W8": "W8: 1.2 million entries to spawned workers, time to the first batch",
    "W9": "W9: payloads of 32 MiB",
    "peers": "W9: payloads of 32 MiB, through what others have",
    "calls": "System calls a batch",
}
STYLE = """<style>
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#444c56}
.title{font-size:15px;font-weight:600;fill:#1f2328}.head{font-weight:600;fill:#1f2328}
.own{font-weight:600;fill:#0a58a8}.note{font-size:12px;fill:#6e7781}.end{text-anchor:end}
.bar{fill:#a9b4c0}.us{fill:#1f7ad1}
@media (prefers-color-scheme:dark){text{fill:#b1bac4}.title,.head{fill:#f0f3f6}
.own{fill:#6cb6ff}.note{fill:#8b949e}.bar{fill:#57606a}.us{fill:#388bfd}}
</style>
"""
# What a row may have besides what tells it from the others of its kind.
FIELDS = {"form", "unit", "median", "values", "skipped", "calls", "version", "verdict"}


def panels(rows):
    """[(heading, unit, rows)]: rows that differ in nothing but their form stand together."""
    found = {}
    for row in rows:
        if "form" not in row:
            continue
        notes = tuple((k, v) for k, v in row.items() if k not in FIELDS)
        found.setdefault((row.get("unit", ""), notes), []).append(row)
    return [
        (", ".join("%s: %s" % kv for kv in notes), unit, group)
        for (unit, notes), group in found.items()
    ]


def number(x):
    return "{:,.0f}".format(x) if x >= 100 else "%.3g" % x


def text(x, y, kind, what):
    return '<text x="%.1f" y="%d" class="%s">%s</text>\n' % (x, y, kind, escape(what))


def panel(out, y, heading, unit, rows):
    better = "shorter" if unit in ("s", "calls/batch") else "longer"
    out.append(text(24, y + 20, "head", ", ".join(filter(None, (heading, unit)))))
    out.append(text(WIDTH - 24, y + 20, "note end", better + " is better"))
    y += HEAD
    longest = max((r["median"] for r in rows if "median" in r), default=1) or 1
    for r in rows:
        own = r["form"].startswith("sluice")
        kind = "own" if own else "name"
        out.append(text(LEFT - 10, y + BAR - 5, kind + " end", r["form"]))
        if "median" in r:
            length = max(1, r["median"] / longest * LENGTH)
            out.append(
                '<rect x="%d" y="%d" width="%.1f" height="%d" rx="2" class="bar%s"/>\n'
                % (LEFT, y, length, BAR, " us" if own else "")
            )
            out.append(text(LEFT + length + 8, y + BAR - 5, kind, number(r["median"])))
        else:
            out.append(text(LEFT, y + BAR - 5, "note", r.get("skipped", "not measured")))
        y += STEP
    return y + 10


def svg(doc):
    """The picture, or None where no row says anything that can be drawn."""
    groups = panels(doc["rows"])
    if not groups:
        return None
    title = TITLES.get(doc["workload"], doc["workload"])
    body, y = [text(24, 30, "title", title)], 40
    for group in groups:
        y = panel(body, y, *group)
    versions = doc["versions"]
    host = [versions.get("gpu"), "%d CPUs" % doc["cpus"], "Linux " + doc["kernel"]]
    host += ["%s %s" % (k, v) for k, v in versions.items() if k != "gpu"]
    body.append(text(24, y + 14, "note", ", ".join(filter(None, host)) + "; " + doc["date"][:10]))
    height = y + 34
    start = '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
    start = start % (WIDTH, height, WIDTH, height) + 'role="img">\n'
    return "".join([start, "<title>%s</title>\n" % escape(title), STYLE, *body, "</svg>\n"])


def main(paths):
    if not paths:
        sys.exit("usage: plot.py FILE.json...")
    for path in paths:
        try:
            with open(path) as f:
                picture = svg(json.load(f))
        except (OSError, ValueError, KeyError, TypeError) as e:
            sys.exit("plot.py: %s is no result of a workload: %r" % (path, e))
        if picture is not None:
            with open(os.path.splitext(path)[0] + ".svg", "w") as f:
                f.write(picture)


if __name__ == "__main__":
    main(sys.argv[1:])

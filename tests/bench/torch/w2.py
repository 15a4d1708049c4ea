# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W2: token batches, and strings beside them."""
import time

from loaders import Tokens, pair
from side import Report


def made(ds, batch, seconds):
    """Batches of which only the strings are made: whatever carries them, the consumer has to."""
    raw = [ds[i][1].encode() for i in range(batch)]
    n, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        texts = [str(r, "utf-8") for r in raw]
        n += 1
    del texts
    return n / (time.perf_counter() - begun)


def main():
    r = Report("W2", seconds=1.5, workers=4, batch=64)
    a = r.args
    kw = {"batch_size": a.batch, "num_workers": a.workers}
    got = {}
    for text in (False, True):
        what = "ids and text" if text else "ids"
        forms = pair(Tokens(text), a.seconds, **kw)
        if text:
            forms["bound: making the strings"] = lambda: made(Tokens(True), a.batch, a.seconds)
        got[text] = r.alternate(forms, "batches/s", payload=what)
        ratio = got[text]["sluice"] / got[text]["stock"]
        least = 4 if text else 3
        r.goal("%s / stock" % what, ratio, least)
    ids, raw = a.batch * 2048 * 8, a.batch * (2048 * 8 + 8192)
    per_byte = got[True]["sluice"] * raw / (got[False]["sluice"] * ids)
    limit = raw / ids / (1 + got[False]["sluice"] / got[True]["bound: making the strings"])
    r.goal("bytes/s with text / ids only", per_byte, 0.9, limit, "the strings made besides")
    r.finish()


if __name__ == "__main__":
    main()

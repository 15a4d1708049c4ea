# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""W2: token batches, and strings beside them."""
from loaders import Tokens, pair
from side import Report


def main():
    r = Report("W2", seconds=1.5, workers=4, batch=64)
    a = r.args
    kw = {"batch_size": a.batch, "num_workers": a.workers}
    got = {}
    for text in (False, True):
        what = "ids and text" if text else "ids"
        got[text] = r.alternate(pair(Tokens(text), a.seconds, **kw), "batches/s", payload=what)
        ratio = got[text]["sluice"] / got[text]["stock"]
        least = 4 if text else 3
        r.goal("%s / stock" % what, ratio, least)
    ids, raw = a.batch * 2048 * 8, a.batch * (2048 * 8 + 8192)
    per_byte = got[True]["sluice"] * raw / (got[False]["sluice"] * ids)
    r.goal("bytes/s with text / ids only", per_byte, 0.9)
    r.finish()


if __name__ == "__main__":
    main()

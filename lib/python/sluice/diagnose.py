# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What limits a DataLoader: the same job with caches in four places, a table and a verdict.

    python3 -m sluice.diagnose module:make_loader [--step module:function]

make_loader() returns the job's DataLoader, step(batch) does with a batch what training does.
"""
from ._diagnose import main, run

__all__ = ["main", "run"]

if __name__ == "__main__":
    raise SystemExit(main())

# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""sluice for PyTorch.

    DataLoader       torch.utils.data.DataLoader, with the same arguments
    arena_collate    default_collate that stacks straight into the batch's extent
    arena_empty      memory of that extent for a collate function of one's own
    CudaFeed         a loader's batches on the device, copied ahead
    Egress           results from the device to worker processes
    record_stream    names a side stream that copies batches, so no extent is reused too early
"""
from .._gpu import record_stream
from ._collate import arena_collate, arena_empty
from ._cuda import CudaFeed, Egress
from ._loader import DataLoader

__all__ = ["CudaFeed", "DataLoader", "Egress", "arena_collate", "arena_empty", "record_stream"]

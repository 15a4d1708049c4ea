# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""sluice for PyTorch: DataLoader, arena_collate, record_stream."""
from .._gpu import record_stream
from ._collate import arena_collate, arena_empty

__all__ = ["arena_collate", "arena_empty", "record_stream"]

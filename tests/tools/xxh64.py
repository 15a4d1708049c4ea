# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""XXH64 from its specification, slowly: a second opinion about what the program says."""
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
MASK = (1 << 64) - 1


def rotl(x, n):
    return (x << n | x >> (64 - n)) & MASK


def round_(acc, lane):
    return rotl((acc + lane * P2) & MASK, 31) * P1 & MASK


def merge(h, acc):
    return ((h ^ round_(0, acc)) * P1 + P4) & MASK


def xxh64(data):
    n = len(data)
    i = 0
    if n >= 32:
        acc = [P1 + P2 & MASK, P2, 0, -P1 & MASK]
        while i + 32 <= n:
            for k in range(4):
                acc[k] = round_(acc[k], int.from_bytes(data[i:i + 8], "little"))
                i += 8
        h = sum(rotl(a, r) for a, r in zip(acc, (1, 7, 12, 18))) & MASK
        for a in acc:
            h = merge(h, a)
    else:
        h = P5
    h = h + n & MASK
    while i + 8 <= n:
        h ^= round_(0, int.from_bytes(data[i:i + 8], "little"))
        h = rotl(h, 27) * P1 + P4 & MASK
        i += 8
    if i + 4 <= n:
        h ^= int.from_bytes(data[i:i + 4], "little") * P1 & MASK
        h = rotl(h, 23) * P2 + P3 & MASK
        i += 4
    while i < n:
        h ^= data[i] * P5 & MASK
        h = rotl(h, 11) * P1 & MASK
        i += 1
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32

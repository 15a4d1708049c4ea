/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Ranges for profilers: they cost a load and a branch unless a tool is attached. */
#ifndef SLUICE_CUDA_NVTX_H
#define SLUICE_CUDA_NVTX_H

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define cuda_range_begin(name) nvtxRangePushA("sluice " name)
#define cuda_range_end()       nvtxRangePop()
#else
#define cuda_range_begin(name) ((void)0)
#define cuda_range_end()       ((void)0)
#endif

#endif

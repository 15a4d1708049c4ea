/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the suites of libsluice-cuda have in common. */
#ifndef SLUICE_CUDA_SUITE_H
#define SLUICE_CUDA_SUITE_H

#include "../lib/util.h"

#include <kselftest_harness.h>
#include <sluice_cuda.h>

#include "gpu.h"

#define ASSERT_CUDA(expected, call)                                               \
	do {                                                                      \
		long ret_ = (call);                                               \
		ASSERT_EQ(expected, ret_)                                         \
		{                                                                 \
			TH_LOG("%s", ret_ < 0 ? sluice_cuda_strerror() : "done"); \
		}                                                                 \
	} while (0)

/* Drain one tensor of @bytes at @dev. */
static inline int submit_bytes(struct sluice_cuda_drain *d, void *dev, int64_t bytes,
			       struct CUstream_st *s, const struct sluice_cuda_submit_opts *opts)
{
	const struct sluice_tensor t = {
		.sz = sizeof(t),
		.name = "x",
		.data = dev,
		.dtype = SLUICE_U8,
		.ndim = 1,
		.shape = &bytes,
	};

	return sluice_cuda_drain_submit(d, &t, 1, s, opts);
}

#endif /* SLUICE_CUDA_SUITE_H */

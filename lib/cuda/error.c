/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "priv.h"

static __thread char sentence[512];

const char *sluice_cuda_strerror(void)
{
	return sentence;
}

int cuda_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(sentence, sizeof(sentence), fmt, ap);
	va_end(ap);
	return -err;
}

int cuda_fail_core(int ret)
{
	snprintf(sentence, sizeof(sentence), "%s", sluice_strerror());
	return ret;
}

int cuda_fail_elsewhere(void)
{
	return cuda_fail(EINVAL, "the batch is not in the arena that was attached to CUDA");
}

static int errno_of(CUresult r)
{
	switch (r) {
	case CUDA_ERROR_OUT_OF_MEMORY:
		return ENOMEM;
	case CUDA_ERROR_NO_DEVICE:
		return ENODEV;
	case CUDA_ERROR_INVALID_DEVICE:
		return ENXIO;
	case CUDA_ERROR_INVALID_VALUE:
	case CUDA_ERROR_INVALID_HANDLE:
		return EINVAL;
	case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ... CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
	case CUDA_ERROR_NOT_PERMITTED:
	case CUDA_ERROR_NOT_SUPPORTED:
		return EPERM;
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_INVALID_CONTEXT:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return ESHUTDOWN;
	default:
		return EIO;
	}
}

int cuda_fail_result(const struct cuda_driver *cu, CUresult r, const char *fmt, ...)
{
	const char *name = NULL, *text = NULL;
	char what[320];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (cu->GetErrorName(r, &name) != CUDA_SUCCESS || !name)
		name = "an error that this driver cannot name";
	if (cu->GetErrorString(r, &text) != CUDA_SUCCESS || !text)
		text = "no text";
	return cuda_fail(errno_of(r), "%s: %s (%d: %s)", what, name, r, text);
}

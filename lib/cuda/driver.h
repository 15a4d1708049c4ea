/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The CUDA driver as a table of functions, found at run time. */
#ifndef SLUICE_CUDA_DRIVER_H
#define SLUICE_CUDA_DRIVER_H

#include <cuda.h>
#include <cudaTypedefs.h>

/* Name and the CUDA version whose calling convention is meant: a later driver still offers it. */
#define SLUICE_CUDA_DRIVER(X)             \
	X(Init, 2000)                     \
	X(DriverGetVersion, 2020)         \
	X(GetErrorName, 6000)             \
	X(GetErrorString, 6000)           \
	X(DeviceGet, 2000)                \
	X(DeviceGetCount, 2000)           \
	X(DeviceGetName, 2000)            \
	X(DeviceGetAttribute, 2000)       \
	X(DevicePrimaryCtxRetain, 7000)   \
	X(DevicePrimaryCtxRelease, 11000) \
	X(DevicePrimaryCtxGetState, 7000) \
	X(CtxGetCurrent, 4000)            \
	X(CtxPushCurrent, 4000)           \
	X(CtxPopCurrent, 4000)            \
	X(CtxGetDevice, 2000)             \
	X(MemHostRegister, 6050)          \
	X(MemHostUnregister, 4000)        \
	X(MemHostGetDevicePointer, 3020)  \
	X(MemAlloc, 3020)                 \
	X(MemFree, 3020)                  \
	X(MemcpyHtoDAsync, 3020)          \
	X(MemcpyDtoHAsync, 3020)          \
	X(PointerGetAttribute, 4000)      \
	X(StreamCreate, 2000)             \
	X(StreamDestroy, 4000)            \
	X(StreamQuery, 2000)              \
	X(StreamSynchronize, 2000)        \
	X(StreamWaitEvent, 3020)          \
	X(StreamIsCapturing, 10000)       \
	X(StreamWriteValue64, 11070)      \
	X(LaunchHostFunc, 10000)          \
	X(EventCreate, 2000)              \
	X(EventDestroy, 4000)             \
	X(EventRecord, 2000)              \
	X(EventQuery, 2000)               \
	X(EventSynchronize, 2000)

struct cuda_driver {
#define SLUICE_CUDA_FIELD(name, version) PFN_cu##name##_v##version name;
	SLUICE_CUDA_DRIVER(SLUICE_CUDA_FIELD)
#undef SLUICE_CUDA_FIELD
};

/*
 * The one table of this process, or NULL with the thread's sentence set and *err a negative errno.
 * A failure is not remembered: a driver may appear later.
 */
const struct cuda_driver *cuda_driver_get(int *err);

#endif

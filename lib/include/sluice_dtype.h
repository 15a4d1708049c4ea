/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Element types of tensors, as DLPack has them.  Part of sluice.h. */
#ifndef SLUICE_DTYPE_H
#define SLUICE_DTYPE_H

#include <stdint.h>

/* DLPack's type codes; lanes is 1 for every type of NumPy and PyTorch. */
enum sluice_dtype_code {
	SLUICE_INT = 0,
	SLUICE_UINT = 1,
	SLUICE_FLOAT = 2,
	SLUICE_OPAQUE = 3,
	SLUICE_BFLOAT = 4,
	SLUICE_COMPLEX = 5,
	SLUICE_BOOL = 6,
	SLUICE_FLOAT8_E3M4 = 7,
	SLUICE_FLOAT8_E4M3 = 8,
	SLUICE_FLOAT8_E4M3B11FNUZ = 9,
	SLUICE_FLOAT8_E4M3FN = 10,
	SLUICE_FLOAT8_E4M3FNUZ = 11,
	SLUICE_FLOAT8_E5M2 = 12,
	SLUICE_FLOAT8_E5M2FNUZ = 13,
	SLUICE_FLOAT8_E8M0FNU = 14,
};

/**
 * struct sluice_dtype - element type, laid out as DLPack's DLDataType
 * @code: enum sluice_dtype_code
 * @bits: of one lane, a multiple of 8
 * @lanes: 1 for scalars
 */
struct sluice_dtype {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
};

#define SLUICE_DTYPE(c, b) ((struct sluice_dtype){.code = (c), .bits = (b), .lanes = 1})
#define SLUICE_U8	   SLUICE_DTYPE(SLUICE_UINT, 8)
#define SLUICE_I32	   SLUICE_DTYPE(SLUICE_INT, 32)
#define SLUICE_I64	   SLUICE_DTYPE(SLUICE_INT, 64)
#define SLUICE_F16	   SLUICE_DTYPE(SLUICE_FLOAT, 16)
#define SLUICE_F32	   SLUICE_DTYPE(SLUICE_FLOAT, 32)
#define SLUICE_F64	   SLUICE_DTYPE(SLUICE_FLOAT, 64)
#define SLUICE_BF16	   SLUICE_DTYPE(SLUICE_BFLOAT, 16)

#endif /* SLUICE_DTYPE_H */

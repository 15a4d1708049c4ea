// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* One site of each shape, for usdt.sh to look at. */
#include "usdt.h"

USDT_DEFINE(batch_publish);
USDT_DEFINE(batch_next);

__attribute__((noinline)) uint64_t site(uint64_t bytes, uint64_t id, uint32_t channel);
__attribute__((noinline)) uint64_t bare(uint64_t bytes, uint64_t id, uint32_t channel);

uint64_t site(uint64_t bytes, uint64_t id, uint32_t channel)
{
	USDT3(batch_publish, bytes, id, channel);
	return bytes + id;
}

/* The same function without the probe: what differs is the probe's cost. */
uint64_t bare(uint64_t bytes, uint64_t id, uint32_t channel)
{
	(void)channel;
	return bytes + id;
}

#ifndef USDT_NO_MAIN
int main(int argc, char **argv)
{
	(void)argv;
	if (USDT_ENABLED(batch_next))
		USDT4(batch_next, 1, 2, 3, argc);
	USDT1(batch_next, argc);
	return site(argc, 1, 2) == bare(argc, 1, 2) ? 0 : 1;
}
#endif

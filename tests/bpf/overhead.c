// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the counters cost a pipe: the same transfer with and without them by turns in one run. To be
 * run where the clock counts instructions (tests/vm/run -i), so that neither the load of the machine
 * nor the emulator's idea of what is expensive matters.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "stat_load.h"

#define ROUNDS 2
#define TRIES  2
#define CASES  3
#define LIMIT  0.97

static char buf[12 << 20];

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* Seconds for @total bytes in writes of @size to a process that reads as much at once. */
static double transfer(size_t size, size_t total)
{
	double begun;
	int p[2];

	if (pipe(p))
		abort();
	begun = now();
	switch (fork()) {
	case -1:
		abort();
	case 0:
		close(p[1]);
		while (read(p[0], buf, size) > 0)
			;
		_exit(0);
	}
	close(p[0]);
	for (size_t done = 0; done < total; done += size)
		if (write(p[1], buf, size) != (ssize_t)size)
			abort();
	close(p[1]);
	wait(NULL);
	return now() - begun;
}

int main(void)
{
	static const struct {
		size_t size, total;
		double limit;
		const char *name;
	} cases[CASES] = {
		{12 << 20, 24 << 20, LIMIT, "writes of 12 MiB"},
		{64 << 10, 16 << 20, LIMIT, "writes of 64 KiB"},
		/* Told only: nobody who cares for throughput writes pages one by one. */
		{4 << 10, 2 << 20, 0, "writes of 4 KiB"},
	};
	struct counters_opts opts = {.size = sizeof(opts)};
	double fastest[CASES][2] = {{1e9, 1e9}, {1e9, 1e9}, {1e9, 1e9}};
	struct counters *c = NULL;
	int failed = 0;

	printf("1..2\n");
	for (int round = 0; round < 2 * ROUNDS; round++) {
		int on = round % 2;

		if (on && counters_load(&c, &opts)) {
			printf("Bail out! the counters do not load\n");
			return 1;
		}
		for (int i = 0; i < CASES; i++) {
			for (int try = 0; try < TRIES; try++) {
				double t = transfer(cases[i].size, cases[i].total);

				if (t < fastest[i][on])
					fastest[i][on] = t;
			}
		}
		if (on)
			counters_close(c);
	}
	for (int i = 0; i < CASES; i++) {
		double ratio = fastest[i][0] / fastest[i][1];
		double more = (fastest[i][1] - fastest[i][0]) * cases[i].size / cases[i].total;

		printf("# %s: %.1f MB/s without, %.1f MB/s with counters (%.3f); a write and what "
		       "reads it take %.2f us more\n",
		       cases[i].name, cases[i].total / fastest[i][0] / 1e6,
		       cases[i].total / fastest[i][1] / 1e6, ratio, more * 1e6);
		if (!cases[i].limit)
			continue;
		printf("%sok %d - %s keep at least %.2f of their speed (%.3f)\n",
		       ratio >= cases[i].limit ? "" : "not ", i + 1, cases[i].name, cases[i].limit,
		       ratio);
		failed += ratio < cases[i].limit;
	}
	return failed != 0;
}

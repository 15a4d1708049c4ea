// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the counters cost a pipe: the same transfer with and without them by turns in one run. To be
 * run where the clock counts instructions (tests/vm/run -i), so that neither the load of the machine
 * nor the emulator's idea of what is expensive matters. What is left is when the scheduler lets the
 * writer and the reader change places: rarely so that everything is a tenth faster, which is luck and
 * no measure, so the median counts and not the fastest.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "stat_load.h"

#define ROUNDS 3
#define TRIES  8
#define CASES  3
#define LIMIT  0.97

static char buf[12 << 20];

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/*
 * Seconds for writing @total bytes, @size at once, to a process that reads as much at once into memory
 * that it has used before.
 */
static double transfer(size_t size, size_t total)
{
	int p[2], ready[2];
	double time;

	if (pipe(p) || pipe(ready))
		abort();
	switch (fork()) {
	case -1:
		abort();
	case 0:
		memset(buf, 1, size);
		close(p[1]);
		close(ready[1]);
		while (read(p[0], buf, size) > 0)
			;
		_exit(0);
	}
	close(p[0]);
	close(ready[1]);
	if (read(ready[0], buf, 1))
		abort();
	close(ready[0]);
	time = now();
	for (size_t done = 0; done < total; done += size)
		if (write(p[1], buf, size) != (ssize_t)size)
			abort();
	time = now() - time;
	close(p[1]);
	wait(NULL);
	return time;
}

static int compare_times(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *times, int n)
{
	qsort(times, n, sizeof(*times), compare_times);
	return times[n / 2];
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
	static double times[CASES][2][ROUNDS * TRIES];
	struct counters_opts opts = {.size = sizeof(opts)};
	struct counters *c = NULL;
	int failed = 0;

	printf("1..2\n");
	for (int round = 0; round < 2 * ROUNDS; round++) {
		int on = round % 2;

		if (on && counters_load(&c, &opts)) {
			printf("Bail out! the counters do not load\n");
			return 1;
		}
		for (int i = 0; i < CASES; i++)
			for (int try = 0; try < TRIES; try++)
				times[i][on][round / 2 * TRIES + try] =
					transfer(cases[i].size, cases[i].total);
		if (on)
			counters_close(c);
	}
	for (int i = 0; i < CASES; i++) {
		double without = median(times[i][0], ROUNDS * TRIES);
		double with = median(times[i][1], ROUNDS * TRIES);
		double more = (with - without) * cases[i].size / cases[i].total;
		double ratio = without / with;

		printf("# %s: %.1f MB/s without, %.1f MB/s with counters (%.3f); a write and what "
		       "reads it take %.2f us more\n",
		       cases[i].name, cases[i].total / without / 1e6, cases[i].total / with / 1e6,
		       ratio, more * 1e6);
		if (!cases[i].limit)
			continue;
		printf("%sok %d - %s keep at least %.2f of their speed (%.3f)\n",
		       ratio >= cases[i].limit ? "" : "not ", i + 1, cases[i].name, cases[i].limit,
		       ratio);
		failed += ratio < cases[i].limit;
	}
	return failed != 0;
}

// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * usage: press PROCESSES CALLS BYTES
 *
 * That many processes, each of which writes BYTES into a pipe of its own and reads them back, CALLS
 * times, without ever waiting: the kernel has to take the CPU away from them, in the middle of what
 * counts the calls as well. Prints how many bytes were written, which is how many were read.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char buf[65536];

static int child(long calls, long bytes)
{
	int p[2];

	if (pipe(p))
		return 1;
	while (calls-- > 0)
		if (write(p[1], buf, bytes) != bytes || read(p[0], buf, bytes) != bytes)
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	long processes = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
	long calls = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
	long bytes = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
	int status;

	if (processes < 1 || calls < 1 || bytes < 1 || bytes > (long)sizeof(buf)) {
		fprintf(stderr, "usage: press PROCESSES CALLS BYTES\n");
		return 2;
	}
	for (long i = 0; i < processes; i++) {
		switch (fork()) {
		case -1:
			return 1;
		case 0:
			_exit(child(calls, bytes));
		}
	}
	for (long i = 0; i < processes; i++)
		if (wait(&status) < 0 || status)
			return 1;
	printf("%ld\n", processes * calls * bytes);
	return 0;
}

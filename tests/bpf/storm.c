// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * usage: storm PROCESSES BYTES THREADS
 *
 * That many processes, a few at a time, whose threads write BYTES together into a pipe that their
 * parent reads. Their names are nobody's idea of a name. Prints how many bytes came.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_ONCE	    8
#define MAX_THREADS 16

static char buf[65536];
static int end;
static long share;

static void *write_share(void *unused)
{
	(void)unused;
	return write(end, buf, share) == share ? NULL : (void *)1;
}

static int child(int fd, long threads)
{
	pthread_t others[MAX_THREADS];
	void *failed;
	int ret = 0;

	prctl(PR_SET_NAME, "\"\\\n\x1b[31m\xff{}");
	end = fd;
	for (long i = 1; i < threads; i++)
		if (pthread_create(&others[i], NULL, write_share, NULL))
			return 1;
	if (write_share(NULL))
		return 1;
	for (long i = 1; i < threads; i++)
		ret |= pthread_join(others[i], &failed) || failed;
	return ret;
}

int main(int argc, char **argv)
{
	long processes = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
	int status, pipes[AT_ONCE][2], n;
	long sum = 0, threads;
	ssize_t got;

	threads = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
	if (processes > 0 && threads > 0 && threads <= MAX_THREADS)
		share = strtol(argv[2], NULL, 10) / threads;
	if (share < 1 || share > (long)sizeof(buf)) {
		fprintf(stderr, "usage: storm PROCESSES BYTES THREADS\n");
		return 2;
	}
	while (processes > 0) {
		for (n = 0; n < AT_ONCE && processes > 0; n++, processes--) {
			if (pipe(pipes[n]))
				return 1;
			switch (fork()) {
			case -1:
				return 1;
			case 0:
				_exit(child(pipes[n][1], threads));
			}
			close(pipes[n][1]);
		}
		for (int i = 0; i < n; i++) {
			while ((got = read(pipes[i][0], buf, sizeof(buf))) > 0)
				sum += got;
			close(pipes[i][0]);
		}
		for (int i = 0; i < n; i++)
			if (wait(&status) < 0 || status)
				return 1;
	}
	printf("%ld\n", sum);
	return 0;
}

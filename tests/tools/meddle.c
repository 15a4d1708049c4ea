// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Preloaded into sluice pump: does to a file, between two system calls of the producer, what its
 * name says.  So that what happens by chance on a live host happens here every time.
 *
 *	when it is opened:          .vanish .fifo .link
 *	when it is first read from: .grow .shrink .touch .eio .kill
 *	when it has been hashed:    .damage (the first byte of what was read, where it was read to)
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is(const char *path, const char *suffix)
{
	size_t n = strlen(path), m = strlen(suffix);

	return n >= m && !strcmp(path + n - m, suffix);
}

static void at_open(const char *path)
{
	if (!is(path, ".vanish") && !is(path, ".fifo") && !is(path, ".link"))
		return;
	unlink(path);
	if (is(path, ".fifo") && mkfifo(path, 0600))
		perror("meddle: mkfifo");
	if (is(path, ".link") && symlink("/etc/passwd", path))
		perror("meddle: symlink");
}

int open(const char *path, int flags, ...)
{
	int (*real)(const char *, int, ...);
	mode_t mode = 0;
	va_list ap;

	if (flags & O_CREAT) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	*(void **)&real = dlsym(RTLD_NEXT, "open");
	at_open(path);
	return real(path, flags, mode);
}

static bool path_of(int fd, char *path, size_t len)
{
	char link[64];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, len - 1);
	if (n >= 0)
		path[n] = '\0';
	return n >= 0;
}

/* Return: whether the read fails. */
static bool at_first_read(int fd, const char *path)
{
	struct stat st;
	int other;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return false;
	if (is(path, ".kill"))
		raise(SIGKILL);
	if (is(path, ".eio"))
		return true;
	if (is(path, ".shrink") && truncate(path, st.st_size / 2))
		perror("meddle: truncate");
	if (is(path, ".grow") && truncate(path, st.st_size + 1000))
		perror("meddle: truncate");
	if (is(path, ".touch")) {
		other = open(path, O_WRONLY);
		if (other < 0 || pwrite(other, "!", 1, 0) != 1)
			perror("meddle: write");
		close(other);
	}
	return false;
}

ssize_t pread(int fd, void *buf, size_t bytes, off_t off)
{
	ssize_t (*real)(int, void *, size_t, off_t);
	static char *first;
	char path[4096];

	*(void **)&real = dlsym(RTLD_NEXT, "pread");
	if (!path_of(fd, path, sizeof(path)))
		return real(fd, buf, bytes, off);
	if (!off) {
		first = buf;
		if (at_first_read(fd, path)) {
			errno = EIO;
			return -1;
		}
	} else if (is(path, ".damage") && bytes == 1) {
		/* The producer looks whether there is more, behind the last byte: it has hashed. */
		*first ^= 1;
	}
	return real(fd, buf, bytes, off);
}

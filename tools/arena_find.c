// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "arena_find.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../lib/region.h"

#define PREFIX "/memfd:" SLUICE_REGION_CONTROL_NAME

static void comm_read(pid_t pid, char *comm, size_t len)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	f = fopen(path, "re");
	if (!f || !fgets(comm, len, f))
		*comm = '\0';
	comm[strcspn(comm, "\n")] = '\0';
	if (f)
		fclose(f);
}

static struct found *found_new(struct finds *f)
{
	struct found *a = reallocarray(f->found, f->n + 1, sizeof(*a));

	if (!a)
		return NULL;
	f->found = a;
	a += f->n++;
	*a = (struct found){0};
	return a;
}

static int holder_add(struct found *a, pid_t pid, int fd, bool consumer)
{
	struct holder *h = a->holders ? &a->holder[a->holders - 1] : NULL;

	/* A process may have several descriptors of one arena. */
	if (h && h->pid == pid) {
		if (h->fd < 0) {
			h->fd = fd;
			h->consumer = consumer;
		}
		return 0;
	}
	h = reallocarray(a->holder, a->holders + 1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	a->holder = h;
	h += a->holders++;
	*h = (struct holder){.pid = pid, .fd = fd, .consumer = consumer};
	comm_read(pid, h->comm, sizeof(h->comm));
	return 0;
}

static int memfd_add(struct finds *f, const struct stat *st, pid_t pid, int fd)
{
	struct found *a = NULL;

	for (unsigned int i = 0; i < f->n && !a; i++) {
		if (!f->found[i].kernel.id && f->found[i].dev == st->st_dev &&
		    f->found[i].ino == st->st_ino)
			a = &f->found[i];
	}
	if (!a) {
		a = found_new(f);
		if (!a)
			return -ENOMEM;
		a->dev = st->st_dev;
		a->ino = st->st_ino;
	}
	return holder_add(a, pid, fd, false);
}

static int module_add(struct finds *f, pid_t pid, int fd)
{
	struct kernel_file file;
	struct found *a = NULL;
	int ret;

	if (kernel_file_read(&file, pid, fd))
		return 0;
	for (unsigned int i = 0; i < f->n && !a; i++) {
		if (f->found[i].kernel.id == file.arena.id)
			a = &f->found[i];
	}
	if (!a) {
		a = found_new(f);
		if (!a)
			return -ENOMEM;
		a->kernel = file.arena;
	}
	ret = file.bell.id ? kernel_bell_add(&a->kernel, &file.bell) : 0;
	if (ret)
		return ret;
	return holder_add(a, pid, file.bell.id ? -1 : fd, file.consumer);
}

static int process_look(struct finds *f, pid_t pid)
{
	char path[64], target[256];
	struct dirent *e;
	struct stat st;
	int ret = 0;
	ssize_t n;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir) {
		f->hidden += errno == EACCES || errno == EPERM;
		return 0;
	}
	while (!ret && (e = readdir(dir))) {
		n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
		if (n <= 0)
			continue;
		target[n] = '\0';
		if (kernel_is_file(target))
			ret = module_add(f, pid, atoi(e->d_name));
		else if (!strncmp(target, PREFIX, strlen(PREFIX)) &&
			 !fstatat(dirfd(dir), e->d_name, &st, 0))
			ret = memfd_add(f, &st, pid, atoi(e->d_name));
	}
	closedir(dir);
	return ret;
}

int arenas_find(struct finds *f)
{
	struct dirent *e;
	int ret = 0;
	DIR *proc;

	*f = (struct finds){0};
	proc = opendir("/proc");
	if (!proc)
		return -errno;
	while (!ret && (e = readdir(proc))) {
		if (isdigit((unsigned char)*e->d_name))
			ret = process_look(f, atoi(e->d_name));
	}
	closedir(proc);
	if (ret)
		finds_free(f);
	return ret;
}

void finds_free(struct finds *f)
{
	for (unsigned int i = 0; i < f->n; i++) {
		free(f->found[i].holder);
		free(f->found[i].kernel.bell);
	}
	free(f->found);
	*f = (struct finds){0};
}

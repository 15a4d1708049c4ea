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

static int holder_add(struct finds *f, const struct stat *st, pid_t pid, int fd)
{
	struct found *a = NULL;
	struct holder *h;

	for (unsigned int i = 0; i < f->n && !a; i++) {
		if (f->found[i].dev == st->st_dev && f->found[i].ino == st->st_ino)
			a = &f->found[i];
	}
	if (!a) {
		a = reallocarray(f->found, f->n + 1, sizeof(*a));
		if (!a)
			return -ENOMEM;
		f->found = a;
		a += f->n++;
		*a = (struct found){.dev = st->st_dev, .ino = st->st_ino};
	}
	/* A process may have several descriptors of one arena. */
	if (a->holders && a->holder[a->holders - 1].pid == pid)
		return 0;
	h = reallocarray(a->holder, a->holders + 1, sizeof(*h));
	if (!h)
		return -ENOMEM;
	a->holder = h;
	h += a->holders++;
	*h = (struct holder){.pid = pid, .fd = fd};
	comm_read(pid, h->comm, sizeof(h->comm));
	return 0;
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
		if (n < (ssize_t)strlen(PREFIX) || strncmp(target, PREFIX, strlen(PREFIX)))
			continue;
		if (!fstatat(dirfd(dir), e->d_name, &st, 0))
			ret = holder_add(f, &st, pid, atoi(e->d_name));
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
	for (unsigned int i = 0; i < f->n; i++)
		free(f->found[i].holder);
	free(f->found);
	*f = (struct finds){0};
}

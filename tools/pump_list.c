// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pump.h"

/* The producers' shared cursor runs past the end once for each of them, and must not wrap. */
#define LIST_MAX (1U << 31)

static int add_file(struct pump_list *l, const char *path, uint64_t size)
{
	if (l->files == LIST_MAX)
		return -EOVERFLOW;
	if (l->files == l->room) {
		uint32_t room = l->room > UINT32_MAX / 2 ? UINT32_MAX
				: l->room		 ? 2 * l->room
							 : 1024;
		struct pump_file *file = reallocarray(l->file, room, sizeof(*file));

		if (!file)
			return -ENOMEM;
		l->file = file;
		l->room = room;
	}
	l->file[l->files] = (struct pump_file){.path = strdup(path), .size = size};
	if (!l->file[l->files].path)
		return -ENOMEM;
	l->files++;
	l->bytes += size;
	return 0;
}

static int add_unwalked(struct pump_list *l, const char *path, int err)
{
	struct pump_unwalked *u;

	u = reallocarray(l->unwalked, l->unwalked_count + 1, sizeof(*u));
	if (!u)
		return -ENOMEM;
	l->unwalked = u;
	u += l->unwalked_count;
	*u = (struct pump_unwalked){.path = strdup(path), .err = err};
	if (!u->path)
		return -ENOMEM;
	l->unwalked_count++;
	return 0;
}

static int add_entry(struct pump_list *l, const FTSENT *e)
{
	switch (e->fts_info) {
	case FTS_F:
		return add_file(l, e->fts_path, e->fts_statp->st_size);
	case FTS_D:
	case FTS_DP:
		return 0;
	case FTS_DNR:
	case FTS_ERR:
	case FTS_NS:
		return add_unwalked(l, e->fts_path, e->fts_errno);
	case FTS_DC:
		return add_unwalked(l, e->fts_path, ELOOP);
	default:
		l->skipped++;
		return 0;
	}
}

int list_walk(struct pump_list *l, char **operands, uint64_t max_bytes)
{
	FTSENT *e;
	FTS *fts;
	int ret = 0;

	/* Symbolic links are followed on the command line only. */
	fts = fts_open(operands, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
	if (!fts)
		return -errno;
	while (!ret && (errno = 0, e = fts_read(fts))) {
		if (e->fts_info == FTS_F && l->bytes + e->fts_statp->st_size > max_bytes) {
			l->cut = true;
			break;
		}
		ret = add_entry(l, e);
	}
	if (!ret && !e && errno)
		ret = -errno;
	fts_close(fts);
	return ret;
}

bool list_has(const struct pump_list *l, const char *path)
{
	struct stat it, st;

	if (stat(path, &it))
		return false;
	for (uint32_t i = 0; i < l->files; i++)
		if (l->file[i].size == (uint64_t)it.st_size && !stat(l->file[i].path, &st) &&
		    st.st_dev == it.st_dev && st.st_ino == it.st_ino)
			return true;
	return false;
}

void list_reset(struct pump_list *l)
{
	for (uint32_t i = 0; i < l->files; i++) {
		struct pump_file *f = &l->file[i];

		f->hash = f->detail = 0;
		f->trouble = TROUBLE_NONE;
		f->done = f->verified = false;
	}
}

void list_free(struct pump_list *l)
{
	for (uint32_t i = 0; i < l->files; i++)
		free((char *)l->file[i].path);
	for (uint32_t i = 0; i < l->unwalked_count; i++)
		free(l->unwalked[i].path);
	free(l->file);
	free(l->unwalked);
}

void list_warm(const struct pump_list *l)
{
	enum {
		BYTES = 1 << 20
	};
	char *buf = malloc(BYTES);

	if (!buf)
		return;
	for (uint32_t i = 0; i < l->files; i++) {
		int fd = open(l->file[i].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

		if (fd < 0)
			continue;
		while (read(fd, buf, BYTES) > 0)
			;
		close(fd);
	}
	free(buf);
}

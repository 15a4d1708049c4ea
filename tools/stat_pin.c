// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The folder that counters are pinned in. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <linux/magic.h>
#include <bpf/bpf.h>
#include "stat_pin.h"

/* Those that hold objects, the outermost last. */
static const char *const dirs[] = {STAT_PIN_DIR "/links", STAT_PIN_DIR "/programs",
				   STAT_PIN_DIR "/readers", STAT_PIN_DIR};

#define DIRS (sizeof(dirs) / sizeof(dirs[0]))

void stat_say(const char *fmt, ...)
{
	va_list ap;

	fputs("sluice: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* Everyone may make folders in a bpf file system: what others made there is not used. */
static bool is_ours(const struct stat *st)
{
	return S_ISDIR(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & 022);
}

int pins_lock(void)
{
	struct stat locked, now;
	int fd, err;

	for (;;) {
		if (lstat(STAT_PIN_DIR, &now))
			return -errno;
		if (!is_ours(&now))
			return -EPERM;
		fd = open(STAT_PIN_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX) || fstat(fd, &locked)) {
			err = -errno;
			close(fd);
			return err;
		}
		/* Whoever had the lock may have removed the folder, and others may have made it anew. */
		if (!lstat(STAT_PIN_DIR, &now) && now.st_ino == locked.st_ino && is_ours(&now))
			return fd;
		close(fd);
	}
}

static int make_dir(const char *path)
{
	int err;

	if (!mkdir(path, 0700) || errno == EEXIST)
		return 0;
	err = -errno;
	stat_say("cannot make %s: %s", path, strerror(-err));
	return err;
}

int pins_make(void)
{
	struct statfs fs;
	struct stat st;
	int fd, err;

	if (statfs(STAT_BPF_FS, &fs) || fs.f_type != BPF_FS_MAGIC) {
		stat_say("no bpf file system to pin the counters in; `mount -t bpf bpf " STAT_BPF_FS
			 "` mounts it");
		return -ENODEV;
	}
	do {
		err = make_dir(STAT_PIN_DIR);
		if (err)
			return err;
		fd = pins_lock();
	} while (fd == -ENOENT);
	if (fd == -EPERM && !lstat(STAT_PIN_DIR, &st))
		stat_say(STAT_PIN_DIR " is user %u's, and not a folder of user %u's alone: load as "
				      "its owner, or remove it",
			 st.st_uid, geteuid());
	else if (fd < 0)
		stat_say("cannot lock " STAT_PIN_DIR ": %s", strerror(-fd));
	return fd;
}

int pins_make_dirs(void)
{
	int err = 0;

	for (size_t i = 0; !err && i < DIRS; i++)
		err = make_dir(dirs[i]);
	return err;
}

void pins_remove(const char *dir, const char *name)
{
	char path[192];

	snprintf(path, sizeof(path), STAT_PIN_DIR "/%s/%s", dir, name);
	unlink(path);
}

/* Those who read meanwhile find either the former or this one. */
int pins_add(int fd, const char *dir, const char *name)
{
	char path[192], fresh[64];
	int err;

	snprintf(path, sizeof(path), STAT_PIN_DIR "/%s/%s", dir, name);
	snprintf(fresh, sizeof(fresh), STAT_PIN_DIR "/%s/new", dir);
	unlink(fresh);
	err = bpf_obj_pin(fd, fresh);
	if (!err && rename(fresh, path)) {
		err = -errno;
		unlink(fresh);
	}
	return err;
}

/* Counts the objects of one folder, or removes them; a negative errno if there is another reason. */
static int visit_dir(const char *path, bool remove)
{
	struct dirent *entry;
	int fd, n = 0;
	DIR *dir;

	fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return errno == ENOENT ? 0 : -errno;
	while ((entry = readdir(dir)))
		if (entry->d_type != DT_DIR && (!remove || !unlinkat(fd, entry->d_name, 0)))
			n++;
	closedir(dir);
	return n;
}

int pins_count(void)
{
	int n, sum = 0;

	for (size_t i = 0; i < DIRS; i++) {
		n = visit_dir(dirs[i], false);
		sum += n > 0 ? n : 0;
	}
	return sum;
}

void pins_remove_programs(void)
{
	visit_dir(STAT_PIN_DIR "/links", true);
	visit_dir(STAT_PIN_DIR "/programs", true);
}

int pins_remove_all(void)
{
	int n, sum = 0, err = 0;

	for (size_t i = 0; i < DIRS; i++) {
		n = visit_dir(dirs[i], true);
		if (n > 0)
			sum += n;
		if (n < 0)
			err = n;
		else if (rmdir(dirs[i]) && errno != ENOENT)
			err = -errno;
	}
	return err ? err : sum;
}

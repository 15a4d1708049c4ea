/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The folder that counters are pinned in: whose it is, who may change it, and what is in it. */
#ifndef SLUICE_STAT_PIN_H
#define SLUICE_STAT_PIN_H

#define STAT_BPF_FS  "/sys/fs/bpf"
#define STAT_PIN_DIR STAT_BPF_FS "/sluice"

/* Prints a line of its own to stderr, after the program's name. */
__attribute__((format(printf, 1, 2))) void stat_say(const char *fmt, ...);

/**
 * pins_lock() - keep others from loading and unloading
 *
 * Waits for those who are at it. The lock goes with the descriptor, so with the process.
 *
 * Return: a descriptor to close, or -ENOENT if there is no folder, -EPERM if it is another user's, or
 * another negative errno. Prints nothing.
 */
int pins_lock(void);

/* The same, and makes the folder if there is none; says on stderr why it cannot. */
int pins_make(void);

/* Makes the folders in it. Returns 0 or a negative errno, said on stderr. */
int pins_make_dirs(void);

/* Pins what @fd is, in the place of what has that name. Returns 0 or a negative errno. */
int pins_add(int fd, const char *dir, const char *name);

void pins_remove(const char *dir, const char *name);

/* How many objects are pinned, whoever they are. */
int pins_count(void);

/* Programs of an earlier load go, its maps and what they hold stay. */
void pins_remove_programs(void);

/* Removes what it can. Returns the number of objects, or a negative errno if anything is left. */
int pins_remove_all(void);

#endif /* SLUICE_STAT_PIN_H */

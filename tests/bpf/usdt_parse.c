// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * usage: usdt_parse FILE FIFO
 *
 * Finds the probe sites of a good FILE, and then whatever there is in FILE as an enemy would have it:
 * cut short, bytes changed, with sections that overlap; FIFO is made, and is no file. Built with sanitizers, which are the judges.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "stat_usdt.h"

#define ROUNDS 20000
#define MANY   65535

static int count_site(const struct usdt_site *site, void *data)
{
	*(size_t *)data += strlen(site->name) > 0;
	return 0;
}

static int parse(const char *data, size_t size, size_t *found)
{
	int fd = memfd_create("elf", MFD_CLOEXEC), ret = -EIO;
	char path[32];

	*found = 0;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (write(fd, data, size) == (ssize_t)size)
		ret = usdt_each_site(path, count_site, found);
	close(fd);
	return ret;
}

/* Where headers and notes are, most of the time: what is changed elsewhere is not looked at. */
static size_t choose(const char *good, size_t size)
{
	const Elf64_Ehdr *eh = (const void *)good;
	const Elf64_Shdr *sh = (const void *)(good + eh->e_shoff);

	switch (rand() % 3) {
	case 0:
		return rand() % sizeof(*eh);
	case 1:
		return eh->e_shoff + rand() % (eh->e_shnum * sizeof(*sh));
	}
	for (int i = 0; i < eh->e_shnum; i++)
		if (sh[i].sh_type == SHT_NOTE && rand() % 3 == 0)
			return sh[i].sh_offset + rand() % sh[i].sh_size;
	return rand() % size;
}

static int refuses_overlap(void)
{
	static Elf64_Shdr sections[MANY];
	Elf64_Ehdr eh = {
		.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB},
		.e_shoff = sizeof(eh),
		.e_shnum = MANY,
		.e_shentsize = sizeof(Elf64_Shdr),
	};
	char *data = calloc(1, sizeof(eh) + sizeof(sections));
	size_t found;
	int ret;

	for (int i = 0; i < MANY; i++)
		sections[i] = (Elf64_Shdr){.sh_type = SHT_NOTE, .sh_size = sizeof(sections)};
	memcpy(data, &eh, sizeof(eh));
	memcpy(data + sizeof(eh), sections, sizeof(sections));
	ret = parse(data, sizeof(eh) + sizeof(sections), &found);
	free(data);
	return ret == -EFBIG;
}

int main(int argc, char **argv)
{
	static char good[1 << 20], bad[sizeof(good)];
	size_t size, len, found, sites;
	int fd = argc > 2 ? open(argv[1], O_RDONLY) : -1;
	int parsed = 0;

	size = fd < 0 ? 0 : read(fd, good, sizeof(good));
	if (size == 0 || size == sizeof(good))
		return 2;
	if (parse(good, size, &sites) || sites != 3) {
		fprintf(stderr, "%zu sites in the good file, not 3\n", sites);
		return 1;
	}
	for (int i = 0; i < ROUNDS; i++) {
		memcpy(bad, good, size);
		len = i % 4 ? size : rand() % size;
		for (int n = rand() % 4; n >= 0; n--)
			bad[choose(good, size)] = rand() % 2 ? rand() : -1;
		parsed += !parse(bad, len, &found);
	}
	if (!parsed || parsed == ROUNDS) {
		fprintf(stderr, "%d of %d were taken: the changes change nothing\n", parsed,
			ROUNDS);
		return 1;
	}
	if (!refuses_overlap()) {
		fprintf(stderr, "sections that overlap were read\n");
		return 1;
	}
	/* A pipe that nobody writes to: who waits for it does not come back. */
	if (mkfifo(argv[2], 0600) || usdt_each_site(argv[2], count_site, &found) != -ENOEXEC) {
		fprintf(stderr, "what is no file was read\n");
		return 1;
	}
	return 0;
}

// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Finds the static probes of lib/usdt.h in an ELF file. libbpf can attach to such probes, but not
 * pin them, and pinned is how always-on counters survive the program that loaded them.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <asm/ptrace.h>
#include "stat_usdt.h"

#define ARG_REGISTER 0x8000
#define MAX_ARGS     4

struct image {
	const unsigned char *data;
	size_t size;
};

static const void *at(const struct image *img, size_t offset, size_t len)
{
	return offset <= img->size && len <= img->size - offset ? img->data + offset : NULL;
}

#if defined(__x86_64__)
static int find_register(const char *name, size_t len)
{
	static const struct {
		const char *name;
		unsigned int offset;
	} registers[] = {
		{"rax", offsetof(struct pt_regs, rax)}, {"rbx", offsetof(struct pt_regs, rbx)},
		{"rcx", offsetof(struct pt_regs, rcx)}, {"rdx", offsetof(struct pt_regs, rdx)},
		{"rsi", offsetof(struct pt_regs, rsi)}, {"rdi", offsetof(struct pt_regs, rdi)},
		{"rbp", offsetof(struct pt_regs, rbp)}, {"rsp", offsetof(struct pt_regs, rsp)},
		{"r8", offsetof(struct pt_regs, r8)},	{"r9", offsetof(struct pt_regs, r9)},
		{"r10", offsetof(struct pt_regs, r10)}, {"r11", offsetof(struct pt_regs, r11)},
		{"r12", offsetof(struct pt_regs, r12)}, {"r13", offsetof(struct pt_regs, r13)},
		{"r14", offsetof(struct pt_regs, r14)}, {"r15", offsetof(struct pt_regs, r15)},
	};

	for (size_t i = 0; i < sizeof(registers) / sizeof(registers[0]); i++)
		if (strlen(registers[i].name) == len && !memcmp(registers[i].name, name, len))
			return registers[i].offset;
	return -1;
}
#else
static int find_register(const char *name, size_t len)
{
	char *end;
	long n;

	if (len < 2 || name[0] != 'x')
		return -1;
	n = strtol(name + 1, &end, 10);
	return end == name + len && n >= 0 && n <= 30 ? n * 8 : -1;
}
#endif

/* Only what lib/usdt.h emits: "8@%rdi", "8@x0". */
static bool parse_arg(const char *arg, size_t len, unsigned int *spec)
{
	int offset;

	if (len < 4 || memcmp(arg, "8@", 2))
		return false;
	arg += 2;
	len -= 2;
	if (*arg == '%') {
		arg++;
		len--;
	}
	offset = find_register(arg, len);
	*spec = ARG_REGISTER | offset;
	return offset >= 0;
}

static bool parse_args(const char *args, __u64 *cookie)
{
	unsigned int spec;
	int n = 0;

	*cookie = 0;
	while (*args) {
		size_t len = strcspn(args, " ");

		if (n == MAX_ARGS || !parse_arg(args, len, &spec))
			return false;
		*cookie |= (__u64)spec << (16 * n++);
		args += len + (args[len] == ' ');
	}
	return true;
}

/* Notes hold addresses; files are probed at offsets. */
static size_t to_offset(const struct image *img, const Elf64_Ehdr *eh, size_t addr)
{
	for (int i = 0; i < eh->e_phnum; i++) {
		const Elf64_Phdr *ph = at(img, eh->e_phoff + i * sizeof(*ph), sizeof(*ph));

		if (ph && ph->p_type == PT_LOAD && addr >= ph->p_vaddr &&
		    addr - ph->p_vaddr < ph->p_filesz)
			return addr - ph->p_vaddr + ph->p_offset;
	}
	return 0;
}

/* Prelinking moves addresses after the notes were written; the base section tells by how much. */
static size_t find_base(const struct image *img, const Elf64_Ehdr *eh, const Elf64_Shdr *names)
{
	for (int i = 0; i < eh->e_shnum; i++) {
		const Elf64_Shdr *sh = at(img, eh->e_shoff + i * sizeof(*sh), sizeof(*sh));
		const char *name = sh ? at(img, names->sh_offset + sh->sh_name, 14) : NULL;

		if (name && !strncmp(name, ".stapsdt.base", 14))
			return sh->sh_addr;
	}
	return 0;
}

static int visit_note(const struct image *img, const Elf64_Ehdr *eh, size_t base, const char *desc,
		      size_t size, int (*visit)(const struct usdt_site *site, void *data),
		      void *data)
{
	const char *provider, *name, *args, *end = desc + size;
	struct usdt_site site = {0};
	__u64 addr[3];

	if (size < sizeof(addr) + 3 || end[-1])
		return 0;
	memcpy(addr, desc, sizeof(addr));
	provider = desc + sizeof(addr);
	name = provider + strlen(provider) + 1;
	if (name >= end || strcmp(provider, "sluice"))
		return 0;
	args = name + strlen(name) + 1;
	if (args >= end || !parse_args(args, &site.cookie))
		return -EBADMSG;
	site.name = name;
	site.offset = to_offset(img, eh, addr[0] + (base ? base - addr[1] : 0));
	if (addr[2])
		site.semaphore = to_offset(img, eh, addr[2] + (base ? base - addr[1] : 0));
	return site.offset ? visit(&site, data) : 0;
}

static int walk_notes(const struct image *img, const Elf64_Ehdr *eh, size_t base,
		      const Elf64_Shdr *sh, int (*visit)(const struct usdt_site *site, void *data),
		      void *data)
{
	size_t pos = 0;
	int ret;

	while (pos + sizeof(Elf64_Nhdr) <= sh->sh_size) {
		const Elf64_Nhdr *nh = at(img, sh->sh_offset + pos, sizeof(*nh));
		const char *owner, *desc;

		if (!nh)
			return 0;
		pos += sizeof(*nh);
		owner = at(img, sh->sh_offset + pos, nh->n_namesz);
		pos += (nh->n_namesz + 3) & ~3u;
		desc = at(img, sh->sh_offset + pos, nh->n_descsz);
		pos += (nh->n_descsz + 3) & ~3u;
		if (!owner || !desc)
			return 0;
		if (nh->n_type != 3 || nh->n_namesz != 8 || memcmp(owner, "stapsdt", 8))
			continue;
		ret = visit_note(img, eh, base, desc, nh->n_descsz, visit, data);
		if (ret < 0)
			return ret;
	}
	return 0;
}

int usdt_each_site(const char *path, int (*visit)(const struct usdt_site *site, void *data),
		   void *data)
{
	const Elf64_Shdr *sh, *names;
	struct image img = {0};
	const Elf64_Ehdr *eh;
	struct stat st;
	int fd, ret = 0;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -ENOENT;
	if (fstat(fd, &st) || st.st_size < (off_t)sizeof(*eh)) {
		close(fd);
		return -ENOEXEC;
	}
	img.size = st.st_size;
	img.data = mmap(NULL, img.size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (img.data == MAP_FAILED)
		return -ENOENT;
	eh = at(&img, 0, sizeof(*eh));
	if (memcmp(eh->e_ident, ELFMAG, SELFMAG) || eh->e_ident[EI_CLASS] != ELFCLASS64 ||
	    eh->e_ident[EI_DATA] != ELFDATA2LSB) {
		ret = -ENOEXEC;
		goto out;
	}
	names = at(&img, eh->e_shoff + eh->e_shstrndx * sizeof(*sh), sizeof(*sh));
	for (int i = 0; names && i < eh->e_shnum && ret >= 0; i++) {
		sh = at(&img, eh->e_shoff + i * sizeof(*sh), sizeof(*sh));
		if (sh && sh->sh_type == SHT_NOTE)
			ret = walk_notes(&img, eh, find_base(&img, eh, names), sh, visit, data);
	}
out:
	munmap((void *)img.data, img.size);
	return ret < 0 ? ret : 0;
}

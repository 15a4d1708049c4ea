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
#include <sys/stat.h>
#include <unistd.h>
#include <asm/ptrace.h>
#include "stat_usdt.h"

#define ARG_REGISTER 0x8000
#define MAX_ARGS     4

/* More than the headers of as many sections as there can be, and than the notes of any library. */
#define MAX_PART (8u << 20)

struct elf {
	int fd;
	Elf64_Ehdr header;
	Elf64_Phdr *segments;
	Elf64_Shdr *sections;
	size_t base; /* address of .stapsdt.base, 0 if there is none */
};

/*
 * Part of a file and a zero after it, for the caller to free. Not by mmap(): whoever may write to the
 * file may cut it short at any time.
 */
static void *read_part(const struct elf *elf, size_t offset, size_t len)
{
	char *part;

	if (len > MAX_PART)
		return NULL;
	part = malloc(len + 1);
	if (!part)
		return NULL;
	part[len] = '\0';
	if (pread(elf->fd, part, len, offset) == (ssize_t)len)
		return part;
	free(part);
	return NULL;
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
static size_t to_offset(const struct elf *elf, size_t addr)
{
	for (int i = 0; i < elf->header.e_phnum; i++) {
		const Elf64_Phdr *ph = &elf->segments[i];

		if (ph->p_type == PT_LOAD && addr >= ph->p_vaddr &&
		    addr - ph->p_vaddr < ph->p_filesz)
			return addr - ph->p_vaddr + ph->p_offset;
	}
	return 0;
}

/* Prelinking moves addresses after the notes were written; the base section tells by how much. */
static size_t find_base(const struct elf *elf)
{
	const Elf64_Shdr *names, *sh;
	size_t base = 0;
	char *text;

	if (elf->header.e_shstrndx >= elf->header.e_shnum)
		return 0;
	names = &elf->sections[elf->header.e_shstrndx];
	text = read_part(elf, names->sh_offset, names->sh_size);
	for (int i = 0; text && !base && i < elf->header.e_shnum; i++) {
		sh = &elf->sections[i];
		if (sh->sh_name < names->sh_size && !strcmp(text + sh->sh_name, ".stapsdt.base"))
			base = sh->sh_addr;
	}
	free(text);
	return base;
}

static int visit_note(const struct elf *elf, const char *desc, size_t size, usdt_visit *visit,
		      void *data)
{
	const char *provider, *name, *args, *end = desc + size;
	struct usdt_site site = {0};
	__u64 addr[3], moved;

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
	moved = elf->base ? elf->base - addr[1] : 0;
	site.name = name;
	site.offset = to_offset(elf, addr[0] + moved);
	if (addr[2])
		site.semaphore = to_offset(elf, addr[2] + moved);
	return site.offset ? visit(&site, data) : 0;
}

static int walk_notes(const struct elf *elf, const char *notes, size_t size, usdt_visit *visit,
		      void *data)
{
	size_t pos = 0, owner, desc;
	Elf64_Nhdr nh;
	int ret;

	while (size - pos >= sizeof(nh)) {
		memcpy(&nh, notes + pos, sizeof(nh));
		owner = pos + sizeof(nh);
		desc = owner + (((size_t)nh.n_namesz + 3) & ~3ul);
		pos = desc + (((size_t)nh.n_descsz + 3) & ~3ul);
		if (pos > size)
			return 0;
		if (nh.n_type != 3 || nh.n_namesz != 8 || memcmp(notes + owner, "stapsdt", 8))
			continue;
		ret = visit_note(elf, notes + desc, nh.n_descsz, visit, data);
		if (ret < 0)
			return ret;
	}
	return 0;
}

static int walk_sections(const struct elf *elf, usdt_visit *visit, void *data)
{
	size_t left = MAX_PART;
	int ret = 0;

	for (int i = 0; i < elf->header.e_shnum && ret >= 0; i++) {
		const Elf64_Shdr *sh = &elf->sections[i];
		char *notes;

		if (sh->sh_type != SHT_NOTE)
			continue;
		/* Sections that overlap could go on for ever. */
		if (sh->sh_size > left)
			return -EFBIG;
		left -= sh->sh_size;
		notes = read_part(elf, sh->sh_offset, sh->sh_size);
		if (!notes)
			return -ENOEXEC;
		ret = walk_notes(elf, notes, sh->sh_size, visit, data);
		free(notes);
	}
	return ret < 0 ? ret : 0;
}

static bool is_elf(const Elf64_Ehdr *eh)
{
	return !memcmp(eh->e_ident, ELFMAG, SELFMAG) && eh->e_ident[EI_CLASS] == ELFCLASS64 &&
	       eh->e_ident[EI_DATA] == ELFDATA2LSB &&
	       (!eh->e_phnum || eh->e_phentsize == sizeof(Elf64_Phdr)) &&
	       (!eh->e_shnum || eh->e_shentsize == sizeof(Elf64_Shdr));
}

static int open_file(const char *path)
{
	/* What is no file is not waited for. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return -ENOEXEC;
}

int usdt_each_site(const char *path, usdt_visit *visit, void *data)
{
	struct elf elf = {.fd = open_file(path)};
	const Elf64_Ehdr *eh = &elf.header;
	int ret = -ENOEXEC;

	if (elf.fd < 0)
		return elf.fd;
	if (pread(elf.fd, &elf.header, sizeof(*eh), 0) == sizeof(*eh) && is_elf(eh)) {
		elf.segments = read_part(&elf, eh->e_phoff, eh->e_phnum * sizeof(Elf64_Phdr));
		elf.sections = read_part(&elf, eh->e_shoff, eh->e_shnum * sizeof(Elf64_Shdr));
	}
	if (elf.segments && elf.sections) {
		elf.base = find_base(&elf);
		ret = walk_sections(&elf, visit, data);
	}
	free(elf.segments);
	free(elf.sections);
	close(elf.fd);
	return ret;
}

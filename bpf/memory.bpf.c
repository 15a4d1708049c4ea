// SPDX-License-Identifier: GPL-2.0-only
/* process_vm_readv/writev, and what shared mappings cost: page faults and munmap. */
#include "count.bpf.h"

/* The other process takes no part: whoever calls has both ends, and the calling end counts. */
static __always_inline void finish_vm(struct record *rec, enum sluice_dir dir, long ret)
{
	struct channel ch = {};
	struct duration d;

	close_frame(rec, FRAME_CALL, &d);
	count_call(SLUICE_PROCESS_VM, dir, ret, &ch, &d);
}

static __always_inline void count_vm_write(struct record *rec, const struct call *call)
{
	finish_vm(rec, SLUICE_OUT, call->ret);
}

static __always_inline void count_vm_read(struct record *rec, const struct call *call)
{
	finish_vm(rec, SLUICE_IN, call->ret);
}

COUNT_CALLS(vm_write, "__x64_sys_process_vm_writev", FRAME_CALL, 1, count_vm_write)
COUNT_CALLS(vm_read, "__x64_sys_process_vm_readv", FRAME_CALL, 1, count_vm_read)

static __always_inline struct sluice_memory *get_memory(void)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct sluice_task_key key = {.start_ns = leader->start_boottime, .tgid = leader->tgid};
	static const struct sluice_memory none;
	struct sluice_memory *m;

	m = bpf_map_lookup_elem(&memory, &key);
	if (m)
		return m;
	note_task(leader);
	bpf_map_update_elem(&memory, &key, &none, BPF_NOEXIST);
	m = bpf_map_lookup_elem(&memory, &key);
	if (!m)
		count_lost(memory);
	return m;
}

SEC("fentry/handle_mm_fault")
int BPF_PROG(fault_enter, struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_SHARED)
		open_frame(FRAME_FAULT);
	return 0;
}

SEC("fexit/handle_mm_fault")
int BPF_PROG(fault_exit, struct vm_area_struct *vma)
{
	struct sluice_memory *m;
	struct record *rec;
	struct duration d;

	/* The mapping may be gone by now, so ask the record, not its flags. */
	rec = get_record();
	if (!in_frame(rec, FRAME_FAULT))
		return 0;
	close_frame(rec, FRAME_FAULT, &d);
	m = get_memory();
	if (m) {
		add(m->faults, 1);
		add(m->fault_ns, d.time_ns);
	}
	return 0;
}

SEC("fentry/__x64_sys_munmap")
int BPF_PROG(unmap_enter)
{
	struct record *rec = open_frame(FRAME_UNMAP);

	if (rec)
		rec->unmap_bytes = 0;
	return 0;
}

/* Called for every piece of a file's or shared mapping that goes away. */
SEC("fentry/uprobe_munmap")
int BPF_PROG(unmap_piece, struct vm_area_struct *vma, unsigned long start, unsigned long end)
{
	struct record *rec;

	if (!(vma->vm_flags & VM_SHARED))
		return 0;
	rec = get_record();
	if (in_frame(rec, FRAME_UNMAP))
		rec->unmap_bytes += end - start;
	return 0;
}

SEC("fexit/__x64_sys_munmap")
int BPF_PROG(unmap_exit)
{
	struct record *rec = get_record();
	struct sluice_memory *m;
	struct duration d;

	if (!in_frame(rec, FRAME_UNMAP))
		return 0;
	close_frame(rec, FRAME_UNMAP, &d);
	if (!rec->unmap_bytes)
		return 0;
	m = get_memory();
	if (m) {
		add(m->unmaps, 1);
		add(m->unmap_bytes, rec->unmap_bytes);
		add(m->unmap_ns, d.time_ns);
	}
	return 0;
}

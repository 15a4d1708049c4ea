#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Make section 3 manual pages from the kernel-doc comments of a public header.

usage: man.py HEADER VERSION DIRECTORY LIBRARY

One page for each function; the structs and enums that it takes are described in its page.  One page
named after LIBRARY lists them all, after the conventions in the comment at the top of the header.
A function, parameter or field without a description is an error: the pages are the reference.
"""
import os
import re
import sys


class Doc:
	"""One kernel-doc comment: NAME - SUMMARY, @FIELD: text, paragraphs, Return: text."""

	def __init__(self, comment):
		lines = [re.sub(r"^\s*\*[ \t]?", "", l) for l in comment.strip().split("\n")]
		title = lines[0].strip()
		m = re.match(r"(?:(struct|enum) )?(\w+) - (.*)", title)
		if not m:
			sys.exit(f"man.py: cannot read the first line of a kernel-doc comment: {title}")
		self.kind, self.name, self.summary = m.group(1), m.group(2), m.group(3)
		self.fields, self.body, self.returns = {}, [], ""
		paragraph, field = [], None

		def flush():
			text = " ".join(paragraph).strip()
			paragraph.clear()
			if not text:
				return
			if text.startswith("Return:"):
				self.returns = text[len("Return:"):].strip()
			else:
				self.body.append(text)

		for line in lines[1:]:
			m = re.match(r"@(\w+):\s*(.*)", line)
			if m:
				flush()
				field = m.group(1)
				self.fields[field] = m.group(2)
			elif not line.strip():
				flush()
				field = None
			elif field:
				self.fields[field] += " " + line.strip()
			elif line.startswith("Return:"):
				flush()
				paragraph.append(line.strip())
			else:
				paragraph.append(line.strip())
		flush()


class Header:
	def __init__(self, path):
		text = open(path, encoding="utf-8").read()
		self.conventions = self.read_conventions(text)
		self.docs, self.types, self.functions, self.sections = {}, {}, [], []
		for m in re.finditer(r"/\*\*\n?(.*?)\*/", text, re.S):
			doc = Doc(m.group(1))
			self.docs[doc.name if doc.kind is None else f"{doc.kind} {doc.name}"] = doc
		for m in re.finditer(r"^(struct|enum) (\w+) \{.*?^\};", text, re.S | re.M):
			self.types[f"{m.group(1)} {m.group(2)}"] = m.group(0)
		for m in re.finditer(r"^typedef [^;{]*\(\*(\w+)\)[^;]*;", text, re.M):
			self.types[m.group(1)] = m.group(0)
		code = re.sub(r"/\*(?! -{9}).*?\*/", lambda m: re.sub(r"[^\n]", "", m.group(0)), text,
			      flags=re.S)
		pattern = re.compile(r"/\* -+ (.*?) \*/|^([\w ]+[ *])(\w+)\(([^;{]*)\);", re.M)
		for m in pattern.finditer(code):
			if m.group(1):
				self.sections.append((m.group(1), []))
			elif not m.group(2).startswith("typedef"):
				args = [a.strip() for a in " ".join(m.group(4).split()).split(",")]
				self.functions.append((m.group(2), m.group(3), args))
				if not self.sections:
					self.sections.append(("functions", []))
				self.sections[-1][1].append(m.group(3))
		self.check()

	@staticmethod
	def read_conventions(text):
		comment = next(c for c in re.findall(r"/\*\n(.*?)\*/", text, re.S) if " - " in c)
		return [re.sub(r"^ \* ?", "", l) for l in comment.rstrip().split("\n")]

	def check(self):
		bad = []
		for _, name, args in self.functions:
			if name not in self.docs:
				bad.append(f"{name}() has no kernel-doc comment")
				continue
			want = {parameter(a)[1] for a in args if a != "void"}
			for field in self.docs[name].fields.keys() - want:
				bad.append(f"{name}() describes @{field}, which is no parameter of it")
			if self.docs[name].fields:
				bad += [f"{name}() does not describe @{p}"
					for p in want - self.docs[name].fields.keys()]
		for key, doc in self.docs.items():
			if doc.kind == "struct" and key in self.types:
				have = set(re.findall(r"(\w+)(?:\[\w+\])?;", self.types[key]))
				bad += [f"{key}: @{f} is described in only one of comment and code"
					for f in have ^ doc.fields.keys() if f != "reserved"]
		if bad:
			sys.exit("\n".join(f"man.py: {b}" for b in sorted(bad)))

	def types_of(self, args):
		"""Documented structs, and the enums that they or the arguments mention, in order."""
		found, queue = [], [t for a in args for t in self.mentioned(a)]
		while queue:
			t = queue.pop(0)
			if t in found or t not in self.types:
				continue
			found.append(t)
			text = self.types[t]
			if t in self.docs:
				text += " ".join(self.docs[t].fields.values())
			queue += [u for u in self.mentioned(text) if u != t]
		return found

	def mentioned(self, text):
		names = re.findall(r"(?:struct|enum) \w+", text)
		return names + [w for w in re.findall(r"\w+_fn\b", text) if w in self.types]


def parameter(arg):
	m = re.match(r"(.*?)(\w+)(\[\w*\])?$", arg)
	return m.group(1), m.group(2)


def roff(text):
	"""Escape prose and set names in the usual faces."""
	text = text.replace("\\", "\\e")
	text = re.sub(r"(?<!\w)-(?=\w)", r"\\-", text)
	text = re.sub(r"(?<!\w)@(\w+)", r"\\fI\1\\fP", text)
	text = re.sub(r"\b(sluice_\w+)\(\)", r"\\fB\1\\fP(3)", text)
	text = re.sub(r"\b([a-z]\w+)\(\)", r"\\fB\1\\fP()", text)
	text = re.sub(r"\b(SLUICE_[A-Z0-9_]+)\b", r"\\fB\1\\fP", text)
	text = re.sub(r"(\\-E[A-Z0-9]{2,}|\bNULL\b)", r"\\fB\1\\fP", text)
	return re.sub(r"^([.'])", r"\\&\1", text)


def code(text):
	lines = text.replace("\\", "\\e").replace("-", "\\-").replace("\t", "    ").split("\n")
	return [".EX"] + [re.sub(r"^([.'])", r"\\&\1", l) for l in lines] + [".EE"]


def synopsis(ret, name, args):
	"""The prototype; parameters in italics, broken where a line would become too long."""
	indent = " " * min(len(ret + name) + 1, 24)
	out, line, width = [], [f'"{ret}{name}("'], len(ret + name) + 1
	for i, arg in enumerate(args):
		end = ");" if i == len(args) - 1 else ", "
		before, var = ("void", "") if arg == "void" else parameter(arg)
		if width + len(arg) > 74 and i:
			out.append(".BI " + " ".join(line))
			line, width = [f'"{indent}"', '""'], len(indent)
		line += ['""'] if len(line) % 2 == 0 else []
		line[-1] = line[-1][:-1] + before + '"'
		line += [f'"{var}"', f'"{end}"']
		width += len(arg) + 2
	out.append(".BI " + " ".join(line))
	return out


def fields(doc):
	out = []
	for name, text in doc.fields.items():
		out += [".TP", f".I {name}", roff(text)]
	return out


def head(name, version, summary, library):
	return ['.\\" Made by lib/man.py from the public header.',
		f'.TH {name} 3 "" "sluice {version}" "sluice manual"', ".SH NAME",
		f"{name} \\- {roff(summary)}", ".SH LIBRARY",
		f"sluice (\\fI{library}\\fP, \\fI{roff(library.replace('lib', '-l', 1))}\\fP)"]


def function_page(h, header_name, version, library, function):
	ret, name, args = function
	doc = h.docs[name]
	out = head(name, version, doc.summary, library)
	out += [".SH SYNOPSIS", ".nf", f".B #include <{header_name}>", ".PP"]
	out += synopsis(ret, name, args) + [".fi"]
	if doc.fields:
		out += [".SH PARAMETERS"] + fields(doc)
	if doc.body:
		out.append(".SH DESCRIPTION")
		for p in doc.body:
			out += [".PP", roff(p)] if out[-1] != ".SH DESCRIPTION" else [roff(p)]
	types = h.types_of(args)
	if types:
		out.append(".SH TYPES")
		for t in types:
			out += [f".SS {t}"]
			if t in h.docs:
				out.append(roff(h.docs[t].summary + "."))
			out += [".PP"] + code(h.types[t])
			if t in h.docs:
				out += fields(h.docs[t])
	if doc.returns:
		out += [".SH RETURN VALUE", roff(doc.returns)]
	near = next(s for s in h.sections if name in s[1])[1]
	also = [f for f in near if f != name] + [library, "sluice_strerror"]
	also = sorted(set(also) - {name})
	out.append(".SH SEE ALSO")
	out += [f".BR {f} (3){',' if f != also[-1] else ''}" for f in also]
	# In the header they are the comment at its top, here they have a page.
	text = "\n".join(out) + "\n"
	return text.replace("see the conventions", f"see CONVENTIONS in \\fB{library}\\fP(3)")


def library_page(h, header_name, version, library):
	title = h.conventions[0].split(" - ", 1)[1]
	out = head(library, version, title, library)
	out += [".SH SYNOPSIS", f".B #include <{header_name}>", ".SH CONVENTIONS"]
	for line in h.conventions[1:]:
		if line == "Environment":
			out.append(".SH ENVIRONMENT")
		elif line.startswith("- "):
			out += [".IP \\(bu 2", roff(line[2:])]
		elif line.strip() and line.strip() != "Conventions":
			out.append(roff(line.strip()))
	out.append(".SH FUNCTIONS")
	for section, names in h.sections:
		if names:
			out.append(f".SS {section.capitalize()}")
		for n in names:
			out += [".TP", f".BR {n} (3)", roff(h.docs[n].summary)]
	return "\n".join(out) + "\n"


def main():
	if len(sys.argv) != 5:
		sys.exit(__doc__.split("\n\n")[1])
	path, version, directory, library = sys.argv[1:]
	h = Header(path)
	name = os.path.basename(path)
	os.makedirs(directory, exist_ok=True)
	pages = {f[1]: function_page(h, name, version, library, f) for f in h.functions}
	pages[library] = library_page(h, name, version, library)
	for page, text in pages.items():
		with open(os.path.join(directory, page + ".3"), "w", encoding="utf-8") as f:
			f.write(text)


if __name__ == "__main__":
	main()

#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Make section 1 manual pages from what the program itself says with --help.

usage: man.py PROGRAM VERSION DIRECTORY

One page for the program and one for each noun that this build has.  The help texts are the only
source, so that a page cannot promise an option that is not there.
"""
import os
import re
import subprocess
import sys


def roff(text):
	text = text.replace("\\", "\\e")
	text = re.sub(r"(?<!\w)-(?=[\w-])", r"\\-", text).replace("\\--", "\\-\\-")
	return re.sub(r"^([.'])", r"\\&\1", text)


def help_of(*command):
	done = subprocess.run([*command, "--help"], capture_output=True, text=True)
	if done.returncode or not done.stdout.startswith("usage: "):
		sys.exit(f"man.py: {' '.join(command)} --help does not begin with a usage line")
	return done.stdout.rstrip().split("\n")


def nouns_of(lines):
	"""The table of the main help: two spaces, noun, description; what is not built says so."""
	found = [re.match(r"  (\w[\w-]*) {2,}(.+)", l) for l in lines]
	return [m.groups() for m in found if m and "(not in this build)" not in m.group(2)]


def body(lines):
	"""Paragraphs, and after "NAME:" a list of indented terms with their descriptions."""
	out, section = [".SH DESCRIPTION"], "DESCRIPTION"
	for line in lines:
		if "(not in this build)" in line:
			continue
		# An option without a letter stands where the others have their long name.
		term = re.match(r"  (?:    (?=--))?(\S.*?)(?: {2,}(\S.*))?$", line)
		if not line.strip():
			out.append(".PP")
		elif re.match(r"\w[\w ]*:$", line):
			section = line[:-1].upper()
			out.append(f".SH {section}")
		elif term:
			out += [".TP", f".B {roff(term.group(1))}"]
			if term.group(2):
				out.append(roff(term.group(2)))
		elif line.startswith("  "):
			out.append(roff(line.strip()))
		elif line.startswith("Exit status:"):
			section = "EXIT STATUS"
			out += [".SH EXIT STATUS", roff(line[len("Exit status:"):].strip())]
		elif section == "OPTIONS":
			section = "NOTES"
			out += [".SH NOTES", roff(line)]
		else:
			out.append(roff(line))
	# A paragraph break beside a heading is nothing but a warning of groff.
	keep = [l for l, after in zip(out, out[1:] + [".SH"])
		if l != ".PP" or not after.startswith((".SH", ".PP", ".TP"))]
	return [l for before, l in zip([""] + keep, keep) if l != ".PP" or not before.startswith(".SH")]


def page(name, version, summary, lines, also):
	usage = roff(lines[0][len("usage: "):])
	out = ['.\\" Made by tools/man.py from --help.',
	       f'.TH {name} 1 "" "sluice {version}" "sluice manual"',
	       ".SH NAME", f"{name} \\- {roff(summary)}", ".SH SYNOPSIS", f".B {usage}"]
	out += body(lines[1:])
	out.append(".SH SEE ALSO")
	out += [f".BR {n} ({s}){',' if (n, s) != also[-1] else ''}" for n, s in also]
	return "\n".join(out) + "\n"


def main():
	if len(sys.argv) != 4:
		sys.exit(__doc__.split("\n\n")[1])
	program, version, directory = sys.argv[1:]
	lines = help_of(program)
	nouns = nouns_of(lines)
	if not nouns:
		sys.exit(f"man.py: {program} --help names no noun")
	os.makedirs(directory, exist_ok=True)
	pages = {"sluice": page("sluice", version, "move batches between processes, and measure it",
				lines, [(f"sluice-{n}", 1) for n, _ in nouns] + [("libsluice", 3)])}
	for noun, summary in nouns:
		pages[f"sluice-{noun}"] = page(f"sluice-{noun}", version, summary,
					       help_of(program, noun),
					       [("sluice", 1), ("libsluice", 3)])
	for name, text in pages.items():
		with open(os.path.join(directory, name + ".1"), "w", encoding="utf-8") as f:
			f.write(text)


if __name__ == "__main__":
	main()

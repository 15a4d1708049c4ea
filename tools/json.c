// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "json.h"

#include <inttypes.h>
#include <math.h>

/* Length of the valid UTF-8 sequence at s, or 0. */
static unsigned int utf8_len(const unsigned char *s)
{
	unsigned int n, low = 0x80, high = 0xbf;

	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		n = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		n = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		n = 4;
	else
		return 0;
	/* Overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte. */
	if (s[0] == 0xe0)
		low = 0xa0;
	else if (s[0] == 0xed)
		high = 0x9f;
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f;
	if (s[1] < low || s[1] > high)
		return 0;
	for (unsigned int i = 2; i < n; i++) {
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	}
	return n;
}

static void put_string(FILE *f, const char *value)
{
	const unsigned char *s = (const unsigned char *)value;

	putc('"', f);
	while (*s) {
		unsigned int n = utf8_len(s);

		if (!n) {
			fputs("\\ufffd", f);
			s++;
		} else if (*s == '"' || *s == '\\') {
			fprintf(f, "\\%c", *s++);
		} else if (*s < 0x20 || *s == 0x7f) {
			fprintf(f, "\\u%04x", *s++);
		} else {
			fwrite(s, 1, n, f);
			s += n;
		}
	}
	putc('"', f);
}

static void begin(struct json *j, const char *name)
{
	if (j->comma)
		fputs(", ", j->file);
	j->comma = true;
	if (name) {
		put_string(j->file, name);
		fputs(": ", j->file);
	}
}

static void end(struct json *j)
{
	/* One top-level value is one line. */
	if (!j->depth) {
		putc('\n', j->file);
		j->comma = false;
	}
}

static void open_group(struct json *j, const char *name, char bracket)
{
	begin(j, name);
	putc(bracket, j->file);
	j->comma = false;
	j->depth++;
}

static void close_group(struct json *j, char bracket)
{
	putc(bracket, j->file);
	j->comma = true;
	j->depth--;
	end(j);
}

void json_object(struct json *j, const char *name)
{
	open_group(j, name, '{');
}

void json_object_end(struct json *j)
{
	close_group(j, '}');
}

void json_array(struct json *j, const char *name)
{
	open_group(j, name, '[');
}

void json_array_end(struct json *j)
{
	close_group(j, ']');
}

void json_text(struct json *j, const char *name, const char *value)
{
	if (!value) {
		json_null(j, name);
		return;
	}
	begin(j, name);
	put_string(j->file, value);
	end(j);
}

void json_uint(struct json *j, const char *name, uint64_t value)
{
	begin(j, name);
	fprintf(j->file, "%" PRIu64, value);
	end(j);
}

void json_int(struct json *j, const char *name, int64_t value)
{
	begin(j, name);
	fprintf(j->file, "%" PRId64, value);
	end(j);
}

void json_real(struct json *j, const char *name, double value)
{
	if (!isfinite(value)) {
		json_null(j, name);
		return;
	}
	begin(j, name);
	fprintf(j->file, "%.10g", value);
	end(j);
}

void json_bool(struct json *j, const char *name, bool value)
{
	begin(j, name);
	fputs(value ? "true" : "false", j->file);
	end(j);
}

void json_null(struct json *j, const char *name)
{
	begin(j, name);
	fputs("null", j->file);
	end(j);
}

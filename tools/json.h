/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A JSON writer: what is written is valid JSON on one line.  @name is the member's name inside an
 * object and NULL inside an array or at the top.  Bytes that are not UTF-8 become U+FFFD, numbers
 * that JSON does not know become null.
 */
#ifndef SLUICE_TOOLS_JSON_H
#define SLUICE_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *file;
	bool comma; /* the next value is not the first of its object or array */
	unsigned int depth;
};

#define JSON(f) ((struct json){.file = (f)})

void json_object(struct json *j, const char *name);
void json_object_end(struct json *j);
void json_array(struct json *j, const char *name);
void json_array_end(struct json *j);

void json_text(struct json *j, const char *name, const char *value); /* NULL becomes null */
void json_uint(struct json *j, const char *name, uint64_t value);
void json_int(struct json *j, const char *name, int64_t value);
void json_real(struct json *j, const char *name, double value);
void json_bool(struct json *j, const char *name, bool value);
void json_null(struct json *j, const char *name);

#endif

/* notes.c: a list of lines. */
#include "kern/notes.h"

#include "base/text.h"

#include <stdarg.h>
#include <string.h>

struct ll_kern_notes {
    ll_buf lines;
    size_t printed; /* bytes */
};

/* Of the call that is under way: kernels that are asked have no other way out. */
static _Thread_local ll_kern_notes *now;

ll_kern_notes *ll_kern_notes_in(ll_arena *arena)
{
    ll_kern_notes *notes = LL_NEW(arena, ll_kern_notes);
    notes->lines.arena = arena;
    return notes;
}

ll_kern_notes *ll_kern_notes_to(ll_kern_notes *to)
{
    ll_kern_notes *before = now;
    now = to;
    return before;
}

static bool has(const char *lines, const char *line, size_t n)
{
    for (; lines && *lines; lines = strchr(lines, '\n') + 1)
        if (!strncmp(lines, line, n)) return true;
    return false;
}

void ll_kern_note(const char *format, ...)
{
    char line[320];
    va_list a;
    if (!now) return;
    va_start(a, format);
    vsnprintf(line, sizeof line - 1, format, a);
    va_end(a);
    size_t n = strlen(strcat(line, "\n"));
    if (!has(now->lines.text, line, n)) ll_buf_add(&now->lines, line, n);
}

void ll_kern_notes_print(ll_kern_notes *notes, FILE *to)
{
    if (notes->lines.text) fputs(notes->lines.text + notes->printed, to);
    notes->printed = notes->lines.len;
}

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
static _Thread_local ll_noting now;

ll_noting ll_kern_notes_to(ll_noting to)
{
    ll_noting before = now;
    now = to;
    return before;
}

void ll_kern_note(const char *format, ...)
{
    char line[320];
    va_list a;
    if (!now.note) return;
    va_start(a, format);
    vsnprintf(line, sizeof line, format, a);
    va_end(a);
    now.note(now.to, line);
}

ll_kern_notes *ll_kern_notes_in(ll_arena *arena)
{
    ll_kern_notes *notes = LL_NEW(arena, ll_kern_notes);
    notes->lines.arena = arena;
    return notes;
}

void ll_kern_notes_add(void *notes, const char *line)
{
    ll_buf *b = &((ll_kern_notes *)notes)->lines;
    size_t n = strlen(line);
    for (const char *p = b->text; p && *p; p = strchr(p, '\n') + 1)
        if (!strncmp(p, line, n) && p[n] == '\n') return;
    ll_buf_printf(b, "%s\n", line);
}

void ll_kern_notes_print(ll_kern_notes *notes, FILE *to)
{
    if (notes->lines.text) fputs(notes->lines.text + notes->printed, to);
    notes->printed = notes->lines.len;
}

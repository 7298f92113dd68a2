/* notes.c: a list of lines. */
#include "kern/notes.h"

#include "base/err.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static char **notes;
static int n, n_printed;

void ll_kern_note(const char *format, ...)
{
    char line[320];
    va_list a;
    va_start(a, format);
    vsnprintf(line, sizeof line, format, a);
    va_end(a);
    for (int i = 0; i < n; i++)
        if (!strcmp(notes[i], line)) return;
    notes = (char **)realloc(notes, sizeof *notes * (size_t)(n + 1));
    LL_ASSERT(notes && (notes[n] = strdup(line)));
    n++;
}

void ll_kern_notes_print(FILE *to)
{
    for (; n_printed < n; n_printed++) fprintf(to, "%s\n", notes[n_printed]);
}

/* notes.c: a list of lines. */
#include "kern/notes.h"

#include "base/err.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* sessions may be opened by any thread */
static char **notes;
static int n, n_printed;

static void add(const char *line)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(notes[i], line)) return;
    notes = (char **)realloc(notes, sizeof *notes * (size_t)(n + 1));
    LL_ASSERT(notes && (notes[n] = strdup(line)));
    n++;
}

void ll_kern_note(const char *format, ...)
{
    char line[320];
    va_list a;
    va_start(a, format);
    vsnprintf(line, sizeof line, format, a);
    va_end(a);
    pthread_mutex_lock(&lock);
    add(line);
    pthread_mutex_unlock(&lock);
}

void ll_kern_notes_print(FILE *to)
{
    pthread_mutex_lock(&lock);
    for (; n_printed < n; n_printed++) fprintf(to, "%s\n", notes[n_printed]);
    pthread_mutex_unlock(&lock);
}

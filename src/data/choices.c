/* choices.c: questions with several answers, of which one is right, as lines of JSON:
 * {"question": "...", "choices": ["...", "..."], "answer": 0} */
#include "base/arena.h"
#include "data/parse.h"

#include <jansson.h>
#include <string.h>

/* A place from 0 on, the text of a choice, or its letter. -1: none of them. */
static int answer_of(const json_t *v, const ll_question *q)
{
    const char *text = json_string_value(v);
    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);
        return i >= 0 && i < q->n ? (int)i : -1;
    }
    for (int i = 0; i < q->n && text; i++)
        if (!strcmp(text, q->choices[i])) return i;
    return text && *text >= 'A' && *text < 'A' + q->n && !text[1] ? *text - 'A' : -1;
}

static ll_err read_line(const char *line, size_t n, const char *file, ll_arena *a, ll_question *q)
{
    json_error_t why;
    json_auto_t *j = json_loadb(line, n, 0, &why);
    CHECK(j, LL_E_IO, "%s:%ld: not valid JSON: %s", file, q->line, why.text);
    const json_t *all = json_object_get(j, "choices");
    const char *text = json_string_value(json_object_get(j, "question"));
    CHECK(text && *text, LL_E_IO, "%s:%ld: field \"question\" is missing or not a string", file,
          q->line);
    q->text = ll_arena_printf(a, "%s", text);
    q->n = (int)json_array_size(all);
    CHECK(q->n >= 2 && q->n <= LL_CHOICES, LL_E_IO,
          "%s:%ld: field \"choices\" is not a list of 2 to %d strings", file, q->line, LL_CHOICES);
    for (int i = 0; i < q->n; i++) {
        text = json_string_value(json_array_get(all, (size_t)i));
        CHECK(text && *text, LL_E_IO, "%s:%ld: choice %d is empty or not a string", file, q->line,
              i);
        q->choices[i] = ll_arena_printf(a, "%s", text);
    }
    q->answer = answer_of(json_object_get(j, "answer"), q);
    CHECK(q->answer >= 0, LL_E_IO,
          "%s:%ld: field \"answer\" is not an index into \"choices\" (0 to %d), the text of one, "
          "or a letter (A to %c)",
          file, q->line, q->n - 1, 'A' + q->n - 1);
    return LL_OK;
}

ll_err ll_choices_parse(const uint8_t *bytes, size_t size, const char *file, ll_arena *a,
                        ll_question **out, int64_t *n)
{
    int64_t lines = 1, line = 0;
    size_t length;
    *n = 0;
    for (size_t i = 0; i < size; i++) lines += bytes[i] == '\n';
    *out = LL_NEW_ARRAY(a, ll_question, lines);
    for (const char *at = (const char *)bytes, *p;
         (p = ll_line_next(&at, bytes + size, &line, &length));) {
        (*out)[*n].line = line;
        TRY(read_line(p, length, file, a, &(*out)[(*n)++]));
    }
    CHECK(*n, LL_E_IO, "%s has no lines of JSON", file);
    return LL_OK;
}

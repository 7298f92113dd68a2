/* yaml.c: settings from bytes, by libyaml's event parser. */
#include "base/yaml.h"
#include "base/text.h"

#include <string.h>
#include <yaml.h>

enum { FILE_LIMIT = 64 * 1024, SECTIONS = 16 };

typedef struct reader {
    yaml_parser_t parser;
    const ll_yaml *y;
    const char *file;
    /* the current event */
    yaml_event_type_t type;
    int line;
    const char *text; /* of a scalar */
} reader;

/* Takes what is needed of an event, so that it can be freed at once. */
static ll_err take(reader *r, const yaml_event_t *e)
{
    r->type = e->type;
    r->line = (int)e->start_mark.line + 1;
    r->text = NULL;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
        r->text = ll_arena_strdup(r->y->arena, (const char *)e->data.scalar.value);
        CHECK(strlen(r->text) == e->data.scalar.length, LL_E_CONFIG,
              "%s:%d: a zero byte in a value", r->file, r->line);
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
        break;
    default: break;
    }
    CHECK(!anchor && e->type != YAML_ALIAS_EVENT, LL_E_CONFIG,
          "%s:%d: anchors and aliases (& and *) are not taken in %ss", r->file, r->line,
          r->y->what);
    CHECK(!tag, LL_E_CONFIG, "%s:%d: tags (!) are not taken in %ss", r->file, r->line, r->y->what);
    return LL_OK;
}

static ll_err next(reader *r)
{
    yaml_event_t e;
    if (!yaml_parser_parse(&r->parser, &e)) {
        const yaml_parser_t *p = &r->parser;
        bool at_mark = p->error == YAML_SCANNER_ERROR || p->error == YAML_PARSER_ERROR;
        size_t line = at_mark ? p->problem_mark.line : p->mark.line;
        const char *problem = p->problem ? p->problem : "out of memory";
        CHECK(!strstr(problem, "cannot start any token"), LL_E_CONFIG,
              "%s:%zu: not YAML: a tab, or a character that needs quotes: indent lines with spaces",
              r->file, line + 1);
        CHECK(!p->context, LL_E_CONFIG, "%s:%zu: not YAML: %s, %s that starts on line %zu", r->file,
              line + 1, problem, p->context, p->context_mark.line + 1);
        FAIL(LL_E_CONFIG, "%s:%zu: not YAML: %s", r->file, line + 1, problem);
    }
    ll_err rc = take(r, &e);
    yaml_event_delete(&e);
    return rc;
}

/* The value of key, whose first event is the current one. */
static ll_err read_setting(reader *r, const char *key, int line)
{
    ll_buf origin = {.arena = r->y->arena}, items = {.arena = r->y->arena};
    ll_buf_printf(&origin, "%s:%d", r->file, line);
    ll_yaml_value s = {.key = key, .value = "", .origin = origin.text};
    if (r->type == YAML_SCALAR_EVENT) {
        s.value = r->text;
    } else if (r->type == YAML_SEQUENCE_START_EVENT) {
        s.is_list = true;
        for (;;) {
            TRY(next(r));
            if (r->type == YAML_SEQUENCE_END_EVENT) break;
            CHECK(r->type == YAML_SCALAR_EVENT, LL_E_CONFIG,
                  "%s:%d: a list inside %s, expected plain values", r->file, r->line, key);
            ll_buf_printf(&items, "%s%s", items.len ? "," : "", r->text);
        }
        if (items.text) s.value = items.text;
    } else {
        FAIL(LL_E_CONFIG, "%s: %s has keys below it, expected a value", s.origin, key);
    }
    return r->y->assign(r->y->context, &s);
}

static bool is_null(const char *text)
{
    return !*text || !strcmp(text, "~") || !strcmp(text, "null");
}

static ll_err read_section(reader *r, const char *section)
{
    if (r->type == YAML_SCALAR_EVENT && is_null(r->text)) return LL_OK;
    CHECK(r->type == YAML_MAPPING_START_EVENT, LL_E_CONFIG,
          "%s:%d: %s needs keys below it, as in \"%s: {key: value}\"", r->file, r->line, section,
          section);
    for (;;) {
        TRY(next(r));
        if (r->type == YAML_MAPPING_END_EVENT) return LL_OK;
        CHECK(r->type == YAML_SCALAR_EVENT, LL_E_CONFIG, "%s:%d: a key of %s must be a word",
              r->file, r->line, section);
        int line = r->line;
        const char *key = ll_arena_printf(r->y->arena, "%s.%s", section, r->text);
        TRY(next(r));
        TRY(read_setting(r, key, line));
    }
}

static ll_err read_top(reader *r)
{
    if (r->type == YAML_SCALAR_EVENT && is_null(r->text)) return LL_OK;
    CHECK(r->type == YAML_MAPPING_START_EVENT, LL_E_CONFIG,
          "%s:%d: expected sections, as in \"%s\"", r->file, r->line, r->y->example);
    const char *seen[SECTIONS];
    int n_seen = 0;
    for (;;) {
        TRY(next(r));
        if (r->type == YAML_MAPPING_END_EVENT) return LL_OK;
        CHECK(r->type == YAML_SCALAR_EVENT, LL_E_CONFIG, "%s:%d: a section's name must be a word",
              r->file, r->line);
        const char *word = r->text;
        int line = r->line;
        for (int i = 0; i < n_seen; i++)
            CHECK(strcmp(seen[i], word), LL_E_CONFIG, "%s:%d: section %s for the second time",
                  r->file, line, word);
        TRY(next(r));
        ll_near near = {.word = word};
        if (r->y->is_section(r->y->context, &near)) {
            LL_ASSERT(n_seen < SECTIONS);
            seen[n_seen++] = word;
            TRY(read_section(r, word));
        } else {
            CHECK(r->type != YAML_MAPPING_START_EVENT, LL_E_CONFIG,
                  "%s:%d: '%.50s' is not a section of %ss%s", r->file, line, word, r->y->what,
                  ll_near_hint(&near));
            TRY(read_setting(r, word, line));
        }
    }
}

static ll_err expect(reader *r, yaml_event_type_t type, const char *what)
{
    TRY(next(r));
    CHECK(r->type == type, LL_E_CONFIG, "%s:%d: %s", r->file, r->line, what);
    return LL_OK;
}

static ll_err read_stream(reader *r)
{
    TRY(expect(r, YAML_STREAM_START_EVENT, "not YAML"));
    TRY(next(r));
    if (r->type == YAML_STREAM_END_EVENT) return LL_OK;
    TRY(next(r));
    TRY(read_top(r));
    TRY(expect(r, YAML_DOCUMENT_END_EVENT, "text after the end"));
    return expect(r, YAML_STREAM_END_EVENT, "a second document (---), expected one");
}

ll_err ll_yaml_read(const ll_yaml *y, const char *bytes, size_t size, const char *file)
{
    CHECK(size <= FILE_LIMIT, LL_E_CONFIG, "%s: %zu bytes, a %s has at most %d", file, size,
          y->what, FILE_LIMIT);
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin UTF-8 with it */
    if (size >= 3 && !memcmp(bytes, mark, 3)) bytes += 3, size -= 3;
    reader r = {.file = file, .y = y};
    CHECK(yaml_parser_initialize(&r.parser), LL_E_MEM, "not enough memory to read %s", file);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, size);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    ll_err rc = read_stream(&r);
    yaml_parser_delete(&r.parser);
    return rc;
}

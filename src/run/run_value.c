/* run_value.c: what is made from the table of keys (run_keys.c): defaults, reading and checking one
 * value, reading and printing a complete run file, the key reference. */
#define _GNU_SOURCE /* strcasestr */
#include "base/text.h"
#include "base/yaml.h"
#include "kern/notes.h"
#include "run/run_int.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

/* ---- one value ---- */

/* What a key takes, for messages and help: "a whole number from 1 to 64". */
static const char *wanted(const ll_key *k, char out[LL_MAX_LINE])
{
    static const char *const nouns[] = {"a whole number", "a number", "true or false",    "one of",
                                        "text",           "one of",   "a list of numbers"};
    int n = snprintf(out, LL_MAX_LINE, "%s", nouns[k->kind]);
    char *at = out + n;
    size_t room = (size_t)(LL_MAX_LINE - n);
    if (k->choices)
        snprintf(at, room, ": %s", k->choices);
    else if (k->kind == LL_KEY_BOOL || k->kind == LL_KEY_TEXT)
        return out;
    else if (k->min == LL_ABOVE_0)
        snprintf(at, room, " above 0, at most %g", k->max);
    else /* as it can be written, and no digit less: 0.9999999 is not 1 */
        snprintf(at, room, k->kind == LL_KEY_INT ? " from %.0f to %.0f" : " from %.9g to %.9g",
                 k->min, k->max);
    return out;
}

/* The value as it stands in a message: cut where it is long. */
static const char *shown(const char *value, char out[64])
{
    snprintf(out, 64, strlen(value) < 60 ? "'%s'" : "'%.50s...'", value);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20) *c = ' ';
    return out;
}

static ll_err wrong(const ll_setting *s, const ll_key *k)
{
    char want[LL_MAX_LINE], value[64];
    FAIL(LL_E_CONFIG, "%s: %s is %s%s, expected %s", s->origin, k->name,
         s->is_list ? "a list, " : "", shown(s->value, value), wanted(k, want));
}

static ll_err read_number(const ll_setting *s, const ll_key *k, const char *text, double *out)
{
    char *end;
    bool plain = *text && strspn(text, "+-.0123456789eE") == strlen(text); /* no hex, no nan */
    *out = strtod(text, &end);
    if (!plain || *end || !isfinite(*out)) return wrong(s, k);
    bool digits = strcspn(text, "123456789") < strcspn(text, "eE"); /* 1e-400 is read as 0 */
    CHECK(!digits || fabs(*out) >= FLT_MIN, LL_E_CONFIG,
          "%s: %s is '%.40s', which f32 rounds to 0: expected %s%.2g or more", s->origin, k->name,
          text, k->min > 0 ? "" : "0, or ", 1.2e-38);
    return *out < k->min || *out > k->max ? wrong(s, k) : LL_OK;
}

static bool is_int(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
    errno = 0;
    *out = strtol(text, NULL, 10);
    return errno == 0;
}

ll_err ll_read_int(const ll_setting *s, double min, double max, int64_t *out)
{
    ll_key k = {.name = s->key, .kind = LL_KEY_INT, .min = min, .max = max};
    if (s->is_list || !is_int(s->value, out) || (double)*out < min || (double)*out > max)
        return wrong(s, &k);
    return LL_OK;
}

/* Characters that YAML can carry inside double quotes as they are. */
static bool is_plain_text(const char *text)
{
    while (*text) {
        const unsigned char *u = (const unsigned char *)text;
        int n = ll_utf8_at(text);
        if (n == 0 || u[0] < 0x20 || u[0] == 0x7f) return false;
        if (n == 2 && u[0] == 0xc2 && u[1] < 0xa0) return false; /* C1 controls, NEL */
        if (n == 3 && u[0] == 0xe2 && u[1] == 0x80 && (u[2] == 0xa8 || u[2] == 0xa9)) return false;
        if (n == 3 && u[0] == 0xef && u[1] == 0xbb && u[2] == 0xbf) return false; /* BOM */
        if (n == 3 && u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe) return false; /* U+FFFE, FFFF */
        text += n;
    }
    return true;
}

/* The word of choices that equals value, number *which (from 1 on where "" is 0), as a string that
 * lives as long as the run; or NULL. */
static const char *choose(ll_run *r, const ll_key *k, const char *value, ll_near *near, int *which)
{
    *which = 0;
    if (!*value && !*k->initial) return "";
    *which = !*k->initial;
    near->word = value;
    static const char *const called[][2] = {
        {"gpu", "cuda"}, {"float32", "f32"}, {"fp32", "f32"}, {"bfloat16", "bf16"}};
    for (size_t i = 0; i < sizeof called / sizeof *called; i++)
        if (!strcmp(value, called[i][0])) near->word = called[i][1];
    for (const char *c = k->choices; *c; c += strspn(c, " "), ++*which) {
        size_t n = strcspn(c, " ");
        const char *word = ll_arena_printf(r->arena, "%.*s", (int)n, c);
        if (!strcmp(word, value)) return word;
        ll_near_try(near, word);
        c += n;
    }
    return NULL;
}

static ll_err read_numbers(const ll_setting *s, const ll_key *k, ll_numbers *out)
{
    ll_numbers list = {0};
    const char *c = s->value;
    size_t size = strlen(c);
    if (!s->is_list && *c == '[' && c[size - 1] == ']') c++, size -= 2;
    char text[256];
    if (size >= sizeof text) return wrong(s, k);
    memcpy(text, c, size);
    text[size] = '\0';
    char *rest = NULL;
    for (char *t = strtok_r(text, ", ", &rest); t; t = strtok_r(NULL, ", ", &rest)) {
        CHECK(list.n < LL_MAX_NUMBERS, LL_E_CONFIG, "%s: %s has more than %d numbers", s->origin,
              k->name, LL_MAX_NUMBERS);
        TRY(read_number(s, k, t, &list.v[list.n++]));
    }
    *out = list;
    return LL_OK;
}

static ll_err read_value(ll_run *r, const ll_key *k, const ll_setting *s)
{
    void *to = (char *)r + k->offset;
    ll_near near = {0};
    if (s->is_list && k->kind != LL_KEY_NUMBERS) return wrong(s, k);
    switch (k->kind) {
    case LL_KEY_INT: return ll_read_int(s, k->min, k->max, (int64_t *)to);
    case LL_KEY_NUMBERS: return read_numbers(s, k, (ll_numbers *)to);
    case LL_KEY_NUMBER: {
        double v;
        TRY(read_number(s, k, s->value, &v));
        *(double *)to = v;
        return LL_OK;
    }
    case LL_KEY_BOOL:
        if (strcmp(s->value, "true") && strcmp(s->value, "false")) return wrong(s, k);
        *(bool *)to = s->value[0] == 't';
        return LL_OK;
    case LL_KEY_TEXT:
        CHECK(is_plain_text(s->value), LL_E_CONFIG,
              "%s: %s has control characters, or bytes that are not UTF-8", s->origin, k->name);
        *(const char **)to = ll_arena_strdup(r->arena, s->value);
        return LL_OK;
    case LL_KEY_ENUM:
    case LL_KEY_CHOICE: {
        int which;
        const char *word = choose(r, k, s->value, &near, &which);
        char value[64];
        if (!word && near.best)
            FAIL(LL_E_CONFIG, "%s: %s is %s; did you mean %s? (one of: %s)", s->origin, k->name,
                 shown(s->value, value), near.best, k->choices);
        if (!word) return wrong(s, k);
        if (k->kind == LL_KEY_ENUM) *(int *)to = which;
        if (k->kind == LL_KEY_CHOICE) *(const char **)to = word;
        return LL_OK;
    }
    }
    return LL_OK;
}

/* ---- assignment ---- */

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* But for case, and what joins words: batch-size, batchSize. */
static bool is_same(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "-_"), b += strspn(b, "-_");
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
        if (!*a) return true;
    }
}

const char *ll_run_key_of(const char *word, ll_arena *arena)
{
    static const struct {
        const char *theirs, *ours;
    } called[] = {{"batch_size", "train.batch"},
                  {"learning_rate", "train.lr"},
                  {"device", "train.machine"},
                  {"dataset", "data.name"},
                  {"max_steps", "train.steps"},
                  {"num_epochs", "train.epochs"},
                  {"wd", "train.weight_decay"},
                  {"dtype", "train.precision"},
                  {"bf16", "train.precision"},
                  {"amp", "train.precision"},
                  {"zero_stage", "parallel.zero"},
                  {"fsdp", "parallel.zero"},
                  {"grad_clip", "train.clip"},
                  {"max_grad_norm", "train.clip"},
                  {"gradient_accumulation_steps", "train.micro_batch"},
                  {"gradient_checkpointing", "parallel.recompute"}};
    for (const ll_key *k = ll_run_keys; k->name; k++)
        if (is_same(last_part(k->name), word)) return k->name;
    for (const ll_model *const *m = ll_model_all(); *m; m++)
        for (const ll_size *x = (*m)->sizes; x->name; x++)
            if (is_same(x->name, word)) return ll_arena_printf(arena, "model.%s", x->name);
    for (size_t i = 0; i < sizeof called / sizeof *called; i++)
        if (is_same(called[i].theirs, word)) return called[i].ours;
    return NULL;
}

static ll_err unknown_key(const ll_run *r, const ll_setting *s)
{
    ll_near near = {.word = s->key}, last = {.word = last_part(s->key)};
    const char *elsewhere = NULL; /* the key whose last word is nearest, of whatever section */
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        const char *before = last.best;
        ll_near_try(&near, k->name);
        ll_near_try(&last, last_part(k->name));
        if (last.best != before) elsewhere = k->name;
    }
    for (const ll_model *const *m = ll_model_all(); *m; m++)
        for (const ll_size *x = (*m)->sizes; x->name; x++) {
            const char *before = last.best;
            ll_near_try(&last, x->name);
            if (last.best != before) elsewhere = ll_arena_printf(r->arena, "model.%s", x->name);
        }
    const char *same = *last.word ? ll_run_key_of(last.word, r->arena) : NULL;
    const char *best = same ? same : near.best ? near.best : elsewhere;
    char key[64];
    FAIL(LL_E_CONFIG, "%s: unknown key %s%s%s%s", s->origin, shown(s->key, key),
         best ? "; did you mean " : "", best ? best : "", best ? "?" : "");
}

static ll_err note_size(ll_run *r, const ll_setting *s)
{
    ll_run_notes *notes = r->notes;
    ll_size_note *note = NULL;
    for (int i = 0; i < notes->n_size && !note; i++)
        if (!strcmp(notes->sizes[i].name, s->key)) note = &notes->sizes[i];
    CHECK(!note || !s->once, LL_E_CONFIG, "%s: %s was already set at %s", s->origin, s->key,
          note->origin);
    CHECK(!s->is_list, LL_E_CONFIG, "%s: %s is a list, expected a whole number", s->origin, s->key);
    if (!note) {
        const int most = sizeof notes->sizes / sizeof *notes->sizes;
        CHECK(notes->n_size < most, LL_E_CONFIG, "%s: too many model sizes (at most %d)", s->origin,
              most);
        note = &notes->sizes[notes->n_size++];
    }
    *note = (ll_size_note){ll_arena_strdup(r->arena, s->key), ll_arena_strdup(r->arena, s->value),
                           ll_arena_strdup(r->arena, s->origin)};
    return LL_OK;
}

/* A pattern that was there moves to the end: of those that match a value the last wins. */
static ll_err note_pattern(ll_run *r, const ll_pattern_section *sec, const ll_setting *s)
{
    const char *pattern = s->key + strlen(sec->name) + 1;
    ll_run_patterns *list = (ll_run_patterns *)((char *)r + sec->offset);
    CHECK(*pattern && is_plain_text(pattern) && is_plain_text(s->value), LL_E_CONFIG,
          "%s: %s needs patterns of names, as in %s", s->origin, sec->name, sec->example);
    for (int i = 0; i < list->n; i++) {
        if (strcmp(list->v[i].pattern, pattern)) continue;
        CHECK(!s->once, LL_E_CONFIG, "%s: %s \"%s\" was already set at %s", s->origin, sec->name,
              pattern, list->v[i].origin);
        memmove(&list->v[i], &list->v[i + 1],
                sizeof *list->v * (size_t)(list->n - i)); /* the end too */
        list->n--;
    }
    LL_PUSH(r->arena, list->v, list->n, list->room,
            (ll_layout_rule){ll_arena_strdup(r->arena, pattern),
                             ll_arena_printf(r->arena, s->is_list ? "[%s]" : "%s", s->value),
                             ll_arena_strdup(r->arena, s->origin)});
    LL_PUSH(r->arena, list->v, list->n, list->room, (ll_layout_rule){0});
    list->n--; /* that was the end */
    return LL_OK;
}

ll_err ll_run_assign(ll_run *r, const ll_setting *s)
{
    for (const ll_pattern_section *sec = ll_run_sections; sec->name; sec++) {
        size_t n = strlen(sec->name);
        if (!strncmp(s->key, sec->name, n) && s->key[n] == '.') return note_pattern(r, sec, s);
    }
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        if (strcmp(k->name, s->key)) continue;
        const char **origin = &r->notes->origin[k - ll_run_keys];
        CHECK(!*origin || !s->once, LL_E_CONFIG, "%s: %s was already set at %s", s->origin, s->key,
              *origin);
        TRY(read_value(r, k, s));
        if (k->offset == offsetof(ll_run, out)) r->out_in_file = s->once;
        *origin = ll_arena_strdup(r->arena, s->origin);
        return LL_OK;
    }
    if (!strncmp(s->key, "model.", 6)) return note_size(r, s);
    return unknown_key(r, s);
}

const char *ll_run_origin(const ll_run *r, const char *key)
{
    for (int i = 0; ll_run_keys[i].name; i++)
        if (!strcmp(ll_run_keys[i].name, key) && r->notes->origin[i]) return r->notes->origin[i];
    return r->file;
}

/* Where the setting whose name is these n letters came from; NULL: there is none, or it was not
 * set. */
static const char *origin_of(const ll_run *r, const char *word, size_t n)
{
    const ll_run_notes *notes = r->notes;
    for (int i = 0; ll_run_keys[i].name; i++)
        if (strlen(ll_run_keys[i].name) == n && !strncmp(ll_run_keys[i].name, word, n))
            return notes->origin[i];
    for (int i = 0; i < notes->n_size; i++)
        if (strlen(notes->sizes[i].name) == n && !strncmp(notes->sizes[i].name, word, n))
            return notes->sizes[i].origin;
    return NULL;
}

const char *ll_run_told(const ll_run *r, const char *keys, const char *message)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";
    const char *text = ll_arena_printf(r->arena, "%s %s", keys, message), *first = NULL;
    for (const char *w = text; *w; w++) {
        size_t n = strspn(w, letters);
        const char *origin = memchr(w, '.', n) ? origin_of(r, w, n) : NULL; /* "out" is a word */
        if (!first) first = origin;
        if (origin && !strncmp(origin, "--set", 5)) {
            first = origin;
            break;
        }
        w += n ? n - 1 : 0;
    }
    return ll_arena_printf(r->arena, "%s: %s", first ? first : r->file, message);
}

ll_run *ll_run_new(const char *file)
{
    ll_arena *arena = ll_arena_new();
    ll_run *r = LL_NEW(arena, ll_run);
    r->arena = arena;
    r->file = ll_arena_strdup(arena, file);
    r->notes = LL_NEW(arena, ll_run_notes);
    r->kernels = ll_kern_notes_in(arena);
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        ll_err e = read_value(r, k, &(ll_setting){k->name, k->initial, false, "default", false});
        LL_ASSERT(e == LL_OK);
    }
    return r;
}

void ll_run_free(ll_run *r)
{
    if (r) ll_arena_free(r->arena);
}

/* ---- files ---- */

/* Is there a key in this section? If not, near has the nearest name of one. */
static bool is_section(void *context, ll_near *near)
{
    const ll_run *run = (const ll_run *)context;
    for (const ll_pattern_section *s = ll_run_sections; s->name; s++)
        if (ll_near_try(near, s->name)) return true;
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        const char *dot = strchr(k->name, '.');
        const char *name =
            ll_arena_printf(run->arena, "%.*s", (int)(dot ? dot - k->name : 0), k->name);
        if (dot && ll_near_try(near, name)) return true;
    }
    return false;
}

static ll_err assign(void *context, const ll_yaml_value *v)
{
    return ll_run_assign((ll_run *)context, &(ll_setting){.key = v->key,
                                                          .value = v->value,
                                                          .is_list = v->is_list,
                                                          .origin = v->origin,
                                                          .once = true});
}

ll_err ll_run_parse(const char *bytes, size_t size, const char *file, ll_run **out)
{
    *out = NULL;
    LL_OWN(ll_run) run = ll_run_new(file);
    ll_yaml y = {run->arena, "run file", "train: {batch: 64}", run, is_section, assign};
    TRY(ll_yaml_read(&y, bytes, size, file));
    return LL_HAND(out, run);
}

/* ---- printing ---- */

static void print_text(ll_buf *b, const char *text)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    if (*text && *text != '-' && strspn(text, safe) == strlen(text)) {
        ll_buf_puts(b, text);
        return;
    }
    ll_buf_puts(b, "\"");
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') ll_buf_puts(b, "\\");
        ll_buf_add(b, c, 1);
    }
    ll_buf_puts(b, "\"");
}

static void print_value(ll_buf *b, const ll_run *r, const ll_key *k)
{
    const void *from = (const char *)r + k->offset;
    char text[LL_NUMBER_TEXT];
    switch (k->kind) {
    case LL_KEY_INT: ll_buf_printf(b, "%ld", *(const int64_t *)from); break;
    case LL_KEY_NUMBER: ll_buf_puts(b, ll_text_number(*(const double *)from, text)); break;
    case LL_KEY_BOOL: ll_buf_puts(b, *(const bool *)from ? "true" : "false"); break;
    case LL_KEY_ENUM: {
        const char *c = k->choices;
        int which = *(const int *)from - !*k->initial;
        for (int i = 0; i < which; i++) c += strcspn(c, " ") + 1;
        if (which < 0)
            print_text(b, "");
        else
            ll_buf_add(b, c, strcspn(c, " "));
        break;
    }
    case LL_KEY_TEXT:
    case LL_KEY_CHOICE: print_text(b, *(const char *const *)from); break;
    case LL_KEY_NUMBERS: {
        const ll_numbers *list = (const ll_numbers *)from;
        ll_buf_puts(b, "[");
        for (int i = 0; i < list->n; i++)
            ll_buf_printf(b, "%s%s", i ? ", " : "", ll_text_number(list->v[i], text));
        ll_buf_puts(b, "]");
    }
    }
}

const char *ll_run_value(const ll_run *r, const char *key, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    for (const ll_key *k = ll_run_keys; k->name; k++)
        if (!strcmp(k->name, key)) print_value(&b, r, k);
    LL_ASSERT(b.text);
    return b.text;
}

char *ll_run_print(const ll_run *r, ll_arena *arena)
{
    LL_ASSERT(r->model.def);
    ll_buf b = {.arena = arena};
    char section[LL_MAX_LINE] = "";
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        const char *last = last_part(k->name);
        size_t n = (size_t)(last - k->name);
        if (n && strncmp(section, k->name, n)) {
            snprintf(section, sizeof section, "%.*s", (int)n, k->name);
            ll_buf_printf(&b, "%.*s:\n", (int)n - 1, k->name);
        }
        ll_buf_printf(&b, "%s%s: ", n ? "  " : "", last);
        print_value(&b, r, k);
        ll_buf_puts(&b, "\n");
        if (strcmp(k->name, "model.file")) continue;
        for (const ll_size *s = r->model.sizes; s->name; s++)
            ll_buf_printf(&b, "  %s: %ld\n", s->name, s->value);
    }
    for (const ll_pattern_section *sec = ll_run_sections; sec->name; sec++) {
        const ll_run_patterns *list = (const ll_run_patterns *)((const char *)r + sec->offset);
        if (list->n) ll_buf_printf(&b, "%s:\n", sec->name);
        for (int i = 0; i < list->n; i++) {
            ll_buf_puts(&b, "  ");
            print_text(&b, list->v[i].pattern);
            ll_buf_puts(&b, ": ");
            print_text(&b, list->v[i].layout);
            ll_buf_puts(&b, "\n");
        }
    }
    return b.text;
}

/* ---- help ---- */

static void add_range(ll_buf *b, const ll_key *k)
{
    enum { NO_LIMIT = 1000 }; /* larger ones say nothing */
    ll_buf_puts(b, k->kind == LL_KEY_INT ? "integer" : "number");
    if (k->max < NO_LIMIT && k->min == LL_ABOVE_0)
        ll_buf_printf(b, " above 0, up to %g", k->max);
    else if (k->max < NO_LIMIT)
        ll_buf_printf(b, " from %g to %.9g", k->min, k->max);
    else
        ll_buf_printf(b, k->min == LL_ABOVE_0 ? " > 0" : " >= %g", k->min);
}

/* "peak learning rate [number > 0; default 0.001]" */
static const char *help_of(const ll_key *k, ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    bool usual = *k->initial && strcmp(k->initial, "[]");
    ll_buf_puts(&b, k->help);
    if (k->kind == LL_KEY_TEXT && !usual) return b.text;
    ll_buf_puts(&b, " [");
    switch (k->kind) {
    case LL_KEY_INT:
    case LL_KEY_NUMBER: add_range(&b, k); break;
    case LL_KEY_BOOL: ll_buf_puts(&b, "true or false"); break;
    case LL_KEY_TEXT: break;
    case LL_KEY_ENUM:
    case LL_KEY_CHOICE: ll_buf_printf(&b, "one of: %s", k->choices); break;
    case LL_KEY_NUMBERS: ll_buf_puts(&b, "list of numbers"); break;
    }
    if (usual) ll_buf_printf(&b, "%sdefault %s", k->kind == LL_KEY_TEXT ? "" : "; ", k->initial);
    ll_buf_puts(&b, "]");
    return b.text;
}

char *ll_run_help(const char *word, int width, ll_arena *arena)
{
    enum { COLUMN = 26 };
    ll_buf b = {.arena = arena};
    const ll_key_heading *heading = ll_run_headings, *open = NULL, *told = NULL;
    for (const ll_key *k = ll_run_keys; k->name; k++) {
        if (heading->first && !strcmp(heading->first, k->name)) open = heading++;
        if (!strcasestr(k->name, word)) continue;
        if (told != open) ll_buf_printf(&b, "%s%s:\n", told ? "\n" : "", open->text);
        told = open;
        ll_buf_row(&b, k->name, COLUMN, width, help_of(k, arena));
    }
    const char *before = told ? "\nBy patterns of names:\n" : "By patterns of names:\n";
    for (const ll_pattern_section *sec = ll_run_sections; sec->name; sec++) {
        if (!strcasestr(sec->name, word)) continue;
        ll_buf_puts(&b, before);
        before = "";
        ll_buf_row(&b, ll_arena_printf(arena, "%s.PATTERN", sec->name), COLUMN, width, sec->help);
    }
    return b.text;
}

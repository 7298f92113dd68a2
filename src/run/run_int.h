/* run_int.h: what the files that make a run share: the table of keys, and one way in for values. */
#pragma once
#include "run/run.h"

#include <float.h>

typedef enum ll_key_kind {
    LL_KEY_INT,     /* int64_t */
    LL_KEY_NUMBER,  /* double */
    LL_KEY_BOOL,    /* bool */
    LL_KEY_ENUM,    /* an enum: which of choices */
    LL_KEY_TEXT,    /* const char *, never NULL */
    LL_KEY_CHOICE,  /* const char *, one of choices */
    LL_KEY_NUMBERS, /* ll_numbers */
} ll_key_kind;

typedef struct ll_key {
    const char *name; /* "train.batch"; NULL ends the table */
    ll_key_kind kind;
    size_t offset;       /* in ll_run */
    const char *initial; /* the default, as one would write it */
    const char *help;
    double min, max;     /* INT, NUMBER, NUMBERS */
    const char *choices; /* CHOICE, ENUM: words; "" is a choice where it is the default */
} ll_key;
extern const ll_key ll_run_keys[];
#define LL_ABOVE_0 FLT_MIN /* as a minimum: more than 0 */
#define LL_MANY 1e15       /* as a maximum: whole numbers are exact up to here */

/* Headings of the help: each stands before the row of this key. */
typedef struct ll_key_heading {
    const char *first, *text;
} ll_key_heading;
extern const ll_key_heading ll_run_headings[]; /* ends with first NULL */

/* The sections of patterns, by name; ends with NULL. */
typedef struct ll_pattern_section {
    const char *name;
    size_t offset; /* of its ll_run_patterns in ll_run */
    const char *example, *help;
} ll_pattern_section;
extern const ll_pattern_section ll_run_sections[];

enum { LL_MAX_KEYS = 144, LL_MAX_LINE = 200 };

/* A model's size: which there are is known once the model is. */
typedef struct ll_size_note {
    const char *name, *value, *origin;
} ll_size_note;

typedef struct ll_run_notes {
    const char *origin[LL_MAX_KEYS]; /* by row of the table: "x.yaml:4", "--set a.b=c"; or NULL */
    ll_size_note sizes[LL_MAX_SIZES * 2];
    int n_size;
} ll_run_notes;

/* An empty run with every default. */
ll_run *ll_run_new(const char *file);
/* Sets key (dotted) from text as one would write it. once: a second setting of it is an error. */
typedef struct ll_setting {
    const char *key, *value;
    bool is_list; /* value is the items of a list, with commas between */
    const char *origin;
    bool once;
} ll_setting;
ll_err ll_run_assign(ll_run *r, const ll_setting *s);
/* Where a key came from, for messages: its origin, or the file. */
const char *ll_run_origin(const ll_run *r, const char *key);
/* A key's value, as a run file would have it. */
const char *ll_run_value(const ll_run *r, const char *key, ll_arena *arena);
/* Settings that another must ask for (run_needs.c). */
ll_err ll_run_check_needs(const ll_run *r);
/* Once --set has replaced what asked for them, a file's are as if it had not set them. */
ll_err ll_run_drop_idle(ll_run *r, const char *replaced);
/* CHECK of settings: the message begins with where it came from that they are so, of keys (words),
 * and those that it names: the first that --set has set; else where the first of them is from. */
#define LL_WANT(r, keys, cond, format, ...)                                                        \
    CHECK(cond, LL_E_CONFIG, "%s",                                                                 \
          ll_run_told(r, keys, ll_arena_printf((r)->arena, format __VA_OPT__(, ) __VA_ARGS__)))
const char *ll_run_told(const ll_run *r, const char *keys, const char *message);
/* A whole number in [min, max]. */
ll_err ll_read_int(const ll_setting *s, double min, double max, int64_t *out);

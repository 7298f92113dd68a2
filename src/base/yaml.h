/* yaml.h: settings from YAML files that people write. Only the plain part of YAML is taken: one
 * document, sections of keys, values that are scalars or lists of scalars. No anchors, aliases or
 * tags. Whatever the bytes are, memory and time stay in proportion to their number, which is
 * limited. */
#pragma once
#include "base/arena.h"
#include "base/near.h"

typedef struct ll_yaml_value {
    const char *key, *value; /* "train.batch"; of a list, its items with commas between */
    const char *origin;      /* "x.yaml:4" */
    bool is_list;
} ll_yaml_value;

typedef struct ll_yaml {
    ll_arena *arena;
    const char *what, *example; /* for messages: "run file"; a section of one */
    void *context;
    /* If it is none, near has the nearest name of one. */
    bool (*is_section)(void *context, ll_near *near);
    ll_err (*assign)(void *context, const ll_yaml_value *v);
} ll_yaml;

/* file: for messages. Keys of sections are given as "section.key". */
ll_err ll_yaml_read(const ll_yaml *y, const char *bytes, size_t size, const char *file);

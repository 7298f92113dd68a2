/* bench.h: loopline bench comm, scale and consistency. */
#pragma once
#include "cli/args.h"
#include "comm/codec.h"
#include "train/bench.h"
#include "train/scale.h"
#include "tune/tune.h"

#include <jansson.h>

extern const ll_command ll_bench_comm_command, ll_bench_scale_command, ll_bench_consistency_command;

/* ---- bench comm ---- */
typedef struct ll_comm_bench_opts {
    const char *op, *sizes, *algorithms, *segment, *dtype, *svg, *table;
    ll_words codecs;
    int64_t ranks;
    double seconds;
    bool canonical, shared, fresh, json;
} ll_comm_bench_opts;

/* A way to do it, timed. */
typedef struct ll_comm_bench_row {
    const ll_algo *algo; /* NULL: a codec */
    const char *name;
    ll_codec *codec;
    size_t segment_bytes;
    bool chosen;                         /* by the tuner */
    double median_s, min_s, predicted_s; /* predicted_s: 0 where there is no telling */
    double wire;                         /* bytes that the busiest rank sent; < 0: not known */
    double error;                        /* of a codec, relative */
    int n_run;
} ll_comm_bench_row;

/* A size, and all ways. */
typedef struct ll_comm_bench_point {
    size_t bytes;
    ll_comm_bench_row *rows;
    int n_row, n_run;
    ll_cost bound;
    double bound_s;
    const char *why; /* the tuner's words */
} ll_comm_bench_point;

typedef struct ll_comm_bench_report {
    const ll_comm_bench_opts *opts;
    ll_coll coll;
    ll_dtype dtype;
    int ranks, nodes;
    size_t segment_bytes; /* as asked for; 0: was not */
    const ll_tuned_table *tuner;
    ll_comm_bench_point *points;
    int n_point;
} ll_comm_bench_report;

ll_err ll_comm_bench_measure(ll_comm *c, ll_arena *a, ll_comm_bench_report *r); /* collective */
void ll_comm_bench_print(const ll_comm_bench_report *r);
ll_err ll_comm_bench_json(const ll_comm_bench_report *r);
ll_err ll_comm_bench_svg(const ll_comm_bench_report *r, const char *path);

/* ---- bench scale ---- */
typedef struct ll_scale_bench_opts {
    const char *run, *ranks, *mesh, *trace;
    ll_words set;
    int64_t one, threads, steps, warm_up, repeats;
    bool weak, strong, json;
} ll_scale_bench_opts;

/* So many ranks of so many threads, measured several times. */
typedef struct ll_scale_row {
    int ranks, threads, cores; /* cores: at most as many as there are */
    bool crowded;              /* more threads than cores */
    int64_t batch;
    const char *mesh;
    ll_scale_point point;   /* the last repeat's, with the means of all; times: all, sorted */
    double least_s, most_s; /* medians of the repeats */
    double step_s, q1_s, q3_s, mean_s;
} ll_scale_row;

typedef struct ll_scale_bench_report {
    const ll_scale_bench_opts *opts;
    const ll_run *run;
    ll_arena *arena;
    ll_scale_row *rows;
    int n_row, cores;
    double load; /* processes that wanted to run in the minute before; < 0: not known */
} ll_scale_bench_report;

void ll_scale_bench_print(const ll_scale_bench_report *r);
ll_err ll_scale_bench_json(const ll_scale_bench_report *r);
json_t *ll_scale_point_json(const ll_scale_point *p);
ll_err ll_scale_point_parse(const char *text, size_t bytes, ll_arena *a, ll_scale_point *p);

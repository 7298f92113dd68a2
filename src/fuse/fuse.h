/* fuse.h: fusions: nodes that a machine is quicker at as one. A file src/fuse/x.c is one fusion:
 * what it looks for, what it puts there, the op that it makes and that op's kernels. The build
 * finds the files; ll_fuse applies all that are for a machine and a precision, in the order of
 * their stages.
 *
 * A row of a fusion is a pattern and its replacement, lines of graph text (ir/text.c) in which
 * values are words and attributes may be holes:
 *
 *     pattern    s = add(a, b)
 *                y, mean, rstd = layernorm(s, gain, bias) {eps=$eps}
 *     replace    s, y, mean, rstd = add_layernorm(a, b, gain, bias) {eps=$eps}
 *
 * 1. A word is one value and a hole one attribute wherever they stand. Attributes that are not
 * given may be anything. A number as an operand is a constant. Sums and products of elements are
 * taken either way round. '*' in a spec is any number of dimensions: "*c->c".
 * 2. Lines hang together by their words. Nodes of the pattern go, but those of
 *    lines that begin with '+'. What anybody else reads of them the replacement must make.
 * 3. A line of the replacement stands where the first of the nodes stood whose results it makes, or
 *    where a line that reads it stands, if that is earlier. All that it reads must be made by then;
 *    constants are made anew. A cast to the type that a value has is no node.
 * 4. Rows are tried in turn at every node that may be the first line, and all again until nothing
 * is found. A row that almost fits says why not (`inspect --program` shows it).
 * 5. The pattern is what the new op means: an op that is all of a replacement, and has neither a
 *    reference kernel nor an expansion of its own, runs as the pattern where it is looked at
 *    closely (ll_expand_fused; machine ref). */
#pragma once
#include "base/text.h"
#include "pass/target.h"

enum { LL_IN_16 = 1 << LL_PRECISION_bf16 | 1 << LL_PRECISION_fp8 | 1 << LL_PRECISION_fp8block };

typedef enum ll_fuse_stage {                 /* in this order */
                             LL_FUSE_SHAPES, /* tensors of other shapes are quicker */
                             LL_FUSE_PRODUCTS,
                             LL_FUSE_BACKWARD,
                             LL_FUSE_FORWARD,
                             LL_FUSE_FP8,
                             LL_FUSE_LATE, /* of what stages before have made */
                             LL_FUSE_CHAINS
} ll_fuse_stage;

typedef struct ll_match ll_match;

typedef struct ll_fusion_row {
    const char *pattern, *replace;
    const char *same;           /* words of values that must be of one type */
    bool (*guard)(ll_match *m); /* whatever else must hold: else ll_match_no; may bind more */
    /* Types of the values that the pattern reads, and what its holes are: "x: f32[2,3]
     * $spec="ab->a"". NULL: the trials of the op that it makes. tests/fuse takes the pattern as the
     * oracle. */
    const char *trials[4];
} ll_fusion_row;

typedef struct ll_fusion {
    const char *name;
    ll_fuse_stage stage;
    const ll_target *target;
    unsigned precisions;       /* bits; 0: all */
    int level;                 /* compute capability that its kernel is for; 0: any */
    const ll_fusion_row *rows; /* ended by {0} */
    /* Or, where it is more than patterns: all of a graph, simplified then. fired: how often. */
    ll_err (*rewrite)(const ll_graph *g, int *fired, ll_graph **out);
    const char *trials[4]; /* of rewrite: graphs, as lines of text */
    bool always;           /* also where every node is to be an instruction */
} ll_fusion;

/* All of them in order; ends with NULL. */
const ll_fusion *const *ll_fusions(void);
/* Puts another graph in *g's place. level: the GPU's; 0: none is here, all are taken. log gets a
 * line for each that fired or almost did; NULL: none. */
ll_err ll_fuse(ll_graph **g, const ll_target *t, ll_precision p, int level, bool always_only,
               ll_buf *log);
/* One fusion. fired may be NULL. *out NULL: nothing was found. */
ll_err ll_fuse_one(const ll_fusion *f, const ll_graph *g, ll_buf *log, int *fired, ll_graph **out);
/* Nodes without a reference kernel become what they mean, in f64. */
ll_err ll_expand_fused(const ll_graph *g, ll_graph **out);
/* Those of f64 tensors alone, unless fast kernels take f64 too. */
ll_err ll_expand_f64(const ll_graph *g, ll_graph **out);

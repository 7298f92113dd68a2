/* gpu.h: a GPU's memory, its streams, and captured graphs. */
#pragma once
#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_gpu ll_gpu;
typedef struct ll_gpu_graph ll_gpu_graph;

typedef struct ll_gpu_facts {
    char name[128];
    unsigned char id[16]; /* no two GPUs have the same */
    int index;
    size_t bytes, free_bytes; /* of its memory */
    int processors, major, minor;
} ll_gpu_facts;

int ll_gpu_count(void);
ll_err ll_gpu_bus(int index, char *out, int room); /* "0000:17:00.0" */
/* Streams on GPU number `index`. */
ll_err ll_gpu_open(int index, ll_gpu **out);
void ll_gpu_close(ll_gpu *g);
ll_err ll_gpu_ask(const ll_gpu *g, ll_gpu_facts *out);

ll_err ll_gpu_alloc(ll_gpu *g, size_t bytes, void **out);
void ll_gpu_free(ll_gpu *g, void *p);
/* Host memory that copies to and from the GPU run past the processor. */
ll_err ll_gpu_pinned(size_t bytes, void **out);
void ll_gpu_unpin(void *p);

/* Queued; pageable host memory of write may be reused at once, of read after ll_gpu_wait. */
ll_err ll_gpu_write(ll_gpu *g, void *to, const void *from, size_t bytes);
ll_err ll_gpu_read(ll_gpu *g, void *to, const void *from, size_t bytes);
ll_err ll_gpu_fill(ll_gpu *g, void *to, int byte, size_t bytes);
/* Numbers of a stream, as base/rng.h draws them: each has that of its place in the whole. */
typedef struct ll_gpu_drawing {
    uint64_t seed, stream;
    bool normal; /* else uniform in (-1, 1) */
    bool f64;    /* else f32 */
    double scale;
    ll_shape shape, whole;
    int64_t at[LL_MAX_DIMS];
} ll_gpu_drawing;
ll_err ll_gpu_draw(ll_gpu *g, void *to, const ll_gpu_drawing *d);
ll_err ll_gpu_wait(ll_gpu *g); /* for all that is queued; tells what failed in it */

/* Several pieces of memory written by one kernel: from elsewhere on the GPU, to or from pinned
 * memory, or (from NULL) a value of up to 8 bytes. */
enum { LL_GPU_PIECES = 16 };
typedef struct ll_gpu_piece {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t value;
} ll_gpu_piece;
ll_err ll_gpu_pieces(ll_gpu *g, const ll_gpu_piece *pieces, int n);

enum { LL_GPU_CHANNELS = 24 }; /* at most, of messages from GPU to GPU: a stream each */

/* All of the above is in the stream that computes; beside it are those of kernels that run at the
 * same time, of uploads, of collectives, of what is laid aside and comes back, and of messages. */
typedef enum ll_stream_id {
    LL_STREAM_COMPUTE,
    LL_STREAM_AUX,
    LL_STREAM_AUX_2,
    LL_STREAM_UPLOAD,
    LL_STREAM_COMM,
    LL_STREAM_STORE,
    LL_STREAM_LOAD,
    LL_STREAM_CHANNEL, /* and behind it: of messages, each made when it is first asked for */
    LL_STREAMS = LL_STREAM_CHANNEL + LL_GPU_CHANNELS
} ll_stream_id;
void *ll_gpu_stream(ll_gpu *g, ll_stream_id s); /* NULL: cannot be had */
/* To pinned memory, or from it. */
ll_err ll_gpu_copy(ll_gpu *g, ll_stream_id s, void *to, const void *from, size_t bytes);
/* What is queued in `later` from now on waits for what is in `earlier` now. */
ll_err ll_gpu_after(ll_gpu *g, ll_stream_id later, ll_stream_id earlier);
ll_err ll_gpu_wait_for(ll_gpu *g, ll_stream_id s);
/* The same in two parts: event i stands for what is in a stream now; a stream waits for it. */
ll_err ll_gpu_record(ll_gpu *g, ll_stream_id s, int i);
ll_err ll_gpu_await(ll_gpu *g, ll_stream_id s, int i);
/* Without waiting: whether all that is in a stream is over, and what event i stands for. */
ll_err ll_gpu_ready(ll_gpu *g, ll_stream_id s, bool *out);
ll_err ll_gpu_passed(ll_gpu *g, int i, bool *out);
/* Rows of bytes, each so far behind the one before. */
typedef struct ll_gpu_rows {
    void *to;
    const void *from;
    size_t to_stride, from_stride, row;
    int64_t n;
} ll_gpu_rows;
ll_err ll_gpu_copy_rows(ll_gpu *g, ll_stream_id s, const ll_gpu_rows *r);

/* dst = src[0] op src[1] op ... of n elements, in that stream: to the bits of comm/'s ll_fold. */
ll_err ll_gpu_fold(ll_gpu *g, ll_stream_id s, void *dst, const void *const *src, int n_src,
                   int64_t n, ll_dtype t, ll_reduce op);

/* What is queued between the two is captured, not run; in other streams than the one that computes
 * too, where they wait for something captured, and that one then waits for them. */
ll_err ll_gpu_capture(ll_gpu *g);
ll_err ll_gpu_captured(ll_gpu *g, ll_gpu_graph **out);
ll_err ll_gpu_replay(ll_gpu *g, ll_gpu_graph *w);
void ll_gpu_drop(ll_gpu_graph *w);

/* Timing events in the stream that computes, in captured work too, and the seconds between two of
 * them once both are over. */
ll_err ll_gpu_mark(ll_gpu *g, int i);
ll_err ll_gpu_seconds(ll_gpu *g, int from, int to, double *out);

/* FLOP/s that the maker states for dense products; 0: not known here. */
double ll_gpu_peak(const char *name, ll_precision p);

#ifdef __cplusplus
}
#endif

/* conv2d_int.h: what the files of the CPU convolutions share: one convolution's sizes, vectors, and
 * the entry points of the algorithms (each file's top says how it works).
 *
 * Letters: n images of h x w x c; f filters of r x s x cg; n outputs of oh x ow x f; cg and fg are
 * channels and filters of one group. */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ll_conv_direction { LL_CONV, LL_CONV_DX, LL_CONV_DW } ll_conv_direction;

typedef struct ll_conv_shape {
    ll_conv_attr a;
    int64_t n, h, w, c, f, r, s, oh, ow, groups, cg, fg;
    bool bf16; /* operands; results are f32 */
    int threads;
} ll_conv_shape;

ll_conv_shape ll_conv_shape_of(ll_conv_direction d, const ll_kcall *c);
/* The algorithm that runs a call: "direct", "gather" or "outer". */
const char *ll_conv_algorithm(ll_conv_direction d, const ll_kcall *c);

/* Each pair: bytes of scratch, and the kernel. src is the image read (x or dy). */
size_t ll_conv_gather_scratch(const ll_conv_shape *v, ll_conv_direction d);
void ll_conv_gather(const ll_conv_shape *v, ll_conv_direction d, const void *src,
                    const void *filter, float *out, void *scratch);
size_t ll_conv_outer_scratch(const ll_conv_shape *v);
void ll_conv_outer(const ll_conv_shape *v, const void *dy, const void *x, float *dw, void *scratch);
bool ll_conv_direct_fits(const ll_conv_shape *v, ll_conv_direction d);
size_t ll_conv_direct_scratch(const ll_conv_shape *v, ll_conv_direction d);
void ll_conv_direct(const ll_conv_shape *v, const float *x, const float *filter, float *y,
                    void *scratch);
void ll_conv_direct_dw(const ll_conv_shape *v, const float *dy, const float *x, float *dw,
                       void *scratch);

/* Loops over the vectors of a tile must vanish, or the compiler keeps them in memory. gcc must not
 * reorder before it allocates registers (see CMakeLists.txt). */
#define LL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define LL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LL_UNROLL _Pragma("GCC unroll 32")
#endif

/* Vectors of the widest kind the machine has. */
#if defined(__AVX512F__)
enum { LL_LANES = 16 };
#elif defined(__AVX__)
enum { LL_LANES = 8 };
#else
enum { LL_LANES = 4 };
#endif
typedef float ll_vf __attribute__((vector_size(LL_LANES * sizeof(float))));

static inline ll_vf ll_vload(const float *p)
{
    ll_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void ll_vstore(float *p, ll_vf v)
{
    memcpy(p, &v, sizeof v);
}
/* Element i of an operand of either type. */
static inline float ll_conv_at(const void *x, bool bf16, int64_t i)
{
    return bf16 ? ll_bf16_to_f32(((const uint16_t *)x)[i]) : ((const float *)x)[i];
}
static inline size_t ll_round64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

#ifdef __cplusplus
}
#endif

/* conv2d_int.h: what the files of the CPU convolutions share: one convolution's sizes, vectors, and
 * the entry points of the algorithms (each file's top says how it works).
 *
 * Letters: n images of h x w x c; f filters of r x s x cg; n outputs of oh x ow x f; cg and fg are
 * channels and filters of one group. */
#pragma once
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/real.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ll_conv_direction { LL_CONV, LL_CONV_DX, LL_CONV_DW } ll_conv_direction;

typedef struct ll_conv_shape {
    ll_conv_attr a;
    int64_t n, h, w, c, f, r, s, oh, ow, groups, cg, fg;
    bool bf16; /* operands; results are f32 */
    bool f64;  /* all */
    int threads;
} ll_conv_shape;

ll_conv_shape ll_conv_shape_of(ll_conv_direction d, const ll_kcall *c);
/* The algorithm that runs a call: "direct", "gather" or "outer". */
const char *ll_conv_algorithm(ll_conv_direction d, const ll_kcall *c);

/* Each algorithm in f32 (gather and outer: bf16 too) and in f64: bytes of scratch, and the kernel.
 * src is the image read (x or dy). */
typedef size_t ll_conv_room(const ll_conv_shape *v, ll_conv_direction d);
typedef void ll_conv_image(const ll_conv_shape *v, ll_conv_direction d, const void *src,
                           const void *filter, void *out, void *scratch);
typedef void ll_conv_filter(const ll_conv_shape *v, const void *dy, const void *x, void *dw,
                            void *scratch);
ll_conv_room ll_conv_gather_scratch_f32, ll_conv_gather_scratch_f64;
ll_conv_room ll_conv_outer_scratch_f32, ll_conv_outer_scratch_f64;
ll_conv_room ll_conv_direct_scratch_f32, ll_conv_direct_scratch_f64;
ll_conv_image ll_conv_gather_f32, ll_conv_gather_f64, ll_conv_direct_f32, ll_conv_direct_f64;
ll_conv_filter ll_conv_outer_f32, ll_conv_outer_f64, ll_conv_direct_dw_f32, ll_conv_direct_dw_f64;

/* Loops over the vectors of a tile must vanish, or the compiler keeps them in memory. gcc must not
 * reorder before it allocates registers (see CMakeLists.txt). */
#define LL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define LL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LL_UNROLL _Pragma("GCC unroll 32")
#endif

/* Vectors of the widest kind the machine has, of f32 or f64 (real.h). */
#if defined(__AVX512F__)
enum { LL_VECTOR = 64 };
#elif defined(__AVX__)
enum { LL_VECTOR = 32 };
#else
enum { LL_VECTOR = 16 };
#endif
enum { LL_LANES = LL_VECTOR / sizeof(ll_real) };
typedef ll_real ll_vf __attribute__((vector_size(LL_VECTOR)));

static inline ll_vf ll_vload(const ll_real *p)
{
    ll_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void ll_vstore(ll_real *p, ll_vf v)
{
    memcpy(p, &v, sizeof v);
}
/* Element i of an operand, which may be bf16. */
static inline ll_real ll_conv_at(const void *x, bool bf16, int64_t i)
{
    return bf16 ? ll_bf16_to_f32(((const uint16_t *)x)[i]) : ((const ll_real *)x)[i];
}

#ifdef __cplusplus
}
#endif

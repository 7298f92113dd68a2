/* load.h: libraries that are opened when they are first needed, not when the program starts: those
 * of GPUs are large. The file that calls one has a table of the calls:
 *
 *     #define CALLS(_) _(ncclSend) _(ncclRecv)
 *     static struct { CALLS(LL_CALL) } nccl;
 *     static const ll_library library = {"libnccl.so.2", "NCCL 2", (void **)&nccl,
 *                                        {CALLS(LL_CALL_NAME)}};
 *
 *     TRY(ll_load_library(&library));
 *     nccl.ncclSend(...);
 */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LL_CALL(f) decltype(&::f) f;
#define LL_CALL_NAME(f) #f,
#define LL_MAJOR_(n) #n
#define LL_MAJOR(n) LL_MAJOR_(n) /* a header's number as text, for the file's name */

typedef struct ll_library {
    const char *file;      /* with the major version that it was compiled for */
    const char *what;      /* what to install */
    void **calls;          /* set in the order of names; the first one last: NULL, not loaded */
    const char *names[32]; /* ends with NULL */
} ll_library;

/* Nothing happens where it is loaded already. It stays as long as the process does. */
ll_err ll_load_library(const ll_library *l);

#ifdef __cplusplus
}
#endif

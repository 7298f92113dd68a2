/* machine.h: a machine is one constant: what programs are compiled for (ll_target), and how they
 * run: its memory, how batch data gets there and results come back, how it runs a section, how
 * ranks talk on it. exec/ binds a program to memory and runs it through this; it never asks which
 * machine it is. Columns that a machine has no need of are NULL.
 *
 *     ref.c, cpu.c   kernels work in this process's memory (host.h)
 *     cuda.c         one GPU: launches, captured graphs, streams beside each other (dev/)
 *
 * A new machine is one more file here and one line in machine.c. */
#pragma once
#include "base/num.h"
#include "base/trace.h"
#include "machine/aside.h"
#include "machine/devices.h"
#include "pass/partition.h"
#include "team/transfer.h"

typedef struct ll_machine ll_machine;
typedef struct ll_link ll_link;
typedef struct ll_exec ll_exec;

typedef struct ll_exec_opts {
    const ll_machine *machine; /* NULL: that of the program's target */
    uint64_t seed;
    bool undrawn;         /* random numbers are drawn when ll_exec_draw is called */
    const char *compress; /* a codec (comm/codec.h) for instructions that want one; NULL: none */
    ll_team *team;        /* for programs with collectives; must outlive the exec */
    ll_exec *share; /* parameters and state of equal names live there; it must outlive this one */
    bool reuse;     /* with share: works in its memory too, where it fits; its results are lost */
    const char *offload; /* where values are laid aside: a folder, or host; NULL: nothing may be */
    bool poison;         /* fills the work memory with NaN before each step, for tests */
    int device;          /* this rank's, of machines that have several */
    const ll_link *link; /* how ranks talk; NULL: the machine's first */
} ll_exec_opts;

typedef struct ll_bound { /* an instruction with its operands' addresses */
    ll_kcall call;
    const ll_instr *instr;
    ll_transfer *transfer; /* of a collective's start */
    uint64_t copy;         /* of a store or load: the one under way; 0: none, of devices */
    bool in_flight;        /* of a start: not awaited yet */
    bool moves;            /* an operand is another address in each micro-batch */
    bool late;             /* a result that another stage tells: may come in the next step */
} ll_bound;

typedef struct ll_moving { /* an operand that is another address in each micro-batch */
    ll_tensor *tensor;
    char *first;
    size_t stride;
} ll_moving;

typedef struct ll_acting { /* of a pipeline's program that is traced (exec/acting.h) */
    int now;               /* the action under way, from 1 on; 0: none yet */
    double free;           /* since then: the end of the one before it */
    double from, to;       /* its first kernel's start, its last instruction's end */
    double waited, wait;   /* s within it; and since */
} ll_acting;

struct ll_exec { /* a program bound to a machine's memory */
    const ll_machine *machine;
    const ll_link *link;
    const ll_program *p;
    ll_exec_opts opts;
    ll_arena *arena;
    char *slab;
    bool borrowed;      /* the slab is another's */
    ll_aside *aside;    /* NULL: nothing is laid aside */
    size_t input_bytes; /* of the inputs that lie here */
    void **address;     /* slot -> micro-batch 0 */
    ll_bound *instrs;
    ll_moving *moving;
    int n_moving;
    double *seconds;
    bool profiling;
    ll_trace *trace; /* NULL: nothing is traced */
    ll_acting acting;
    ll_comm *comm;       /* of the team; NULL: alone */
    const ll_instr *bad; /* found by a look at every result: the first that is not finite */
    int n_in_flight;     /* collectives through comm/ */
    int head;            /* of a pipeline: instructions before the first backward pass */
    bool no_kernels;     /* they are left out: what others wait for is sent, whatever it holds */
    double waited;       /* seconds, in waits */
    const ll_memory *memory; /* of collectives through comm/; NULL: this process's */
    char *room;              /* scratch of those under way */
    size_t room_bytes;
    int n_launch;       /* in a step of one micro-batch */
    size_t extra_bytes; /* of the machine's memory, besides the slab */
    int64_t saturated;  /* in the last step: numbers too large for 8-bit floats; -1: has none */
    bool joined;        /* the link is open */
    bool unsettled;     /* messages may still come to its memory, which then stays */
    void *own;          /* what the machine keeps */
};

/* How ranks talk on a machine. */
struct ll_link {
    const char *name;           /* as in parallel.transport */
    ll_err (*open)(ll_exec *e); /* collective; operands have their addresses */
    void (*close)(ll_exec *e);
    ll_err (*start)(ll_exec *e, ll_bound *start);
    ll_err (*wait)(ll_exec *e, ll_bound *start); /* nothing where it is not under way */
};

typedef bool ll_may_run(const ll_program *p, const ll_instr *x);

struct ll_machine {
    const ll_target *target;
    const char *device; /* what kernels run on: "GPU"; NULL: this process's threads */
    size_t align;       /* of each micro-batch of batch data; 0: they lie one after another */
    bool overlaps;      /* a step may begin before the last is over, and be taken back */
    const char *notes[LL_N_PRECISION]; /* how a precision computes, for people */
    const ll_link *const *links;       /* the first: through comm/ */
    /* ---- devices: all NULL where there are none ---- */
    /* Collective where there are several ranks (c NULL: one): which device each takes, and how they
     * talk. This rank's is then the one that is compiled for. */
    ll_err (*place)(ll_comm *c, const ll_device_ask *ask, ll_arena *arena, ll_devices *out);
    ll_err (*ask)(int device, ll_precision precision, ll_device_facts *out);
    /* What kernels keep from call to call on a device; the session's that compiles with it. */
    ll_err (*open_context)(int device, ll_context **out);
    void (*close_context)(ll_context *x);
    int (*level)(const ll_context *x); /* what its kernels are for (ll_lower_opts) */
    /* ---- life: open, map, then bind, when operands have their addresses ---- */
    ll_err (*open)(ll_exec *e);
    ll_err (*map)(ll_exec *e, size_t bytes, char **out); /* refuses what does not fit */
    /* Where what is laid aside lies, as memory; NULL: it has no such place. */
    ll_err (*map_aside)(ll_exec *e, size_t bytes, char **out);
    ll_err (*init)(ll_exec *e, int slot); /* a parameter's or state's first value */
    ll_err (*bind)(ll_exec *e);
    void (*close)(ll_exec *e, size_t bytes); /* bytes: of the slab, if it is its own */
    /* ---- data: exec.h says what each is for ---- */
    void *(*view)(const ll_exec *e, int slot);
    ll_err (*changed)(const ll_exec *e, int slot);
    ll_err (*put)(const ll_exec *e, int slot, int micro, const void *data);
    ll_err (*read)(const ll_exec *e, int slot, void *to);
    /* ---- a step ---- */
    ll_err (*begin)(ll_exec *e, uint64_t step); /* before the first section: what is new is taken */
    /* A section of one micro-batch; NULL: instruction by instruction. */
    ll_err (*run)(ll_exec *e, int section, int micro, uint64_t step);
    /* Runs `lead`, which runs instructions whose kernels work in parts (ll_solver), with threads
     * that stay together. NULL: each kernel calls its own. */
    void (*together)(int threads, void (*lead)(void *), void *given);
    /* Kernels of a section that may run, as run has them, so many times; seconds of one. Set where
     * run is not instruction by instruction. */
    ll_err (*rehearse)(ll_exec *e, int section, ll_may_run *may, int times, double *seconds);
    ll_err (*copy)(ll_exec *e, ll_bound *b);      /* begins a store or load */
    ll_err (*copy_wait)(ll_exec *e, ll_bound *b); /* until that is made */
    ll_err (*sync)(ll_exec *e);                   /* kernels run so far are over */
    ll_err (*end)(ll_exec *e);  /* after the sections that results need: these are sent for */
    ll_err (*wait)(ll_exec *e); /* until they are here; tells what was wrong with the data */
};

/* Of those that are built; fails with what to install, or what there is. NULL: the first. */
ll_err ll_machine_find(const char *name, const ll_machine **out);
const ll_machine *ll_machine_of(const ll_target *t); /* NULL: not built */

/* ---- for machines ---- */
/* Of all micro-batches. */
static inline size_t ll_exec_slot_bytes(const ll_exec *e, int slot)
{
    const ll_slot *s = &e->p->slots[slot];
    return s->bytes * (s->kind == LL_BATCH ? (size_t)e->p->n_micro : 1);
}
/* From one micro-batch to the next. */
static inline size_t ll_exec_stride(const ll_exec *e, size_t bytes)
{
    size_t a = e->machine->align ? e->machine->align : 1;
    return ll_round_up(bytes, a);
}
/* Of a pipeline's instruction: where in operand k, if that is batch data, its micro-batch is. */
static inline size_t ll_exec_micro_at(const ll_exec *e, const ll_instr *x, int k)
{
    const ll_slot *s = &e->p->slots[x->in[k]];
    bool batch = e->p->unrolled && s->input && e->p->slots[s->input].kind == LL_BATCH;
    return batch ? (size_t)x->micro * ll_exec_stride(e, s->bytes) : 0;
}
/* Fills data with an initial value: element i is a function of (seed, name, i) alone; of a piece, i
 * counts in its whole. */
void ll_init_fill(const ll_init *init, const char *name, uint64_t seed, const ll_type *type,
                  const ll_piece *piece, int threads, void *data);
uint64_t ll_init_stream(const char *name); /* of what is not packed in blocks */
